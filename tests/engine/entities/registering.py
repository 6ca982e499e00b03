"""Entity types in an engine: payloads as they are sent, and what the registry makes of them."""

from __future__ import annotations

from typing import Any

from headrace.engine.entities.types.entity_types import Outcome
from headrace.schema.entity import registration
from headrace.schema.entity.registration import ChangeRequest, TypeRegistration
from headrace.storage.entity_types import EVERYBODY
from support.engine_rig import Rig

Payload = dict[str, Any]


def fields(**types: str) -> Payload:
    """Fields by name and type."""
    return {name: {"type": type_} for name, type_ in types.items()}


def schema(version: str = "1.0.0", entity_type: str = "contact", **more: Any) -> Payload:
    """A registration of a type that is identified by its email."""
    definition = {"fields": fields(name="string", email="string"), "canonical_name_fields": ["email"]}
    return {
        "entity_type": entity_type,
        "schema_version": version,
        "schema_definition": {**definition, **more.pop("definition", {})},
        "reducer_config": {"merge_policies": {}},
        "activate": True,
        **more,
    }


def asked(payload: Payload) -> TypeRegistration:
    """A registration as it is read."""
    found = registration.read_registration(payload)
    assert isinstance(found, TypeRegistration), found
    return found


def register(rig: Rig, payload: Payload, owner: str = EVERYBODY) -> Outcome:
    """Register a version, for everybody or for a user."""
    scoped = {**payload, "scope": "user" if owner else "global"}
    return rig.run(rig.engine.types.register(asked(scoped), owner, "somebody"))


def change(**wishes: Any) -> ChangeRequest:
    """An update as it is read."""
    found = registration.read_change_request(wishes)
    assert isinstance(found, ChangeRequest), found
    return found


def update(rig: Rig, owner: str = EVERYBODY, entity_type: str = "contact", **wishes: Any) -> Outcome:
    """Update a type, for everybody or for a user."""
    scope = "user" if owner else "global"
    return rig.run(rig.engine.types.update(entity_type, change(scope=scope, **wishes), owner, "somebody"))


def added(name: str, type_: str = "string", **options: Any) -> Payload:
    """A field to add."""
    return {"field_name": name, "field_type": type_, **options}


def activate(rig: Rig, version: str, owner: str = EVERYBODY, entity_type: str = "contact", **terms: Any) -> Outcome:
    """Make a version the active one."""
    return rig.run(rig.engine.types.activate(entity_type, version, owner, "somebody", **terms))


def deactivate(rig: Rig, version: str, owner: str = EVERYBODY, entity_type: str = "contact", **terms: Any) -> Outcome:
    """Let a version be active no longer."""
    return rig.run(rig.engine.types.deactivate(entity_type, version, owner, "somebody", **terms))


def version_of(rig: Rig, user: str, entity_type: str = "contact") -> str | None:
    """The version that holds for a user."""
    found = rig.engine.types.effective(entity_type, user)
    return None if found is None else found.schema.schema_version


def fields_of(rig: Rig, user: str, entity_type: str = "contact") -> set[str]:
    """The fields that a user's entities have."""
    found = rig.engine.types.effective(entity_type, user)
    assert found is not None
    return set(found.schema.schema_definition.fields)
