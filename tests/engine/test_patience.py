"""Work in a thread that is stopped when its time is up."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

import pytest

from headrace.engine.patience import within
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
