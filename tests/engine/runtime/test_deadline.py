"""Work in a thread that is stopped when its time is up."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

import pytest

from headrace.engine.runtime.deadline import OutOfTime, Turn, within
from headrace.errors import BadRequest, TimedOut


async def test_what_is_found_in_time_is_the_answer() -> None:
    assert await within(30, lambda: 6 * 7) == 42


async def test_what_the_work_raises_is_raised() -> None:
    def refuse() -> None:
        raise BadRequest("no", field="x")

    with pytest.raises(BadRequest):
        await within(30, refuse)


async def test_work_without_end_is_stopped_and_others_go_on() -> None:
    began, turns = time.monotonic(), 0
    waiting = asyncio.gather(within(1.0, lambda: sum(1 for _ in itertools.count())))
    while not waiting.done():
        await asyncio.sleep(0.01)
        turns += 1
    with pytest.raises(TimedOut):
        await waiting
    assert turns > 5
    assert time.monotonic() - began < 20
    for thread in threading.enumerate():
        if thread.name == "headrace-thinking":
            thread.join(timeout=20)
            assert not thread.is_alive()


async def test_work_that_nobody_waits_for_is_stopped() -> None:
    began, ended = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def count() -> None:
        try:
            loop.call_soon_threadsafe(began.set)
            sum(1 for _ in itertools.count())
        finally:
            ended.set()

    waiting = asyncio.create_task(within(600, count))
    await began.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(ended.wait, 20)


@pytest.mark.parametrize("ends", [True, False])
def test_a_thread_whose_work_has_ended_is_not_stopped_at_other_work(ends: bool) -> None:
    at_other_work, stopped = threading.Event(), threading.Event()
    raised: list[type[BaseException]] = []

    def live() -> None:
        try:
            if ends:
                turn.end()
            at_other_work.set()
            stopped.wait(20)
            sum(1 for _ in range(1000))
        except OutOfTime as reason:
            raised.append(type(reason))

    thread = threading.Thread(target=live)
    turn = Turn(thread)
    thread.start()
    assert at_other_work.wait(20)
    turn.stop()
    turn.stop()
    stopped.set()
    thread.join(20)
    assert raised == ([] if ends else [OutOfTime])
