"""The state of the touches of one stream, for ``touch/meta``, and of all streams together, for metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.engine.touch.counts import Counts
from headrace.engine.touch.pressure import COARSE_ONLY, RESTRICTED
from headrace.engine.touch.stream_touches import StreamTouches

if TYPE_CHECKING:
    from headrace.engine.touch.touches import Touches

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
