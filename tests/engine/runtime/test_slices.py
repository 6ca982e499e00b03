from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest

from headrace.engine.runtime.slices import FEW, SLICE_S, Slices


def test_few_pieces_are_done_at_once() -> None:
    slices, done = Slices(), list[int]()
    slices.do([partial(done.append, number) for number in range(FEW)])
    assert done == list(range(FEW))


def test_many_pieces_are_done_in_order_while_others_are_served() -> None:
    async def scenario() -> None:
        slices, done, turns = Slices(), list[int](), 0

        def work(number: int) -> None:
            time.sleep(SLICE_S / 4)
            done.append(number)

        slices.do([partial(work, number) for number in range(FEW + 8)])
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

        slices.do([partial(work, number) for number in range(FEW + 1)])
        while slices.queued:
            await asyncio.sleep(0)
        assert done == [0, *range(2, FEW + 1)]

    asyncio.run(scenario())
    assert "the others go on" in caplog.text


def test_many_pieces_that_come_one_by_one_in_a_turn_are_spread_over_others() -> None:
    async def scenario() -> None:
        slices, done = Slices(), list[int]()
        for number in range(FEW + 5):
            slices.spread(partial(done.append, number))
        assert done == list(range(FEW))
        while slices.queued:
            await asyncio.sleep(0)
        assert done == list(range(FEW + 5))
        slices.spread(partial(done.append, -1))
        assert done[-1] == -1, "the next turn begins anew"

    asyncio.run(scenario())
