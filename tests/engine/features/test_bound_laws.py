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


@pytest.fixture
def evolving(bound: BoundSource) -> BoundSource:
    """A source over a stream with a schema, half of whose events are in states."""
    bound.create_schema()
    bound.push(EVENTS // 2)
    bound.register(list(bound.features)[::2])
    work_and_reopen(bound)
    return bound


def work_and_reopen(bound: BoundSource) -> None:
    """Publish everything, make the states of it, and begin anew from what is stored."""
    bound.rig.publish(bound.stream)
    bound.rig.work()
    bound.rig.reopen()


def test_rows_follow_a_field_that_is_renamed(evolving: BoundSource) -> None:
    names = list(evolving.features)[::2]
    evolving.moved["value"] = "amount"
    evolving.evolve({"op": "rename", "from": "/value", "to": "/amount"})
    evolving.push(EVENTS // 3)
    evolving.check_now(names, 64)
    work_and_reopen(evolving)
    evolving.push(EVENTS // 3)
    evolving.check_now(names)
    moments = evolving.moments(6)
    past = evolving.rig.run(evolving.rig.engine.past_reader.rows(evolving.table, moments))
    evolving.check_past(names, moments, past)


def test_rows_of_a_field_that_is_converted_are_those_of_its_new_values(evolving: BoundSource) -> None:
    names, changed = list(evolving.features)[::2], evolving.features_of("s")
    builtins = {"forward": {"builtin": "uppercase"}, "backward": {"builtin": "lowercase"}}
    evolving.evolve({"op": "convert", "path": "/s", "fromType": "string", "toType": "string", **builtins})
    evolving.events = [(at, event and {**event, "s": event["s"].upper()}) for at, event in evolving.events]
    evolving.push(EVENTS // 3)
    # Until the lens has been applied to all earlier events, what it has changed is marked.
    coverage = evolving.rig.answer(evolving.table, KEYS[0]).coverage
    is_done = coverage == "complete"
    evolving.check_now([name for name in names if is_done or name not in changed], coverage=coverage)
    assert is_done or coverage == "backfilling"
    work_and_reopen(evolving)
    evolving.check_now(names, 64)
    evolving.push(EVENTS // 3)
    evolving.check_now(names)


def test_features_end_where_their_field_is_removed_and_the_others_go_on(evolving: BoundSource) -> None:
    names = list(evolving.features)[::2]
    evolving.ended = dict.fromkeys(evolving.features_of("lat"), len(evolving.events))
    evolving.moved["lat"] = None
    evolving.evolve({"op": "remove", "path": "/lat", "schema": {"type": ["number", "null"]}, "default": None})
    evolving.push(EVENTS // 3)
    evolving.check_now(names, 64, coverage="ended")
    work_and_reopen(evolving)
    evolving.push(EVENTS // 3)
    evolving.check_now(names, coverage="ended")


def test_the_retention_of_a_stream_waits_for_nobody_and_rows_say_that_they_lack_events(bound: BoundSource) -> None:
    names = list(bound.features)[::2]
    bound.push(EVENTS // 3)
    bound.register(names)
    work_and_reopen(bound)
    in_states = len(bound.events)
    # These are gone before any state has them.
    bound.push(EVENTS // 3)
    bound.rig.publish(bound.stream)
    bound.rig.retain(bound.stream, size=1)
    bound.rig.reopen()
    first_seq = bound.rig.find(bound.stream).head.first_seq
    assert first_seq > in_states
    bound.forget(in_states, first_seq)
    bound.push(EVENTS // 3)
    bound.check_now(names, coverage="partial")
    work_and_reopen(bound)
    bound.push(EVENTS // 3)
    bound.check_now(names, coverage="partial")
    # A table that begins now counts all that there is.
    bound.table += "Later"
    bound.forget(0, bound.rig.find(bound.stream).head.first_seq)
    bound.register(names, force=True)
    bound.check_now(names)
