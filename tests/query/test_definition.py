from __future__ import annotations

import copy
import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from headrace.errors import CorruptData
from headrace.query.definition import Definition, decode_exact
from headrace.schema.lens.pullback import Either, Rebuild, Stored
from headrace.schema.lens.values import LensFailure
from headrace.schema.registry import Registry
from query.declarations import DOCUMENT
from schema.lens.wire import lens_of

RENAME = {"op": "rename", "from": "/code", "to": "/status"}
ELSEWHERE = {"op": "add", "path": "/new", "schema": {"type": "integer"}, "default": 1}
LEVELS = {"map": {"1": 2}, "default": 3}
CONVERT = {"op": "convert", "path": "/code", "fromType": "integer", "toType": "integer", "forward": LEVELS} | {
    "backward": LEVELS
}
#: The object at /http is put together from two places.
REBUILD = {"op": "plunge", "from": "/code", "host": "/http", "name": "status"}


def search(place: str = "/code", **changes: dict[str, Any]) -> dict[str, Any]:
    """The document that uses everything, bound at version 1, with changes to some fields; status lies at a place."""
    document = copy.deepcopy(DOCUMENT)
    for name, field in document["fields"].items():
        field["bindings"] = [{**field["bindings"][0], "version": 1}]
        field.update(changes.get(name, {}))
    document["fields"]["status"]["bindings"][0]["jsonPointer"] = place
    return document


def registry(search: Any, *lenses: list[dict[str, Any]] | None) -> Registry:
    """A registry with these lenses; None is a break."""
    made = Registry.empty("s").advanced(True, None, 0)
    for version, ops in enumerate(lenses, 1):
        made = made.advanced(True, None if ops is None else lens_of(version, ops), 10 * version)
    return msgspec.structs.replace(made, search=search)


def definition(search: Any, *lenses: list[dict[str, Any]] | None) -> Definition:
    made = Definition.of(registry(search, *lenses))
    assert made is not None
    return made


def field_hash(name: str, change: dict[str, Any]) -> str:
    """The hash of a field with a change, where nothing else depends on it."""
    document = {**search(**{name: change}), "rollups": {}, "containsDefaultFields": []}
    return definition(document).field_hash(name, 1)


def status_hash(search: Any, *lenses: list[dict[str, Any]] | None, through: int = 1) -> str:
    return definition(search, *lenses).field_hash("status", through)


def test_a_stream_without_search_has_no_definition() -> None:
    assert Definition.of(registry(None)) is None


def test_a_search_or_lens_that_cannot_be_read_is_corrupt() -> None:
    with pytest.raises(CorruptData, match="search"):
        Definition.of(registry({"fields": 5}))
    with pytest.raises(CorruptData, match="lens"):
        Definition.of(registry(search(), [{"op": "wish"}]))


def test_a_field_has_a_source_in_every_version_that_lenses_lead_from() -> None:
    made = definition(search("/status"), [RENAME], [ELSEWHERE])
    assert made.sources["status"] == {1: Stored(("code",)), 2: Stored(("status",)), 3: Stored(("status",))}
    assert definition(search("/status"), None, [{**RENAME, "optional": True}]).sources["status"] == {
        2: Either(("code",), Stored(("code",)), Stored(("status",))),
        3: Stored(("status",)),
    }


def test_a_default_that_a_lens_leaves_to_the_schema_is_known() -> None:
    schema = {"properties": {"code": {"default": 7}}}
    empty = Registry.empty("s").advanced(True, None, 0)
    made = empty.advanced(schema, lens_of(1, [{"op": "add", "path": "/code", "schema": {}}]), 5)
    found = Definition.of(msgspec.structs.replace(made, search=search()))
    assert found is not None
    assert found.sources["status"][1].evaluate(b"{}") == b"7"
    assert found.promote(b"{}", 1) == b'{"code":7}'


def test_parts_of_summaries_have_sources_too() -> None:
    made = definition(search(), [{**RENAME, "to": "/sum"}])
    assert made.parts["requests", "given", "sum"] == {1: Stored(("code",)), 2: Stored(("sum",))}
    assert ("requests", "given", "histogram") not in made.parts


def test_an_event_is_promoted_as_readers_see_it() -> None:
    made = definition(search("/status"), [RENAME])
    assert made.promote(b'{"code": 5.0}', 1) == b'{"status":5.0}'
    assert made.promote(b'{"status": 5.0}', 2) == b'{"status": 5.0}'
    assert made.document(b'{"code": 5.0}', 1) == {"status": 5}


def test_an_event_before_a_break_is_not_promoted() -> None:
    made = definition(search(), None, [ELSEWHERE])
    assert made.oldest_version == 2
    assert made.current_version == 3
    with pytest.raises(LensFailure, match="no lens leads from version 1"):
        made.promote(b"{}", 1)


def test_numbers_of_an_event_keep_all_their_digits() -> None:
    spelled = b"[1e400, 12345678901234567890123, 9007199254740993.0, 0.1, 0.30000000000000000001, 1e-400, 1e2000]"
    exact = [10**400, 12345678901234567890123, 2**53 + 1, 0.1, Decimal("0.30000000000000000001"), Decimal("1e-400")]
    assert decode_exact(spelled) == [*exact, Decimal("1e2000")]
    assert decode_exact(b"[0.%s1]" % (b"0" * 2000)) == [Decimal(f"0.{'0' * 2000}1")]


def test_numbers_that_no_decimal_can_be_are_an_infinity_a_zero_or_nearly_one() -> None:
    great, zero, tiny = decode_exact(
        b"[-1e9999999999999999999999, 0.0e9999999999999999999999, 1e-9999999999999999999999]"
    )
    assert great == -float("inf")
    assert zero == 0
    assert 0 < tiny < Decimal("1e-999")


def test_hashes_are_the_same_in_every_process() -> None:
    made = definition(search("/status"), [RENAME], [ELSEWHERE])
    assert made.field_hash("status", 1) == "a3d8ce5b2a95ca5e"
    assert made.field_hash("message", 3) == "76d3cc7d5edb2336"
    assert made.rollup_hash("requests", 3) == "073174fc4c837136"


def test_hashes_are_the_same_after_a_registry_was_sent() -> None:
    given = registry(search("/http"), [REBUILD], [CONVERT | {"path": "/other", "optional": True}])
    sent = Registry.load(json.loads(json.dumps(given.dump())))
    here, there = Definition.of(given), Definition.of(sent)
    assert here is not None
    assert there is not None
    for name in here.search.fields:
        assert here.field_hash(name, 3) == there.field_hash(name, 3)
    assert here.rollup_hash("requests", 3) == there.rollup_hash("requests", 3)


def test_every_field_has_a_hash_of_its_own() -> None:
    made = definition(search())
    hashes = [made.field_hash(name, 1) for name in made.search.fields]
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize(
    "lenses",
    [
        [[ELSEWHERE]],
        [[ELSEWHERE], [{"op": "remove", "path": "/old", "schema": True, "default": 1}]],
        [[{"op": "rename", "from": "/status", "to": "/other", "optional": True}]],
    ],
)
def test_a_lens_that_does_not_touch_a_field_keeps_its_hash(lenses: list[list[dict[str, Any]]]) -> None:
    assert status_hash(search(), *lenses) == status_hash(search())


def test_a_lens_that_moves_a_field_keeps_its_hash_for_older_events() -> None:
    assert status_hash(search("/status"), [RENAME]) == status_hash(search("/code"))
    assert status_hash(search("/status"), [RENAME], through=2) != status_hash(search("/code"))


@pytest.mark.parametrize("ops", [[CONVERT], [{"op": "wrap", "path": "/code", "mode": "singleton"}]])
def test_a_lens_that_changes_the_values_of_a_field_changes_its_hash(ops: list[dict[str, Any]]) -> None:
    assert status_hash(search(), ops) != status_hash(search())


def test_what_is_put_together_from_several_places_keeps_its_hash_when_later_lenses_do_not_touch_it() -> None:
    made = definition(search("/http"), [REBUILD], [ELSEWHERE])
    assert isinstance(made.sources["status"][1], Rebuild)
    assert made.field_hash("status", 1) == status_hash(search("/http"), [REBUILD])
    moved = definition(search("/web"), [REBUILD], [{"op": "rename", "from": "/http", "to": "/web"}])
    assert moved.field_hash("status", 1) == made.field_hash("status", 1)
    changed = definition(search("/http"), [REBUILD], [{"op": "wrap", "path": "/http", "mode": "singleton"}])
    assert changed.field_hash("status", 1) != made.field_hash("status", 1)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("status", {"kind": "float"}),
        ("status", {"exact": False}),
        ("service", {"normalizer": "identity_v1"}),
        ("service", {"prefix": False}),
        ("path", {"contains": False}),
        ("why", {"contains": True}),
        ("message", {"positions": False}),
    ],
)
def test_a_field_that_is_stored_otherwise_has_another_hash(name: str, change: dict[str, Any]) -> None:
    assert field_hash(name, change) != field_hash(name, {})


@pytest.mark.parametrize(
    ("name", "change"),
    [("status", {"column": False}), ("status", {"exists": True}), ("status", {"sortable": True, "aggregatable": True})],
)
def test_a_field_that_may_only_be_asked_otherwise_keeps_its_hash(name: str, change: dict[str, Any]) -> None:
    assert field_hash(name, change) == field_hash(name, {})


def test_being_a_default_field_counts_where_it_changes_what_is_stored() -> None:
    others = {**search(), "defaultFields": [{"field": "level_text"}, {"field": "message"}]}
    others["fields"]["level_text"] = {**others["fields"]["request"]}
    known, other = definition(search()), definition(others)
    assert known.field_hash("request", 1) != other.field_hash("request", 1)
    assert known.field_hash("why", 1) == other.field_hash("why", 1)
    assert known.is_contained("path")
    assert not definition({**search(path={"contains": False}), "containsDefaultFields": []}).is_contained("path")


def rollup_hash(document: Any, *lenses: list[dict[str, Any]]) -> str:
    return definition(document, *lenses).rollup_hash("requests", 1)


def changed(**changes: Any) -> dict[str, Any]:
    document = search()
    document["rollups"]["requests"].update(changes)
    return document


@pytest.mark.parametrize(
    "document",
    [
        changed(timestampField="time"),
        changed(include="has:status  NOT service:health*"),
        changed(intervals=["90m", "1m"]),
        {**search(), "aliases": {"at": "time"}},
        search(message={"positions": False}),
    ],
)
def test_a_rollup_that_computes_the_same_keeps_its_hash(document: dict[str, Any]) -> None:
    assert rollup_hash(document) == rollup_hash(search())


@pytest.mark.parametrize(
    "document",
    [
        changed(dimensions=["status", "service"]),
        changed(intervals=["1m"]),
        changed(include="has:status"),
        changed(measures={"all": {"kind": "count"}}),
        search(duration={"kind": "integer"}),
        search("/elsewhere"),
    ],
)
def test_a_rollup_that_computes_something_else_has_another_hash(document: dict[str, Any]) -> None:
    assert rollup_hash(document) != rollup_hash(search())


def test_an_alias_stands_for_its_field_in_the_hash_of_a_rollup() -> None:
    by_alias = {**changed(include="has:code_of -service:health*"), "aliases": {"code_of": "status"}}
    assert rollup_hash(by_alias) == rollup_hash(search())
    assert rollup_hash({**by_alias, "aliases": {"code_of": "level"}}) != rollup_hash(search())


def test_a_bare_word_stands_for_the_default_fields_in_the_hash_of_a_rollup() -> None:
    known, other = changed(include="oops"), {**changed(include="oops"), "defaultFields": [{"field": "why"}]}
    assert rollup_hash(known) != rollup_hash(other)
    boosted = {**known, "defaultFields": [{**default, "boost": 9} for default in known["defaultFields"]]}
    assert rollup_hash(known) == rollup_hash(boosted)


def test_a_lens_under_a_part_of_a_summary_changes_the_hash_of_its_rollup() -> None:
    assert rollup_hash(search(), [{"op": "wrap", "path": "/sum", "mode": "singleton"}]) != rollup_hash(search())
    assert rollup_hash(search(), [ELSEWHERE]) == rollup_hash(search())
