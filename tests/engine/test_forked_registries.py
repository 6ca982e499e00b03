"""Forks and registries: a fork begins with what was known at its point, and goes its own way from there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.registries import change, evolve, read, registry, stored, stream_with, versions
from headrace.errors import BadRequest, NotFound
from headrace.types import JSON
from server.registries import TEXT, WHOLE, lens, rename, shape
from support.engine_rig import Rig, array

A, B, C = shape(a=WHOLE), shape(b=WHOLE), shape(c=WHOLE)
SEARCH: dict[str, Any] = {
    "primaryTimestampField": "time",
    "fields": {"time": {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/t"}], "column": True}},
}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """An engine with a stream of two events in each of three versions."""
    with Rig(tmp_path) as rig:
        stream_with(rig, "source", A, {"a": 0}, {"a": 1})
        evolve(rig, "source", B, rename("a", "b"))
        rig.append("source", array({"b": 2}, {"b": 3}))
        evolve(rig, "source", C, rename("b", "c"))
        rig.append("source", array({"c": 4}, {"c": 5}))
        yield rig


@pytest.mark.parametrize(("position", "version"), [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 3)])
def test_a_fork_has_the_registry_as_of_its_point(rig: Rig, position: int, version: int) -> None:
    rig.fork("source", "fork", position)
    found, source = registry(rig, "fork"), registry(rig, "source")
    assert found.schema == "fork"
    assert found.current_version == version
    assert dict(found.schemas) == {n: source.schemas[n] for n in range(1, version + 1)}
    assert dict(found.lenses) == {n: {**source.lenses[n], "schema": "fork"} for n in range(1, version)}
    assert found.boundaries == source.boundaries[:version]
    name = "abc"[version - 1]
    assert read(rig, "fork") == [{name: number} for number in range(position)]
    rig.reopen()
    assert registry(rig, "fork") == found
    assert read(rig, "fork", version=1) == [{"a": number} for number in range(position)]


def test_a_fork_evolves_alone(rig: Rig) -> None:
    rig.fork("source", "fork", 3)
    rig.append("fork", array({"b": 30}))
    evolve(rig, "fork", shape(d=WHOLE), rename("b", "d"))
    rig.append("fork", array({"d": 40}))
    evolve(rig, "source", shape(e=WHOLE), rename("c", "e"))
    assert read(rig, "fork") == [{"d": number} for number in (0, 1, 2, 30, 40)]
    assert read(rig, "source") == [{"e": number} for number in range(6)]
    assert [(edge.offset, edge.version) for edge in registry(rig, "fork").boundaries] == [(0, 1), (2, 2), (4, 3)]
    assert versions(rig, "fork") == [(3, 1, 2), (4, 1, 3)]
    for version, name in enumerate("abd", 1):
        assert read(rig, "fork", version) == [{name: number} for number in (0, 1, 2, 30, 40)]


def test_a_lens_for_the_source_does_not_fit_the_fork(rig: Rig) -> None:
    rig.fork("source", "fork", 3)
    with pytest.raises(BadRequest, match="belongs to"):
        change(rig, "fork", schema=C, lens=lens("source", 2, rename("b", "c")))
    evolve(rig, "fork", C, rename("b", "c"))


@pytest.mark.parametrize("position", range(7))
def test_a_fork_of_a_fork_has_the_registry_as_of_its_point_too(rig: Rig, position: int) -> None:
    rig.fork("source", "middle", 6)
    rig.append("middle", array({"c": 6}))
    evolve(rig, "middle", shape(d=WHOLE), rename("c", "d"))
    rig.fork("middle", "leaf", position)
    version = 1 + position // 2 if position < 6 else 3
    assert registry(rig, "leaf").current_version == version
    assert registry(rig, "leaf").boundaries == registry(rig, "source").boundaries[:version]
    assert read(rig, "leaf") == [{"abc"[version - 1]: number} for number in range(position)]


def test_a_fork_of_a_fork_outlives_both_sources(rig: Rig) -> None:
    rig.fork("source", "middle", 5)
    evolve(rig, "middle", shape(d=WHOLE), rename("c", "d"))
    rig.append("middle", array({"d": 50}))
    rig.fork("middle", "leaf", 6)
    rig.append("leaf", array({"d": 60}))
    rig.delete("source")
    rig.delete("middle")
    rig.sweep()
    rig.reopen()
    assert read(rig, "leaf") == [{"d": number} for number in (0, 1, 2, 3, 4, 50, 60)]
    assert read(rig, "leaf", version=1) == [{"a": number} for number in (0, 1, 2, 3, 4, 50, 60)]
    rig.delete("leaf")
    rig.sweep()
    assert stored(rig) == 0


def test_search_and_routing_key_are_those_of_the_version_at_the_point(rig: Rig) -> None:
    rig.create("s", JSON)
    first = {"jsonPointer": "/k", "required": False}
    change(rig, "s", schema=shape("t", "k", t=TEXT, k=TEXT), search=SEARCH, routingKey=first)
    rig.append("s", array({"k": "x"}, {"k": "y"}))
    change(rig, "s", schema=shape("t", "k", "l", t=TEXT, k=TEXT, l=TEXT))
    change(rig, "s", search=None)
    change(rig, "s", routingKey={"jsonPointer": "/l", "required": False})
    rig.append("s", array({"k": "x", "l": "z"}))
    rig.fork("s", "before", 1)
    rig.fork("s", "after", 3)
    old, new = registry(rig, "before"), registry(rig, "after")
    assert old.search == SEARCH
    assert new.search is None
    assert [found.routing_key.pointer for found in (old, new) if found.routing_key] == ["/k", "/l"]
    for name in ("before", "after"):
        rig.append(name, array({"k": "x", "t": "1"}, {"k": "z", "t": "2"}))
    assert read(rig, "before", key="x") == [{"k": "x"}, {"k": "x", "t": "1"}]
    assert read(rig, "after", key="x") == [{"k": "x"}]
    assert read(rig, "after", key="z") == [{"k": "x", "l": "z"}]


def test_the_history_of_a_fork_begins_with_the_fork(rig: Rig) -> None:
    rig.fork("source", "fork", 3)
    assert [row.revision for row in rig.engine.schemas.history(rig.find("fork"))] == [1]
    evolve(rig, "fork", C, rename("b", "c"))
    assert [row.revision for row in rig.engine.schemas.history(rig.find("fork"))] == [1, 2]
    assert len(rig.engine.schemas.history(rig.find("source"))) == 3


def test_a_fork_of_a_stream_without_a_schema_has_none(rig: Rig) -> None:
    rig.create("plain", JSON, array(1, 2))
    rig.fork("plain", "fork", 1)
    assert registry(rig, "fork").current_version == 0
    with pytest.raises(BadRequest, match="empty stream"):
        change(rig, "fork", schema=True)
    rig.fork("plain", "empty", 0)
    change(rig, "empty", schema=WHOLE)
    assert registry(rig, "plain").current_version == 0


def test_a_fork_that_inherits_no_event_still_has_the_schema(rig: Rig) -> None:
    rig.fork("source", "fork", 0)
    with pytest.raises(BadRequest, match="does not fit"):
        rig.append("fork", array({"c": 1}))
    rig.append("fork", array({"a": 1}))
    assert read(rig, "fork") == [{"a": 1}]


def test_a_fork_with_events_of_its_own_is_held_to_its_schema(rig: Rig) -> None:
    source = rig.find("source")
    with pytest.raises(BadRequest, match="does not fit"):
        rig.create("fork", JSON, array({"b": 1}, {"c": 2}), fork=rig.engine.log.fork(source, 3, 0))
    with pytest.raises(NotFound):
        rig.find("fork")
    assert stored(rig) == 3
    rig.create("fork", JSON, array({"b": 10}, {"b": 11}), fork=rig.engine.log.fork(source, 3, 0))
    assert versions(rig, "fork") == [(3, 2, 2)]
    evolve(rig, "fork", C, rename("b", "c"))
    assert read(rig, "fork") == [{"c": number} for number in (0, 1, 2, 10, 11)]


def test_a_fork_with_events_of_its_own_takes_their_keys(rig: Rig) -> None:
    rig.create("s", JSON)
    change(rig, "s", routingKey={"jsonPointer": "/k", "required": True})
    rig.append("s", array({"k": "a"}))
    with pytest.raises(BadRequest, match="routing key missing"):
        rig.create("fork", JSON, array({"k": "a"}, {}), fork=rig.engine.log.fork(rig.find("s"), 1, 0))
    rig.create("fork", JSON, array({"k": "a"}, {"k": "b"}), fork=rig.engine.log.fork(rig.find("s"), 1, 0))
    assert read(rig, "fork", key="a") == [{"k": "a"}, {"k": "a"}]
    assert read(rig, "fork", key="b") == [{"k": "b"}]


def test_a_fork_within_an_append_gets_its_first_events_in_the_right_shape(rig: Rig) -> None:
    rig.fork("source", "fork", 2, 1)
    assert registry(rig, "fork").current_version == 2
    assert read(rig, "fork") == [{"b": 0}, {"b": 1}, {"b": 2}]


def test_a_fork_at_the_end_of_an_append_belongs_to_what_comes_after_it(rig: Rig) -> None:
    rig.fork("source", "fork", 2, 2)
    assert registry(rig, "fork").current_version == 3
    assert read(rig, "fork") == [{"c": number} for number in range(4)]


def test_a_fork_reads_what_its_source_wrote_after_retention_took_the_start(rig: Rig) -> None:
    rig.retain("source", size=20)
    first = rig.find("source").head.first_seq
    assert first == 4
    rig.fork("source", "fork", 5)
    assert registry(rig, "fork").current_version == 3
    stream = rig.find("fork")
    found = rig.engine.log.read(stream, stream.head, first, budget=1 << 20, version=1)
    assert found.parts == [b'{"a":4}']
