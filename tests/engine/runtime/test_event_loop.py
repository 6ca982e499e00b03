from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

import pytest

from headrace.engine.runtime.event_loop import BOUNDS_S, FEW, SLICE_S, TICK_S, Histogram, Slices, StallWatchdog


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
    assert "test_event_loop.py" in record.getMessage() and "blocking_for_long" in record.getMessage()


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
    assert histogram.longest_s == 99.0
    assert histogram.sum_s == 99.35


def test_few_pieces_are_done_at_once() -> None:
    slices, done = Slices(), list[int]()
    slices.run_all([partial(done.append, number) for number in range(FEW)])
    assert done == list(range(FEW))


def test_many_pieces_are_done_in_order_while_others_are_served() -> None:
    async def scenario() -> None:
        slices, done, turns = Slices(), list[int](), 0

        def work(number: int) -> None:
            time.sleep(SLICE_S / 4)
            done.append(number)

        slices.run_all([partial(work, number) for number in range(FEW + 8)])
        assert not done
        while len(done) < FEW + 8:
            turns += 1
            await asyncio.sleep(0)
        assert done == list(range(FEW + 8))
        assert turns >= 8
        assert not slices.queued

    asyncio.run(scenario())


def test_a_piece_that_fails_keeps_nobody_else_waiting(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        slices, done = Slices(), list[int]()

        def work(number: int) -> None:
            if number == 1:
                raise ValueError("a piece of work that fails")
            done.append(number)

        slices.run_all([partial(work, number) for number in range(FEW + 1)])
        while slices.queued:
            await asyncio.sleep(0)
        assert done == [0, *range(2, FEW + 1)]

    asyncio.run(scenario())
    assert "the others go on" in caplog.text


def test_many_pieces_that_come_one_by_one_in_a_turn_are_spread_over_others() -> None:
    async def scenario() -> None:
        slices, done = Slices(), list[int]()
        for number in range(FEW + 5):
            slices.run_or_queue(partial(done.append, number))
        assert done == list(range(FEW))
        while slices.queued:
            await asyncio.sleep(0)
        assert done == list(range(FEW + 5))
        slices.run_or_queue(partial(done.append, -1))
        assert done[-1] == -1, "the next turn begins anew"

    asyncio.run(scenario())
