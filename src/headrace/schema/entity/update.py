"""Partial updates of a schema: fields are added or removed, converters added, the identity rule replaced.

What an update does not mention stays. An update that changes nothing makes no version.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import msgspec

from headrace.schema.entity.difference import Difference, bump_of, differences
from headrace.schema.entity.fields import CONVERTER_MISMATCH, MOST_FIELDS
from headrace.schema.entity.nodes import Composite, Converter, Definition, Field, Policy, ReducerConfig, Schema
from headrace.schema.entity.overlay import ensure_identity, prune_config, prune_declarations
from headrace.schema.entity.problem import DANGLING, INVALID, EntityProblem, Location, Notice
from headrace.schema.entity.semver import Bump, Version, distance, next_free_version, parse

VERSION_NOT_NEWER = "version_not_newer"
VERSION_UNDERSTATES = "version_understates"
VERSION_TAKEN = "version_taken"


class Addition(NamedTuple):
    """A field to add, with its policy."""

    name: str
    field: Field
    policy: Policy


class ConverterAddition(NamedTuple):
    """A converter to add to a field."""

    field: str
    converter: Converter


class TypeUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A partial update; None leaves the identity rule as it is, an empty one removes it."""

    fields_to_add: tuple[Addition, ...] = ()
    fields_to_remove: tuple[str, ...] = ()
    converters_to_add: tuple[ConverterAddition, ...] = ()
    canonical_name_fields: tuple[str | Composite, ...] | None = None
    schema_version: str | None = None
    metadata: dict[str, Any] = {}


class UpdatedSchema(NamedTuple):
    """The schema after an update, its differences and notices; without differences it is the old schema."""

    schema: Schema
    differences: list[Difference]
    bump: Bump
    notices: list[Notice]


def apply_update(base: Schema, update: TypeUpdate, taken: Collection[str] = ()) -> UpdatedSchema | list[EntityProblem]:
    """The next version of a schema, or all problems; ``taken`` are the versions that exist."""
    problems: list[EntityProblem] = []
    location = Location((), problems)
    _check_names(base.schema_definition, update, location)
    if problems:
        return problems
    definition, notices = _definition(base.schema_definition, update)
    config = _config(base.reducer_config, definition, update, base.schema_definition)
    new_schema = msgspec.structs.replace(
        base,
        schema_definition=definition,
        reducer_config=config,
        metadata={**base.metadata, **update.metadata},
    )
    all_differences = differences(base, new_schema)
    bump = bump_of(all_differences)
    if bump is Bump.NONE:
        return UpdatedSchema(base, [], bump, [*_skipped_notices(base, update), *notices])
    version = _version(base, bump, update, taken, location)
    if problems:
        return problems
    new_schema = msgspec.structs.replace(new_schema, schema_version=version)
    return UpdatedSchema(new_schema, all_differences, bump, [*_skipped_notices(base, update), *notices])


def _check_names(base: Definition, update: TypeUpdate, location: Location) -> None:
    """Note what cannot be done to the fields that there are."""
    added = {addition.name: addition.field for addition in update.fields_to_add}
    for number, name in enumerate(update.fields_to_remove):
        if name in added:
            location.at("fields_to_remove").at(number).refuse(INVALID, f"{name!r} is to be added and to be removed")
    fields = {**added, **base.fields}
    remaining = {name: field for name, field in fields.items() if name not in update.fields_to_remove}
    if len(remaining) > MOST_FIELDS:
        location.at("fields_to_add").refuse(INVALID, f"a definition has at most {MOST_FIELDS} fields")
    if not remaining:
        location.at("fields_to_remove").refuse(INVALID, "at least one field must remain")
    for number, addition in enumerate(update.converters_to_add):
        where, field = location.at("converters_to_add").at(number), remaining.get(addition.field)
        if field is None:
            where.at("field_name").refuse(DANGLING, f"there is no field {addition.field!r} to add a converter to")
        elif addition.converter.to_type != field.type:
            message = f"{addition.field!r} is a {field.type}, so its converters make a {field.type}"
            where.at("converter").at("to").refuse(CONVERTER_MISMATCH, message)
    for number, rule in enumerate(update.canonical_name_fields or ()):
        for name in rule.composite if isinstance(rule, Composite) else (rule,):
            if name not in remaining:
                location.at("canonical_name_fields").at(number).refuse(DANGLING, f"there is no field {name!r}")


def _definition(base: Definition, update: TypeUpdate) -> tuple[Definition, list[Notice]]:
    fields = dict(base.fields)
    for addition in update.fields_to_add:
        fields.setdefault(addition.name, addition.field)
    for field, converter in update.converters_to_add:
        if all(existing.function != converter.function for existing in fields[field].converters):
            more = (*fields[field].converters, converter)
            fields[field] = msgspec.structs.replace(fields[field], converters=more)
    for name in update.fields_to_remove:
        fields.pop(name, None)
    new_definition = msgspec.structs.replace(base, fields=fields)
    rules = update.canonical_name_fields
    ruled = base if rules is None else msgspec.structs.replace(base, canonical_name_fields=rules)
    if ruled.alternatives == base.alternatives:
        return prune_declarations(new_definition)
    new_definition = msgspec.structs.replace(new_definition, canonical_name_fields=rules, identity_opt_out=None)
    new_definition, notices = ensure_identity(new_definition)
    return prune_declarations(new_definition)[0], notices


def _config(base: ReducerConfig, definition: Definition, update: TypeUpdate, before: Definition) -> ReducerConfig:
    policies = dict(base.merge_policies)
    for addition in update.fields_to_add:
        if addition.name not in before.fields:
            policies[addition.name] = addition.policy
    return prune_config(msgspec.structs.replace(base, merge_policies=policies), definition)


def _skipped_notices(base: Schema, update: TypeUpdate) -> list[Notice]:
    """Notices about parts of an update that change nothing."""
    fields = base.schema_definition.fields
    present = tuple(addition.name for addition in update.fields_to_add if addition.name in fields)
    absent = tuple(name for name in update.fields_to_remove if name not in fields)
    notices = []
    if present:
        notices.append(Notice("FIELD_EXISTS", "these fields exist, and stay as they are", present))
    if absent:
        notices.append(Notice("FIELD_ABSENT", "there are no such fields to remove", absent))
    return notices


def _version(base: Schema, bump: Bump, update: TypeUpdate, taken: Collection[str], location: Location) -> str:
    """The requested version if it is allowed, or the next one of its kind."""
    before, used = _parsed(base.schema_version), {_parsed(text) for text in taken}
    if update.schema_version is None:
        return str(next_free_version(before, bump, used))
    version, location = _parsed(update.schema_version), location.at("schema_version")
    if version <= before:
        location.refuse(VERSION_NOT_NEWER, f"{version} is not newer than {before}")
    elif version in used:
        location.refuse(VERSION_TAKEN, f"{version} exists already")
    elif distance(before, version) < bump:
        location.refuse(
            VERSION_UNDERSTATES, f"this is a {bump.name.lower()} change, which {version} after {before} is not"
        )
    return str(version)


def _parsed(text: str) -> Version:
    version = parse(text)
    assert version is not None, "versions are checked where they come in"
    return version
