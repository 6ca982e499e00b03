"""Computations in threads that end when their time is up."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import count

import pytest

from headrace.deadline import check_deadline
from headrace.engine.runtime.compute import run_with_deadline
from headrace.errors import BadRequest, TimedOut


def count_forever() -> None:
    for _ in count():
        check_deadline()


async def test_the_answer_of_work_that_ends_in_time_is_returned() -> None:
    assert await run_with_deadline(30, lambda: 6 * 7) == 42


async def test_an_error_of_the_work_is_raised() -> None:
    def refuse() -> None:
        raise BadRequest("no", field="x")

    with pytest.raises(BadRequest):
        await run_with_deadline(30, refuse)


async def test_work_without_end_times_out_and_the_event_loop_goes_on() -> None:
    began, turns = time.monotonic(), 0
    waiting = asyncio.ensure_future(run_with_deadline(1.0, count_forever))
    while not waiting.done():
        await asyncio.sleep(0.01)
        turns += 1
    with pytest.raises(TimedOut, match="request timed out"):
        await waiting
    assert turns > 5
    assert time.monotonic() - began < 20


async def test_work_ends_when_the_task_that_waits_for_it_is_cancelled() -> None:
    began, ended = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        try:
            loop.call_soon_threadsafe(began.set)
            count_forever()
        finally:
            ended.set()

    waiting = asyncio.create_task(run_with_deadline(600, work))
    await began.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(ended.wait, 20)


async def test_a_deadline_does_not_reach_work_that_comes_after_it() -> None:
    await run_with_deadline(0.0, lambda: None)
    await asyncio.to_thread(check_deadline)
    check_deadline()
