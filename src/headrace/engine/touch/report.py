"""Touches in numbers: ``touch/meta`` of one stream, the metrics of all, and the records of the metrics stream."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from headrace.engine.touch.processor import COARSE_ONLY, RESTRICTED, TouchCounts
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


def report(stream_touches: StreamTouches, now_ms: float) -> dict[str, Any]:
    """The flat document of ``touch/meta``."""
    return {
        **_journal(stream_touches, now_ms),
        **_pressure(stream_touches),
        **_waiting(stream_touches),
        **_totals(stream_touches.counts),
    }


def gauges(touches: Touches) -> dict[str, int]:
    """The gauges of all followed streams together, by their names in ``touch/meta``."""
    documents = [{**_journal(stream, 0.0), **_pressure(stream), **_waiting(stream)} for stream in touches.followed()]
    return {name: sum(document[name] for document in documents) for name in GAUGES}


def totals(touches: Touches) -> dict[str, float]:
    """The counters of all streams since the server started, by their names in ``touch/meta``."""
    return _totals(total_counts(touches))


def total_counts(touches: Touches) -> TouchCounts:
    """The counts of all streams, of those that are not followed any more too."""
    total = TouchCounts()
    for counts in (touches.past, *(stream_touches.counts for stream_touches in touches.followed())):
        total.add(counts)
    return total


def _journal(stream_touches: StreamTouches, now_ms: float) -> dict[str, Any]:
    journal, settings, flushes = stream_touches.journal, stream_touches.settings, stream_touches.flushes
    bucket = stream_touches.processor.bucket
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
        "overflowBuckets": stream_touches.counts.overflows,
        "activeWaiters": len(stream_touches.waiters.parked),
        "bucketMaxSourceOffsetSeq": str(journal.through - 1),
        "lastFlushAtMs": int(flushes.last_ms),
        "flushIntervalMsMaxLast10s": longest,
        "flushIntervalMsP95Last10s": p95,
        "settled": stream_touches.settled,
    }


def _pressure(stream_touches: StreamTouches) -> dict[str, Any]:
    settings, stream, through = stream_touches.settings, stream_touches.stream, stream_touches.journal.through
    return {
        "coarseIntervalMs": settings.coarse_interval_ms,
        "touchCoalesceWindowMs": settings.touch_coalesce_window_ms,
        "activeTemplates": len(stream_touches.templates),
        "lagSourceOffsets": stream_touches.lag,
        "touchMode": stream_touches.mode,
        "walScannedThrough": stream.offset_at(through) if through else None,
    }


def _waiting(stream_touches: StreamTouches) -> dict[str, Any]:
    waiters = stream_touches.waiters
    fine = sum(waiter.fine for waiter in waiters.parked)
    used, warm, restricted = len(waiters.templates), len(waiters.warm_templates), stream_touches.mode == RESTRICTED
    return {
        "hotFineKeys": len(waiters.index) + len(waiters.warm),
        "hotTemplates": used + warm,
        "hotFineKeysActive": len(waiters.index),
        "hotFineKeysGrace": len(waiters.warm),
        "hotTemplatesActive": used,
        "hotTemplatesGrace": warm,
        "fineWaitersActive": fine,
        "coarseWaitersActive": len(waiters.parked) - fine,
        "broadFineWaitersActive": sum(waiter.fine for waiter in waiters.broad),
        "hotKeyFilteringEnabled": stream_touches.mode in (RESTRICTED, COARSE_ONLY),
        "hotTemplateFilteringEnabled": restricted and waiters.distinguishes_templates,
    }


def _totals(counts: TouchCounts) -> dict[str, float]:
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
    """Makes the records of the metrics stream: what happened on each followed stream, and to templates."""

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
                log.warning("live metrics of an interval were not recorded: %s", reason)
            except Exception:
                log.exception("live metrics of an interval could not be recorded")

    def records(self) -> list[dict[str, Any]]:
        """The records since the last call."""
        now_us, followed = self._clock.now_us(), self._touches.followed()
        records = self._touches.template_log.take()
        for stream_touches in followed:
            now, before = dict(vars(stream_touches.counts)), self._counted.get(stream_touches, {})
            if any(now[name] != before.get(name, 0) for name in now):
                records.append(self._tick(stream_touches, now, before, now_us))
                records += self._snapshot(stream_touches, now_us)
            self._counted[stream_touches] = now
        self._counted = {
            stream_touches: counts for stream_touches, counts in self._counted.items() if stream_touches in followed
        }
        self._shown_us = {
            stream_touches: at_us for stream_touches, at_us in self._shown_us.items() if stream_touches in followed
        }
        return records

    def _tick(self, stream_touches: StreamTouches, now: Any, before: Any, now_us: int) -> dict[str, Any]:
        def grown(names: dict[str, str]) -> dict[str, Any]:
            return {shown: now[name] - before.get(name, 0) for shown, name in names.items()}

        journal, settings = stream_touches.journal, stream_touches.settings
        return {
            **self._head("live.tick", stream_touches, now_us),
            "touch": {
                "coarseIntervalMs": settings.coarse_interval_ms,
                "coalesceWindowMs": settings.touch_coalesce_window_ms,
                "mode": stream_touches.mode,
                "cursor": journal.cursor,
                "epoch": journal.epoch,
                "generation": journal.through,
                **grown(_TOUCH),
            },
            "templates": {"active": len(stream_touches.templates), **grown(_TEMPLATES)},
            "wait": {"active": len(stream_touches.waiters.parked), **grown(_WAIT)},
            "processor": {"lagSourceOffsets": stream_touches.lag, **grown(_PROCESSOR)},
        }

    def _snapshot(self, stream_touches: StreamTouches, now_us: int) -> list[dict[str, Any]]:
        """The templates of a stream, once a minute at most."""
        # A clock that was set back must not put the next snapshot off.
        if 0 <= now_us - self._shown_us.get(stream_touches, 0) < SNAPSHOT_S * 1_000_000:
            return []
        self._shown_us[stream_touches] = now_us
        templates = [
            {
                "templateId": keys.format_key(active.template.id),
                "entity": active.template.entity,
                "fields": [field.name for field in active.template.fields],
                "lastSeenAt": rfc3339(int(active.seen_ms * 1000)),
            }
            for active in stream_touches.templates
        ]
        return [{**self._head("live.templates_snapshot", stream_touches, now_us), "templates": templates}]

    def _head(self, kind: str, stream_touches: StreamTouches, now_us: int) -> dict[str, Any]:
        return {
            "type": kind,
            "ts": rfc3339(now_us),
            "stream": stream_touches.stream.name,
            "liveSystemVersion": _VERSION,
            "instanceId": self._instance,
        }
