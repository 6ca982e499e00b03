"""Numbers of versions, and the differences that move them."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.schema.change import Classification
from headrace.schema.entity.versions import (
    Bump,
    Version,
    bump_of,
    changes_identity,
    differences,
    distance,
    next_free_version,
    parse_version,
)
from schema.entity.samples import CONTACT, NANOS, POLICIES, schema


@pytest.mark.parametrize(
    ("text", "version"), [("1.0", (1, 0, 0)), ("1.0.0", (1, 0, 0)), ("0.10.2", (0, 10, 2)), ("12.3", (12, 3, 0))]
)
def test_two_or_three_numbers_are_a_version(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "v1.0",
        "1.0.0.0",
        "1.0-beta",
        "01.0",
        "1.-1",
        "1.0 ",
        "1..0",
        "one",
        "1.0\n",
        "1.٣",
        1.0,
        None,
        "1." + "9" * 10,
    ],
)
def test_anything_else_is_none(text: object) -> None:
    assert parse_version(text) is None


def test_a_step_clears_what_is_behind_it() -> None:
    version = Version(1, 2, 3)
    assert [str(version.bumped(bump)) for bump in Bump] == ["1.2.3", "1.2.4", "1.3.0", "2.0.0"]


def test_the_kind_of_a_step_is_told() -> None:
    version = Version(1, 2, 3)
    assert [distance(version, version.bumped(bump)) for bump in Bump] == list(Bump)
    assert distance(version, Version(1, 0, 9)) is Bump.NONE


def test_versions_that_are_taken_are_passed_over() -> None:
    taken = {Version(1, 1), Version(1, 2), Version(2, 0)}
    assert next_free_version(Version(1, 0), Bump.MINOR, taken) == Version(1, 3)
    assert next_free_version(Version(1, 0), Bump.MAJOR, taken) == Version(3, 0)
    assert next_free_version(Version(1, 0), Bump.PATCH, taken) == Version(1, 0, 1)
    assert next_free_version(Version(1, 1), Bump.NONE, taken) == Version(1, 1)


def test_versions_are_ordered_by_number_and_not_by_text() -> None:
    assert sorted([Version(1, 10), Version(1, 9, 9), Version(0, 99)])[-1] == Version(1, 10)


S_TO_ISO = {**NANOS, "function": "timestamp_s_to_iso"}


def fields(**changes: Any) -> dict[str, Any]:
    """The contact with fields changed: members merged over those of a field, None takes a field away."""
    changed = {
        name: {key: value for key, value in {**CONTACT["fields"].get(name, {}), **change}.items() if value is not None}
        for name, change in changes.items()
        if change is not None
    }
    kept = {name: field for name, field in CONTACT["fields"].items() if name not in changes}
    return {"schema_definition": {**CONTACT, "fields": {**kept, **changed}}}


def options(**changes: Any) -> dict[str, Any]:
    document = {name: value for name, value in {**CONTACT, **changes}.items() if value is not None}
    return {"schema_definition": document}


def policies(**changes: Any) -> dict[str, Any]:
    return {"reducer_config": {**POLICIES, **changes}}


LIMITED = {"min": 0, "max": 150}
D, W, A, N = Classification.DESTRUCTIVE, Classification.WIDENING, Classification.ADDITIVE, Classification.IDENTICAL

TABLE: list[tuple[dict[str, Any], dict[str, Any], str, Bump, Classification]] = [
    ({}, fields(shoe={"type": "number"}), "field_added", Bump.MINOR, A),
    ({}, fields(shoe={"type": "number", "required": True}), "required_field_added", Bump.MAJOR, D),
    (fields(shoe={"type": "number"}), {}, "field_removed", Bump.MAJOR, D),
    (fields(shoe={"type": "number"}), fields(shoe={"type": "string"}), "type_changed", Bump.MAJOR, D),
    ({}, fields(notes={"required": True}), "field_required", Bump.MAJOR, D),
    ({}, fields(name={"required": None}), "field_optional", Bump.MINOR, W),
    ({}, fields(born={"converters": [NANOS, S_TO_ISO]}), "converter_added", Bump.MINOR, W),
    ({}, fields(born={"converters": [S_TO_ISO, NANOS]}), "converters_reordered", Bump.MAJOR, D),
    ({}, fields(born={"converters": None}), "converter_removed", Bump.MAJOR, D),
    ({}, fields(born={"converters": [S_TO_ISO]}), "converter_removed", Bump.MAJOR, D),
    ({}, fields(notes={"validator": "slug"}), "validator_changed", Bump.MAJOR, D),
    ({}, fields(email={"validator": None}), "validator_removed", Bump.MINOR, W),
    ({}, fields(age={"constraints": {**LIMITED, "max": 100}}), "constraint_tightened", Bump.MAJOR, D),
    ({}, fields(age={"constraints": {"min": -5}}), "constraint_loosened", Bump.MINOR, W),
    ({}, fields(age={"constraints": None}), "constraint_loosened", Bump.MINOR, W),
    ({}, fields(age={"constraints": {**LIMITED, "enum": [1]}}), "constraint_tightened", Bump.MAJOR, D),
    ({}, fields(age={"constraints": {**LIMITED, "banned": [1]}}), "constraint_tightened", Bump.MAJOR, D),
    ({}, fields(notes={"preserveCase": True}), "case_changed", Bump.PATCH, N),
    ({}, fields(notes={"description": "other"}), "description_changed", Bump.PATCH, N),
    ({}, fields(notes={"sensitivity_class": "public"}), "description_changed", Bump.PATCH, N),
    ({}, options(canonical_name_fields=["name"]), "identity_changed", Bump.MAJOR, D),
    ({}, options(canonical_name_fields=["email", "name"]), "identity_changed", Bump.MAJOR, D),
    ({}, options(canonical_name_strict=True), "identity_changed", Bump.MAJOR, D),
    ({}, options(identity_opt_out="heuristic_canonical_name"), "opt_out_changed", Bump.PATCH, N),
    ({}, options(name_collision_policy="reject"), "collision_policy_changed", Bump.MAJOR, D),
    ({}, options(name_collision_policy="warn"), "collision_policy_changed", Bump.MINOR, W),
    ({}, options(constraint_violation_policy="warn"), "violation_policy_changed", Bump.MINOR, W),
    (options(constraint_violation_policy="warn"), {}, "violation_policy_changed", Bump.MAJOR, D),
    ({}, options(aliases=["person", "human"]), "alias_added", Bump.MINOR, A),
    ({}, options(aliases=None), "alias_removed", Bump.MAJOR, D),
    ({}, options(temporal_fields=None), "declaration_changed", Bump.MINOR, A),
    ({}, options(reference_fields=None), "declaration_changed", Bump.MINOR, A),
    ({}, options(duplicate_detection_threshold=0.5), "declaration_changed", Bump.MINOR, A),
    ({}, options(content_field=None), "wording_changed", Bump.PATCH, N),
    ({}, options(store_warnings=None), "wording_changed", Bump.PATCH, N),
    ({}, options(agent_instructions="be brief"), "wording_changed", Bump.PATCH, N),
    ({}, {"metadata": {"label": "Other"}}, "metadata_changed", Bump.PATCH, N),
    ({}, policies(merge_policies={}), "policy_changed", Bump.MINOR, D),
    ({}, policies(observation_source_priority=["human"]), "source_priority_changed", Bump.MINOR, D),
    ({}, policies(source_priorities={"crm-a": 200}), "source_priority_changed", Bump.MINOR, D),
]


@pytest.mark.parametrize(("old", "new", "what", "bump", "classification"), TABLE)
def test_each_change_moves_the_version_as_the_table_says(
    old: dict[str, Any], new: dict[str, Any], what: str, bump: Bump, classification: Classification
) -> None:
    found = differences(schema(**old), schema(**new))
    assert {difference.change.what for difference in found} == {what}
    assert bump_of(found) is bump
    assert {difference.change.classification for difference in found} == {classification}


@pytest.mark.parametrize(
    "spelling",
    [
        options(canonical_name_fields=[{"composite": ["email"]}]),
        fields(notes={"required": False, "converters": []}),
        fields(age={"constraints": {"min": 0.0, "max": 150}}),
        policies(merge_policies={**POLICIES["merge_policies"], "age": {"strategy": "last_write"}}),
    ],
)
def test_another_spelling_of_the_same_is_no_change(spelling: dict[str, Any]) -> None:
    assert differences(schema(), schema(**spelling)) == []


def test_a_tighter_constraint_that_only_warns_breaks_nothing() -> None:
    warning = {**CONTACT, "constraint_violation_policy": "warn"}
    tighter = {**warning, "fields": fields(age={"constraints": {"max": 9}})["schema_definition"]["fields"]}
    found = differences(schema(schema_definition=warning), schema(schema_definition=tighter))
    assert bump_of(found) is Bump.MINOR


def test_the_case_of_a_field_in_the_rule_is_part_of_the_rule() -> None:
    new = schema(**fields(email={"preserveCase": True}))
    assert changes_identity(schema().schema_definition, new.schema_definition)
    assert bump_of(differences(schema(), new)) is Bump.MAJOR


def test_the_greatest_of_many_changes_decides() -> None:
    many = fields(shoe={"type": "number"}, notes={"description": "x"}, born={"converters": None})
    found = differences(schema(), schema(**many))
    assert sorted(difference.bump for difference in found) == [Bump.PATCH, Bump.MINOR, Bump.MAJOR]
    assert bump_of(found) is Bump.MAJOR
