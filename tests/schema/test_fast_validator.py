"""What types admit, what they leave open, and which schemas they cannot say."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from headrace.schema.fast_validator import MAX_CHOICES, MAX_PARTS, Fractions, NotExpressible, StructBuilder, TypeForm
from headrace.schema.subschemas import Subschemas

TEXT = {"type": "string"}
FREE = {"pattern": "^a"}


def structures(schema: Any) -> StructBuilder:
    return StructBuilder(Subschemas(schema), schema)


def admits(form: TypeForm, text: str) -> bool:
    try:
        msgspec.json.decode(text, type=form.type)
    except msgspec.ValidationError:
        return False
    return True


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "boolean"}, ["true", "false"], ["0", "null", '"true"']),
        ({"type": "null"}, ["null"], ["0", "false", '""']),
        ({"type": "integer"}, ["0", "-7", "123456789012345678901234567890"], ["1.0", "1e3", "true", '"1"', "null"]),
        ({"type": "integer", "minimum": 1, "maximum": 5}, ["1", "5"], ["0", "6", str(2**64), str(-(2**64))]),
        ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 5}, ["2", "4"], ["1", "5"]),
        ({"type": "integer", "minimum": 2**53}, [str(2**53), str(2**64 + 1)], [str(2**53 - 1), str(-(2**63) - 1)]),
        ({"type": "integer", "multipleOf": 3}, ["0", "-3", str(3 * 2**64)], ["1", str(3 * 2**64 + 1)]),
        ({"type": "number"}, ["1", "1.0", "-0.0", "1e-7"], ["true", '"1"', "1e400"]),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, ["1", "1.0", "0.5"], ["0", "0.0", "2", "1.5"]),
        ({"type": "string", "minLength": 1, "maxLength": 2}, ['"é"', '"😀😀"', r'"\ud83d\ude00"'], ['""', '"abc"']),
        ({"type": ["string", "null"], "maxLength": 1}, ['"a"', "null"], ['"ab"', "1"]),
        ({"type": ["integer", "string", "boolean"], "minimum": 3}, ["3", '"a"', "true"], ["2", "null", "3.5"]),
        ({"enum": ["a", "é", 3, None]}, ['"a"', r'"\u00e9"', "3", "null"], ['"b"', "4", "3.0", "true"]),
        ({"type": "string", "enum": ["a"]}, ['"a"'], ["1", '"b"']),
        ({"const": 1}, ["1"], ["true", "1.0", "2"]),
        ({"const": None}, ["null"], ["0"]),
        ({"type": "array", "items": TEXT, "minItems": 1, "maxItems": 2}, ['["a"]'], ["[]", '["a","b","c"]', "[1]"]),
        ({"type": ["array", "null"], "items": {"type": ["integer", "null"]}}, ["[1,null]", "null"], ["[true]"]),
        ({"anyOf": [TEXT, {"type": "null"}]}, ['"a"', "null"], ["1"]),
        (closed("a", a=TEXT, b=TEXT), ['{"a":""}', '{"b":"","a":""}'], ['{"b":""}', '{"a":"","c":1}', "[]", '{"a":1}']),
        ({"type": "object", "properties": {"a": TEXT}}, ["{}", '{"a":""}'], ['{"b":1}']),
        (
            closed(a=closed("b", b={"type": "array", "items": closed("c", c=TEXT)})),
            ['{"a":{"b":[{"c":""}]}}'],
            ['{"a":{}}'],
        ),
        ({**closed(a={"$ref": "#/$defs/t"}), "$defs": {"t": TEXT}, "$id": "https://x/"}, ['{"a":""}'], ['{"a":1}']),
        ({"$ref": "#/$defs/t", "$defs": {"t": {"$ref": "#/$defs/u"}, "u": TEXT}}, ['""'], ["1"]),
        ({"type": "string", "title": "t", "description": "d", "default": 5, "format": "email"}, ['"a"'], ["5"]),
    ],
)
def test_a_type_admits_what_the_schema_admits(schema: Any, good: list[str], bad: list[str]) -> None:
    form = structures(schema).form()
    assert form.open == {}
    assert [text for text in good + bad if admits(form, text)] == good


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "string", "pattern": "a"},
        {"type": "string", "x-anything": 1},
        {"type": "string", "allOf": [{"minLength": 1}]},
        {"type": "integer", "minimum": 0.5},
        {"type": "integer", "minimum": 2**53 + 1},
        {"type": "integer", "minimum": 0, "exclusiveMinimum": 0},
        {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
        {"type": "number", "multipleOf": 2},
        {"type": ["integer", "number"], "multipleOf": 2},
        {"type": "integer", "enum": ["a"]},
        {"type": "number", "enum": [1]},
        {"enum": []},
        {"enum": list(range(MAX_CHOICES + 1))},
        {"enum": [True]},
        {"enum": [1.5]},
        {"enum": [2**53 + 1]},
        {"enum": ["a"], "minLength": 1},
        {"enum": ["a"], "const": "a"},
        {"type": "array"},
        {"type": "array", "items": {}},
        {"type": "array", "items": [TEXT]},
        {"type": "array", "items": TEXT, "uniqueItems": True},
        {"type": "array", "items": closed(a=FREE)},
        {"type": "object"},
        {"type": "object", "properties": {}, "required": ["a"]},
        {"type": "object", "properties": {'"': TEXT}},
        {"type": "object", "properties": {"a": TEXT}, "minProperties": 1},
        {"type": "object", "properties": {"a": TEXT}, "patternProperties": {"a": TEXT}},
        {"type": ["object", "null"], "properties": {"a": FREE}},
        {"anyOf": [TEXT, {"type": "integer"}]},
        {"anyOf": [TEXT]},
        {"oneOf": [TEXT, {"type": "null"}]},
        {"$ref": "#/$defs/t", "minLength": 1, "$defs": {"t": TEXT}},
        {**closed(a={"anyOf": [{"$ref": "#/$defs/t"}]}), "$defs": {"t": TEXT}},
        {**closed(a={"$ref": "#/$defs/t"}), "$defs": {"t": closed(b={"$ref": "#/$defs/t"})}},
        closed(**{f"m{number}": TEXT for number in range(MAX_PARTS)}),
    ],
)
def test_what_a_type_cannot_say_is_unsayable(schema: Any) -> None:
    with pytest.raises(NotExpressible):
        structures(schema).form()


def test_a_member_that_a_type_cannot_say_is_left_open() -> None:
    schema = closed("b", a=FREE, b=closed(c=True, d=TEXT), e={"$ref": "#/$defs/e"})
    form = structures({**schema, "$defs": {"e": {"type": "object"}}}).form()
    assert form.open == {"m0": FREE, "m1.m0": True, "m2": {"type": "object"}}
    assert admits(form, '{"a":[],"b":{"c":{},"d":""},"e":5}')
    assert not admits(form, '{"a":1,"b":{"d":5}}')


def test_an_object_that_may_be_missing_is_left_open_as_a_whole() -> None:
    inner = closed(a=FREE)
    assert structures(closed(o=inner)).form().open == {"m0": inner}
    assert structures(closed("o", o={**inner, "type": ["object", "null"]})).form().open.keys() == {"m0"}


@pytest.mark.parametrize(
    ("member", "fractions"),
    [
        (TEXT, Fractions.NONE),
        ({"type": "integer"}, Fractions.NONE),
        ({"type": "number"}, Fractions.ANY),
        ({"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308}, Fractions.ANY),
        ({"type": ["null", "number"]}, Fractions.ANY),
        ({"type": "array", "items": {"type": "number"}}, Fractions.ANY),
        (closed(a={"anyOf": [{"type": "number"}, {"type": "null"}]}), Fractions.ANY),
        ({"type": "number", "minimum": 0}, Fractions.SOME),
        (closed(a={"type": "number"}, b={"type": "number", "maximum": 3}), Fractions.SOME),
        ({"type": ["string", "null"], "pattern": "a"}, Fractions.NONE),
        ({"type": "integer", "not": {"const": 3}}, Fractions.SOME),
        ({"pattern": "a"}, Fractions.SOME),
        (True, Fractions.SOME),
    ],
)
def test_numbers_with_a_fraction_are_foreseen(member: Any, fractions: Fractions) -> None:
    assert structures(closed(a=member)).form().fractions is fractions


def spelled(made: StructBuilder, text: str) -> str:
    return msgspec.json.encode(msgspec.json.decode(text, type=made.form().type)).decode()


def test_the_order_of_members_is_learnt() -> None:
    inner = closed(x=TEXT, y=TEXT)
    made = structures(
        {**closed(a=TEXT, b=inner, c={"type": "array", "items": {"$ref": "#/$defs/i"}}), "$defs": {"i": inner}}
    )
    text = '{"c":[{"y":"","x":""}],"b":{"y":"","x":""},"a":""}'
    assert spelled(made, text) == '{"a":"","b":{"x":"","y":""},"c":[{"x":"","y":""}]}'
    assert made.learn(json.loads(text))
    assert spelled(made, text) == text
    assert not made.learn(json.loads(text))


def test_a_member_that_was_not_shown_keeps_its_place() -> None:
    made = structures(closed(a=TEXT, b=TEXT, c=TEXT, d=TEXT))
    assert not made.learn({"a": "", "c": "", "d": ""})
    assert made.learn({"d": "", "a": ""})
    assert spelled(made, '{"a":"","b":"","c":"","d":""}') == '{"d":"","a":"","b":"","c":""}'
    assert made.learn({"b": "", "a": ""})
    assert spelled(made, '{"a":"","b":"","c":"","d":""}') == '{"d":"","b":"","c":"","a":""}'
