from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import pytest

from headrace.engine.runtime.stalls import BOUNDS_S, TICK_S, Histogram, StallWatchdog


def _compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def _watched(watchdog: StallWatchdog, *, blocking: Callable[[], None]) -> None:
    """Let something block a loop that is watched, and wait until the loop has turned again."""

    async def scenario() -> None:
        watchdog.start()
        before = watchdog.stalls.count
        asyncio.get_running_loop().call_later(2 * TICK_S, blocking)
        while watchdog.stalls.count == before:
            await asyncio.sleep(TICK_S)
        watchdog.stop()

    asyncio.run(scenario())


def _block_until_logged(caplog: pytest.LogCaptureFixture) -> None:
    until = time.monotonic() + 30
    while not caplog.records and time.monotonic() < until:
        time.sleep(0.01)


def test_a_stall_is_as_long_as_the_loop_did_not_turn() -> None:
    watchdog = StallWatchdog()
    _watched(watchdog, blocking=lambda: time.sleep(0.3))
    assert watchdog.stalls.longest_s >= 0.3 - TICK_S
    assert watchdog.busy.longest_s < 0.3
    assert watchdog.stalls.count == watchdog.busy.count >= 1


def test_a_stall_says_how_long_the_loop_computed() -> None:
    watchdog = StallWatchdog()
    _watched(watchdog, blocking=lambda: _compute(0.3))
    assert watchdog.busy.longest_s >= 0.3


def test_a_long_stall_is_logged_with_the_calls_that_caused_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watchdog = StallWatchdog(logged_s=0.1, rest_s=1e9)

    def blocking_for_long() -> None:
        _block_until_logged(caplog)

    with caplog.at_level(logging.WARNING, "headrace.stalls"):
        _watched(watchdog, blocking=blocking_for_long)
    [record] = caplog.records
    assert "the event loop has not turned for" in record.getMessage()
    assert "test_stalls.py" in record.getMessage() and "blocking_for_long" in record.getMessage()


def test_the_log_rests_between_two_stalls(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = StallWatchdog(logged_s=0.1, rest_s=1e9)

    async def twice() -> None:
        watchdog.start()
        await asyncio.sleep(2 * TICK_S)
        _block_until_logged(caplog)
        await asyncio.sleep(2 * TICK_S)
        time.sleep(0.4)
        await asyncio.sleep(2 * TICK_S)
        watchdog.stop()

    with caplog.at_level(logging.WARNING, "headrace.stalls"):
        asyncio.run(twice())
    assert watchdog.stalls.count >= 2
    assert len(caplog.records) == 1


def test_durations_are_counted_by_their_bounds() -> None:
    histogram = Histogram()
    for seconds in (0.02, 0.03, 0.3, 99.0):
        histogram.observe(seconds)
    buckets = dict(histogram.buckets())
    assert [buckets[str(bound)] for bound in BOUNDS_S] == [1, 2, 2, 2, 3, 3, 3, 3, 3]
    assert buckets["+Inf"] == histogram.count == 4
    assert (histogram.longest_s, histogram.sum_s) == (99.0, 99.35)
