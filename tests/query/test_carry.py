"""A search configuration over a change of schema, and the fields that earlier changes emptied."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from headrace.query.carry import carry_search, emptied_fields
from headrace.schema.apply import CarriedSearch
from headrace.schema.lens.chain import Crossings
from headrace.schema.registry import Registry
from schema.lens.vocabulary import TEXT, WHOLE, closed, move, opened, plunge, remove
from schema.lens.wire import lens_of

FIRST = closed({"at": WHOLE, "ms": WHOLE, "who": TEXT})


def field(kind: str, *places: tuple[int, str]) -> dict[str, Any]:
    bindings = [{"version": version, "jsonPointer": place} for version, place in places]
    return {"kind": kind, "bindings": bindings, "exact": True, "column": True, "aggregatable": True}


def search(**fields: Any) -> dict[str, Any]:
    known = {"at": field("date", (1, "/at")), "ms": field("integer", (1, "/ms")), "who": field("keyword", (1, "/who"))}
    return {"primaryTimestampField": "at", "fields": {**known, **fields}}


def registry(given: Any, *steps: tuple[Any, list[dict[str, Any]]], first: Any = FIRST) -> Registry:
    made = Registry.empty("s").advanced(first, None, 0)
    for version, (schema, ops) in enumerate(steps, 1):
        made = made.advanced(schema, lens_of(version, ops), 10 * version)
    return msgspec.structs.replace(made, search=given)


def carried(old: Registry, wanted: Any, new: Registry) -> CarriedSearch:
    return carry_search(old, wanted, new, Crossings(new))


RENAMED = closed({"at": WHOLE, "took": WHOLE, "who": TEXT}), [move("/ms", "/took")]
INSIDE = closed({"at": WHOLE, "http": closed({"took": WHOLE}), "who": TEXT}), [plunge("/took", "/http", "took")]


def bindings(found: CarriedSearch, name: str = "ms") -> list[tuple[int, str]]:
    return [(one["version"], one["jsonPointer"]) for one in found.search["fields"][name]["bindings"]]


def test_a_stored_binding_is_read_in_the_current_shape() -> None:
    # It names version 1, and yet it was read in version 2.
    old = registry(search(ms=field("integer", (1, "/took"))), RENAMED)
    new = registry(old.search, RENAMED, INSIDE)
    assert bindings(carried(old, old.search, new)) == [(1, "/took"), (3, "/http/took")]


def test_a_binding_of_an_update_is_read_in_the_version_that_it_names() -> None:
    old = registry(None, RENAMED, INSIDE)
    found = carried(old, search(), old)
    assert bindings(found) == [(1, "/ms"), (2, "/took"), (3, "/http/took")]
    assert bindings(found, "who") == [(1, "/who")]
    assert found.impact == ()
    assert bindings(carried(old, search(ms=field("integer", (2, "/took"))), old)) == [(2, "/took"), (3, "/http/took")]
    assert bindings(carried(old, search(ms=field("integer", (3, "/ms"))), old)) == [(3, "/ms")]
    kept = registry(search(), RENAMED, INSIDE)
    assert bindings(carried(kept, search(), kept)) == [(1, "/ms")]


def test_bindings_begin_after_a_break() -> None:
    broken = registry(None, RENAMED).advanced(INSIDE[0], None, 20)
    assert bindings(carried(broken, search(), broken)) == [(1, "/ms")]


def test_what_was_given_is_not_touched() -> None:
    old, new = registry(search()), registry(search(), RENAMED)
    given = copy.deepcopy(old.search)
    assert carried(old, old.search, new).search != given
    assert old.search == given


def test_a_field_of_another_kind_is_a_new_field() -> None:
    old, new = registry(search()), registry(search(), RENAMED)
    wanted = search(ms=field("keyword", (2, "/who")))
    assert carried(old, wanted, new).impact == ()


ROLLUPS = {
    "rollups": {
        "sums": {
            "intervals": ["1m"],
            "include": "who:ada",
            "measures": {
                "given": {
                    "kind": "summary_parts",
                    **{f"{part}JsonPointer": f"/sum/{part}" for part in ("count", "sum", "min", "max", "histogram")},
                }
            },
        },
        "plain": {"intervals": ["1m"], "measures": {"n": {"kind": "count"}}},
    }
}
SUMMED = closed({"at": WHOLE, "ms": WHOLE, "who": TEXT, "sum": {"type": "object"}})
MOVED = closed({"at": WHOLE, "ms": WHOLE, "who": TEXT, "parts": {"type": "object"}})


def test_the_pointers_of_summaries_move_too() -> None:
    given = {**search(), **ROLLUPS}
    old = registry(given, first=SUMMED)
    new = registry(given, (MOVED, [move("/sum", "/parts")]), first=SUMMED)
    found = carried(old, given, new)
    measure = found.search["rollups"]["sums"]["measures"]["given"]
    assert [measure[f"{part}JsonPointer"] for part in ("count", "histogram")] == ["/parts/count", "/parts/histogram"]
    assert found.impact == ()
    assert found.changes[0].pointer == "/search/rollups/sums/measures/given/countJsonPointer"


def test_pointers_of_summaries_from_before_the_lens_mean_what_they_meant() -> None:
    given = {**search(), **ROLLUPS}
    new = registry(given, (MOVED, [move("/sum", "/parts")]), first=SUMMED)
    moved = carried(registry(given, first=SUMMED), given, new).search
    kept = msgspec.structs.replace(new, search=moved)
    assert carried(kept, given, kept).search == moved
    # A place that events have now is meant as it is.
    other = copy.deepcopy(moved)
    other["rollups"]["sums"]["measures"]["given"]["countJsonPointer"] = "/ms"
    assert carried(kept, other, kept).search == other


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        ("/sum", [("/search/rollups/sums", "lost")]),
        ("/who", [("/search/fields/who", "lost"), ("/search/rollups/sums", "changed")]),
        ("/at", [("/search/fields/at", "lost"), ("/search/rollups/sums", "lost"), ("/search/rollups/plain", "lost")]),
    ],
)
def test_rollups_change_with_what_they_read(gone: str, expected: list[tuple[str, str]]) -> None:
    given = {**search(), **ROLLUPS}
    old = registry(given, first=SUMMED)
    found = carried(old, given, registry(given, (True, [remove(gone)]), first=SUMMED))
    assert [(one.subject, one.effect.value) for one in found.impact] == expected


def emptied(made: Registry) -> list[dict[str, Any]]:
    return [found.dump() for found in emptied_fields(made)]


def test_a_field_that_a_lens_moved_away_is_reported_with_the_binding_that_mends_it() -> None:
    made = registry(search(), RENAMED)
    binding = {"version": 2, "jsonPointer": "/took"}
    assert emptied(made) == [{"field": "ms", "from_version": 2, "binding": binding}]
    made = registry(search(), RENAMED, INSIDE)
    binding = {"version": 3, "jsonPointer": "/http/took"}
    assert emptied(made) == [{"field": "ms", "from_version": 2, "binding": binding}]
    made.search["fields"]["ms"]["bindings"].append(binding)
    assert emptied(made) == []


def test_an_open_schema_does_not_hide_an_emptied_field() -> None:
    made = registry(search(), (opened({"took": WHOLE}), [move("/ms", "/took")]), first=opened({"ms": WHOLE}))
    assert [found["field"] for found in emptied(made)] == ["ms"]


def test_a_field_that_is_bound_where_its_data_is_is_not_reported() -> None:
    assert emptied(registry(search(ms=field("integer", (1, "/took"))), RENAMED)) == []
    assert emptied(registry(search(ms=field("integer", (2, "/took"))), RENAMED)) == []
    assert emptied(registry(search(), (closed({"at": WHOLE, "who": TEXT}), [remove("/ms")]))) == []
    assert emptied(registry(None, RENAMED)) == []
