"""The law of time on a server: rows are what pandas computes of all events, however far states have come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.timed_source import TimedSource, small_files

EVENTS = 60
WAITS_MS = (0, 1, 64, 6400, 10**6)


@pytest.fixture(params=[1, 2, 3, 4])
def timed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TimedSource]:
    """A source; all but the first have event time."""
    with small_files(tmp_path / "data") as rig:
        yield TimedSource(rig, request.param, by_append_time=request.param == 1)


def test_rows_of_now_are_those_of_all_events_however_far_states_have_come(timed: TimedSource) -> None:
    some = list(timed.features)[::2]
    timed.register(some)
    timed.push(EVENTS // 2)
    timed.check_now(some)
    timed.rig.seal(timed.name)
    assert timed.rig.work()
    timed.push(EVENTS // 2)
    timed.check_now(some, 64)
    # The others are computed from the past.
    timed.register(list(timed.features))
    timed.rig.seal(timed.name)
    assert timed.rig.work()
    timed.push(EVENTS // 2)
    for wait_ms in WAITS_MS:
        timed.check_now(list(timed.features), wait_ms)
    timed.rig.reopen()
    timed.check_now(list(timed.features), 10)


def test_rows_of_the_past_are_those_of_the_events_that_were_known(timed: TimedSource) -> None:
    some = list(timed.features)[::2]
    timed.register(some)
    timed.push(EVENTS // 2)
    timed.rig.seal(timed.name)
    timed.rig.work()
    timed.push(EVENTS // 2)
    names = list(timed.features)
    timed.register(names)
    for _ in range(2):
        moments = timed.moments(12)
        answer = timed.rig.run(timed.rig.engine.past_reader.rows(timed.table, moments))
        timed.check_past(names, moments, answer)
        timed.rig.seal(timed.name)
        timed.rig.work()
        timed.push(EVENTS // 2)
