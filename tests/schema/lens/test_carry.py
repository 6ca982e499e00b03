"""Carrying pointers forward through a lens: where the value lies afterwards, and what became of it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from headrace.query.carry import FieldReader
from headrace.query.search import Kind
from headrace.schema import pointer as pointers
from headrace.schema.lens.carry import Carried, CarryEffect, Crossing, KeyReader, Reader, ValueReader
from headrace.schema.lens.ops import Lens
from schema.lens.vocabulary import (
    LEVELS,
    OPTIONAL,
    TABLE,
    TEXT,
    WHOLE,
    add,
    closed,
    convert,
    copy,
    each,
    head,
    hoist,
    listed,
    move,
    opened,
    plunge,
    remove,
    within,
    wrap,
)
from schema.lens.wire import lens

KEYWORD, INTEGER = FieldReader(Kind.KEYWORD, False), FieldReader(Kind.INTEGER, False)
CHANGED, LOST = CarryEffect.CHANGED, CarryEffect.LOST
FLAT = closed({"a": TEXT, "b": TEXT, "n": WHOLE})
NESTED = closed({"o": closed({"a": TEXT, "b": TEXT}), "c": TEXT})
LIST = closed({"l": listed(TEXT, minItems=1), "c": TEXT})
PAIRS = closed({"l": listed(closed({"a": TEXT, "b": TEXT})), "c": TEXT})
LISTS = closed({"l": listed(listed(TEXT, minItems=1), minItems=2)})
ONE = closed({"l": listed(TEXT, minItems=1, maxItems=1)})


def crossing(schema: Any, *ops: dict[str, Any]) -> Crossing:
    made = lens(*ops)
    assert isinstance(made, Lens)
    return Crossing(schema, True, made)


def carried(schema: Any, place: str, *ops: dict[str, Any], reader: Reader = KEYWORD) -> tuple[str, CarryEffect | None]:
    found = crossing(schema, *ops).carry(pointers.parse(place) or (), reader)
    return pointers.text(found.pointer), found.effect


@pytest.mark.parametrize(
    ("schema", "place", "ops", "expected"),
    [
        (FLAT, "/a", [], ("/a", None)),
        (FLAT, "/a", [move("/a", "/x")], ("/x", None)),
        (FLAT, "/a", [move("/b", "/x")], ("/a", None)),
        (NESTED, "/o/a", [move("/o", "/x")], ("/x/a", None)),
        (NESTED, "/o", [move("/o/a", "/x")], ("/o", None)),
        (NESTED, "/o/a", [move("/o/a", "/o")], ("/o", None)),
        (NESTED, "/o/b", [move("/o/a", "/o")], ("/o/b", LOST)),
        (FLAT, "/b", [move("/a", "/b")], ("/b", CHANGED)),
        (FLAT, "/b", [move("/n", "/b")], ("/b", LOST)),
        (FLAT, "/a", [move("/a", "/x"), move("/x", "/y")], ("/y", None)),
        (FLAT, "/a", [move("/a", "/t"), move("/b", "/a"), move("/t", "/b")], ("/b", None)),
        (FLAT, "/b", [move("/a", "/t"), move("/b", "/a"), move("/t", "/b")], ("/a", None)),
        (FLAT, "/a", [copy("/a", "/x")], ("/a", None)),
        (FLAT, "/a", [copy("/a", "/x"), remove("/a")], ("/x", None)),
        (FLAT, "/b", [copy("/a", "/b")], ("/b", CHANGED)),
        (NESTED, "/o/a", [hoist("/o", "a", "/x")], ("/x", None)),
        (NESTED, "/o/a", [hoist("/o", "a", "/x", removeFromHost=False)], ("/o/a", None)),
        (NESTED, "/c", [hoist("/o", "a", "/c")], ("/c", CHANGED)),
        (FLAT, "/a", [plunge("/a", "/h", "x")], ("/h/x", None)),
        (FLAT, "/a", [plunge("/a", "/h", "x", removeFromSource=False)], ("/a", None)),
        (NESTED, "/o/a", [plunge("/c", "/o", "a")], ("/o/a", CHANGED)),
        (FLAT, "/a", [wrap("/a")], ("/a", None)),
        (NESTED, "/o/a", [wrap("/o")], ("/o/0/a", None)),
        (LIST, "/l", [wrap("/l/0")], ("/l", None)),
        (LIST, "/l", [head("/l")], ("/l", CHANGED)),
        (ONE, "/l", [head("/l")], ("/l", None)),
        (LIST, "/l/0", [head("/l")], ("/l", None)),
        (LIST, "/l/1", [head("/l")], ("/l/1", LOST)),
        (LISTS, "/l/1/0", [head("/l/1")], ("/l/1", None)),
        (FLAT, "/a", [add("/a", TEXT, "x", overwrite=True)], ("/a", CHANGED)),
        (FLAT, "/a", [add("/a", {}, None, overwrite=True)], ("/a", LOST)),
        (FLAT, "/new", [add("/new", TEXT, "x")], ("/new", CHANGED)),
        (FLAT, "/new", [add("/new", WHOLE, 1)], ("/new", None)),
        (FLAT, "/a", [remove("/a")], ("/a", LOST)),
        (NESTED, "/o/a", [remove("/o")], ("/o/a", LOST)),
        (NESTED, "/o", [remove("/o/a")], ("/o", None)),
        (LIST, "/l", [remove("/l/0")], ("/l", CHANGED)),
        (LIST, "/l/1", [remove("/l/0")], ("/l/0", None)),
        (LIST, "/l/0", [remove("/l/0")], ("/l/0", CHANGED)),
        (NESTED, "/o/a", [within("/o", move("/a", "/x"))], ("/o/x", None)),
        (NESTED, "/o/a", [within("/o", within("", remove("/a")))], ("/o/a", LOST)),
        (NESTED, "/o/a", [within("/o", move("/a", ""))], ("/o", None)),
        (NESTED, "/o", [within("/o", move("/a", ""))], ("/o", CHANGED)),
        (PAIRS, "/l/3/a", [each("/l", move("/a", "/x"))], ("/l/3/x", None)),
        (PAIRS, "/l", [each("/l", move("/a", ""))], ("/l", CHANGED)),
        (PAIRS, "/l", [each("/l", move("/a", "/x"))], ("/l", None)),
        (LIST, "/l", [each("/l", wrap(""))], ("/l", None)),
        (LIST, "/l", [each("/l", convert("", "string>string", "uppercase"))], ("/l", CHANGED)),
        (LIST, "/l/0", [each("/l", convert("", "string>string", "uppercase"))], ("/l/0", CHANGED)),
        (FLAT, "/a", [move("/a", "/x"), convert("/x", "string>string", "lowercase")], ("/x", CHANGED)),
        (FLAT, "/a", [copy("/a", "/x"), convert("/a", "string>string", "lowercase")], ("/x", None)),
        (closed({"a": LEVELS}), "/a", [convert("/a", "string>integer", TABLE)], ("/a", LOST)),
        (closed({"a": LEVELS}), "/a", [convert("/a", "string>string", "lowercase")], ("/a", None)),
        # What an optional source leaves at the target is another value.
        (closed({"a?": TEXT}), "/a", [move("/a", "/x", **OPTIONAL)], ("/x", None)),
        (closed({"a?": TEXT, "x?": TEXT}), "/a", [move("/a", "/x", **OPTIONAL)], ("/x", CHANGED)),
        (opened({"a?": TEXT}), "/a", [move("/a", "/x", **OPTIONAL)], ("/x", CHANGED)),
    ],
)  # fmt: skip
def test_a_pointer_goes_where_its_value_goes(
    schema: Any, place: str, ops: list[dict[str, Any]], expected: tuple[str, CarryEffect | None]
) -> None:
    assert carried(schema, place, *ops) == expected


@pytest.mark.parametrize(
    ("schema", "place", "ops", "expected"),
    [
        (FLAT, "/a", [wrap("/a")], ("/a/0", None)),
        (ONE, "/l/0", [head("/l")], ("/l", None)),
        (LIST, "/l", [remove("/l/0")], ("/l", None)),
        (FLAT, "/a", [convert("/a", "string>string", "uppercase")], ("/a", CHANGED)),
        (closed({"a": LEVELS}), "/a", [convert("/a", "string>integer", TABLE)], ("/a", LOST)),
    ],
)
def test_a_routing_key_is_one_string(
    schema: Any, place: str, ops: list[dict[str, Any]], expected: tuple[str, CarryEffect | None]
) -> None:
    assert carried(schema, place, *ops, reader=KeyReader()) == expected


def test_a_whole_value_changes_with_anything_inside_it() -> None:
    reader = ValueReader()
    assert carried(NESTED, "/o", move("/o", "/x"), reader=reader) == ("/x", None)
    assert carried(NESTED, "/o", remove("/o/a"), reader=reader) == ("/o", CHANGED)
    assert carried(NESTED, "/o", within("/o", wrap("/a")), reader=reader) == ("/o", CHANGED)
    assert carried(NESTED, "/o", wrap("/o"), reader=reader) == ("/o/0", None)
    assert carried(NESTED, "/o", remove("/c"), reader=reader) == ("/o", None)


def test_the_operation_that_did_it_is_named() -> None:
    ops = [move("/o", "/x"), within("/x", wrap("/b"), remove("/a"))]
    assert crossing(NESTED, *ops).carry(("o", "a"), KEYWORD) == Carried(("o", "a"), LOST, "/ops/1/ops/1")
    assert crossing(NESTED, *ops).carry(("o", "b"), KEYWORD) == Carried(("x", "b"), None, "/ops/0")


def test_whole_numbers_stay_the_same_as_text() -> None:
    op = convert("/n", "integer>string", "int_to_string")
    assert carried(FLAT, "/n", op, reader=INTEGER) == ("/n", None)
    assert carried(FLAT, "/n", op, reader=FieldReader(Kind.FLOAT, False)) == ("/n", None)


@pytest.mark.parametrize(
    ("low", "high", "effect"),
    [
        (None, None, CHANGED),
        (-(10**9), 999, None),
        (-(10**9), 1_000, CHANGED),
        (9_999, 99_999, CHANGED),
        (10_000, 99_999, None),
        (10_000, 100_000, CHANGED),
        (10**8, 10**9 - 1, None),
        (10**8, 10**9, CHANGED),
        (10**10, 10**13 - 1, None),
        (10**8, 10**13, CHANGED),
        (10**14, None, None),
    ],
)
def test_dates_stay_the_same_as_text_unless_their_digits_are_another_date(
    low: int | None, high: int | None, effect: CarryEffect | None
) -> None:
    limits = {name: limit for name, limit in (("minimum", low), ("maximum", high)) if limit is not None}
    op = convert("/n", "integer>string", "int_to_string")
    found = carried(closed({"n": {"type": "integer", **limits}}), "/n", op, reader=FieldReader(Kind.DATE, False))
    assert found == ("/n", effect)


@pytest.mark.parametrize(
    ("reader", "number", "table", "effect"),
    [
        # The nearest double of the number is 2**53, and the field reads nothing of the number itself.
        (INTEGER, Decimal("9007199254740992.5"), {"9007199254740992": 2**53, "9007199254740992.5": 7}, CHANGED),
        (ValueReader(), Decimal("0.1"), {"0.1": 0.1}, None),
    ],
)
def test_listed_numbers_are_looked_up_with_all_their_digits(
    reader: Reader, number: Decimal, table: dict[str, Any], effect: CarryEffect | None
) -> None:
    op = convert("/n", "number>number", {"map": table})
    place = {"const": number}
    assert carried(closed({"n": place}), "/n", op, reader=reader) == ("/n", effect)


def test_another_pointer_than_the_carried_one_is_compared() -> None:
    way = crossing(FLAT, copy("/a", "/x"), move("/b", "/y"))
    assert way.compare(("a",), ("a",), KEYWORD).effect is None
    assert way.compare(("a",), ("x",), KEYWORD).effect is None
    assert way.compare(("a",), ("y",), KEYWORD).effect is CHANGED
    assert way.compare(("b",), ("b",), KEYWORD).effect is LOST


def test_many_copies_are_followed_within_bounds() -> None:
    ops = [copy("/o", f"/o/n{number}") for number in range(12)]
    assert carried(NESTED, "/o/a", *ops) == ("/o/a", None)


def test_arrays_that_hold_themselves_are_looked_through_once() -> None:
    nested = {"$ref": "#/$defs/nested"}
    schema = {
        **closed({"a": nested, "b": nested}),
        "$defs": {"nested": {"type": "array", "prefixItems": [nested] * 20, "items": nested}},
    }
    assert carried(schema, "/a", remove("/a")) == ("/a", None)
    schema["$defs"]["nested"]["items"] = TEXT
    assert carried(schema, "/a", remove("/a")) == ("/a", LOST)
