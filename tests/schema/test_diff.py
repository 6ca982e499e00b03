"""The changes between two schemas, rule by rule."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from headrace.schema.change import Change, Classification, worst
from headrace.schema.diff import MAX_CHANGES, diff

IDENTICAL, ADDITIVE = Classification.IDENTICAL, Classification.ADDITIVE
WIDENING, DESTRUCTIVE = Classification.WIDENING, Classification.DESTRUCTIVE


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    return {**opened(*required, **properties), "additionalProperties": False}


def opened(*required: str, **properties: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {**schema, "required": list(required)} if required else schema


def one(old: Any, new: Any) -> Change:
    changes = diff(old, new)
    assert len(changes) == 1, changes
    return changes[0]


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}

VALUES = [
    (INTEGER, NUMBER, "type_widened", WIDENING, "/type"),
    (STRING, {"type": ["string", "null"]}, "type_widened", WIDENING, "/type"),
    (STRING, {}, "type_widened", WIDENING, "/type"),
    (NUMBER, INTEGER, "type_narrowed", DESTRUCTIVE, "/type"),
    ({"type": ["string", "null"]}, STRING, "type_narrowed", DESTRUCTIVE, "/type"),
    ({}, STRING, "type_narrowed", DESTRUCTIVE, "/type"),
    (STRING, INTEGER, "type_changed", DESTRUCTIVE, "/type"),
    ({"enum": ["x"]}, {"enum": ["x", "y"]}, "enum_values_added", WIDENING, "/enum"),
    ({"enum": ["x", "y"]}, {"enum": ["x"]}, "enum_values_removed", DESTRUCTIVE, "/enum"),
    ({"enum": [1]}, {"enum": [1, True]}, "enum_values_added", WIDENING, "/enum"),
    ({"const": "x"}, {"enum": ["x", "y"]}, "enum_values_added", WIDENING, "/enum"),
    ({"const": "x"}, {}, "enum_removed", WIDENING, "/const"),
    (STRING, {"type": "string", "enum": ["x"]}, "enum_added", DESTRUCTIVE, "/enum"),
    ({**INTEGER, "minimum": 1}, {**INTEGER, "minimum": 0}, "bound_loosened", WIDENING, "/minimum"),
    ({**INTEGER, "minimum": 0}, {**INTEGER, "minimum": 1}, "bound_tightened", DESTRUCTIVE, "/minimum"),
    ({**INTEGER, "maximum": 1}, {**INTEGER, "maximum": 2}, "bound_loosened", WIDENING, "/maximum"),
    ({**INTEGER, "maximum": 1}, INTEGER, "bound_loosened", WIDENING, "/maximum"),
    (INTEGER, {**INTEGER, "maximum": 1}, "bound_tightened", DESTRUCTIVE, "/maximum"),
    ({**STRING, "maxLength": 2}, {**STRING, "maxLength": 1}, "bound_tightened", DESTRUCTIVE, "/maxLength"),
    ({**STRING, "minLength": 2}, {**STRING, "minLength": 1}, "bound_loosened", WIDENING, "/minLength"),
    (STRING, {**STRING, "minLength": 1}, "bound_tightened", DESTRUCTIVE, "/minLength"),
    ({**INTEGER, "multipleOf": 4}, {**INTEGER, "multipleOf": 2}, "bound_loosened", WIDENING, "/multipleOf"),
    ({**INTEGER, "multipleOf": 2}, {**INTEGER, "multipleOf": 4}, "keyword_changed", DESTRUCTIVE, "/multipleOf"),
    ({**STRING, "pattern": "^a"}, STRING, "constraint_removed", WIDENING, "/pattern"),
    (STRING, {**STRING, "pattern": "^a"}, "constraint_added", DESTRUCTIVE, "/pattern"),
    ({**STRING, "pattern": "^a"}, {**STRING, "pattern": "^b"}, "keyword_changed", DESTRUCTIVE, "/pattern"),
    (STRING, {**STRING, "format": "date-time"}, "constraint_added", DESTRUCTIVE, "/format"),
    ({**STRING, "format": "date-time"}, STRING, "constraint_removed", WIDENING, "/format"),
    (STRING, {**STRING, "format": "email"}, "annotation_changed", IDENTICAL, "/format"),
    ({**STRING, "title": "x"}, {**STRING, "title": "y"}, "annotation_changed", IDENTICAL, "/title"),
    ({**STRING, "default": "x"}, STRING, "annotation_changed", IDENTICAL, "/default"),
    (STRING, {**STRING, "x-owner": "us"}, "annotation_changed", IDENTICAL, "/x-owner"),
    ({"oneOf": [STRING]}, {"oneOf": [STRING, INTEGER]}, "keyword_changed", WIDENING, "/oneOf"),
    ({"oneOf": [STRING, INTEGER]}, {"oneOf": [STRING]}, "keyword_changed", DESTRUCTIVE, "/oneOf"),
    ({"anyOf": [STRING]}, {"anyOf": [STRING, INTEGER]}, "alternatives_widened", WIDENING, "/anyOf"),
    ({"anyOf": [STRING, INTEGER]}, {"anyOf": [STRING]}, "keyword_changed", DESTRUCTIVE, "/anyOf"),
    ({"anyOf": [STRING, INTEGER]}, {"anyOf": [STRING, NUMBER]}, "type_widened", WIDENING, "/anyOf/1/type"),
    ({"allOf": [STRING, {"minLength": 1}]}, {"allOf": [STRING]}, "alternatives_widened", WIDENING, "/allOf"),
    ({"allOf": [STRING]}, {"allOf": [STRING, {"minLength": 1}]}, "keyword_changed", DESTRUCTIVE, "/allOf"),
    (False, STRING, "schema_opened", WIDENING, ""),
    (STRING, False, "schema_closed", DESTRUCTIVE, ""),
]


@pytest.mark.parametrize(("old", "new", "what", "classification", "keyword"), VALUES)
def test_a_changed_value_is_classified(
    old: Any, new: Any, what: str, classification: Classification, keyword: str
) -> None:
    change = one(closed(a=old), closed(a=new))
    assert change.what == what
    assert change.classification == classification
    assert change.pointer == "/a"
    assert change.schema_pointer == f"/properties/a{keyword}"
    assert change.reason.startswith("/a: ")


INSIDE = [
    (closed(), closed(b=STRING), "property_added", ADDITIVE, "/b"),
    (closed(), closed("b", b=STRING), "property_added", DESTRUCTIVE, "/b"),
    (opened(), opened(b=STRING), "property_added", DESTRUCTIVE, "/b"),
    (opened(), opened(b={}), "property_added", ADDITIVE, "/b"),
    (
        {**opened(), "additionalProperties": STRING},
        {**opened(b=STRING), "additionalProperties": STRING},
        "property_added",
        ADDITIVE,
        "/b",
    ),
    (closed(b=STRING), closed(), "property_removed", DESTRUCTIVE, "/b"),
    (opened(b=STRING), opened(), "property_removed", WIDENING, "/b"),
    (opened("b", b=STRING), opened(b=STRING), "required_removed", WIDENING, "/b"),
    (opened(b=STRING), opened("b", b=STRING), "required_added", DESTRUCTIVE, "/b"),
    (opened(), opened("b"), "required_added", DESTRUCTIVE, "/b"),
    (closed(b=STRING), opened(b=STRING), "additional_opened", WIDENING, ""),
    (opened(b=STRING), closed(b=STRING), "additional_closed", DESTRUCTIVE, ""),
    ({"additionalProperties": INTEGER}, {"additionalProperties": NUMBER}, "type_widened", WIDENING, "/*"),
    ({"additionalProperties": NUMBER}, {}, "type_widened", WIDENING, "/*"),
    ({"patternProperties": {"^x": INTEGER}}, {"patternProperties": {"^x": NUMBER}}, "type_widened", WIDENING, "/*"),
    ({}, {"patternProperties": {"^x": NUMBER}}, "keyword_changed", DESTRUCTIVE, ""),
    ({"items": INTEGER}, {"items": NUMBER}, "type_widened", WIDENING, "/*"),
    ({"items": NUMBER}, {"items": INTEGER}, "type_narrowed", DESTRUCTIVE, "/*"),
    ({}, {"items": INTEGER}, "type_narrowed", DESTRUCTIVE, "/*"),
    ({"prefixItems": [STRING, INTEGER]}, {"prefixItems": [STRING, NUMBER]}, "type_widened", WIDENING, "/1"),
    ({"prefixItems": [STRING]}, {"prefixItems": [STRING, NUMBER]}, "items_changed", DESTRUCTIVE, ""),
    ({"prefixItems": [STRING, NUMBER]}, {"prefixItems": [STRING]}, "items_changed", WIDENING, ""),
    ({"uniqueItems": True}, {"uniqueItems": False}, "constraint_removed", WIDENING, ""),
    ({"minItems": 1}, {}, "bound_loosened", WIDENING, ""),
    (closed(b=closed(c=INTEGER)), closed(b=closed(c=NUMBER)), "type_widened", WIDENING, "/b/c"),
    ({"dependentRequired": {"a": ["b"]}}, {}, "keyword_changed", WIDENING, ""),
    ({}, {"dependentRequired": {"a": ["b"]}}, "keyword_changed", DESTRUCTIVE, ""),
]


@pytest.mark.parametrize(("old", "new", "what", "classification", "pointer"), INSIDE)
def test_a_change_inside_a_value_is_classified(
    old: Any, new: Any, what: str, classification: Classification, pointer: str
) -> None:
    change = one(old, new)
    assert change.what == what
    assert change.classification == classification
    assert change.pointer == pointer


def test_all_changes_are_named_at_once() -> None:
    old = closed("a", a=INTEGER, b={"enum": ["x", "y"]}, c=STRING)
    new = closed("a", a=NUMBER, b={"enum": ["x", "z"]}, d=STRING)
    assert [(change.pointer, change.what) for change in diff(old, new)] == [
        ("/d", "property_added"),
        ("/c", "property_removed"),
        ("/a", "type_widened"),
        ("/b", "enum_values_added"),
        ("/b", "enum_values_removed"),
    ]


def test_a_reason_names_the_old_and_the_new_value() -> None:
    change = one(closed(a={**INTEGER, "minimum": 3}), closed(a={**INTEGER, "minimum": 7}))
    assert change.reason == "/a: minimum tightens from 3 to 7"
    assert 'may no longer be "y"' in diff({"enum": ["x", "y"]}, {"enum": ["x"]})[0].reason


def test_a_reason_is_short_where_the_values_are_long() -> None:
    change = one({"enum": ["x" * 5000]}, {"enum": ["x" * 5000, "y" * 5000]})
    assert len(change.reason) < 200


def test_a_property_of_an_open_schema_says_why_it_is_destructive_and_what_to_do() -> None:
    reason = one(opened(), opened(b=STRING)).reason
    assert "the schema was open" in reason
    assert "additionalProperties: false" in reason
    assert "`remove`" in reason and "optional: true" in reason


def test_a_new_member_of_an_object_that_patterns_speak_of_is_not_called_additive() -> None:
    old = {**closed(), "patternProperties": {"^b": INTEGER}}
    assert worst(diff(old, {**old, "properties": {"b": STRING}})) is DESTRUCTIVE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (closed(a=INTEGER), {"additionalProperties": False, "properties": {"a": INTEGER}, "type": "object"}),
        ({"minimum": 1}, {"minimum": 1.0}),
        (True, True),
    ],
)
def test_the_same_schema_has_no_changes(old: Any, new: Any) -> None:
    assert diff(old, new) == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"$defs": {"a": STRING}}, {}),
        (True, {}),
        ({"minLength": 0}, {}),
        ({"required": []}, {}),
        ({"additionalProperties": True}, {}),
        ({"type": ["string", "integer"]}, {"type": ["integer", "string"]}),
        ({"$ref": "#/$defs/a", "$defs": {"a": STRING}}, STRING),
        ({"type": ["integer", "number"]}, NUMBER),
    ],
)
def test_schemas_that_mean_the_same_are_identical(old: Any, new: Any) -> None:
    change = one(old, new)
    assert change.what == "annotation_changed"
    assert change.classification == IDENTICAL


def test_what_the_rules_call_breaking_is_harmless_where_containment_is_proven() -> None:
    changes = diff(closed(a={**NUMBER, "minimum": 3}), closed(a={**NUMBER, "exclusiveMinimum": 2}))
    assert [(change.what, change.classification) for change in changes] == [
        ("bound_loosened", WIDENING),
        ("bound_tightened", WIDENING),
    ]
    assert "every event that was valid stays valid" in changes[1].reason


def test_what_the_rules_call_harmless_is_destructive_where_containment_is_not_proven() -> None:
    old = {**opened(), "unevaluatedProperties": False, "additionalProperties": True}
    new = {**opened(), "unevaluatedProperties": False, "title": "orders"}
    changes = diff(old, new)
    assert [change.what for change in changes] == ["annotation_changed", "not_contained"]
    assert worst(changes) is DESTRUCTIVE
    assert changes[1].pointer == "/*"
    assert changes[1].schema_pointer == "/unevaluatedProperties"


def test_more_that_is_allowed_without_any_rule_noticing_is_a_widening() -> None:
    new = {**opened(), "unevaluatedProperties": False, "additionalProperties": True}
    changes = diff({**opened(), "unevaluatedProperties": False}, new)
    assert [(change.what, change.classification) for change in changes] == [
        ("annotation_changed", IDENTICAL),
        ("more_allowed", WIDENING),
    ]


def test_a_definition_that_changes_is_reported_where_it_is_used() -> None:
    old = {**closed(home={"$ref": "#/$defs/address"}), "$defs": {"address": closed(city=STRING)}}
    new = {**old, "$defs": {"address": closed(city={"type": ["string", "null"]})}}
    change = one(old, new)
    assert change.pointer == "/home/city"
    assert change.schema_pointer == "/$defs/address/properties/city/type"


def test_what_stands_beside_a_reference_is_compared_too() -> None:
    old = {"$ref": "#/$defs/a", "minLength": 2, "$defs": {"a": STRING}}
    assert one(old, {**old, "minLength": 1}).what == "bound_loosened"


def test_a_reference_by_anchor_is_followed() -> None:
    old = {**closed(a={"$ref": "#mine"}), "$defs": {"x": {"$anchor": "mine", **INTEGER}}}
    new = {**old, "$defs": {"x": {"$anchor": "mine", **NUMBER}}}
    assert one(old, new).what == "type_widened"
    assert one(old, new).pointer == "/a"


def test_schemas_that_refer_to_themselves_are_compared() -> None:
    old = {"$ref": "#/$defs/node", "$defs": {"node": closed(next={"$ref": "#/$defs/node"}, value=INTEGER)}}
    new = copy.deepcopy(old)
    new["$defs"]["node"]["properties"]["value"] = NUMBER
    assert one(old, new).what == "type_widened"
    assert one(new, old).classification is DESTRUCTIVE
    assert worst(diff(old, True)) is WIDENING


@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07"])
def test_a_newer_draft_is_harmless_where_it_means_the_same(draft: str) -> None:
    old = {"$schema": f"http://json-schema.org/{draft}/schema#", **closed(a=STRING)}
    change = one(old, closed(a=STRING))
    assert change.schema_pointer == "/$schema"
    assert change.classification == WIDENING


def test_a_newer_draft_is_destructive_where_a_keyword_gets_a_meaning() -> None:
    body = {"type": "object", "dependentRequired": {"a": ["b"]}}
    old = {"$schema": "http://json-schema.org/draft-07/schema#", **body}
    assert worst(diff(old, body)) is DESTRUCTIVE


def test_bounds_of_the_oldest_draft_are_compared() -> None:
    draft = {"$schema": "http://json-schema.org/draft-04/schema#", "type": "number", "minimum": 1}
    assert one({**draft, "exclusiveMinimum": True}, draft).classification is WIDENING
    assert one(draft, {**draft, "exclusiveMinimum": True}).classification is DESTRUCTIVE


def test_very_many_changes_are_cut_and_counted_and_none_that_breaks_is_hidden() -> None:
    many = {f"p{number}": STRING for number in range(MAX_CHANGES + 50)}
    changes = diff(closed(gone=STRING), closed(**many))
    assert len(changes) == MAX_CHANGES + 1
    assert changes[0].pointer == "/gone"
    assert changes[0].classification == DESTRUCTIVE
    assert changes[-1].what == "more_changes"
    assert changes[-1].classification == ADDITIVE
    assert "51 more" in changes[-1].reason
