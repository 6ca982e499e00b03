from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from headrace.schema.canonical import json_number, number_of, value_text
from headrace.schema.document import Validator
from headrace.schema.pointer import parse
from headrace.schema.shape.algebra import MAX_ALTERNATIVES, apart, join, meet_shapes, merge, union, vacant
from headrace.schema.shape.edit import LAST_ELEMENT, drop, edit, put, split, value_at
from headrace.schema.shape.model import ANYTHING, NOTHING, Array, Object, Shape, shape_of_values
from headrace.schema.shape.read import shape_of
from headrace.schema.shape.source import Root
from schema.membership import admits
from schema.sketches import DRAFTS

TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
ONE = {"properties": {"k": {"const": 1}}}


def shape(schema: Any) -> Shape:
    return shape_of(Root(schema).source)


def at(text: str) -> tuple[str, ...]:
    names = parse(text)
    assert names is not None
    return names


def fact(schema: Any) -> str:
    return Root(schema).source.fact


# Texts and facts.


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1.0, True),
        (0, -0.0, True),
        (1, True, False),
        ("1", 1, False),
        (2**53, float(2**53), True),
        (2**60, float(2**60), False),
        (10**22, 1e22, True),
        (0.1, 0.10000000000000002, False),
        ({"a": 1, "b": [2]}, {"b": [2.0], "a": 1.0}, True),
        ([1, 2], [2, 1], False),
        (None, "null", False),
    ],
)
def test_values_have_equal_texts_when_they_are_equal(one: Any, other: Any, equal: bool) -> None:
    assert (value_text(one) == value_text(other)) == equal
    assert Validator({"const": one}).accepts(other) == equal


def test_the_text_of_a_number_stands_for_it() -> None:
    numbers = [0, -7, 0.1, 1e22, 10**30, 1.5e-9]
    assert [number_of(value_text(number)) for number in numbers] == [Decimal(repr(number)) for number in numbers]
    assert [json_number(value_text(number)) for number in numbers] == numbers


def test_facts_are_equal_where_only_annotations_and_order_differ() -> None:
    one = {"type": ["string", "null"], "enum": ["a", "b"], "properties": {"title": TEXT}}
    other = {
        "enum": ["b", "a"],
        "title": "x",
        "type": ["null", "string"],
        "properties": {"title": {**TEXT, "default": 1}},
    }
    assert fact(one) == fact(other)
    assert fact(one) != fact({**one, "properties": {}})
    assert fact(one) != fact({**one, "$schema": DRAFTS[7]})
    assert fact(one) == fact({**one, "$schema": DRAFTS[2020]})


def test_facts_hold_what_references_lead_to() -> None:
    def referring(inner: Any) -> Any:
        return {"properties": {"a": {"$ref": "#/$defs/t"}}, "$defs": {"t": inner, "unused": inner}}

    assert fact(referring(TEXT)) != fact(referring(WHOLE))
    assert fact(referring(TEXT)) == fact({**referring(TEXT), "$defs": {"t": TEXT}})


def test_a_long_schema_has_a_short_fact() -> None:
    nested: Any = TEXT
    for at_level in range(60):
        nested = {"properties": {f"a{at_level}": nested, "b": {"minLength": at_level}}}
    assert len(fact(nested)) < 100


# Reading.


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"type": ["integer", "null"], "minimum": 3}, [3, None, 4.0], [2, 3.5, "x"]),
        ({"enum": [1, "a", [True], {"b": None}]}, [1.0, "a", [True], {"b": None}], [True, "b", [1], {}]),
        ({"const": {"a": 1}}, [{"a": 1}], [{"a": 1, "b": 2}, {"a": 2}]),
        ({"properties": {"a": TEXT}, "type": "object"}, [{}, {"a": "x", "z": 1}], [{"a": 1}]),
        ({"required": ["a"], "additionalProperties": WHOLE}, [{"a": 1}, "x"], [{}, {"a": "x"}]),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}], "type": "number"}, [1, 1.5], [0, 3]),
        ({"anyOf": [TEXT, {"minimum": 5}], "type": ["string", "number"]}, ["x", 5], [4, None]),
        ({"type": "array", "prefixItems": [TEXT], "items": WHOLE, "maxItems": 2}, [[], ["a", 1]], [[1], ["a", "b"]]),
        ({"type": "array", "contains": TEXT}, [["a"]], [[]]),
        ({"dependentRequired": {"a": ["b"]}, "type": "object"}, [{}, {"b": 1}, {"a": 1, "b": 1}], [{"a": 1}]),
        ({"not": {"required": ["a"]}, "type": "object"}, [{}, {"b": 1}], [{"a": 1}]),
        ({"if": WHOLE, "then": {"minimum": 1}, "else": TEXT}, [1, "x"], [0, None]),
        ({"$ref": "#/$defs/t", "maxLength": 1, "$defs": {"t": TEXT}}, ["x"], ["xy", 1]),
        ({"$schema": DRAFTS[7], "items": [TEXT], "additionalItems": False}, [["a"], 1], [["a", "b"], [1]]),
        ({"$schema": DRAFTS[4], **WHOLE}, [1], [1.0]),
    ],
)
def test_a_shape_holds_what_its_schema_admits(schema: Any, inside: list[Any], outside: list[Any]) -> None:
    valid = Validator(schema).accepts
    assert all(map(valid, inside)) and not any(map(valid, outside))
    assert all(admits(shape(schema), value) for value in inside)
    assert not any(admits(shape(schema), value) for value in outside)


@pytest.mark.parametrize(
    "schema",
    [
        {"not": TEXT},
        {"propertyNames": TEXT},
        {"oneOf": [{}, {"maxItems": 0}]},
        {"$dynamicRef": "#x"},
        {"properties": {"a": {"$id": "b"}}, "type": "object"},
    ],
)
def test_what_is_not_understood_is_left_out_and_remembered(schema: Any) -> None:
    found = shape(schema)
    assert all(admits(found, value) for value in ("x", 1, None, [], {"a": {}}))
    assert all(fact(schema) in one.facts for one in found.alternatives)


def test_a_schema_that_refers_to_itself_is_read_as_far_as_somebody_looks() -> None:
    found = shape({"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False})
    deep = value_at(found, ("next",) * 50)
    assert admits(deep, {}) and not admits(deep, {"other": 1})


# Unions and intersections.


def test_a_union_holds_both_and_an_intersection_only_what_is_in_both() -> None:
    one, other = shape({"type": "integer", "minimum": 0}), shape({"type": ["integer", "string"], "maximum": 9})
    both, either = meet_shapes(one, other), union(one, other)
    assert [admits(both, value) for value in (5, -1, 10, "x")] == [True, False, False, False]
    assert [admits(either, value) for value in (5, -1, 10, "x", None)] == [True, True, True, True, False]


def test_too_many_alternatives_run_together_and_lose_nothing() -> None:
    shapes = [
        shape({"properties": {"a": {"const": number}}, "required": ["a"]}) for number in range(MAX_ALTERNATIVES + 5)
    ]
    found = union(*shapes)
    assert len(found.alternatives) <= MAX_ALTERNATIVES
    assert all(admits(found, {"a": number}) for number in range(MAX_ALTERNATIVES + 5))


def test_shapes_of_one_origin_merge_member_by_member() -> None:
    one = shape({"type": "object", "properties": {"a": TEXT}, "required": ["a"], "additionalProperties": False})
    other = shape({"type": "object", "properties": {"b": WHOLE}, "required": ["b"], "additionalProperties": False})
    merged = merge(Shape(one.alternatives), Shape(other.alternatives))
    assert len(merged.alternatives) == 1
    assert admits(merged, {"a": "x"}) and admits(merged, {"b": 1}) and not admits(merged, {"c": 1})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"const": 1}, {"const": 2.5}),
        ({"const": 7}, {"type": "number", "exclusiveMaximum": 3}),
        ({"type": "integer", "minimum": 1, "maximum": 2}, {"type": "number", "minimum": 2, "maximum": 3}),
        ({"const": "abc"}, {"type": "string", "maxLength": 2, "pattern": "a"}),
        ({"const": True}, {"const": False}),
        ({"type": "array", "items": TEXT, "maxItems": 1}, {"type": "array", "prefixItems": [WHOLE], "minItems": 2}),
        ({"type": "object", "patternProperties": {"^x": TEXT}}, {"type": "object", "additionalProperties": WHOLE}),
        ({"type": "null"}, {"type": "null", "title": "x"}),
    ],
)
def test_one_alternative_made_of_two_holds_both_and_knows_what_is_known_of_both(one: Any, other: Any) -> None:
    (left,), (right,) = shape(one).alternatives, shape(other).alternatives
    joined = Shape((join(left, right),))
    values = [1, 2.5, 7, 1.5, "abc", "a", True, False, None, [], ["a"], [1, 1], {"xa": "a"}, {"b": 1}, {"b": "c"}]
    held = [value for value in values if admits(shape(one), value) or admits(shape(other), value)]
    assert held and all(admits(joined, value) for value in held)
    assert joined.alternatives[0].facts == left.facts & right.facts


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (TEXT, WHOLE, True),
        (
            {"properties": {"k": {"const": 1}}, "required": ["k"], "type": "object"},
            {"properties": {"k": {"const": 2}}},
            True,
        ),
        ({"properties": {"k": {"const": 1}}, "type": "object"}, {"properties": {"k": {"const": 2}}}, False),
        ({"type": "array", "minItems": 2}, {"maxItems": 1}, True),
        ({"type": "number", "maximum": 1}, {"exclusiveMinimum": 1}, True),
        ({"type": "string", "maxLength": 2}, {"minLength": 2}, False),
    ],
)
def test_what_is_apart(one: Any, other: Any, expected: bool) -> None:
    assert all(apart(alternative, shape(other)) for alternative in shape(one).alternatives) == expected


def test_what_cannot_be_is_vacant() -> None:
    assert vacant(NOTHING) and not vacant(ANYTHING)
    assert vacant(shape({"type": "object", "required": ["a"], "properties": {"a": False}}))
    assert vacant(shape({"type": "array", "minItems": 1, "items": {"enum": []}}))
    assert not vacant(shape({"type": "object", "properties": {"a": False}}))


# Steps.

OPTIONAL = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": TEXT}}}}


def test_a_shape_splits_into_what_holds_a_pointer_and_what_does_not() -> None:
    present, absent = split(shape(OPTIONAL), at("/a/b"))
    assert admits(present, {"a": {"b": "x"}}) and not admits(present, {"a": {}}) and not admits(present, {})
    assert admits(absent, {"a": {}}) and admits(absent, {}) and not admits(absent, {"a": {"b": "x"}})


def test_an_array_splits_by_its_length() -> None:
    present, absent = split(shape({"type": "array", "items": TEXT}), at("/1"))
    assert admits(present, ["a", "b"]) and not admits(present, ["a"])
    assert admits(absent, ["a"]) and not admits(absent, ["a", "b"])


def test_values_are_put_dropped_and_replaced() -> None:
    found = shape({"type": "object", "properties": {"a": TEXT}, "required": ["a"], "additionalProperties": False})
    more = put(found, at("/b"), shape_of_values([7]))
    assert admits(more, {"a": "x", "b": 7}) and not admits(more, {"a": "x"}) and not admits(more, {"a": "x", "b": 8})
    assert admits(drop(more, at("/a")), {"b": 7}) and not admits(drop(more, at("/a")), {"a": "x", "b": 7})
    assert admits(edit(found, at("/a"), lambda _: shape_of_values([None])), {"a": None})


def test_members_are_counted() -> None:
    found = shape({"type": "object", "required": ["a"], "minProperties": 2, "maxProperties": 3})
    (one,) = put(found, at("/b"), shape_of_values([1])).alternatives
    assert isinstance(one, Object) and (one.low, one.high) == (2, 4)
    (fewer,) = drop(found, at("/a")).alternatives
    assert isinstance(fewer, Object) and (fewer.low, fewer.high) == (1, 2)


def test_an_element_that_goes_moves_the_others() -> None:
    found = drop(shape({"type": "array", "prefixItems": [TEXT, WHOLE], "minItems": 2, "maxItems": 2}), at("/0"))
    assert admits(found, [1]) and not admits(found, ["x"]) and not admits(found, [])


@pytest.mark.parametrize("change", [drop, lambda found, names: edit(found, names, lambda _: shape_of_values(["x"]))])
def test_an_element_far_behind_takes_no_memory(change: Any) -> None:
    """The positions before one are not listed, however many there are."""
    names = at("/999999999999999999")
    present, absent = split(shape({"type": "array", "items": WHOLE, "minItems": 1}), names)
    assert not admits(present, [1]) and admits(absent, [1])
    (one,) = change(present, names).alternatives
    assert isinstance(one, Array) and not one.prefix and admits(one.rest, 1)


def test_an_element_behind_the_last_that_is_told_from_others_may_be_any_of_them() -> None:
    found = shape({"type": "array", "prefixItems": [TEXT], "items": WHOLE, "minItems": LAST_ELEMENT + 3})
    (one,) = edit(found, (str(LAST_ELEMENT + 1),), lambda _: shape_of_values(["x"])).alternatives
    changed = ["a", *[1] * LAST_ELEMENT, "x", 1]
    assert admits(Shape((one,)), changed) and isinstance(one, Array) and len(one.prefix) == 1
    (one,) = edit(found, (str(LAST_ELEMENT),), lambda _: shape_of_values(["x"])).alternatives
    assert not admits(Shape((one,)), changed)
    changed = ["a", *[1] * (LAST_ELEMENT - 1), "x", 1, 1]
    assert admits(Shape((one,)), changed) and isinstance(one, Array) and len(one.prefix) == LAST_ELEMENT + 1


def test_facts_stay_with_what_is_narrowed_and_leave_what_is_changed() -> None:
    found = shape(OPTIONAL)
    present, _ = split(found, at("/a"))
    assert all(fact(OPTIONAL) in one.facts for one in present.alternatives)
    assert not any(one.facts for one in put(present, at("/c"), shape_of_values([1])).alternatives)
    assert all(one.facts for one in value_at(put(present, at("/c"), shape_of_values([1])), at("/a")).alternatives)


def test_elements_that_change_may_become_equal() -> None:
    found = shape({"type": "array", "uniqueItems": True, "minItems": 1})
    (one,) = edit(found, at("/0"), lambda _: shape_of_values([1])).alternatives
    assert isinstance(one, Array) and not one.unique
