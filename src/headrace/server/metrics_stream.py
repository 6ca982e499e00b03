"""The server's metrics as a stream: what ``/metrics`` shows, once per interval and series.

Counters and histograms are reported as their increase, gauges as their value. Unchanged series are left out. An
interval that could not be appended is included in the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client.core import Metric

from headrace.engine.system_streams import System
from headrace.errors import HeadraceError
from headrace.types import Clock

log = logging.getLogger("headrace.metrics")

_UNITS = {"_bytes": "bytes", "_seconds": "s", "_bytes_total": "bytes", "_seconds_total": "s"}
_CUMULATIVE = ("counter", "histogram")
_Series = tuple[str, tuple[tuple[str, str], ...]]


class MetricsStream:
    """Turns samples into interval records; ``collect`` gives everything there is to measure."""

    def __init__(self, system: System, collect: Callable[[], Iterable[Metric]], clock: Clock) -> None:
        self._system = system
        self._collect = collect
        self._clock = clock
        self._instance = f"{os.getpid()}-{secrets.token_hex(3)}"
        self._counted: dict[_Series, float] = {}
        self._since_ms = clock.now_us() // 1000

    async def run(self, interval_s: float) -> None:
        """Emit immediately, so that the stream exists, and then once per interval until cancelled."""
        while True:
            try:
                await self.emit()
            except HeadraceError as reason:
                log.warning("an interval of metrics waits for the next one: %s", reason)
            except Exception:
                log.exception("an interval of metrics could not be told; the next one tries again")
            await asyncio.sleep(interval_s)

    async def emit(self) -> None:
        """Append what happened since the last time."""
        until_ms = self._clock.now_us() // 1000
        records, counted = self._records(until_ms)
        await self._system.measured(records)
        self._counted, self._since_ms = counted, until_ms

    def _records(self, until_ms: int) -> tuple[list[dict[str, Any]], dict[_Series, float]]:
        records, counted = [], {}
        for metric in self._collect():
            for sample in metric.samples:
                if sample.name.endswith("_created"):
                    continue
                series = sample.name, tuple(sorted(sample.labels.items()))
                value = sample.value
                if metric.type in _CUMULATIVE:
                    counted[series] = value
                    value -= self._counted.get(series, 0)
                if value:
                    records.append(self._record(series, metric.type, value, until_ms))
        return records, counted

    def _record(self, series: _Series, kind: str, value: float, until_ms: int) -> dict[str, Any]:
        name, labels = series
        number = int(value) if float(value).is_integer() else value
        return {
            "metric": name,
            "unit": next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "count"),
            "metricKind": kind,
            "temporality": "delta" if kind in _CUMULATIVE else "instant",
            # The clock may have been set back meanwhile; a window that ends before it starts would be refused.
            "windowStart": min(self._since_ms, until_ms),
            "windowEnd": until_ms,
            "instance": self._instance,
            "attributes": dict(labels),
            "count": 1,
            "sum": number,
            "min": number,
            "max": number,
            "p50": number,
            "p95": number,
            "p99": number,
        }
