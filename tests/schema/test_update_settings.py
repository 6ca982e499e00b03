"""Changes of routing keys and search configurations."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.schema.change import Classification
from headrace.schema.registry import KeySetting
from headrace.schema.update import routing_key_changes, search_changes

ADDITIVE, WIDENING, DESTRUCTIVE = Classification.ADDITIVE, Classification.WIDENING, Classification.DESTRUCTIVE
USER, ORDER = KeySetting("/user", False), KeySetting("/order", True)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (None, USER, "routing_key_set"),
        (USER, None, "routing_key_cleared"),
        (USER, ORDER, "routing_key_changed"),
        (USER, KeySetting("/user", True), "routing_key_changed"),
    ],
)
def test_a_routing_key_that_changes_breaks_nothing_that_is_stored(
    old: KeySetting | None, new: KeySetting | None, what: str
) -> None:
    (change,) = routing_key_changes(old, new)
    assert change.pointer == "/routingKey"
    assert change.what == what
    assert change.classification == ADDITIVE
    assert "stored events keep their keys" in change.reason


def test_the_same_routing_key_is_no_change() -> None:
    assert list(routing_key_changes(USER, KeySetting("/user", False))) == []


def fields(**declared: Any) -> dict[str, Any]:
    return {"primaryTimestampField": "at", "fields": declared}


DATE = {"kind": "date", "column": True}

SEARCHES = [
    (None, fields(at=DATE), "/search", "search_set", ADDITIVE),
    (fields(at=DATE), None, "/search", "search_cleared", DESTRUCTIVE),
    (fields(at=DATE), fields(at=DATE, to=DATE), "/search/fields/to", "search_added", ADDITIVE),
    (fields(at=DATE, to=DATE), fields(at=DATE), "/search/fields/to", "search_removed", DESTRUCTIVE),
    (fields(at=DATE), fields(at={**DATE, "sortable": True}), "/search/fields/at", "search_extended", WIDENING),
    (
        fields(at={**DATE, "sortable": False}),
        fields(at={**DATE, "sortable": True}),
        "/search/fields/at",
        "search_extended",
        WIDENING,
    ),
    (fields(at={**DATE, "sortable": True}), fields(at=DATE), "/search/fields/at", "search_changed", DESTRUCTIVE),
    (fields(at=DATE), fields(at={**DATE, "kind": "integer"}), "/search/fields/at", "search_changed", DESTRUCTIVE),
    (fields(at=DATE), {**fields(at=DATE), "aliases": {"t": "at"}}, "/search/aliases/t", "search_added", ADDITIVE),
    (
        {**fields(at=DATE), "rollups": {"a/b": {}}},
        fields(at=DATE),
        "/search/rollups/a~1b",
        "search_removed",
        DESTRUCTIVE,
    ),
    (
        {**fields(at=DATE), "defaultFields": [{"field": "x"}]},
        {**fields(at=DATE), "defaultFields": [{"field": "y"}, {"field": "x"}]},
        "/search/defaultFields",
        "search_extended",
        WIDENING,
    ),
    (
        fields(at=DATE),
        {**fields(at=DATE), "primaryTimestampField": "to"},
        "/search/primaryTimestampField",
        "search_changed",
        DESTRUCTIVE,
    ),
]


@pytest.mark.parametrize(("old", "new", "pointer", "what", "classification"), SEARCHES)
def test_a_search_configuration_that_changes_says_what_it_does_to_queries(
    old: Any, new: Any, pointer: str, what: str, classification: Classification
) -> None:
    (change,) = search_changes(old, new)
    assert change.pointer == pointer
    assert change.what == what
    assert change.classification == classification


def test_the_same_search_configuration_is_no_change() -> None:
    assert list(search_changes(fields(at=DATE), {"fields": {"at": DATE}, "primaryTimestampField": "at"})) == []
