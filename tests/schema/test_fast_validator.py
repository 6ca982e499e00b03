"""Which schemas become types and what these admit; which entries are accepted fast, and what that costs."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from headrace.schema.document import Validator
from headrace.schema.fast_validator import (
    MAX_CHOICES,
    MAX_PARTS,
    MAX_PAUSE,
    OPEN_IN,
    FastValidator,
    Fractions,
    NotExpressible,
    StructBuilder,
    TypeForm,
)
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


DRAFT_4 = "http://json-schema.org/draft-04/schema#"
EVENT = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "minLength": 1},
        "at": {"type": "string", "format": "date-time"},
        "kind": {"enum": ["view", "click"]},
        "count": {"type": "integer", "minimum": 0},
        "ok": {"type": "boolean"},
        "note": {"type": ["string", "null"]},
        "place": {"type": "object", "properties": {"city": {"type": "string"}}},
        "ms": {"type": "number", "minimum": 0},
    },
    "required": ["id", "at"],
}
#: The same without numbers that can have a fraction.
WHOLE = {**EVENT, "properties": {**EVENT["properties"], "ms": {"type": "integer"}}}  # type: ignore[dict-item]
VALUE = {
    "id": "a b",
    "at": "2026-05-04T10:11:12.5Z",
    "kind": "view",
    "count": 3,
    "note": "né: \n",
    "place": {"city": "Odda"},
    "ms": 12,
}


def fast_validator_of(schema: Any) -> FastValidator:
    found = Validator(schema).fast_validator
    assert found is not None
    return found


def compact(*values: Any) -> bytes:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)[1:-1].encode()


def changed(old: str, new: str) -> bytes:
    """The value spelled with one thing changed."""
    text = compact(VALUE).decode()
    assert text.count(old) == 1
    return text.replace(old, new).encode()


def backwards(value: dict[str, Any]) -> dict[str, Any]:
    return dict(reversed(value.items()))


@pytest.mark.parametrize("schema", [EVENT, WHOLE])
@pytest.mark.parametrize(
    "joined",
    [
        b"",
        compact(VALUE),
        compact(VALUE, {"id": "b", "at": "2026-05-04T10:11:12Z"}, VALUE),
        json.dumps(VALUE, ensure_ascii=False).encode(),
        json.dumps(VALUE, ensure_ascii=False, indent="\t").encode(),
        changed('"ms":12', '"ms":123456789012345678901234567890'),
    ],
)
def test_entries_are_seen_to_fit(schema: Any, joined: bytes) -> None:
    assert fast_validator_of(schema).fits(joined)


@pytest.mark.parametrize(
    ("body", "count"), [(b"[]", 0), (b"[ ]", 0), (b"[{}]", None), (b"", None), (b"[", None), (b"[] []", None)]
)
def test_entries_of_an_array_are_counted_where_they_are_seen_to_fit(body: bytes, count: int | None) -> None:
    assert fast_validator_of(EVENT).count(body) == count
    assert fast_validator_of(EVENT).count(b"[" + compact(*[VALUE] * 3) + b"]") == 3


@pytest.mark.parametrize("schema", [EVENT, WHOLE])
@pytest.mark.parametrize(
    "joined",
    [
        changed('"id":"a b"', '"id":""'),
        changed("2026-05", "2026-13"),
        changed('"kind":"view"', '"kind":"other"'),
        changed('"count":3', '"count":-1'),
        changed('"ms":12', '"ms":"12"'),
        changed('"id":"a b",', ""),
        changed('"id":"a b"', '"id":"a","id":"b"'),
        changed('"id":"a b"', '"id":"a","id":":"'),
        changed('"id":"a b"', r'"id":"a","id":"\u003a"'),
        changed('"id":"a b"', r'"id":"a","\u0069d":"b"'),
        changed('"city":"Odda"', '"city":"Odda","city":"Odda"'),
        compact(VALUE) + b"," + changed('"count":3', '"count":null'),
    ],
)
def test_what_does_not_fit_is_never_seen_to(schema: Any, joined: bytes) -> None:
    assert Validator(schema).failures(joined)
    assert not fast_validator_of(schema).fits(joined)


@pytest.mark.parametrize(
    "number", ["-0.00000000000000000000001", "-1e-400", "0." + "1" * 1_000, "12.50", "1e2", "9007199254740993.0"]
)
def test_a_number_that_loses_digits_needs_a_judgement(number: str) -> None:
    assert fast_validator_of(EVENT).fits(changed('"ms":12', '"ms":12.5'))
    assert not fast_validator_of(EVENT).fits(changed('"ms":12', f'"ms":{number}'))


@pytest.mark.parametrize(
    ("old", "new"), [('"count":3', '"count":3.0'), ('"count":3', '"more":3'), ('"city"', '"more":1,"city"')]
)
def test_what_is_missed_is_judged(old: str, new: str) -> None:
    assert not fast_validator_of(EVENT).fits(changed(old, new))
    assert Validator(EVENT).failures(changed(old, new)) == []


def test_without_fractions_neither_order_nor_escapes_matter() -> None:
    look = fast_validator_of(WHOLE)
    assert look.fits(compact(backwards(VALUE), VALUE, backwards(VALUE)))
    assert look.fits(json.dumps(VALUE, ensure_ascii=True).encode())
    assert look.fits(changed("Odda", r"\/Odd\u0061<"))


def test_the_order_of_members_is_learnt_from_what_fits() -> None:
    validator = Validator(EVENT)
    body = compact(backwards({**VALUE, "place": {}}), backwards(VALUE))
    assert validator.fast_validator is not None
    assert not validator.fast_validator.fits(body)
    assert validator.failures(body) == []
    assert validator.failures(body) == []
    assert validator.fast_validator.fits(body)
    assert not validator.fast_validator.fits(compact(VALUE))


def test_open_members_are_judged_by_the_draft_of_the_schema() -> None:
    open_ = {"type": "integer", "minimum": 3, "exclusiveMinimum": True}
    more = {name: {"type": "string"} for name in "bcd"}
    look = fast_validator_of({"$schema": DRAFT_4, "type": "object", "properties": {"a": open_, **more}})
    assert look.fits(b'{"a":4},{},{"b":""}')
    assert not look.fits(b'{"a":4},{"a":3}')


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "object"},
        {"oneOf": [EVENT, {"type": "null"}]},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "properties": {name: {"pattern": "a"} for name in "abcd"}},
    ],
)
def test_a_schema_that_types_cannot_express_has_no_fast_validator(schema: Any) -> None:
    assert Validator(schema).fast_validator is None
    assert Validator(schema).failures(b'{"a":{}}') == Validator(schema).failures(b'{"a": {}}')


def test_one_part_in_some_may_be_open() -> None:
    texts = {f"t{number}": {"type": "string"} for number in range(OPEN_IN - 2)}
    assert Validator({"type": "object", "properties": {"a": True, **texts}}).fast_validator is not None
    assert Validator({"type": "object", "properties": {"a": True, "b": True, **texts}}).fast_validator is None


def test_a_deeply_nested_entry_is_judged_and_no_accident() -> None:
    texts = {f"t{number}": {"type": "string"} for number in range(OPEN_IN)}
    validator = Validator({"type": "object", "properties": {"a": True, **texts}})
    assert validator.fast_validator is not None
    (failure,) = validator.failures(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    assert failure.reason == "is nested too deeply"


def test_after_misses_in_a_row_it_looks_less_often_and_after_a_hit_always() -> None:
    look = fast_validator_of(EVENT)
    for _ in range(10 * MAX_PAUSE):
        assert not look.fits(b"{}")
    seen = [look.fits(compact(VALUE)) for _ in range(10 * MAX_PAUSE)]
    assert seen.index(True) <= MAX_PAUSE
    assert all(seen[seen.index(True) :])
    assert not look.fits(b"{}")
    assert [look.fits(compact(VALUE)) for _ in range(3)] == [False, True, True]


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b'[{"a":0.500},{"a":1e3},{"a":12.250}]', 3),
        (b'[{"a":0.5,"a":0.500}]', None),
        (b'[{"a":0.%s}]' % (b"1" * 2_000), None),
    ],
)
def test_fractions_may_be_spelled_in_any_way_where_no_digit_decides(body: bytes, count: int | None) -> None:
    free = Validator({"type": "object", "properties": {"a": {"type": "number"}}, "additionalProperties": False})
    assert free.count(body) == count
