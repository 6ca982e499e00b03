from __future__ import annotations

import asyncio
import threading
import time
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import LimitsConfig
from headrace.deadline import check_deadline
from headrace.engine.runtime.gates import Gate, Gates, run_with_deadline
from headrace.errors import BadRequest, Overloaded, TimedOut, Unavailable


async def _settle() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


class _Visitors:
    """Tasks that enter a gate and stay until they are told to go."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.entered: list[int] = []
        self.inside: set[int] = set()
        self.most = 0
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self._exits: dict[int, asyncio.Event] = {}

    def come(self, visitor: int) -> None:
        self._exits[visitor] = asyncio.Event()
        self.tasks[visitor] = asyncio.create_task(self._visit(visitor))

    def go(self, visitor: int) -> None:
        self._exits[visitor].set()

    async def _visit(self, visitor: int) -> None:
        async with self.gate:
            self.entered.append(visitor)
            self.inside.add(visitor)
            self.most = max(self.most, len(self.inside))
            try:
                await self._exits[visitor].wait()
            finally:
                self.inside.discard(visitor)


def test_no_more_than_the_limit_are_inside_and_the_rest_enter_in_order() -> None:
    async def scenario() -> None:
        visitors = _Visitors(Gate(2))
        for number in range(5):
            visitors.come(number)
        await _settle()
        assert visitors.entered == [0, 1]
        assert visitors.gate.active == 2
        assert visitors.gate.queued == 3
        for number in (1, 0, 2, 3, 4):
            visitors.go(number)
            await _settle()
        assert visitors.entered == [0, 1, 2, 3, 4]
        assert visitors.most == 2
        assert visitors.gate.active == 0
        assert visitors.gate.queued == 0

    asyncio.run(scenario())


def test_a_newcomer_does_not_overtake_those_who_wait() -> None:
    async def scenario() -> None:
        visitors = _Visitors(Gate(1))
        visitors.come(0)
        visitors.come(1)
        await _settle()
        visitors.go(0)
        visitors.come(2)  # runs before the one that was woken
        await _settle()
        assert visitors.entered == [0, 1]
        visitors.go(1)
        visitors.go(2)
        await _settle()
        assert visitors.entered == [0, 1, 2]

    asyncio.run(scenario())


def test_a_full_queue_refuses_with_overloaded() -> None:
    async def scenario() -> None:
        gate = Gate(1, max_queued=1)
        visitors = _Visitors(gate)
        visitors.come(0)
        visitors.come(1)
        await _settle()
        with pytest.raises(Overloaded):
            async with gate:
                pass
        visitors.go(0)
        visitors.go(1)
        await _settle()
        assert visitors.entered == [0, 1]
        assert gate.active == 0

    asyncio.run(scenario())


def test_a_waiter_cancelled_in_the_moment_of_its_turn_passes_it_on() -> None:
    async def scenario() -> None:
        visitors = _Visitors(Gate(1))
        for number in range(3):
            visitors.come(number)
        await _settle()
        visitors.go(0)
        await asyncio.sleep(0)  # 0 leaves and hands its place to 1, which has not run yet
        visitors.tasks[1].cancel()
        await _settle()
        assert visitors.entered == [0, 2]
        visitors.go(2)
        await _settle()
        assert visitors.gate.active == 0
        assert visitors.gate.queued == 0

    asyncio.run(scenario())


def test_a_place_freed_while_the_first_waiter_is_being_cancelled_goes_to_the_second() -> None:
    async def scenario() -> None:
        visitors = _Visitors(Gate(1))
        for number in range(3):
            visitors.come(number)
        await _settle()
        visitors.tasks[1].cancel()
        visitors.go(0)
        await _settle()
        assert visitors.entered == [0, 2]
        assert visitors.gate.active == 1
        visitors.go(2)
        await _settle()
        assert visitors.gate.active == 0
        assert visitors.gate.queued == 0

    asyncio.run(scenario())


def test_a_higher_limit_lets_waiters_in_and_a_lower_one_waits_for_those_inside() -> None:
    async def scenario() -> None:
        gate = Gate(1)
        visitors = _Visitors(gate)
        for number in range(4):
            visitors.come(number)
        await _settle()
        gate.set_limit(3)
        await _settle()
        assert visitors.entered == [0, 1, 2]
        gate.set_limit(1)
        visitors.go(0)
        visitors.go(1)
        await _settle()
        assert gate.active == 1
        assert gate.queued == 1
        visitors.go(2)
        await _settle()
        assert visitors.entered == [0, 1, 2, 3]
        assert gate.configured_limit == 1
        assert gate.current_limit == 1
        visitors.go(3)
        await _settle()

    asyncio.run(scenario())


def test_relief_halves_search_and_index_but_never_below_one_and_leaves_reads() -> None:
    gates = Gates(LimitsConfig(concurrent_reads=4, concurrent_searches=5, concurrent_index_work=1))
    gates.relieve()
    assert gates.read.current_limit == 4
    assert gates.search.current_limit == 2
    assert gates.index.current_limit == 1
    gates.relieve()
    assert gates.search.current_limit == 2
    gates.restore()
    assert gates.search.current_limit == 5
    assert gates.index.current_limit == 1


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.just(0)),
        st.tuples(st.sampled_from(["go", "cancel"]), st.integers(0, 30)),
        st.tuples(st.just("limit"), st.integers(0, 4)),
        st.tuples(st.just("run"), st.integers(1, 4)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(limit=st.integers(1, 3), steps=_STEPS)
def test_whatever_happens_the_limit_holds_the_order_stays_and_nobody_is_forgotten(
    limit: int, steps: list[tuple[str, int]]
) -> None:
    asyncio.run(_walk(limit, steps))


async def _walk(limit: int, steps: list[tuple[str, int]]) -> None:
    gate = Gate(limit)
    visitors = _Visitors(gate)
    allowed = limit
    for step, number in steps:
        tasks = visitors.tasks
        if step == "come":
            visitors.come(len(tasks))
        elif step == "limit":
            gate.set_limit(number)
            allowed = max(allowed, number)
        elif step == "run":
            for _ in range(number):
                await asyncio.sleep(0)
        elif number in tasks:
            visitors.go(number) if step == "go" else tasks[number].cancel()
        assert len(visitors.inside) <= allowed
        assert gate.active <= allowed
    for number in visitors.tasks:
        visitors.go(number)
    if visitors.tasks:
        _, waiting = await asyncio.wait(visitors.tasks.values(), timeout=5)
        assert not waiting
    if allowed == 1:  # of two that are admitted together, either may run first
        assert visitors.entered == sorted(visitors.entered)
    assert gate.active == 0
    assert gate.queued == 0


def test_nobody_enters_while_memory_is_short() -> None:
    async def scenario() -> None:
        gates = Gates(LimitsConfig())
        gates.shortage.is_on = True
        for gate in (gates.read, gates.search):
            with pytest.raises(Unavailable, match="short of memory") as refused:
                async with gate:
                    pass
            assert refused.value.status == 503
            assert refused.value.facts == {"retry_after": 2, "reason": "memory"}
        async with gates.index:  # background work waits for nobody, and ends what takes memory
            pass
        gates.shortage.is_on = False
        async with gates.search:
            assert gates.search.active == 1
            assert gates.shortage.refused == 2

    asyncio.run(scenario())


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
