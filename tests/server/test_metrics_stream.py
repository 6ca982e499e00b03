"""The server's own metrics go on whatever its clock does, and are there from the start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.engine.system_streams import METRICS, System
from headrace.server.metrics_stream import MetricsStream
from support.engine_rig import Rig

HOUR_US = 3_600_000_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


def emitted(rig: Rig) -> list[dict[str, Any]]:
    return [json.loads(entry) for entry in rig.read(METRICS)]


def test_metrics_go_on_when_the_clock_is_set_back(rig: Rig) -> None:
    registry = CollectorRegistry()
    counted, level = Counter("things", "", registry=registry), Gauge("level", "", registry=registry)

    async def emit() -> None:
        system = System(writer=rig.engine.writer, log=rig.engine.log, connect=rig.engine.connect)
        emitter = MetricsStream(system, registry.collect, rig.clock)
        for number in range(1, 4):
            counted.inc(number)
            level.set(number)
            await emitter.emit()
            rig.clock.us -= HOUR_US
        await system.close()

    began_ms = rig.clock.us // 1000
    rig.run(emit())
    records = emitted(rig)
    assert [record["sum"] for record in records if record["metric"] == "things_total"] == [1, 2, 3]
    windows = [(record["windowStart"], record["windowEnd"]) for record in records if record["metric"] == "level"]
    assert windows == [(began_ms - ago, began_ms - ago) for ago in (0, HOUR_US // 1000, HOUR_US // 500)]


def test_metrics_are_emitted_at_the_start_already(rig: Rig) -> None:
    registry = CollectorRegistry()
    Gauge("level", "", registry=registry).set(1)

    async def start() -> None:
        system = System(writer=rig.engine.writer, log=rig.engine.log, connect=rig.engine.connect)
        running = asyncio.create_task(MetricsStream(system, registry.collect, rig.clock).run(3600))
        async with asyncio.timeout(30):
            while rig.engine.log.catalog.find(METRICS) is None or not rig.find(METRICS).head.next_seq:
                await asyncio.sleep(0.01)
        running.cancel()
        await system.close()

    rig.run(start())
    assert [record["metric"] for record in emitted(rig)] == ["level"]
