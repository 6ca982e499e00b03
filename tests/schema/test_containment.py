from __future__ import annotations

import time
from typing import Any

import pytest

from headrace.schema import pointer
from headrace.schema.containment import RULES, find_schema_gaps
from headrace.schema.document import Validator, problems
from headrace.schema.problem import Problem
from headrace.schema.shape.source import Dialect, asserting
from schema.sketches import DRAFTS

TEXT, WHOLE = {"type": "string"}, {"type": "integer"}


def judge(schema: Any) -> Any:
    return Validator(schema).accepts


def containment_problems(old: Any, new: Any, oracle: Any = None) -> list[Problem]:
    gaps = find_schema_gaps(old, new, oracle)
    return [
        Problem(pointer.text(gap.keyword), f"{pointer.text(gap.pointer) or 'the event'}: {gap.reason}") for gap in gaps
    ]


def closed(**members: Any) -> Any:
    return {"type": "object", "properties": members, "additionalProperties": False}


def tree(**members: Any) -> Any:
    return {
        "$ref": "#/$defs/n",
        "$defs": {"n": closed(kids={"type": "array", "items": {"$ref": "#/$defs/n"}}, **members)},
    }


NAMED_X = {"properties": {"kind": {"const": "x"}}, "required": ["kind"]}

DRAFT4 = {"$schema": "http://json-schema.org/draft-04/schema#"}

# Old schema, new schema, and whether everything valid under the old is valid under the new.
KEYWORDS: list[tuple[Any, Any, bool]] = [
    (True, True, True),
    ({}, True, True),
    (False, TEXT, True),
    (TEXT, False, False),
    ({"type": ["integer", "number"]}, {"type": "number"}, True),
    ({"enum": [1, 2.0]}, WHOLE, True),
    ({"const": 1}, {"const": 1.0}, True),
    ({"const": True}, {"const": 1}, False),
    ({"const": {"a": [1]}}, {"enum": [{"a": [1.0]}, 3]}, True),
    ({"const": {"a": [1]}}, {"const": {"a": [1], "b": 2}}, False),
    ({"enum": [[], [1]]}, {"enum": [[]]}, False),
    ({"const": 2**70}, {"const": float(2**70)}, False),
    ({"const": 10**22}, {"const": 1e22}, True),
    ({"type": "number", "maximum": 2**60}, {"maximum": float(2**60)}, True),
    ({"type": "number", "maximum": float(2**60)}, {"maximum": 2**60}, False),
    ({"maximum": 2**53}, {"maximum": 2**53 - 1}, False),
    # An event may spell the number so, and it is then compared as the double below these digits.
    ({"const": 1.152921504606847e18}, {"minimum": 1152921504606847000}, False),
    ({"const": 2**63 - 1}, {"maximum": 2**63 - 1}, False),
    # Draft 4 asks that an integer is spelled as one.
    ({**DRAFT4, **WHOLE, "enum": [2**63 - 1]}, {**DRAFT4, "maximum": 2**63 - 1}, True),
    ({**WHOLE, "minimum": 2**60 - 1, "maximum": 2**60}, {"enum": [2**60 - 1, 2**60]}, False),
    ({**WHOLE, "minimum": 2**53 - 1, "maximum": 2**53}, {"enum": [2**53 - 1, 2**53]}, True),
    ({"type": "number", "multipleOf": 10**16}, {"multipleOf": 10**8}, False),
    ({**WHOLE, "maximum": 4.5}, {"maximum": 4}, True),
    ({**WHOLE, "exclusiveMinimum": 0}, {"minimum": 2}, False),
    ({**WHOLE, "minimum": 0.5}, {"minimum": 1}, True),
    ({**WHOLE, "exclusiveMaximum": 3}, {"maximum": 1}, False),
    ({**WHOLE, "exclusiveMaximum": 3}, {"maximum": 2}, True),
    ({"type": "number", "exclusiveMaximum": 4}, {"maximum": 4}, True),
    ({"type": "number", "maximum": 4}, {"exclusiveMaximum": 4}, False),
    ({**WHOLE, "multipleOf": 6}, {"multipleOf": 3}, True),
    ({**WHOLE, "multipleOf": 3}, {"multipleOf": 6}, False),
    ({"type": "number", "multipleOf": 0.1}, {"multipleOf": 0.1}, True),
    (WHOLE, {"multipleOf": 1}, True),
    ({"enum": [4, 8]}, {"multipleOf": 4}, True),
    ({**TEXT, "minLength": 2}, {"minLength": 1}, True),
    ({"enum": ["😀", "ab"]}, {"maxLength": 2}, True),
    ({"enum": ["2024-01-01T00:00:00Z"]}, {"format": "date-time"}, True),
    ({**TEXT, "format": "email"}, {**TEXT, "format": "uri"}, True),
    (WHOLE, {"minLength": 5}, True),
    (closed(a=TEXT), {"maxProperties": 1}, True),
    (closed(a=TEXT, b=TEXT), {"maxProperties": 1}, False),
    ({**closed(a=TEXT), "required": ["a"]}, {"minProperties": 1}, True),
    ({"type": "object", "minProperties": 2}, {"minProperties": 1}, True),
    (closed(ab=TEXT), {"propertyNames": {"maxLength": 2}}, True),
    (closed(abc=TEXT), {"propertyNames": {"maxLength": 2}}, False),
    ({"type": "object"}, {"propertyNames": {"maxLength": 2}}, False),
    ({"propertyNames": {"maxLength": 2}, "maxProperties": 3}, {"propertyNames": {"maxLength": 2}}, True),
    (closed(xa=WHOLE), {"patternProperties": {"^x": TEXT}}, False),
    ({"type": "object", "additionalProperties": WHOLE}, {"patternProperties": {"^x": TEXT}}, False),
    (closed(a=WHOLE), {"patternProperties": {"^x": TEXT}}, True),
    (closed(xa=TEXT), {"patternProperties": {"^x": TEXT}, "additionalProperties": False}, True),
    ({"patternProperties": {"^x": WHOLE}}, {"patternProperties": {"^x": {"type": "number"}}}, True),
    (
        {"patternProperties": {"^x": TEXT}, "additionalProperties": WHOLE},
        {"additionalProperties": {"type": ["string", "integer"]}},
        True,
    ),
    (
        {"dependentRequired": {"a": ["b"]}},
        {"dependentRequired": {"a": ["b"]}, "type": ["object", "array", "null", "string", "number", "boolean"]},
        True,
    ),
    ({"type": "object", "required": ["b"]}, {"dependentRequired": {"a": ["b"]}}, True),
    ({"type": "object"}, {"dependentRequired": {"a": ["b"]}}, False),
    (closed(b=TEXT), {"dependentSchemas": {"a": False}}, True),
    ({"type": "object"}, {"dependencies": {"a": ["b"]}}, False),
    ({"type": "array", "items": WHOLE}, {"items": {"type": "number"}}, True),
    ({"type": "array", "prefixItems": [TEXT], "items": WHOLE}, {"prefixItems": [TEXT, WHOLE]}, True),
    ({"type": "array", "prefixItems": [TEXT], "items": False}, {"maxItems": 1, "uniqueItems": True}, True),
    ({"type": "array", "prefixItems": [TEXT, WHOLE]}, {"items": {"type": ["string", "integer"]}}, False),
    ({"type": "array", "minItems": 1, "items": TEXT}, {"contains": TEXT}, True),
    ({"type": "array", "items": TEXT}, {"contains": TEXT}, False),
    ({"type": "array", "contains": TEXT}, {"minItems": 1, "contains": TEXT}, True),
    ({"type": "array", "maxItems": 2}, {"contains": TEXT, "minContains": 0, "maxContains": 2}, True),
    ({"type": "array", "uniqueItems": True, "maxItems": 4}, {"uniqueItems": True}, True),
    ({"type": "array", "items": WHOLE}, {"unevaluatedItems": WHOLE}, True),
    ({"allOf": [{"properties": {"a": TEXT}}], "type": "object", "unevaluatedProperties": False}, closed(a=TEXT), True),
    (closed(a=TEXT), {"allOf": [{"properties": {"a": TEXT}}], "unevaluatedProperties": False}, True),
    ({"anyOf": [{"properties": {"a": TEXT}}, {}], "type": "object", "unevaluatedProperties": False}, closed(), False),
    ({"anyOf": [TEXT, WHOLE]}, {"anyOf": [{"type": "number"}, TEXT]}, True),
    ({"anyOf": [TEXT, WHOLE]}, {"anyOf": [TEXT]}, False),
    ({"type": "boolean"}, {"anyOf": [{"const": True}, {"const": False}]}, True),
    ({"oneOf": [TEXT, WHOLE]}, {"oneOf": [{"type": "number"}, TEXT]}, True),
    (WHOLE, {"oneOf": [WHOLE, {"type": "number"}]}, False),
    (
        {"type": "object", "properties": {"kind": {"enum": ["x", "y"]}}, "required": ["kind"]},
        {"oneOf": [NAMED_X, {"properties": {"kind": {"const": "y"}}}]},
        True,
    ),
    ({"allOf": [TEXT, {"minLength": 2}]}, {"type": "string", "minLength": 1}, True),
    (TEXT, {"allOf": [TEXT, {"minLength": 1}]}, False),
    (TEXT, {"not": WHOLE}, True),
    (TEXT, {"not": {"minLength": 3}}, False),
    ({"not": {"required": ["a"]}, "type": "object"}, {"properties": {"a": False}}, True),
    ({"type": "object", **NAMED_X}, {"if": NAMED_X, "then": {"required": ["kind"]}, "else": False}, True),
    ({"type": "object", "properties": {"kind": {"const": "y"}}}, {"if": NAMED_X, "then": False}, True),
    (TEXT, {"if": {"minLength": 3}, "then": {"maxLength": 5}}, False),
    (TEXT, {"if": {"minLength": 3}, "then": {"maxLength": 5}, "else": TEXT}, False),
    (TEXT, {"if": {"minLength": 3}, "then": TEXT, "else": {"maxLength": 1}}, False),
    (TEXT, {"if": {"minLength": 3}, "then": TEXT, "else": TEXT}, True),
    ({"if": WHOLE, "then": {"minimum": 1}}, {"type": ["integer", "string"]}, False),
    ({"if": WHOLE, "then": {"minimum": 1}, "else": TEXT}, {"type": ["integer", "string"]}, True),
    (tree(v=TEXT), tree(v=TEXT, w=WHOLE), True),
    (tree(v=TEXT, w=WHOLE), tree(v=TEXT), False),
    (tree(v=TEXT), tree(v={"minLength": 1}), False),
]


@pytest.mark.parametrize(("old", "new", "expected"), KEYWORDS)
def test_containment_keyword_by_keyword(old: Any, new: Any, expected: bool) -> None:
    assert not problems(old) and not problems(new)
    assert (containment_problems(old, new, judge) == []) == expected


@pytest.mark.parametrize("dialect", Dialect)
def test_every_keyword_that_asserts_something_has_its_rule(dialect: Dialect) -> None:
    judged_with_others = {"then", "else", "minContains", "maxContains"}
    assert asserting(dialect) - judged_with_others <= RULES.keys()


@pytest.mark.parametrize(("draft", "whole"), [(4, False), (6, True), (7, True), (2019, True), (2020, True)])
def test_only_draft_4_tells_one_from_one_point_nought(draft: int, whole: bool) -> None:
    new = {"$schema": DRAFTS[draft], **WHOLE}
    assert (containment_problems(WHOLE, new) == []) == whole
    assert Validator(new).accepts(1.0) == whole
    assert containment_problems({"$schema": DRAFTS[4], **WHOLE}, new) == []


def test_an_exclusive_bound_of_draft_4_is_a_way_to_mean_the_other() -> None:
    strict = {"$schema": DRAFTS[4], "type": "number", "minimum": 1, "exclusiveMinimum": True}
    assert containment_problems(strict, {"type": "number", "exclusiveMinimum": 1}) == []
    assert containment_problems({"type": "number", "minimum": 1}, strict) != []
    assert containment_problems({"type": "number", "exclusiveMinimum": 1}, strict) == []


def test_before_2019_a_reference_hides_its_neighbours() -> None:
    old = {"$schema": DRAFTS[7], "$ref": "#/definitions/t", "maxLength": 1, "definitions": {"t": TEXT}}
    assert containment_problems(old, {"maxLength": 1}) != []
    assert containment_problems({**old, "$schema": DRAFTS[2019]}, {"maxLength": 1}) == []


def test_tuples_of_older_drafts_are_tuples() -> None:
    old = {"$schema": DRAFTS[7], "type": "array", "items": [TEXT], "additionalItems": WHOLE}
    assert containment_problems(old, {"prefixItems": [TEXT], "items": WHOLE}) == []
    assert containment_problems({"type": "array", "prefixItems": [TEXT], "items": WHOLE}, old) == []


def test_what_one_draft_asserts_another_may_not() -> None:
    assert containment_problems({"$schema": DRAFTS[6], "if": {}, "then": TEXT}, TEXT) != []
    assert containment_problems({"$schema": DRAFTS[4], "const": 1}, {"const": 1}) != []
    encoded = {"$schema": DRAFTS[7], **TEXT, "contentEncoding": "base64"}
    assert containment_problems(encoded, {**encoded, "minLength": 0}) == []
    assert containment_problems({"$schema": DRAFTS[7], **TEXT}, encoded) != []
    assert containment_problems(TEXT, {**TEXT, "contentEncoding": "base64"}) == []


def test_opaque_keywords_of_other_drafts_are_not_compared() -> None:
    odd = {**TEXT, "not": {"pattern": "x"}}
    assert containment_problems(odd, {**odd, "maxLength": 9, "minLength": 0}) != []
    assert containment_problems({**odd, "maxLength": 9}, {**odd, "minLength": 0}) == []
    assert containment_problems({"$schema": DRAFTS[7], **odd, "maxLength": 9}, odd) != []


@pytest.mark.parametrize("twist", [{"$id": "https://a.example/x"}, {"$dynamicRef": "#"}, {"$dynamicAnchor": "a"}])
def test_schemas_with_names_that_are_not_followed_are_proven_only_if_equal(twist: dict[str, str]) -> None:
    old = closed(a={**TEXT, **twist})
    assert containment_problems(old, dict(old)) == []
    assert containment_problems(old, {"type": "object"}) != []
    assert containment_problems(closed(a=TEXT), old) != []


def test_anchors_and_escapes_in_references_are_followed() -> None:
    old = {"$defs": {"a/b%": {"$anchor": "here", **TEXT}}}
    assert containment_problems({**old, "$ref": "#here"}, TEXT) == []
    assert containment_problems({**old, "$ref": "#/$defs/a~1b%25"}, TEXT) == []


def test_references_by_the_name_of_the_document_are_followed() -> None:
    def named(inner: Any) -> Any:
        name = "https://a.example/s"
        return {"$id": name, "$ref": f"{name}#/$defs/t", "$defs": {"t": inner}}

    assert containment_problems(named(TEXT), TEXT) == []
    assert containment_problems(named(TEXT), named(WHOLE)) != []


def test_references_that_are_not_followed_are_equal_only_in_equal_documents() -> None:
    def odd(inner: Any) -> Any:
        return {"$id": "https://a.example/s", "$ref": "s#/$defs/t", "$defs": {"t": inner}, "minLength": 0}

    assert containment_problems(odd(TEXT), odd(TEXT)) == []
    assert containment_problems(odd(TEXT), odd(WHOLE)) != []


def test_a_schema_that_refers_to_itself_for_the_same_value_shows_nothing() -> None:
    assert containment_problems({"$ref": "#"}, TEXT) != []
    assert containment_problems(TEXT, {"allOf": [{"$ref": "#"}]}) != []
    assert containment_problems({"allOf": [{"$ref": "#"}, TEXT]}, TEXT) == []


def test_what_leans_on_an_open_question_does_not_outlive_it() -> None:
    """The first alternative shows that l fits as long as x does, then fails; the second must not believe it."""

    def rings(bad: Any) -> Any:
        ring = {"type": "object", "properties": {"l": {"$ref": "#/$defs/back"}, "z": bad}}
        return {"ring": ring, "back": {"type": "object", "properties": {"t": {"$ref": "#/$defs/ring"}}}}

    old = {"type": "object", "properties": {"x": {"$ref": "#/$defs/ring"}}, "$defs": rings(TEXT)}
    ends = [{"$ref": "#/$defs/ring"}, {"properties": {"l": {"$ref": "#/$defs/back"}}}]
    new = {"anyOf": [{"properties": {"x": end}} for end in ends], "$defs": rings(WHOLE)}
    event = {"x": {"l": {"t": {"z": "text"}}}}
    assert Validator(old).accepts(event) and not Validator(new).accepts(event)
    assert containment_problems(old, new) != []


def test_a_gap_is_named_by_keyword_and_value() -> None:
    old, new = tree(v={"type": ["string", "null", "integer"]}), tree(v=TEXT)
    assert containment_problems(old, new) == [
        Problem("/$defs/n/properties/v/type", "/v: it may be null or an integer; the new schema wants string")
    ]
    assert containment_problems({"type": "object"}, closed())[0].reason == "/*: the new schema admits nothing here"


def _doubling(leaf: Any) -> Any:
    levels = {f"l{at}": closed(a={"$ref": f"#/$defs/l{at + 1}"}, b={"$ref": f"#/$defs/l{at + 1}"}) for at in range(40)}
    return {"$ref": "#/$defs/l0", "$defs": {**levels, "l40": leaf}}


CHOICES = {"allOf": [{"anyOf": [{"required": [f"{a}.{b}"]} for a in range(9)]} for b in range(9)]}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (_doubling(TEXT), _doubling({"type": ["string", "null"]})),
        (_doubling({"type": ["string", "null"]}), _doubling(TEXT)),
        (closed(**{f"p{at}": {"maxLength": at} for at in range(2_000)}), closed(p1={})),
        (
            {"allOf": [{"anyOf": [{"required": [f"{a}.{b}"]} for a in range(9)]} for b in range(9)], "type": "object"},
            {
                "allOf": [{"anyOf": [{"required": [f"{a}.{b}"]} for a in range(9)]} for b in range(9)],
                "minProperties": 1,
            },
        ),
    ],
)
def test_no_question_takes_long(old: Any, new: Any) -> None:
    begun = time.process_time()
    containment_problems(old, new)
    assert time.process_time() - begun < 5
