"""The states of wakes, walked by Hypothesis against a plain model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.engine.subscriptions.wakes import FIRST_RETRY_US, LAST_RETRY_US, AlreadyClaimed, Fenced, Wakes

LEASE_US = 5


class WakesMachine(RuleBasedStateMachine):
    """Every wake ever handed out is kept, and tried again after it is over."""

    def __init__(self) -> None:
        super().__init__()
        self.wakes = Wakes()
        self.now = 0
        self.given: list[tuple[str, int]] = []
        self.held: tuple[str, int] | None = None
        self.held_until = 0

    @rule(step=st.integers(1, 7))
    def time_passes(self, step: int) -> None:
        self.now += step
        if self.held is not None and self.now >= self.held_until:
            self.held = None

    @rule()
    def the_clockwork_runs(self) -> None:
        self.wakes = self.wakes.expire(self.now)
        if self.wakes.wake_id is None:
            before = self.wakes.generation
            self.wakes = self.wakes.begin(f"w{before}", self.now)
            assert self.wakes.generation == before + 1

    @precondition(lambda self: self.wakes.wake_id is not None)
    @rule(worker=st.sampled_from(["x", "y"]))
    def someone_claims(self, worker: str) -> None:
        wakes = self.wakes.expire(self.now)
        if self.held is not None:
            with pytest.raises(AlreadyClaimed):
                wakes.claim(worker, self.now + LEASE_US)
        elif wakes.wake_id is not None:
            self.wakes = wakes.claim(worker, self.now + LEASE_US)
            self.held = (wakes.wake_id, wakes.generation)
            self.held_until = self.now + LEASE_US
            assert self.held not in self.given, "a wake is handed out once"
            self.given.append(self.held)

    @precondition(lambda self: self.given)
    @rule(data=st.data(), done=st.booleans())
    def a_worker_reports(self, data: st.DataObject, done: bool) -> None:
        wake = data.draw(st.sampled_from(self.given))
        if wake != self.held:
            with pytest.raises(Fenced):
                self.wakes.check(*wake, self.now)
            return
        self.wakes.check(*wake, self.now)
        if done:
            self.wakes, self.held = self.wakes.finish(), None
        else:
            self.held_until = self.now + LEASE_US
            self.wakes = self.wakes.delivered().lease(self.held_until)

    @precondition(lambda self: self.wakes.deliver_at_us is not None)
    @rule(spread=st.floats(-1, 1))
    def an_announcement_fails(self, spread: float) -> None:
        self.wakes = self.wakes.failed(self.now, spread, "no")

    @invariant()
    def a_holder_has_a_wake_and_a_lease(self) -> None:
        if self.wakes.holder is not None:
            assert self.wakes.wake_id is not None
            assert self.wakes.lease_until_us is not None
        if self.held is not None:
            assert self.wakes.holder is not None


TestWakesMachine = WakesMachine.TestCase


@given(st.integers(0, 100), st.floats(-1, 1))
def test_pauses_double_from_a_second_to_a_minute_and_are_jittered_by_a_fifth(attempts: int, spread: float) -> None:
    wakes = Wakes(generation=1, wake_id="w", attempts=attempts).failed(1000, spread, "x" * 1000)
    base = min(FIRST_RETRY_US * 2**attempts, LAST_RETRY_US)
    assert wakes.deliver_at_us is not None
    assert abs(wakes.deliver_at_us - 1000 - base) <= base * 0.2 + 1
    assert wakes.attempts == attempts + 1 and wakes.last_error == "x" * 200


def test_a_pause_outlives_the_lease_that_ends_in_it() -> None:
    wakes = Wakes(generation=1, wake_id="w", lease_until_us=10).failed(0, 0, "no")
    assert wakes.expire(9) == wakes
    over = wakes.expire(10)
    assert over.wake_id is None and over.deliver_at_us == FIRST_RETRY_US and over.attempts == 1
