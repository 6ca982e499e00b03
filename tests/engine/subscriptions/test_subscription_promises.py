"""What subscriptions promise, whatever happens: appends, workers, deletions, time and restarts in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from engine.subscriptions.subscribing import BASE, PULL, Opened, proof_of
from headrace.engine.subscriptions.subscription import Ack, NoPendingWork
from headrace.engine.subscriptions.subscriptions import Claim
from headrace.engine.subscriptions.wakes import AlreadyClaimed, Fenced
from headrace.format import offset as offsets

NAMES = [f"events/{name}" for name in "abc"]


class Promises(RuleBasedStateMachine):
    """Every run has a log of its own, made by ``world``."""

    world: Opened

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.w = self.do(self.stack.enter_async_context(type(self).world()))
        self.do(self.w.create("wake/pool"))
        self.do(self.w.subscriptions.put("s", PULL, BASE))
        self.tails: dict[str, str] = {}
        self.cursors: dict[str, int] = {}
        self.claims: list[Claim] = []
        self.held: Claim | None = None
        self.held_until = 0

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        try:
            self.do(self.everything_is_covered_in_the_end())
        finally:
            self.do(self.stack.aclose())
            self.loop.close()

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 3), settle=st.booleans())
    def append(self, name: str, count: int, settle: bool) -> None:
        if name not in self.tails:
            self.do(self.w.create(name))
        self.tails[name] = self.do(self.w.append(name, count=count))
        if settle:
            self.do(self.w.idle())

    @precondition(lambda self: self.tails)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tails)))
        self.do(self.w.delete(name))
        del self.tails[name]
        self.cursors.pop(name, None)

    @rule(worker=st.sampled_from(["x", "y"]))
    def claim(self, worker: str) -> None:
        try:
            claim = self.do(self.w.subscriptions.claim("s", worker))
        except AlreadyClaimed:
            assert self.held is not None
        except NoPendingWork:
            assert self.held is None
            assert self.pending() == {}
        else:
            assert self.held is None, "two workers hold the subscription"
            told = {view.path: view.tail_offset for view in claim.streams if view.has_pending}
            assert told == self.pending()
            self.claims.append(claim)
            self.hold(claim)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), done=st.booleans())
    def ack(self, data: st.DataObject, done: bool) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        some = [view for view in claim.streams if view.path in self.tails and view.has_pending]
        acks = [Ack(view.path, view.tail_offset) for view in some if data.draw(st.booleans())]
        verb = self.w.subscriptions.ack("s", "pull-wake", proof_of(claim), self.fitting(acks), done=done)
        if claim is not self.held:
            with pytest.raises(Fenced):
                self.do(verb)
            return
        next_wake = self.do(verb)
        assert next_wake is (done and self.pending() != {})
        self.hold(None if done else claim)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        if claim is not self.held:
            with pytest.raises(Fenced):
                self.do(self.w.subscriptions.release("s", proof_of(claim)))
            return
        self.do(self.w.subscriptions.release("s", proof_of(claim)))
        self.hold(None)

    @rule(seconds=st.sampled_from([1, 4, 6]))
    def time_passes(self, seconds: int) -> None:
        self.do(self.w.pass_time(seconds))
        if self.held is not None and self.w.clock.us >= self.held_until:
            self.held = None

    @rule()
    def restart(self) -> None:
        self.do(self.w.restart())

    @invariant()
    def no_cursor_moves_back(self) -> None:
        for link in self.w.subscriptions.get("s").links.values():
            assert link.position >= self.cursors.get(link.path, 0)
            self.cursors[link.path] = link.position

    @invariant()
    def unclaimed_work_is_announced(self) -> None:
        if self.held is None and self.pending():
            self.do(self.w.idle())
            assert self.w.events()[-1]["generation"] == self.w.subscriptions.get("s").wakes.generation

    async def everything_is_covered_in_the_end(self) -> None:
        await self.w.pass_time(6)
        if self.pending():
            claim = await self.w.subscriptions.claim("s", "last")
            acks = [Ack(view.path, view.tail_offset) for view in claim.streams if view.has_pending]
            assert dict(acks) == self.pending()
            assert not await self.w.subscriptions.ack("s", "pull-wake", proof_of(claim), acks, done=True)
        assert self.w.acked("s") == self.tails

    def pending(self) -> dict[str, str]:
        """By the log and the cursors: streams with entries that nobody acked."""
        acked = self.w.acked("s")
        return {name: tail for name, tail in self.tails.items() if acked.get(name) != tail}

    def fitting(self, acks: list[Ack]) -> list[Ack]:
        """Those acks that are of the streams' present lives."""
        epochs = {name: offsets.decode(tail).epoch for name, tail in self.tails.items()}
        return [ack for ack in acks if offsets.decode(ack.offset).epoch == epochs[ack.path]]

    def hold(self, claim: Claim | None) -> None:
        self.held, self.held_until = claim, self.w.clock.us + 5_000_000


def test_whatever_happens_work_is_covered_by_one_holder_at_a_time(world: Opened) -> None:
    examples = min(200, settings.default.max_examples // 2)
    bound = type("Bound", (Promises,), {"world": staticmethod(world)})
    run_state_machine_as_test(bound, settings=settings(max_examples=examples, stateful_step_count=30, deadline=None))
