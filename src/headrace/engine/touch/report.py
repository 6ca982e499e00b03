"""How things stand with the touches of a stream: what ``touch/meta`` says."""

from __future__ import annotations

from typing import Any

from headrace.engine.touch.pressure import COARSE_ONLY, RESTRICTED
from headrace.engine.touch.touching import Touching


def report(touching: Touching, now_ms: float) -> dict[str, Any]:
    """The flat document of ``touch/meta``."""
    return {**_journal(touching, now_ms), **_pressure(touching), **_waiting(touching), **_totals(touching)}


def _journal(touching: Touching, now_ms: float) -> dict[str, Any]:
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
        "overflowBuckets": touching.counts.overflows,
        "activeWaiters": len(touching.parking.waiters),
        "bucketMaxSourceOffsetSeq": str(journal.through - 1),
        "lastFlushAtMs": int(flushes.last_ms),
        "flushIntervalMsMaxLast10s": longest,
        "flushIntervalMsP95Last10s": p95,
        "settled": touching.settled,
    }


def _pressure(touching: Touching) -> dict[str, Any]:
    settings, stream, through = touching.settings, touching.stream, touching.journal.through
    return {
        "coarseIntervalMs": settings.coarse_interval_ms,
        "touchCoalesceWindowMs": settings.touch_coalesce_window_ms,
        "activeTemplates": len(touching.roster),
        "lagSourceOffsets": touching.lag,
        "touchMode": touching.mode,
        "walScannedThrough": stream.offset_at(through) if through else None,
    }


def _waiting(touching: Touching) -> dict[str, Any]:
    parking = touching.parking
    fine = sum(waiter.fine for waiter in parking.waiters)
    used = len({one.id for waiter in parking.waiters for one in waiter.templates})
    return {
        "hotFineKeys": len(parking.index) + len(parking.warm),
        "hotTemplates": used,
        "hotFineKeysActive": len(parking.index),
        "hotFineKeysGrace": len(parking.warm),
        "hotTemplatesActive": used,
        "hotTemplatesGrace": 0,
        "fineWaitersActive": fine,
        "coarseWaitersActive": len(parking.waiters) - fine,
        "broadFineWaitersActive": sum(waiter.fine for waiter in parking.broad),
        "hotKeyFilteringEnabled": touching.mode in (RESTRICTED, COARSE_ONLY),
        "hotTemplateFilteringEnabled": False,
    }


def _totals(touching: Touching) -> dict[str, Any]:
    counts = touching.counts
    return {
        "scanRowsTotal": counts.rows,
        "scanBatchesTotal": counts.batches,
        "scannedButEmitted0BatchesTotal": counts.empty_batches,
        "processedThroughDeltaTotal": counts.rows,
        "touchesEmittedTotal": counts.touches,
        "touchesTableTotal": counts.table_touches,
        "touchesTemplateTotal": counts.template_touches,
        "fineTouchesDroppedDueToBudgetTotal": counts.dropped,
        "fineTouchesSkippedColdTemplateTotal": 0,
        "fineTouchesSkippedColdKeyTotal": 0,
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
