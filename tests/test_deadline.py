"""Deadlines: what is left of the time, and work that nobody waits for any more."""

from __future__ import annotations

import pytest

from headrace.deadline import Cancelled, Deadline, OutOfTime, check_deadline


def test_a_deadline_whose_time_is_over_stops_work_at_its_next_step() -> None:
    Deadline(60).check()
    deadline = Deadline(0)
    assert deadline.passed and deadline.left_s <= 0
    with pytest.raises(OutOfTime):
        deadline.check()


def test_a_part_of_the_time_ends_earlier_and_is_cancelled_with_the_whole() -> None:
    whole = Deadline(60)
    part, other = whole.with_share(0.5), whole.with_timeout(600)
    assert part.left_s < 31 < whole.left_s < 61 < other.left_s
    whole.cancel()
    for deadline in (whole, part, other):
        with pytest.raises(Cancelled):
            deadline.check()
        with pytest.raises(Cancelled):
            deadline.require()


def test_cancelling_interrupts_what_is_under_way_and_nothing_that_has_ended() -> None:
    deadline, interrupted = Deadline(60), []
    with deadline.interrupting(lambda: interrupted.append("ended")):
        pass
    with deadline.interrupting(lambda: interrupted.append("under way")):
        deadline.with_share(0.5).cancel()
    assert interrupted == ["under way"]
    with pytest.raises(Cancelled), deadline.interrupting(lambda: None):
        raise AssertionError("nothing begins once it is cancelled")


def test_only_work_in_the_block_looks_at_a_deadline_that_is_applied() -> None:
    check_deadline()
    with Deadline(60).applied():
        check_deadline()
        with Deadline(0).applied(), pytest.raises(OutOfTime):
            check_deadline()
        check_deadline()
    cancelled = Deadline(60)
    cancelled.cancel()
    with cancelled.applied(), pytest.raises(Cancelled):
        check_deadline()
    check_deadline()
