"""The registry of a stream as a value and as a document."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from headrace.errors import CorruptData
from headrace.schema.registry import Boundary, KeySetting, Registry

SEARCH = {"primaryTimestampField": "at", "fields": {"at": {"kind": "date"}}}


def lens(source: int) -> dict[str, Any]:
    return {"apiVersion": "durable.lens/v1", "schema": "orders", "from": source, "to": source + 1, "ops": []}


def full() -> Registry:
    return Registry(
        schema="orders",
        current_version=2,
        routing_key=KeySetting("/user/id", True),
        search=SEARCH,
        boundaries=(Boundary(0, 1), Boundary(150, 2)),
        schemas={1: {"type": "object", "title": "b first", "$comment": "order stays"}, 2: True},
        lenses={1: lens(1)},
    )


def versions(*offsets: int) -> Registry:
    registry = Registry.empty("orders")
    for version, offset in enumerate(offsets, 1):
        registry = registry.advanced({"title": str(version)}, lens(version - 1), offset)
    return registry


def test_an_empty_registry_is_a_document_of_version_0() -> None:
    assert Registry.empty("orders").dump() == {
        "apiVersion": "durable.streams/schema-registry/v1",
        "schema": "orders",
        "currentVersion": 0,
        "boundaries": [],
        "schemas": {},
        "lenses": {},
    }
    assert Registry.empty("orders").current_schema is None
    assert Registry.empty("orders").version_at(7) == 0


def test_a_full_registry_is_the_whole_document_in_its_order() -> None:
    assert json.dumps(full().dump()) == json.dumps(
        {
            "apiVersion": "durable.streams/schema-registry/v1",
            "schema": "orders",
            "currentVersion": 2,
            "routingKey": {"jsonPointer": "/user/id", "required": True},
            "search": SEARCH,
            "boundaries": [{"offset": 0, "version": 1}, {"offset": 150, "version": 2}],
            "schemas": {"1": {"type": "object", "title": "b first", "$comment": "order stays"}, "2": True},
            "lenses": {"1": lens(1)},
        }
    )


@pytest.mark.parametrize(
    "registry",
    [Registry.empty("a/b"), full(), versions(0), versions(0, 5, 5), versions(0).advanced(False, None, 3)],
)
def test_a_registry_that_is_dumped_can_be_loaded(registry: Registry) -> None:
    assert Registry.load(json.loads(json.dumps(registry.dump()))) == registry


DAMAGED: list[Any] = [
    ([], "no registry document"),
    ({"apiVersion": "durable.streams/schema-registry/v2"}, "apiVersion"),
    ({"currentVersion": "2"}, "currentVersion"),
    ({"routingKey": {"jsonPointer": "/a"}}, "required"),
    ({"extra": 1}, "extra"),
    ({"schemas": {"one": {}, "2": True}}, "no registry document"),
    ({"schemas": {"1": {}}}, "one schema"),
    ({"boundaries": [{"offset": 0, "version": 1}]}, "one boundary"),
    ({"boundaries": [{"offset": 9, "version": 1}, {"offset": 3, "version": 2}]}, "one boundary"),
    ({"lenses": {}}, "one lens or break"),
    ({"currentVersion": 3}, "3 versions"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGED)
def test_a_damaged_document_is_refused(damage: Any, reason: str) -> None:
    document = {**full().dump(), **damage} if isinstance(damage, dict) else damage
    with pytest.raises(CorruptData, match=reason):
        Registry.load(document)


def test_a_registry_shares_nothing_with_its_document() -> None:
    registry, document = full(), full().dump()
    dumped = registry.dump()
    dumped["schemas"]["1"]["title"] = "changed"
    dumped["search"]["fields"].clear()
    dumped["boundaries"].clear()
    assert registry.dump() == document


def test_a_registry_cannot_be_changed() -> None:
    registry = full()
    with pytest.raises(AttributeError):
        registry.current_version = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        registry.schemas[3] = {}  # type: ignore[index]
    with pytest.raises(TypeError):
        registry.lenses[2] = {}  # type: ignore[index]


def test_a_registry_does_not_see_what_becomes_of_the_mapping_it_was_made_of() -> None:
    schemas: dict[int, Any] = {1: {}}
    registry = Registry(schema="orders", current_version=1, boundaries=(Boundary(0, 1),), schemas=schemas)
    schemas.clear()
    assert registry.current_schema == {}


@pytest.mark.parametrize(("seq", "version"), [(0, 1), (149, 1), (150, 2), (151, 2), (10**15, 2)])
def test_an_event_has_the_version_of_the_greatest_boundary_at_or_before_it(seq: int, version: int) -> None:
    assert full().version_at(seq) == version


def test_the_newest_version_counts_where_nothing_was_appended_between() -> None:
    registry = versions(0, 5, 5, 9)
    assert [registry.version_at(seq) for seq in (4, 5, 8, 9)] == [1, 3, 3, 4]
    assert [edge.version for edge in registry.boundaries] == [1, 2, 3, 4]


def test_the_first_version_holds_from_the_start_whatever_the_offset() -> None:
    registry = Registry.empty("orders").advanced({}, lens(0), 40)
    assert registry.boundaries == (Boundary(0, 1),)
    assert registry.lenses == {}
    assert registry.bounded(41) is registry


def test_a_version_more_leaves_the_registry_before_it_as_it_was() -> None:
    before = versions(0)
    kept = copy.deepcopy(before.dump())
    after = before.advanced({"title": "2"}, lens(1), 7)
    assert before.dump() == kept
    assert after.current_version == 2
    assert after.current_schema == {"title": "2"}
    assert after.boundaries == (Boundary(0, 1), Boundary(7, 2))
    assert after.lenses == {1: lens(1)}


def test_the_newest_boundary_can_be_moved_before_the_registry_is_kept() -> None:
    moved = versions(0, 7).bounded(12)
    assert moved.boundaries == (Boundary(0, 1), Boundary(12, 2))
    assert moved.schemas == versions(0, 7).schemas


def test_a_version_without_a_lens_cuts_the_chain() -> None:
    registry = versions(0, 5).advanced(True, None, 9)
    assert registry.breaks == (2,)
    assert registry.dump()["breaks"] == [2]
    assert set(registry.lenses) == {1}
    assert registry.oldest_version == 3
    assert registry.readable_from == 9
    later = registry.advanced(True, lens(3), 12)
    assert later.oldest_version == 3
    assert later.readable_from == 9


def test_everything_is_readable_where_the_chain_is_whole() -> None:
    assert versions(0, 5).oldest_version == 1
    assert versions(0, 5).readable_from == 0
    assert Registry.empty("orders").oldest_version == 0
    assert Registry.empty("orders").readable_from == 0
