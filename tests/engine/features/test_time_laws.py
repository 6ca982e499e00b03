"""The law of time on a server: rows are what pandas computes of all events, however far states have come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.timed_source import TimedSource

EVENTS = 60
WAITS_MS = (0, 1, 64, 6400, 10**6)


@pytest.fixture(params=[(1, True), (2, True), (3, True)])
def timed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TimedSource]:
    seed, by_append_time = request.param
    source = TimedSource(tmp_path / "data", seed, by_append_time=by_append_time)
    yield source
    source.rig.close()


def test_rows_of_now_are_those_of_all_events_however_far_states_have_come(timed: TimedSource) -> None:
    some = list(timed.features)[::2]
    timed.register(some)
    timed.push(EVENTS // 2)
    timed.check_now(some)
    timed.rig.seal("E")
    assert timed.rig.work()
    timed.push(EVENTS // 2)
    timed.check_now(some, 64)
    # The others are computed from the past.
    timed.register(list(timed.features))
    timed.rig.seal("E")
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
    timed.rig.seal("E")
    timed.rig.work()
    timed.push(EVENTS // 2)
    names = list(timed.features)
    timed.register(names)
    for _ in range(2):
        moments = timed.moments(12)
        past = timed.rig.run(timed.rig.engine.past_reader.rows("T", moments))
        assert past.complete
        timed.check_past(names, moments, past.rows)
        timed.rig.seal("E")
        timed.rig.work()
        timed.push(EVENTS // 2)
