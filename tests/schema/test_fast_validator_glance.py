"""Which entries the fast validator accepts, which it leaves to the library, and what that costs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.schema.document import Validator
from headrace.schema.fast_validator import MAX_PAUSE, OPEN_IN, FastValidator

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
