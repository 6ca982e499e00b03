"""JSON Schemas as documents, and as judges of entries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.schema import document
from headrace.schema.document import Validator, problems
from headrace.schema.entries import Failure

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"


def nested(depth: int, leaf: Any = None) -> Any:
    value = {} if leaf is None else leaf
    for _ in range(depth):
        value = {"x": value}
    return value


def spelled(*values: Any) -> bytes:
    return ",".join(json.dumps(value) for value in values).encode()


def doubling(steps: int) -> Any:
    """A small schema that asks twice for the next step at each step."""
    steps_ = {f"s{n}": {"allOf": [{"$ref": f"#/$defs/s{n + 1}"}] * 2} for n in range(steps)}
    return {"$ref": "#/$defs/s0", "$defs": {**steps_, f"s{steps}": {"type": "integer"}}}


# --- documents


@pytest.mark.parametrize(
    "schema",
    [
        True,
        False,
        {},
        {"$schema": DRAFT_4, "maximum": 5, "exclusiveMaximum": True},
        {"$schema": "http://json-schema.org/draft-06/schema#", "const": 1},
        {"$schema": "https://json-schema.org/draft-07/schema", "if": {"const": 1}, "then": False},
        {"$schema": DRAFT_2019, "$recursiveAnchor": True, "items": {"$recursiveRef": "#"}},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "prefixItems": [True]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
        {"$ref": "#here", "$defs": {"a": {"$anchor": "here"}}},
        {"$ref": "part", "$defs": {"a": {"$id": "part"}}},
        {"$id": "https://example.com/a.json", "$ref": "a.json#/$defs/b", "$defs": {"b": {}}},
        {"$id": "urn:example:a", "$ref": "urn:example:a#/$defs/b", "$defs": {"b": {}}},
        {"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {}}},
        {"$ref": "#/components/a", "components": {"a": {"$ref": "#/components/b"}, "b": {}}},
        {"$schema": DRAFT_7, "$ref": "#here", "definitions": {"a": {"$id": "#here"}}},
        {"$schema": DRAFT_4, "$ref": "#here", "definitions": {"a": {"id": "#here"}}},
        {"properties": {"id": {"const": "https://example.com/"}, "a": {"$ref": "#/properties/id"}}},
        {"const": {"$ref": "https://example.com/", "pattern": "("}, "enum": [{"$ref": "#/nowhere"}]},
        {"$dynamicAnchor": "node", "properties": {"next": {"$dynamicRef": "#node"}}},
        {"pattern": r"^[\p{L}\d_-]{1,20}$"},
        {"format": "no format that anyone knows"},
    ],
)
def test_a_usable_schema_has_no_problems_and_compiles(schema: Any) -> None:
    assert problems(schema) == []
    assert isinstance(Validator(schema).accepts({}), bool)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (5, ("", "an object or a boolean")),
        ("string", ("", "an object or a boolean")),
        (None, ("", "an object or a boolean")),
        ({"$schema": "https://example.com/mine"}, ("/$schema", "none of the drafts")),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, ("/$schema", "none of the drafts")),
        ({"$schema": 7}, ("/$schema", "none of the drafts")),
        ({"type": "strin"}, ("/type", '"boolean"')),
        ({"properties": {"a/b": {"minLength": -1}}}, ("/properties/a~1b/minLength", "minimum of 0")),
        ({"$schema": DRAFT_7, "items": {"items": {"type": 5}}}, ("/items/items/type", "not")),
        ({"$schema": DRAFT_4, "exclusiveMaximum": True}, ("", '"maximum" is a required property')),
        ({"$ref": "https://example.com/other"}, ("/$ref", "'https://example.com/other' lies outside")),
        ({"$ref": "file:///etc/passwd"}, ("/$ref", "'file:///etc/passwd' lies outside")),
        ({"items": {"$ref": "other.json#/a"}}, ("/items/$ref", "'other.json#/a' lies outside")),
        ({"$ref": DRAFT_7}, ("/$ref", "lies outside")),
        ({"$ref": "http://[bad"}, ("/$ref", "lies outside")),
        ({"$defs": {"a": {"$ref": "#/nowhere"}}}, ("/$defs/a/$ref", "'#/nowhere' leads to no schema")),
        ({"$defs": {"a": {"$dynamicRef": "#nowhere"}}}, ("/$defs/a/$dynamicRef", "leads to no schema")),
        ({"$ref": "#/title", "title": "text"}, ("/$ref", "leads to no schema")),
        ({"$ref": "#/$defs/~2", "$defs": {}}, ("/$ref", "leads to no schema")),
        ({"$ref": "#/components/a", "components": {"a": {"$ref": "no"}}}, ("/components/a/$ref", "'no' lies outside")),
        ({"items": {"$schema": DRAFT_7}}, ("/items/$schema", "not the draft that the whole schema names")),
        ({"pattern": "["}, ("/pattern", "not a pattern")),
        ({"pattern": "^(?!a)"}, ("/pattern", "look-around")),
        ({"patternProperties": {r"(a)\1": True}}, ("/patternProperties/(a)\\1", "back-references")),
        ({"pattern": "(a{1000}){1000}"}, ("/pattern", "1048576 bytes")),
        ({"anyOf": [{"pattern": "a"}] * 101}, ("", "101 patterns, more than 100")),
        ({"$ref": "#"}, ("", "refers to itself without end")),
        ({"items": {"anyOf": [{"$ref": "#/items"}]}}, ("/items", "refers to itself without end")),
        ({"description": "x" * 270_000}, ("", "more than 262144 bytes")),
        (nested(101), ("", "nested more than 100 deep")),
        (nested(100_000), ("", "nested more than 100 deep")),
        (doubling(14), ("", "more than 10000 parts")),
        (doubling(40), ("", "more than 10000 parts")),
        (doubling(3_000), ("", "more than 100 deep where its references are followed")),
    ],
)
def test_an_unusable_schema_is_refused_with_pointer_and_reason(schema: Any, expected: tuple[str, str]) -> None:
    (problem,) = problems(schema)
    assert problem.pointer == expected[0]
    assert expected[1] in problem.reason


def test_all_problems_are_named_at_once() -> None:
    schema = {
        "type": "strin",
        "properties": {"a": {"$ref": "https://example.com/"}, "b": {"pattern": "(?<=a)"}, "c": {"maxItems": "x"}},
    }
    assert {problem.pointer for problem in problems(schema)} == {
        "/type",
        "/properties/a/$ref",
        "/properties/b/pattern",
        "/properties/c/maxItems",
    }


def test_the_list_of_problems_is_bounded() -> None:
    assert len(problems({"properties": {f"p{n}": 5 for n in range(1_000)}})) == document.MAX_PROBLEMS


def test_schemas_that_know_what_others_looked_at_count_for_more() -> None:
    steps = {f"s{n}": {"allOf": [{"$ref": f"#/$defs/s{n + 1}"}], "unevaluatedProperties": False} for n in range(12)}
    (problem,) = problems({"$ref": "#/$defs/s0", "$defs": {**steps, "s12": {}}})
    assert "more than 10000 parts" in problem.reason


def test_schemas_that_refer_to_each_other_are_usable() -> None:
    kinds = [f"kind{n}" for n in range(8)]
    definitions = {
        kind: {"properties": {other: {"$ref": f"#/$defs/{other}"} for other in kinds}, "required": ["id"]}
        for kind in kinds
    }
    schema = {"$ref": "#/$defs/kind0", "$defs": definitions}
    assert problems(schema) == []
    assert Validator(schema).accepts({"id": 1, "kind3": {"id": 2, "kind1": {"id": 3}}})
    assert not Validator(schema).accepts({"id": 1, "kind3": {"id": 2, "kind1": {}}})


# --- verdicts


def test_the_draft_decides_what_a_keyword_means() -> None:
    assert not Validator({"$schema": DRAFT_4, "maximum": 5, "exclusiveMaximum": True}).accepts(5)
    assert Validator({"$schema": DRAFT_7, "items": [{"type": "string"}]}).accepts(["a", 1])
    assert not Validator({"$schema": DRAFT_2019, "items": [{"type": "string"}]}).accepts([1])
    assert not Validator({"prefixItems": [{"type": "string"}]}).accepts([1])


@pytest.mark.parametrize("draft", [DRAFT_4, DRAFT_7, DRAFT_2019, None])
def test_only_date_time_is_asserted_of_all_formats(draft: str | None) -> None:
    named = {"$schema": draft} if draft else {}
    for other in ("email", "date", "uri", "regex", "ipv4"):
        assert Validator({**named, "format": other}).accepts("not of that kind")
    assert not Validator({**named, "format": "date-time"}).accepts("2026-02-29T00:00:00Z")
    assert Validator({**named, "format": "date-time"}).accepts("2026-02-28T00:00:00Z")
    assert Validator({**named, "format": "date-time"}).accepts(5)


@pytest.mark.parametrize(
    "schema",
    [
        {"format": "date-time", "pattern": "Z$"},
        {"format": "date-time", "pattern": "Z$", "allOf": [{"type": "string"}]},
        {"$ref": "#/$defs/time", "pattern": "Z$", "$defs": {"time": {"format": "date-time"}}},
        {"$ref": "#/elsewhere/time", "pattern": "Z$", "elsewhere": {"time": {"format": "date-time"}}},
        {"$ref": "#time", "pattern": "Z$", "$defs": {"a": {"$anchor": "time", "format": "date-time"}}},
        {"anyOf": [{"format": "date-time"}], "pattern": "Z$"},
        {"not": {"not": {"format": "date-time"}}, "pattern": "Z$"},
    ],
)
def test_date_time_is_asserted_wherever_a_schema_may_stand(schema: Any) -> None:
    assert problems(schema) == []
    validator = Validator(schema)
    assert validator.accepts("2026-05-04T10:11:12Z")
    assert not validator.accepts("2026-05-04T10:11:12+02:00")
    assert not validator.accepts("2026-13-04T10:11:12Z")


def test_date_time_takes_nothing_away_from_what_a_schema_says() -> None:
    validator = Validator({"format": "date-time", "pattern": "Z$", "allOf": [{"maxLength": 20}]})
    assert validator.accepts("2026-05-04T10:11:12Z")
    assert not validator.accepts("2026-05-04T10:11:12.5Z")


def test_a_schema_held_as_data_stays_as_it_is() -> None:
    schema = {"const": {"format": "date-time"}}
    assert Validator(schema).accepts({"format": "date-time"})
    assert schema == {"const": {"format": "date-time"}}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"const": 9007199254740993}, "9007199254740993", "9007199254740992"),
        ({"const": 9007199254740992}, "9007199254740992.0", "9007199254740993.0"),
        ({"enum": [18446744073709551617]}, "18446744073709551617", "18446744073709551616"),
        ({"maximum": 9007199254740992}, "9007199254740992", "9007199254740993"),
        ({"maximum": 9007199254740992}, "9007199254740992.0", "9007199254740992.5"),
        ({"exclusiveMinimum": 18446744073709551616}, "18446744073709551617", "18446744073709551616"),
        ({"maximum": 97865498536745423}, "97865498536745423.0", "97865498536745424.0"),
        ({"maximum": 1.0}, "1.000", "1.0000000000000000000000001"),
        ({"maximum": 0.1}, "0.1", "0.1000000000000000000000001"),
        ({"const": 0.1}, "0.100", "0.1000000000000000055511151231257827"),
        ({"minimum": 0}, "-0.0", "-1e-400"),
        ({"maximum": 5}, "-1e400", "1e400"),
        ({"type": "integer"}, "1.0", "1.0000000000000000000000001"),
        ({"type": "integer"}, "1e400", "1e-1"),
        ({"multipleOf": 0.01}, "19.99", "19.999"),
        ({"multipleOf": 3}, "999999999999999999999", "1000000000000000000000"),
        ({"maximum": 1}, "1", "9" * 4_300),
        ({"uniqueItems": True}, "[9007199254740992,9007199254740993]", "[1,1.0]"),
        ({"uniqueItems": True}, "[1,true]", "[9007199254740993,9007199254740993.0]"),
        ({"const": 1}, "1", "true"),
    ],
)
def test_numbers_are_judged_by_all_their_digits(schema: Any, good: str, bad: str) -> None:
    assert Validator(schema).failures(good.encode()) == []
    assert [failure.index for failure in Validator(schema).failures(f"{good},{bad}".encode())] == [1]


@pytest.mark.parametrize("number", ["9" * 4_301, "0." + "1" * 1_000, "1e99999999999999999999"])
def test_a_number_beyond_all_bounds_is_a_failure_and_not_an_accident(number: str) -> None:
    (failure,) = Validator(True).failures(f'{{"a":1}},{{"a":[{number}]}}'.encode())
    assert failure.index == 1
    assert "too long" in failure.reason


# --- failures


EVENT = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "at": {"format": "date-time"}, "items": {"items": {"type": "integer"}}},
    "required": ["id"],
    "additionalProperties": False,
}


def test_every_failing_entry_is_named_with_pointer_and_reason() -> None:
    good = {"id": "a", "at": "2026-05-04T10:11:12.5Z", "items": [1]}
    found = Validator(EVENT).failures(
        spelled(good, {"id": 7}, good, {"id": "a", "items": [1, "2"]}, {"id": "a", "at": "noon"}, {"other~": 1})
    )
    assert found == [
        Failure(1, "/id", 'value is not of type "string"'),
        Failure(3, "/items/1", 'value is not of type "integer"'),
        Failure(4, "/at", "value is not a date-time such as 2026-05-04T10:11:12.123Z"),
        Failure(5, "", "Additional properties are not allowed ('other~' was unexpected)"),
        Failure(5, "", '"id" is a required property'),
    ]


def test_no_entries_have_no_failures() -> None:
    assert Validator(False).failures(b"") == []


def test_the_entries_named_are_bounded_and_the_list_says_so() -> None:
    found = Validator({"type": "string"}).failures(spelled("good", *range(50)))
    assert [failure.index for failure in found] == list(range(1, 22))
    assert found[-1].reason == "fails too, and so may others after it"


def test_the_reasons_for_one_entry_are_bounded() -> None:
    found = Validator({"items": {"type": "string"}}).failures(spelled(list(range(50))))
    assert [failure.pointer for failure in found] == ["/0", "/1", "/2", "/3"]


def test_texts_are_bounded_and_do_not_repeat_what_was_sent() -> None:
    found = Validator(EVENT).failures(spelled({"id": ["secret" * 1_000], "k" * 100_000: 1}))
    assert all(len(failure.reason) <= 300 and len(failure.pointer) <= 300 for failure in found)
    assert not any("secret" in failure.reason for failure in found)


def test_a_choice_is_explained_by_its_options() -> None:
    (failure,) = Validator({"anyOf": [{"type": "string"}, {"maximum": 5}]}).failures(b"7")
    assert failure.reason == (
        'value fits none of the choices: value is not of type "string"; value is greater than the maximum of 5'
    )


def test_a_choice_is_explained_by_the_one_option_that_went_deeper() -> None:
    maybe = {"oneOf": [{"type": "null"}, {"type": "object", "properties": {"b": {"type": "integer"}}}]}
    (failure,) = Validator({"properties": {"a": maybe}}).failures(spelled({"a": {"b": "x"}}))
    assert failure == Failure(0, "/a/b", 'value is not of type "integer"')


def test_a_repeated_key_is_a_failure_whatever_the_schema_says() -> None:
    found = Validator(EVENT).failures(b'{"id":"a"},{"id":"a","id":"b"},{"id":7}')
    assert [(failure.index, failure.pointer) for failure in found] == [(1, "/id"), (2, "/id")]
    assert found[0].reason == "is a repeated key"
    assert Validator(True).failures(b'[{"a":{"b":1,"c":2,"b":1}}]') == [Failure(0, "/0/a/b", "is a repeated key")]


# --- nothing holds us up


NODE: dict[str, Any] = {"properties": {"x": {"$ref": "#"}}}
TWO_WAYS = {"anyOf": [{**NODE, "required": ["y"]}, {**NODE, "required": ["z"]}]}


@pytest.mark.timeout(10)
def test_a_schema_with_two_ways_into_itself_answers_soon() -> None:
    assert problems(TWO_WAYS) == []
    validator = Validator(TWO_WAYS)
    assert "choices" in validator.failures(spelled(nested(3)))[0].reason
    assert "too large to say where" in validator.failures(spelled(nested(60)))[0].reason
    assert validator.accepts(nested(1, {"y": 1}) | {"z": 1})


@pytest.mark.timeout(10)
def test_a_schema_with_one_way_into_itself_explains_any_depth() -> None:
    tree = {"type": "object", "properties": {"x": {"$ref": "#"}}, "additionalProperties": False}
    assert Validator(tree).failures(spelled(nested(90), nested(90, leaf=7))) == [
        Failure(1, "/x" * 90, 'value is not of type "object"')
    ]


def test_nesting_is_bounded_where_a_schema_refers_to_itself() -> None:
    validator = Validator(NODE)
    assert validator.accepts(nested(99))
    assert not validator.accepts(nested(100))
    assert validator.failures(spelled(nested(100))) == [Failure(0, "", "is nested more than 100 deep")]


def test_nesting_below_what_a_schema_looks_at_does_not_matter() -> None:
    assert Validator({"required": ["x"]}).failures(spelled(nested(400))) == []
    (failure,) = Validator({"required": ["y"]}).failures(spelled(nested(400)))
    assert "too large to say where" in failure.reason


def test_nesting_beyond_the_decoder_is_a_failure() -> None:
    (failure,) = Validator(True).failures(b"1," + b"[" * 100_000 + b"]" * 100_000)
    assert "nested too deeply" in failure.reason


@pytest.mark.timeout(10)
def test_a_large_entry_with_thousands_of_faults_answers_soon() -> None:
    faults = spelled(["x"] * 300_000)
    numbers = {"items": {"type": "integer"}}
    assert Validator(numbers).failures(faults) == [Failure(0, "/0", 'value is not of type "integer"')]
    (failure,) = Validator({"anyOf": [numbers, {"type": "object"}]}).failures(faults)
    assert "too large to say where" in failure.reason


@pytest.mark.timeout(10)
def test_a_pattern_that_backtracks_elsewhere_does_not_here() -> None:
    validator = Validator({"pattern": "^(a+)+$"})
    assert validator.failures(spelled("a" * 100_000 + "b"))[0].reason == 'value does not match "^(a+)+$"'
