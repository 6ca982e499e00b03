"""Touches in numbers: ``touch/meta`` of one stream, the metrics of all, and the records of the metrics stream."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from headrace.engine.touch.processor import COARSE_ONLY, RESTRICTED, Counts
from headrace.engine.touch.stream_touches import StreamTouches
from headrace.errors import HeadraceError
from headrace.profiles.state_protocol import keys
from headrace.types import rfc3339

if TYPE_CHECKING:
    from headrace.engine.touch.touches import Touches
    from headrace.types import Clock

#: The gauges of ``touch/meta`` that can be summed over streams.
GAUGES = (
    "pendingKeys", "journalKeys", "activeWaiters", "fineWaitersActive", "coarseWaitersActive", "broadFineWaitersActive",
    "activeTemplates", "hotFineKeys", "hotTemplates", "lagSourceOffsets",
)  # fmt: skip


def report(touching: StreamTouches, now_ms: float) -> dict[str, Any]:
    """The flat document of ``touch/meta``."""
    return {**_journal(touching, now_ms), **_pressure(touching), **_waiting(touching), **_totals(touching.counts)}


def gauges(touches: Touches) -> dict[str, int]:
    """The gauges of all followed streams together, by their names in ``touch/meta``."""
    documents = [{**_journal(stream, 0.0), **_pressure(stream), **_waiting(stream)} for stream in touches.followed()]
    return {name: sum(document[name] for document in documents) for name in GAUGES}


def totals(touches: Touches) -> dict[str, float]:
    """The counters of all streams since the server started, by their names in ``touch/meta``."""
    return _totals(total_counts(touches))


def total_counts(touches: Touches) -> Counts:
    """The counts of all streams, of those that are not followed any more too."""
    total = Counts()
    for counts in (touches.past, *(touching.counts for touching in touches.followed())):
        total.add(counts)
    return total


def _journal(touching: StreamTouches, now_ms: float) -> dict[str, Any]:
    journal, settings, flushes = touching.journal, touching.settings, touching.flushes
    bucket = touching.processor.bucket
    longest, p95 = flushes.intervals(now_ms)
    return {
        "mode": "memory",
        "cursor": journal.cursor,
        "epoch": journal.epoch,
        "generation": journal.through,
        "bucketMs": settings.memory.bucket_ms,
        "coalesceMs": settings.touch_coalesce_window_ms,
        "filterSize": 2**settings.memory.filter_pow2,
        "k": settings.memory.k,
        "pendingKeys": len(bucket.rows) + len(bucket.tables),
        "journalKeys": len(journal),
        "overflowBuckets": touching.counts.overflows,
        "activeWaiters": len(touching.parking.waiters),
        "bucketMaxSourceOffsetSeq": str(journal.through - 1),
        "lastFlushAtMs": int(flushes.last_ms),
        "flushIntervalMsMaxLast10s": longest,
        "flushIntervalMsP95Last10s": p95,
        "settled": touching.settled,
    }


def _pressure(touching: StreamTouches) -> dict[str, Any]:
    settings, stream, through = touching.settings, touching.stream, touching.journal.through
    return {
        "coarseIntervalMs": settings.coarse_interval_ms,
        "touchCoalesceWindowMs": settings.touch_coalesce_window_ms,
        "activeTemplates": len(touching.roster),
        "lagSourceOffsets": touching.lag,
        "touchMode": touching.mode,
        "walScannedThrough": stream.offset_at(through) if through else None,
    }


def _waiting(touching: StreamTouches) -> dict[str, Any]:
    parking = touching.parking
    fine = sum(waiter.fine for waiter in parking.waiters)
    used, warm, restricted = len(parking.templates), len(parking.warm_templates), touching.mode == RESTRICTED
    return {
        "hotFineKeys": len(parking.index) + len(parking.warm),
        "hotTemplates": used + warm,
        "hotFineKeysActive": len(parking.index),
        "hotFineKeysGrace": len(parking.warm),
        "hotTemplatesActive": used,
        "hotTemplatesGrace": warm,
        "fineWaitersActive": fine,
        "coarseWaitersActive": len(parking.waiters) - fine,
        "broadFineWaitersActive": sum(waiter.fine for waiter in parking.broad),
        "hotKeyFilteringEnabled": touching.mode in (RESTRICTED, COARSE_ONLY),
        "hotTemplateFilteringEnabled": restricted and parking.tells_templates_apart,
    }


def _totals(counts: Counts) -> dict[str, float]:
    return {
        "scanRowsTotal": counts.rows,
        "scanBatchesTotal": counts.batches,
        "scannedButEmitted0BatchesTotal": counts.empty_batches,
        "processedThroughDeltaTotal": counts.rows,
        "touchesEmittedTotal": counts.touches,
        "touchesTableTotal": counts.table_touches,
        "touchesTemplateTotal": counts.template_touches,
        "fineTouchesDroppedDueToBudgetTotal": counts.dropped,
        "fineTouchesSkippedColdTemplateTotal": counts.cold_templates,
        "fineTouchesSkippedColdKeyTotal": counts.cold_keys,
        "fineTouchesSkippedTemplateBucketTotal": 0,
        "waitTouchedTotal": counts.waits_touched,
        "waitTimeoutTotal": counts.waits_timed_out,
        "waitStaleTotal": counts.waits_stale,
        "journalFlushesTotal": counts.flushes,
        "journalNotifyWakeupsTotal": counts.wakeups,
        "journalNotifyWakeMsTotal": counts.wake_ms,
        "journalNotifyWakeMsMax": counts.wake_ms_max,
        "journalTimeoutsFiredTotal": counts.timeouts,
        "journalTimeoutSweepMsTotal": counts.timeout_ms,
    }


log = logging.getLogger("headrace.touch")

SNAPSHOT_S = 60.0
_VERSION = "v2"
_TOUCH = {
    "touchesEmitted": "touches",
    "tableTouchesEmitted": "table_touches",
    "templateTouchesEmitted": "template_touches",
    "fineTouchesDroppedDueToBudget": "dropped",
    "overflowBuckets": "overflows",
    "flushes": "flushes",
    "wakeups": "wakeups",
}
_TEMPLATES = {name: name for name in ("activated", "retired", "evicted")} | {"activationDenied": "denied"}
_WAIT = {"touched": "waits_touched", "timeout": "waits_timed_out", "stale": "waits_stale"}
_PROCESSOR = {"eventsIn": "rows", "batches": "batches"}


class LiveMetrics:
    """Turns what happens to touches into records."""

    def __init__(
        self, record: Callable[[list[dict[str, Any]]], Awaitable[None]], touches: Touches, clock: Clock
    ) -> None:
        self._record = record
        self._touches = touches
        self._clock = clock
        self._instance = f"{os.getpid()}-{secrets.token_hex(3)}"
        self._counted: dict[StreamTouches, dict[str, float]] = {}
        self._shown_us: dict[StreamTouches, int] = {}

    async def run(self, interval_s: float) -> None:
        """Append the records of each interval, for ever."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self._record(self.records())
            except HeadraceError as reason:
                log.warning("live metrics of an interval were not told: %s", reason)
            except Exception:
                log.exception("live metrics of an interval could not be told")

    def records(self) -> list[dict[str, Any]]:
        """The records since the last call."""
        now_us, followed = self._clock.now_us(), self._touches.followed()
        records = self._touches.template_log.take()
        for touching in followed:
            now, before = dict(vars(touching.counts)), self._counted.get(touching, {})
            if any(now[name] != before.get(name, 0) for name in now):
                records.append(self._tick(touching, now, before, now_us))
                records += self._snapshot(touching, now_us)
            self._counted[touching] = now
        self._counted = {touching: counts for touching, counts in self._counted.items() if touching in followed}
        self._shown_us = {touching: at_us for touching, at_us in self._shown_us.items() if touching in followed}
        return records

    def _tick(self, touching: StreamTouches, now: Any, before: Any, now_us: int) -> dict[str, Any]:
        def grown(names: dict[str, str]) -> dict[str, Any]:
            return {shown: now[name] - before.get(name, 0) for shown, name in names.items()}

        journal, settings = touching.journal, touching.settings
        return {
            **self._head("live.tick", touching, now_us),
            "touch": {
                "coarseIntervalMs": settings.coarse_interval_ms,
                "coalesceWindowMs": settings.touch_coalesce_window_ms,
                "mode": touching.mode,
                "cursor": journal.cursor,
                "epoch": journal.epoch,
                "generation": journal.through,
                **grown(_TOUCH),
            },
            "templates": {"active": len(touching.roster), **grown(_TEMPLATES)},
            "wait": {"active": len(touching.parking.waiters), **grown(_WAIT)},
            "processor": {"lagSourceOffsets": touching.lag, **grown(_PROCESSOR)},
        }

    def _snapshot(self, touching: StreamTouches, now_us: int) -> list[dict[str, Any]]:
        """The templates of a stream, once a minute at most."""
        # A clock that was set back must not put the next snapshot off.
        if 0 <= now_us - self._shown_us.get(touching, 0) < SNAPSHOT_S * 1_000_000:
            return []
        self._shown_us[touching] = now_us
        templates = [
            {
                "templateId": keys.format_key(active.template.id),
                "entity": active.template.entity,
                "fields": [field.name for field in active.template.fields],
                "lastSeenAt": rfc3339(int(active.seen_ms * 1000)),
            }
            for active in touching.roster
        ]
        return [{**self._head("live.templates_snapshot", touching, now_us), "templates": templates}]

    def _head(self, kind: str, touching: StreamTouches, now_us: int) -> dict[str, Any]:
        return {
            "type": kind,
            "ts": rfc3339(now_us),
            "stream": touching.stream.name,
            "liveSystemVersion": _VERSION,
            "instanceId": self._instance,
        }
