"""The law of sources over streams: rows are what pandas computes of the events that fit, or say what they lack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.engine.features.source import SourceGone
from support.bound_source import BoundSource
from support.timed_source import KEYS, small_files

EVENTS = 60


@pytest.fixture(params=[1, 2, 3, 4])
def bound(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BoundSource]:
    """A source over a stream; all but the first have event time."""
    with small_files(tmp_path / "data") as rig:
        source = BoundSource(rig, request.param, by_append_time=request.param == 1)
        source.create()
        yield source


def test_rows_are_those_of_the_events_of_the_stream_that_fit(bound: BoundSource) -> None:
    some, names = list(bound.features)[::2], list(bound.features)
    bound.push(EVENTS // 2)
    bound.register(some)
    bound.check_now(some)
    bound.rig.publish(bound.stream)
    assert bound.rig.work()
    bound.push(EVENTS // 2)
    bound.check_now(some, 64)
    bound.register(names)
    bound.rig.publish(bound.stream)
    assert bound.rig.work()
    bound.push(EVENTS // 2)
    bound.check_now(names, 6400)
    bound.rig.reopen()
    bound.check_now(names, 10)
    moments = bound.moments(12)
    bound.check_past(names, moments, bound.rig.run(bound.rig.engine.past_reader.rows(bound.table, moments)))


def test_rows_over_a_fork_are_those_of_its_own_life(bound: BoundSource) -> None:
    names = list(bound.features)[::3]
    bound.push(EVENTS)
    fork_at = EVENTS // 2
    bound.rig.fork(bound.stream, "forked", fork_at)
    source, events = bound.stream, list(bound.events)
    bound.bind("forked")
    del bound.events[fork_at:]
    bound.register(names)
    bound.check_now(names)
    bound.push(EVENTS // 3)
    bound.check_now(names, 64)
    bound.rig.publish("forked")
    bound.rig.work()
    bound.check_now(names, 65)
    # What the source of the fork goes through is nothing to it.
    bound.rig.delete(source)
    bound.push(EVENTS // 3)
    bound.check_now(names, 100)
    bound.rig.reopen()
    bound.check_now(names, 100)
    assert len(events) == EVENTS


def test_rows_of_a_stream_that_is_deleted_say_so_until_the_source_is_bound_again(bound: BoundSource) -> None:
    names = list(bound.features)[::3]
    bound.push(EVENTS // 2)
    bound.register(names)
    bound.rig.publish(bound.stream)
    bound.rig.work()
    bound.check_now(names)
    bound.rig.delete(bound.stream)
    bound.events.clear()
    for _ in range(2):
        for key in KEYS:
            with pytest.raises(SourceGone):
                bound.rig.answer(bound.table, key)
        bound.rig.reopen()
    bound.create()
    bound.push(EVENTS // 2)
    with pytest.raises(SourceGone):
        bound.rig.answer(bound.table, KEYS[0])
    bound.register(names, force=True)
    bound.check_now(names)
    bound.rig.publish(bound.stream)
    bound.rig.work()
    bound.push(EVENTS // 3)
    bound.check_now(names, 64)
