"""The law of event time on a server: rows are what pandas computes of all events, however far states have come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.timed_source import TimedSource

EVENTS = 60
WAITS_MS = (0, 1, 64, 6400, 10**6)


@pytest.fixture(params=[1, 2, 3])
def timed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TimedSource]:
    source = TimedSource(tmp_path / "data", request.param)
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
