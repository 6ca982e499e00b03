from __future__ import annotations

from typing import Any

import pytest

from headrace import decoding
from headrace.schema.entity import registration
from headrace.schema.entity.definition import read
from headrace.schema.entity.nodes import Definition, ReducerConfig
from headrace.schema.entity.registration import TypeRegistration
from headrace.schema.problem import Location
from schema.entity.samples import CONTACT, NANOS, NUMERIC, POLICIES, codes, payload, schema


def broken(**options: Any) -> dict[str, str]:
    """The problems of a contact with other declarations."""
    return codes(registration.read_registration(payload(schema_definition={**CONTACT, **options})))


def fielded(**field: Any) -> dict[str, str]:
    """The problems of one field."""
    document = {"fields": {"x": field}}
    found = registration.read_registration(payload(schema_definition=document, reducer_config={"merge_policies": {}}))
    return codes(found) if isinstance(found, list) else {}


def test_a_registration_is_read_whole() -> None:
    found = registration.read_registration(payload(schema_version="1.2", activate=True, scope="user", dry_run=True))
    assert isinstance(found, TypeRegistration)
    assert found.schema.entity_type == "contact"
    assert found.schema.schema_version == "1.2.0"
    assert found.schema.scope == "user"
    assert found.activate is True
    assert found.force is False
    assert found.dry_run is True
    assert found.schema.metadata == {"label": "Contact"}
    assert found.notices == ()


def test_what_was_read_is_written_as_it_was() -> None:
    found = schema()
    assert found.schema_definition.dump() == CONTACT
    assert found.reducer_config.dump() == POLICIES
    assert decoding.convert(found.schema_definition.dump(), Definition) == found.schema_definition
    assert decoding.convert(found.reducer_config.dump(), ReducerConfig) == found.reducer_config


@pytest.mark.parametrize("name", ["entity_type", "schema_version", "schema_definition", "reducer_config"])
def test_nothing_of_the_quartet_may_be_missing_or_null(name: str) -> None:
    for given in ({key: value for key, value in payload().items() if key != name}, {**payload(), name: None}):
        assert codes(registration.read_registration(given)) == {f"/{name}": "missing_member"}


def test_every_problem_is_told_at_once_when_there_are_many() -> None:
    found = registration.read_registration(
        {
            "entity_type": 7,
            "schema_version": "one",
            "colour": "red",
            "activate": "yes",
            "scope": "planet",
            "metadata": [],
            "schema_definition": {
                "fields": {
                    "a": {"type": "text"},
                    "b": {"type": "date", "converters": [{**NANOS, "function": "magic"}, {**NUMERIC}]},
                    "c": {"type": "number", "validator": "email", "constraints": {"min": 2, "max": 1}},
                    "d": {"required": 1, "size": 4},
                    "_meta": {"type": "string"},
                },
                "canonical_name_fields": ["zzz", {"composite": ["a", "yyy"]}],
                "content_field": "xxx",
            },
            "reducer_config": {
                "merge_policies": {
                    "q": {"strategy": "last_write"},
                    "a": {"strategy": "first"},
                    "b": {"tie_breaker": "x"},
                },
                "observation_source_priority": ["human", "human", "robot"],
            },
        }
    )
    top, config = "/schema_definition", "/reducer_config"
    assert codes(found) == {
        "/entity_type": "schema_invalid",
        "/schema_version": "version_invalid",
        "/colour": "unknown_member",
        "/activate": "schema_invalid",
        "/scope": "schema_invalid",
        "/metadata": "schema_invalid",
        f"{top}/fields/a/type": "unknown_type",
        f"{top}/fields/b/converters/0/function": "unknown_converter",
        f"{top}/fields/b/converters/1/to": "converter_mismatch",
        f"{top}/fields/c/validator": "validator_mismatch",
        f"{top}/fields/c/constraints/min": "constraint_invalid",
        f"{top}/fields/d/type": "missing_member",
        f"{top}/fields/d/required": "schema_invalid",
        f"{top}/fields/d/size": "unknown_member",
        f"{top}/fields/_meta": "schema_invalid",
        f"{top}/canonical_name_fields/0": "unknown_field",
        f"{top}/canonical_name_fields/1/composite/1": "unknown_field",
        f"{top}/content_field": "unknown_field",
        f"{config}/merge_policies/q": "unknown_field",
        f"{config}/merge_policies/a/strategy": "unknown_strategy",
        f"{config}/merge_policies/b/strategy": "missing_member",
        f"{config}/merge_policies/b/tie_breaker": "unknown_tie_breaker",
        f"{config}/observation_source_priority/1": "schema_invalid",
        f"{config}/observation_source_priority/2": "unknown_source_kind",
    }


def test_priorities_of_sources_are_whole_numbers_by_names() -> None:
    wrong: dict[str, Any] = {" crm": 5, "src_0": 1, "crm-b": True, "crm-c": 2**31, "crm-d": 0.5}
    config = {"merge_policies": {}, "source_priorities": {"crm-a": -5, **wrong}}
    found = codes(registration.read_registration(payload(reducer_config=config)))
    assert found == {f"/reducer_config/source_priorities/{name}": "schema_invalid" for name in wrong}
    for whole in ([], {f"crm {number}": 1 for number in range(1001)}):
        config = {"merge_policies": {}, "source_priorities": whole}
        found = codes(registration.read_registration(payload(reducer_config=config)))
        assert found == {"/reducer_config/source_priorities": "schema_invalid"}


@pytest.mark.parametrize("given", [None, [], "x", 3])
def test_what_is_no_object_is_refused_without_more_ado(given: Any) -> None:
    assert codes(registration.read_registration(given))[""] == "schema_invalid"
    assert (
        codes(registration.read_registration(payload(schema_definition=given or [])))["/schema_definition"]
        == "schema_invalid"
    )


def test_a_definition_of_only_fields_guesses_names_and_says_so() -> None:
    found = registration.read_registration(payload(schema_definition={"fields": CONTACT["fields"]}))
    assert isinstance(found, TypeRegistration)
    assert found.schema.schema_definition.identity_opt_out == "heuristic_canonical_name"
    assert [notice.code for notice in found.notices] == ["IDENTITY_OPT_OUT_IMPLIED"]


def test_a_definition_that_says_more_must_say_what_identifies() -> None:
    found = registration.read_registration(payload(schema_definition={"fields": CONTACT["fields"], "aliases": ["x"]}))
    assert codes(found) == {"/schema_definition/canonical_name_fields": "identity_missing"}


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"name_collision_policy": "warn", "identity_opt_out": "heuristic_canonical_name"}, "name_collision_policy"),
        ({"name_collision_policy": "reject", "identity_opt_out": "heuristic_canonical_name"}, "name_collision_policy"),
    ],
)
def test_a_collision_policy_needs_a_rule(options: dict[str, Any], where: str) -> None:
    assert broken(**options)[f"/schema_definition/{where}"] == "identity_incoherent"


def test_strictness_needs_a_rule() -> None:
    options = {"canonical_name_fields": [], "identity_opt_out": "heuristic_canonical_name"}
    assert broken(**options, canonical_name_strict=True) == {
        "/schema_definition/canonical_name_strict": "identity_incoherent"
    }


@pytest.mark.parametrize(
    ("option", "given", "where"),
    [
        ("temporal_fields", [{"field": "gone"}], "/0/field"),
        ("reference_fields", [{"field": "gone", "target_entity_type": "x"}], "/0/field"),
        ("identity_search_fields", ["gone"], "/0"),
        ("duplicate_detection_fields", ["name", "gone"], "/1"),
        ("store_warnings", [{"code": "X", "fields": ["gone"], "message": "m"}], "/0/fields/0"),
        ("content_field", "gone", ""),
        ("canonical_name_fields", ["gone"], "/0"),
    ],
)
def test_a_declaration_about_a_field_that_is_not_there_is_refused(option: str, given: Any, where: str) -> None:
    assert broken(**{option: given}) == {f"/schema_definition/{option}{where}": "unknown_field"}


@pytest.mark.parametrize("option", ["person_data", "lawful_basis_field", "provenance_field", "derived_entities"])
def test_a_promise_that_would_not_be_kept_is_not_taken(option: str) -> None:
    assert broken(**{option: True}) == {f"/schema_definition/{option}": "unsupported_option"}


@pytest.mark.parametrize(
    ("field", "path", "code"),
    [
        ({"type": "date", "converters": [{**NANOS, "deterministic": False}]}, "deterministic", "not_deterministic"),
        ({"type": "date", "converters": [{**NANOS, "from": "string"}]}, "from", "mismatch"),
        ({"type": "string", "converters": [{**NANOS, "to": "string"}]}, "to", "mismatch"),
        ({"type": "date", "converters": [{"from": "number", "to": "date", "deterministic": True}]}, "function", ""),
        (
            {"type": "date", "converters": [{key: NANOS[key] for key in ("from", "to", "function")}]},
            "deterministic",
            "",
        ),
    ],
)
def test_a_converter_that_is_not_what_it_is_declared_as_is_refused(field: dict[str, Any], path: str, code: str) -> None:
    found = fielded(**field)
    assert found.keys() == {f"/schema_definition/fields/x/converters/0/{path}"}
    assert next(iter(found.values())).endswith(code)


@pytest.mark.parametrize(
    ("kind", "constraints", "path"),
    [
        ("string", {"min": 1}, "min"),
        ("date", {"max": 1}, "max"),
        ("number", {"pattern": "x"}, "pattern"),
        ("string", {"pattern": "("}, "pattern"),
        ("string", {"pattern": "(?=x)"}, "pattern"),
        ("string", {"enum": []}, "enum"),
        ("string", {"enum": [1]}, "enum/0"),
        ("number", {"enum": [1, "one"]}, "enum/1"),
        ("number", {"banned": [True]}, "banned/0"),
        ("number", {"min": True}, "min"),
        ("boolean", {"enum": ["true"]}, "enum/0"),
    ],
)
def test_a_constraint_that_is_not_for_the_type_is_refused(kind: str, constraints: dict[str, Any], path: str) -> None:
    assert fielded(type=kind, constraints=constraints) == {
        f"/schema_definition/fields/x/constraints/{path}": "constraint_invalid"
    }


def test_all_six_types_and_every_option_of_a_field_are_taken() -> None:
    for kind in ("string", "number", "date", "boolean", "array", "object"):
        assert fielded(type=kind, required=True, preserveCase=True, description="d", sensitivity_class="internal") == {}


@pytest.mark.parametrize("name", ["test_thing", "contacts"])
def test_an_odd_name_is_told_and_where_guarded_refused_unless_forced(name: str) -> None:
    told = registration.read_registration(payload(entity_type=name))
    assert isinstance(told, TypeRegistration)
    [notice] = told.notices
    assert codes(registration.read_registration(payload(entity_type=name), guard=True)) == {"/entity_type": notice.code}
    forced = registration.read_registration(payload(entity_type=name, force=True), guard=True)
    assert isinstance(forced, TypeRegistration)
    assert forced.notices == told.notices


def test_the_two_ways_to_say_the_scope_must_agree() -> None:
    assert schema(user_specific=True).scope == "user"
    found = registration.read_registration(payload(user_specific=True, scope="global"))
    assert codes(found) == {"/user_specific": "schema_invalid"}


def test_a_policy_that_makes_lists_of_scalars_is_told() -> None:
    config = {"merge_policies": {"name": {"strategy": "merge_array"}}}
    found = registration.read_registration(payload(reducer_config=config))
    assert isinstance(found, TypeRegistration)
    assert [(notice.code, notice.fields) for notice in found.notices] == [("MERGE_ARRAY_OF_SCALARS", ("name",))]


def test_a_path_is_a_pointer_whatever_the_name_of_the_field() -> None:
    place: Location = Location("", [])
    assert read({"fields": {"a/b": {"type": "x"}}}, {"merge_policies": {}}, place, place) is None
    assert codes(place.problems) == {"/fields/a~1b/type": "unknown_type"}
