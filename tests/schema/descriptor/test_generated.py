from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.schema.descriptor.generated import json_schema, make_lens
from headrace.schema.descriptor.nodes import UNFIT, Event, EventField, coerce_value
from headrace.schema.diff import judge
from headrace.schema.document import Validator, problems
from headrace.schema.lens.document import parse
from headrace.schema.lens.ops import Lens
from headrace.schema.lens.proof import prove

ALL = Event(
    "All",
    {
        "s": EventField("str"),
        "f": EventField("f64"),
        "i": EventField("i64"),
        "b": EventField("bool"),
        "y": EventField("bytes"),
        "t": EventField("datetime"),
        "o": EventField("str", False),
        "d": EventField("i64", True, 7),
    },
)
FIT: dict[str, Any] = {"s": "", "f": 1.5, "i": 1, "b": True, "y": "", "t": "2026-01-01T00:00:00Z", "d": 1}

#: A field, a value as JSON text, and whether it is of the type.
VALUES = [
    ("s", '"text"', True),
    ("s", "3", False),
    ("s", "null", False),
    ("f", "3", True),
    ("f", "-0.0", True),
    ("f", "1e308", True),
    ("f", "1.7976931348623157e308", True),
    ("f", "1e309", False),
    ("f", "-1e400", False),
    ("f", '"1.5"', False),
    ("f", "true", False),
    ("i", "9223372036854775807", True),
    ("i", "-9223372036854775808", True),
    ("i", "9223372036854775808", False),
    ("i", "-9223372036854775809", False),
    ("i", "3.0", True),
    ("i", "1e3", True),
    ("i", "1.5", False),
    ("i", '"1"', False),
    ("i", "true", False),
    ("b", "false", True),
    ("b", "0", False),
    ("b", '"true"', False),
    ("y", '"AA=="', True),
    ("y", '"AAA="', True),
    ("y", '"AAAA"', True),
    ("y", '"AB=="', False),
    ("y", '"AA"', False),
    ("y", '"A-A_"', False),
    ("y", '"AA==AA=="', False),
    ("t", '"2026-02-28T23:59:59.123456789+05:30"', True),
    ("t", '"2026-02-30T00:00:00Z"', False),
    ("t", '"2026-02-28"', False),
    ("t", "1767225600000", False),
    ("o", "null", True),
    ("o", '"x"', True),
    ("o", "3", False),
]


@pytest.mark.parametrize(("name", "text", "fits"), VALUES)
def test_the_schema_takes_what_is_of_the_type_and_nothing_else(name: str, text: str, fits: bool) -> None:
    members = {key: msgspec.json.encode(value) for key, value in FIT.items()} | {name: text.encode()}
    body = b"{" + b",".join(msgspec.json.encode(key) + b":" + value for key, value in members.items()) + b"}"
    assert (Validator(json_schema(ALL)).failures(body) == []) is fits


@pytest.mark.parametrize(("name", "text", "fits"), [case for case in VALUES if case[1] != "null"])
def test_a_default_fits_where_a_value_would(name: str, text: str, fits: bool) -> None:
    value = float(text) if name == "f" and text[-1].isdigit() and text[0] != '"' else msgspec.json.decode(text)
    assert (coerce_value(value, ALL.schema[name].type) is not UNFIT) is fits


def test_fields_are_all_there_is_and_those_required_must_be_there() -> None:
    judge = Validator(json_schema(ALL))
    assert judge.accepts(FIT)
    assert not judge.accepts({**FIT, "more": 1})
    for name in FIT:
        assert not judge.accepts({key: value for key, value in FIT.items() if key != name})


def test_the_schema_is_one_that_streams_take() -> None:
    assert problems(json_schema(ALL)) == []
    many = {
        f"field_{'x' * 115}{number}": EventField("bytes" if number < 100 else "datetime", False)
        for number in range(500)
    }
    assert problems(json_schema(Event("Many", many))) == []


def carried(old: dict[str, EventField], new: dict[str, EventField]) -> list[dict[str, Any]] | None:
    """The operations of the lens, proven; None where there is none."""
    one, other = Event("E", old), Event("E", new)
    document = make_lens(one, other)
    if document is None:
        return None
    parsed = parse(document)
    assert isinstance(parsed, Lens)
    assert prove(json_schema(one), json_schema(other), parsed.ops, judge).problems == []
    return list(document["ops"])


def test_a_change_that_adds_fields_has_a_lens_that_fills_in_defaults() -> None:
    added = carried(
        {"a": EventField("i64")},
        {
            "a": EventField("i64"),
            "n": EventField("str", False),
            "d": EventField("f64", True, 0.5),
            "o": EventField("str", False, "x"),
        },
    )
    assert added is not None
    assert [(op["op"], op["path"], op["default"]) for op in added] == [("add", "/d", 0.5), ("add", "/o", "x")]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (EventField("i64"), EventField("f64")),
        (EventField("i64", False), EventField("f64", False)),
        (EventField("i64"), EventField("f64", False)),
        (EventField("str"), EventField("str", False)),
        (EventField("str", True, "a"), EventField("str", True, "b")),
        (EventField("str", True, "a"), EventField("str")),
        (EventField("str"), EventField("str", True, "a")),
    ],
)
def test_a_change_that_every_event_fits_needs_no_step(old: EventField, new: EventField) -> None:
    assert carried({"a": old}, {"a": new}) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"a": EventField("f64")}, {"a": EventField("i64")}),
        ({"a": EventField("str")}, {"a": EventField("i64")}),
        ({"a": EventField("str", False)}, {"a": EventField("str")}),
        ({"a": EventField("str", False)}, {"a": EventField("str", True, "x")}),
        ({"a": EventField("str")}, {"a": EventField("str"), "b": EventField("str")}),
        ({"a": EventField("str")}, {"a": EventField("datetime")}),
    ],
)
def test_a_change_that_narrows_or_asks_for_something_has_no_lens(
    old: dict[str, EventField], new: dict[str, EventField]
) -> None:
    assert carried(old, new) is None


@pytest.mark.parametrize(
    "field", [EventField("str"), EventField("str", False), EventField("i64", True, 3), EventField("i64", False, 3)]
)
def test_a_field_that_is_removed_or_renamed_has_a_lens(field: EventField) -> None:
    kept = {"k": EventField("bool")}
    gone = carried({"a": field, **kept}, kept)
    assert gone is not None and [(op["op"], op["path"]) for op in gone] == [("remove", "/a")]
    moved = carried({"a": field, **kept}, {"b": field, **kept})
    assert moved is not None and [(op["op"], op["from"], op["to"]) for op in moved] == [("rename", "/a", "/b")]


@pytest.mark.parametrize("default", [2**63 - 1, -(2**63), 2**53 + 1, 2**63 - 513])
def test_a_field_with_a_large_default_has_a_lens_that_is_proven(default: int) -> None:
    old = {"a": EventField("str")}
    added = carried(old, {**old, "n": EventField("i64", True, default)})
    assert added is not None
    assert [(op["op"], op["path"], op["default"]) for op in added] == [("add", "/n", default)]


def test_a_change_of_several_fields_has_one_lens() -> None:
    ops = carried(
        {"a": EventField("str"), "b": EventField("i64"), "c": EventField("bool", False)},
        {"z": EventField("str"), "c": EventField("bool", False), "d": EventField("f64", True, 1.0)},
    )
    assert ops is not None and [op["op"] for op in ops] == ["rename", "remove", "add"]
