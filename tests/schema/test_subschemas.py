"""The schemas inside a schema."""

from __future__ import annotations

from typing import Any

from headrace.schema.subschemas import Subschemas, resolve_pointer


def test_every_keyword_that_holds_schemas_is_looked_into() -> None:
    leaf = {"title": "leaf"}
    ones = (
        "additionalItems additionalProperties contains contentSchema else if items not propertyNames then "
        "unevaluatedItems unevaluatedProperties"
    )
    schema: dict[str, Any] = {name: leaf for name in ones.split()}
    schema |= {name: [leaf, True] for name in ("allOf", "anyOf", "oneOf", "prefixItems")}
    maps = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
    schema |= {name: {"a": leaf} for name in maps}
    found = [place for place, inside in Subschemas(schema).at.items() if inside == leaf]
    assert len(found) == 12 + 4 + 6
    assert {place[0] for place in found} == set(schema)


def test_data_is_not_taken_for_schemas() -> None:
    schema = {
        "const": {"items": {}},
        "enum": [{"items": {}}],
        "default": {"items": {}},
        "properties": {"const": {"not": {}}},
        "dependencies": {"a": ["b"]},
        "$defs": 5,
        "allOf": "x",
    }
    assert set(Subschemas(schema).at) == {(), ("properties", "const"), ("properties", "const", "not")}


def test_what_a_reference_leads_to_is_a_schema_too() -> None:
    schema = {"$ref": "#/x/a", "x": {"a": {"items": {"$ref": "#/x/b/0"}}, "b": [{"not": {}}]}}
    inside = Subschemas(schema)
    assert {("x", "a"), ("x", "a", "items"), ("x", "b", "0"), ("x", "b", "0", "not")} < set(inside.at)
    assert [reference.target for reference in inside.references] == [("x", "a"), ("x", "b", "0")]


def test_references_go_by_the_nearest_name() -> None:
    part = {"$id": "part", "$ref": "#/$defs/c", "$defs": {"c": {"$ref": "whole#/$defs/a"}}}
    inside = Subschemas({"$id": "https://example.com/whole", "$defs": {"a": {}, "b": part}})
    assert {reference.text: reference.target for reference in inside.references} == {
        "#/$defs/c": ("$defs", "b", "$defs", "c"),
        "whole#/$defs/a": ("$defs", "a"),
    }


def test_unfolding_counts_what_references_lead_to_each_time() -> None:
    pair = {"type": "object", "properties": {"a": {}, "b": {}}}
    once = Subschemas({"$ref": "#/$defs/pair", "$defs": {"pair": pair}}).unfolded
    twice = Subschemas({"allOf": [{"$ref": "#/$defs/pair"}] * 2, "$defs": {"pair": pair}}).unfolded
    assert once.size == 4
    assert once.height == 3
    assert once.returns == 0
    assert twice.size == 9
    assert twice.height == 4
    assert twice.returns == 0


def test_unfolding_ends_where_a_schema_comes_back_to_itself() -> None:
    child = {"$ref": "#"}
    assert Subschemas({"items": child}).unfolded.returns == 1
    assert Subschemas({"properties": {"left": child, "right": child}}).unfolded.returns == 2
    dynamic = {"$dynamicAnchor": "n", "items": {"$dynamicRef": "#n"}}
    assert Subschemas(dynamic).unfolded.returns > 0
    assert Subschemas({"$recursiveAnchor": True, "items": {"$recursiveRef": "#"}}).unfolded.returns == 1


def test_a_loop_is_one_only_where_no_step_goes_further_into_the_value() -> None:
    assert Subschemas({"items": {"$ref": "#"}}).find_loop() is None
    assert Subschemas({"then": {"$ref": "#/$defs/a"}, "$defs": {"a": {"not": {"$ref": "#"}}}}).find_loop() is not None
    assert Subschemas({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}).find_loop() is not None


def test_finding_goes_through_members_and_elements() -> None:
    document = {"a": [{"": None}], "0": 1}
    assert resolve_pointer(document, ()) == (True, document)
    assert resolve_pointer(document, ("a", "0", "")) == (True, None)
    assert resolve_pointer(document, ("0",)) == (True, 1)
    for nowhere in [("b",), ("a", "1"), ("a", "00"), ("a", "-"), ("a", "0", "", "x")]:
        assert resolve_pointer(document, nowhere) == (False, None)
