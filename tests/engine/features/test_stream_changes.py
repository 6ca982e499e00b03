from __future__ import annotations

import pytest

from headrace.engine.features.source import EventSource, source_of
from headrace.engine.features.stream_changes import created, evolved, stepped
from headrace.query import search_document
from headrace.query.search import Search
from headrace.schema.descriptor.nodes import Event, EventField, Type
from headrace.schema.registry import Registry
from headrace.types import Steps

BASE = Event("Txn", {"a": EventField("i64")}, keep_events_for_ms=30)


def changed(**settings: object) -> Event:
    facts = {"schema": BASE.schema, "keep_events_for_ms": 30, **settings}
    return Event("Txn", **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("event", "effect", "version"),
    [
        (BASE, "kept", 1),
        (changed(cold_after_ms=5000), "settings", 1),
        (changed(schema={"a": EventField("f64")}), "lens", 2),
        (changed(schema={"a": EventField("i64"), "b": EventField("str", required=False)}), "lens", 2),
        (changed(schema={"a": EventField("i64"), "b": EventField("str", default="x")}), "lens", 2),
        (changed(schema={"a": EventField("i64"), "b": EventField("str")}), "break", 2),
        (changed(schema={"a": EventField("str")}), "break", 2),
    ],
)
def test_a_change_makes_a_lens_or_a_break_or_neither(event: Event, effect: str, version: int) -> None:
    found = created("events/Txn", BASE).compiled(None, EventSource)
    made = evolved(found, event, 10)
    assert made.effect == effect
    assert made.registry.current_version == version
    assert Registry.load(made.registry.dump()) == made.registry
    assert made.registry.readable_from == (10 if effect == "break" else 0)
    again = made.compiled(found, EventSource)
    assert again.revision == version
    assert source_of(again).rules.event == event


@pytest.mark.parametrize(
    ("ways", "kept"),
    [
        ([(60, 5)], ((0, 30), (5, 60))),
        ([(60, 5), (90, 5)], ((0, 30), (5, 90))),
        ([(None, 5)], ((0, 30), (5, None))),
        ([(7, 5)], ((0, 7),)),
        ([(60, 5), (40, 9)], ((0, 30), (5, 40))),
        ([(60, 5), (20, 9), (50, 11)], ((0, 20), (5, 20), (11, 50))),
        ([(60, 0)], ((0, 60),)),
    ],
)
def test_events_keep_what_held_when_they_came_unless_less_is_kept(
    ways: list[tuple[int | None, int]], kept: Steps
) -> None:
    found = created("events/Txn", BASE).compiled(None, EventSource)
    for keep, next_seq in ways:
        found = evolved(found, changed(keep_events_for_ms=keep), next_seq).compiled(found, EventSource)
    assert source_of(found).rules.kept == kept


def test_another_key_or_window_begins_to_count_with_the_next_event() -> None:
    found = created("events/Txn", BASE).compiled(None, EventSource)
    made = evolved(found, changed(dedupe_key="a"), 10)
    assert made.rules.dedupe_since == 10
    later = evolved(made.compiled(found, EventSource), changed(dedupe_key="a", cold_after_ms=1000), 20)
    assert later.rules.dedupe_since == 10
    longer = evolved(made.compiled(found, EventSource), changed(dedupe_key="a", dedupe_window_ms=5000), 30)
    assert longer.rules.dedupe_since == 30


def test_a_setting_that_stays_makes_no_step() -> None:
    assert stepped(((0, 5),), 5, 10) == ((0, 5),)
    assert stepped(((0, 5), (10, 6)), 7, 10) == ((0, 5), (10, 7))


def test_whatever_fields_an_event_has_they_can_be_asked_for() -> None:
    types: dict[str, Type] = {"user": "str", "has": "f64", "AND": "bool", "at": "datetime", "contains": "i64"}
    odd: dict[str, Type] = {"_score": "f64", "x" * 65: "str", "blob": "bytes"}
    event = Event("Txn", {name: EventField(kind) for name, kind in {**types, **odd}.items()})
    found = search_document.parse_search_document(created("events/Txn", event).registry.search, current_version=1)
    assert isinstance(found, Search)
    assert found.fields.keys() == types.keys()
    assert found.primary_timestamp == "at"


def test_an_event_without_moments_can_be_asked_too() -> None:
    found = search_document.parse_search_document(created("events/Txn", BASE).registry.search, current_version=1)
    assert isinstance(found, Search)
    assert found.primary_timestamp not in BASE.schema
