from __future__ import annotations

from typing import Any

import msgspec

from headrace.schema.entity.nodes import Schema
from headrace.schema.entity.overlay import overlay_schema
from schema.entity.samples import CONTACT, POLICIES, defined, schema

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
    assert (found.schema_version, found.scope, found.user_id) == ("1.0.0", "user", "u")


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
