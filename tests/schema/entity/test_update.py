"""Partial updates, and users' schemas over the global ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.schema.entity import registration
from headrace.schema.entity.nodes import Schema
from headrace.schema.entity.registration import ChangeRequest
from headrace.schema.entity.update import UpdatedSchema, apply_update, overlay_schema
from headrace.schema.entity.versions import Bump
from headrace.schema.problem import RequestProblem
from schema.entity.samples import CONTACT, NANOS, NUMERIC, POLICIES, codes, defined, schema

GLOBAL = schema()
LATER = schema(
    schema_version="1.1.0",
    schema_definition={
        **CONTACT,
        "fields": {**CONTACT["fields"], "phone": {"type": "string"}, "notes": {"type": "string", "description": "new"}},
        "aliases": ["person", "human"],
    },
    reducer_config={
        **POLICIES,
        "merge_policies": {**POLICIES["merge_policies"], "phone": {"strategy": "most_specific"}},
    },
)


def users(base: Schema, **changes: Any) -> Schema:
    """A schema that a user made from a global one."""
    return msgspec.structs.replace(base, scope="user", user_id="u", base_version=base.schema_version, **changes)


def without(base: Schema, *names: str, **added: Any) -> Schema:
    fields = {name: field for name, field in base.schema_definition.fields.items() if name not in names}
    definition = msgspec.structs.replace(base.schema_definition, fields={**fields, **added})
    return users(base, schema_definition=definition)


NICK = defined({"nick": "string"}).schema_definition.fields["nick"]


def test_a_schema_with_nothing_global_below_stands_alone() -> None:
    user = users(GLOBAL)
    assert overlay_schema(user, None, None) == user


def test_later_global_fields_and_options_reach_a_user_who_has_fields_of_his_own() -> None:
    found = overlay_schema(without(GLOBAL, nick=NICK), GLOBAL, LATER)
    assert {*found.schema_definition.fields} == {*CONTACT["fields"], "phone", "nick"}
    assert found.schema_definition.fields["notes"].description == "new"
    assert found.schema_definition.aliases == ("person", "human")
    assert found.reducer_config.policy("phone").strategy == "most_specific"
    assert found.schema_version == "1.0.0"
    assert found.scope == "user"
    assert found.user_id == "u"


def test_what_the_user_changed_or_took_away_stays_so() -> None:
    mine = msgspec.structs.replace(GLOBAL.schema_definition.fields["notes"], description="mine")
    found = overlay_schema(without(GLOBAL, "company", notes=mine), GLOBAL, LATER)
    assert found.schema_definition.fields["notes"].description == "mine"
    assert "company" not in found.schema_definition.fields
    assert found.schema_definition.reference_fields == ()


def test_what_is_no_longer_global_goes_unless_the_user_changed_it() -> None:
    mine = msgspec.structs.replace(LATER.schema_definition.fields["phone"], required=True)
    assert "phone" not in overlay_schema(users(LATER), LATER, GLOBAL).schema_definition.fields
    assert "phone" in overlay_schema(without(LATER, phone=mine), LATER, GLOBAL).schema_definition.fields


def test_a_schema_made_from_none_lies_over_all_that_is_global() -> None:
    user = msgspec.structs.replace(defined({"nick": "string", "age": "string"}), scope="user", user_id="u")
    found = overlay_schema(user, None, GLOBAL)
    assert {*found.schema_definition.fields} == {*CONTACT["fields"], "nick"}
    assert found.schema_definition.fields["age"].type == "string"
    assert found.schema_definition.canonical_name_fields == ("email",)
    assert found.schema_definition.identity_opt_out is None
    assert found.schema_definition.content_field == "notes"


def test_an_identity_rule_of_the_users_own_is_not_mixed_with_another() -> None:
    user = msgspec.structs.replace(
        defined({"nick": "string"}, canonical_name_fields=["nick"], name_collision_policy="reject"), user_id="u"
    )
    found = overlay_schema(user, None, schema(schema_definition={**CONTACT, "canonical_name_strict": True}))
    assert found.schema_definition.canonical_name_fields == ("nick",)
    assert found.schema_definition.name_collision_policy == "reject"
    assert found.schema_definition.canonical_name_strict is False


BASE = schema()
SHOE = {"field_name": "shoe", "field_type": "number"}


def tried(base: Schema, taken: tuple[str, ...] = (), **asked: Any) -> UpdatedSchema | list[RequestProblem]:
    request = registration.read_change_request(asked)
    return request if isinstance(request, list) else apply_update(base, request.update, taken)


def done(base: Schema, taken: tuple[str, ...] = (), **asked: Any) -> UpdatedSchema:
    found = tried(base, taken, **asked)
    assert isinstance(found, UpdatedSchema), found
    return found


def told(found: UpdatedSchema) -> list[tuple[str, tuple[str, ...]]]:
    return [(notice.code, notice.fields) for notice in found.notices]


def test_an_added_field_is_a_minor_version_with_its_policy_and_all_else_as_it_was() -> None:
    found = done(BASE, fields_to_add=[{**SHOE, "reducer_strategy": "most_specific", "description": "size"}])
    assert found.schema.schema_version == "1.1.0"
    assert found.bump == Bump.MINOR
    shoe = {"type": "number", "description": "size"}
    assert found.schema.schema_definition.dump() == {**CONTACT, "fields": {**CONTACT["fields"], "shoe": shoe}}
    merged = {**POLICIES["merge_policies"], "shoe": {"strategy": "most_specific"}}
    assert found.schema.reducer_config.dump() == {**POLICIES, "merge_policies": merged}
    assert found.schema.metadata == BASE.metadata
    assert [difference.change.what for difference in found.differences] == ["field_added"]


def test_an_added_field_that_is_required_is_a_major_version() -> None:
    assert done(BASE, fields_to_add=[{**SHOE, "required": True}]).schema.schema_version == "2.0.0"


def test_a_field_that_exists_is_left_alone_and_told() -> None:
    found = done(
        BASE, fields_to_add=[SHOE, {"field_name": "name", "field_type": "number", "reducer_strategy": "last_write"}]
    )
    assert found.schema.schema_definition.fields["name"] == BASE.schema_definition.fields["name"]
    assert found.schema.reducer_config.policy("name") == BASE.reducer_config.policy("name")
    assert told(found) == [("FIELD_EXISTS", ("name",))]


def test_a_removed_field_takes_its_declarations_along_and_nothing_else() -> None:
    found = done(BASE, fields_to_remove=["name", "born", "tags", "notes", "company", "ghost"])
    assert found.schema.schema_version == "2.0.0"
    assert found.bump == Bump.MAJOR
    assert found.schema.schema_definition.dump() == {
        "fields": {name: CONTACT["fields"][name] for name in ("email", "age")},
        "canonical_name_fields": ["email"],
        "aliases": ["person"],
        "query_synonyms": ["friend"],
        "identity_search_fields": ["email"],
        "duplicate_detection_threshold": 0.9,
        "agent_instructions": "be kind",
    }
    assert found.schema.reducer_config.dump() == {
        "merge_policies": {},
        "observation_source_priority": ["human", "sensor"],
    }
    assert told(found) == [("FIELD_ABSENT", ("ghost",))]


def test_a_removed_field_leaves_the_identity_rule_with_what_is_left() -> None:
    fields = {"a": "string", "b": "string", "c": "string"}
    flat = done(defined(fields, canonical_name_fields=["a", "b"]), fields_to_remove=["b"])
    assert flat.schema.schema_definition.canonical_name_fields == ("a",)
    assert told(flat) == [("IDENTITY_RULE_CHANGED", ())]
    ordered = defined(fields, canonical_name_fields=[{"composite": ["a", "b"]}, {"composite": ["b"]}, "c"])
    assert done(ordered, fields_to_remove=["b"]).schema.schema_definition.alternatives == (("a",), ("c",))


def test_an_identity_rule_of_which_nothing_is_left_means_that_names_are_guessed() -> None:
    strict = {"canonical_name_fields": ["a"], "canonical_name_strict": True, "name_collision_policy": "reject"}
    base = defined({"a": "string", "b": "string"}, **strict)
    for asked in ({"fields_to_remove": ["a"]}, {"canonical_name_fields": []}):
        found = done(base, **asked)
        document = found.schema.schema_definition.dump()
        assert {name: value for name, value in document.items() if name != "fields"} == {
            "identity_opt_out": "heuristic_canonical_name"
        }
        assert told(found) == [("IDENTITY_OPT_OUT_IMPLIED", ())]
        assert found.bump is Bump.MAJOR


def test_a_new_identity_rule_is_a_major_version_and_ends_guessing() -> None:
    found = done(
        defined({"a": "string"}),
        canonical_name_fields=["b"],
        fields_to_add=[{"field_name": "b", "field_type": "string"}],
    )
    assert found.schema.schema_definition.canonical_name_fields == ("b",)
    assert found.schema.schema_definition.identity_opt_out is None
    assert found.schema.schema_version == "2.0.0"


def test_a_converter_is_added_once() -> None:
    asked = [
        {"field_name": "age", "converter": NUMERIC},
        {"field_name": "born", "converter": {**NANOS, "function": "timestamp_s_to_iso"}},
    ]
    found = done(BASE, converters_to_add=asked)
    assert found.schema.schema_version == "1.1.0"
    assert [d.change.what for d in found.differences] == ["converter_added"]
    functions = [converter.function for converter in found.schema.schema_definition.fields["born"].converters]
    assert functions == ["timestamp_nanos_to_iso", "timestamp_s_to_iso"]


def test_a_converter_can_go_to_a_field_that_is_added_with_it() -> None:
    found = done(BASE, fields_to_add=[SHOE], converters_to_add=[{"field_name": "shoe", "converter": NUMERIC}])
    assert len(found.schema.schema_definition.fields["shoe"].converters) == 1


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"fields_to_add": [{"field_name": "name", "field_type": "string"}]},
        {"fields_to_remove": ["ghost"]},
        {"converters_to_add": [{"field_name": "age", "converter": NUMERIC}]},
        {"canonical_name_fields": ["email"]},
        {"canonical_name_fields": [{"composite": ["email"]}]},
        {"metadata": {"label": "Contact"}},
        {"schema_version": "9.0.0"},
    ],
)
def test_an_update_that_changes_nothing_makes_no_version(asked: dict[str, Any]) -> None:
    found = done(BASE, **asked)
    assert found.schema == BASE
    assert found.bump == Bump.NONE
    assert found.differences == []


def test_metadata_is_merged_over_what_there_is() -> None:
    found = done(BASE, metadata={"icon": "x"})
    assert found.schema.metadata == {"label": "Contact", "icon": "x"}
    assert found.schema.schema_version == "1.0.1"


def test_a_version_that_is_taken_is_passed_over() -> None:
    assert done(BASE, ("1.0.0", "1.1.0", "1.2"), fields_to_add=[SHOE]).schema.schema_version == "1.3.0"


@pytest.mark.parametrize(
    ("version", "code"),
    [("1.0.0", "not_newer"), ("0.9.0", "not_newer"), ("1.0.7", "understates"), ("1.5", "taken")],
)
def test_a_version_that_says_the_wrong_thing_is_refused(version: str, code: str) -> None:
    found = tried(BASE, ("1.0.0", "1.5.0"), fields_to_add=[SHOE], schema_version=version)
    assert codes(found) == {"/schema_version": f"version_{code}"}


@pytest.mark.parametrize(("asked", "version"), [("1.4", "1.4.0"), ("3.0.0", "3.0.0")])
def test_a_version_that_says_enough_is_taken(asked: str, version: str) -> None:
    assert done(BASE, fields_to_add=[SHOE], schema_version=asked).schema.schema_version == version


def test_everything_that_cannot_be_done_is_told_at_once() -> None:
    found = tried(
        BASE,
        fields_to_add=[SHOE],
        fields_to_remove=["shoe", "company"],
        converters_to_add=[{"field_name": "ghost", "converter": NANOS}, {"field_name": "age", "converter": NANOS}],
        canonical_name_fields=["company"],
    )
    assert codes(found) == {
        "/fields_to_remove/0": "schema_invalid",
        "/converters_to_add/0/field_name": "unknown_field",
        "/converters_to_add/1/converter/to": "converter_mismatch",
        "/canonical_name_fields/0": "unknown_field",
    }


def test_one_field_must_remain() -> None:
    assert codes(tried(BASE, fields_to_remove=list(CONTACT["fields"]))) == {"/fields_to_remove": "schema_invalid"}


def test_the_shape_of_a_request_is_judged_at_once() -> None:
    found = registration.read_change_request(
        {
            "fields_to_add": [
                {"field_name": "x", "field_type": "text"},
                SHOE,
                SHOE,
                {"field_name": "_meta", "field_type": "string"},
            ],
            "fields_to_remove": ["a", "a"],
            "converters_to_add": [{"converter": {**NANOS, "function": "magic"}}],
            "schema_version": "x",
            "colour": 1,
            "activate": "no",
        }
    )
    assert codes(found) == {
        "/fields_to_add/0/field_type": "unknown_type",
        "/fields_to_add/2/field_name": "schema_invalid",
        "/fields_to_add/3/field_name": "schema_invalid",
        "/fields_to_remove/1": "schema_invalid",
        "/converters_to_add/0/field_name": "missing_member",
        "/converters_to_add/0/converter/function": "unknown_converter",
        "/schema_version": "version_invalid",
        "/colour": "unknown_member",
        "/activate": "schema_invalid",
    }


def test_a_request_activates_and_is_global_unless_it_says_otherwise() -> None:
    assert registration.read_change_request({}) == ChangeRequest(
        update=registration.TypeUpdate(), activate=True, scope="global"
    )
    found = registration.read_change_request(
        {"user_specific": True, "activate": False, "migrate_existing": True, "dry_run": True}
    )
    assert isinstance(found, ChangeRequest)
    assert found.scope == "user"
    assert found.activate is False
    assert found.migrate_existing is True
    assert found.dry_run is True


def test_an_update_leaves_its_base_as_it_was() -> None:
    before = msgspec.json.encode(BASE)
    done(BASE, fields_to_add=[SHOE], fields_to_remove=["born"], metadata={"x": 1})
    assert msgspec.json.encode(BASE) == before
