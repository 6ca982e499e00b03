"""Make a schema of another: update one partially, or lay a user's schema over the global one.

What an update does not mention stays, and an update that changes nothing makes no version.

An overlay has three sides: the user's schema, the global version it was made from, and the global version of today.
What the user left unchanged follows today's global schema; what the user changed, added or removed stays so. A schema
that was made from no global version lies over whatever is global, and hides only the fields it has itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from headrace.schema.entity.nodes import (
    OPT_OUT,
    Composite,
    Converter,
    Definition,
    Field,
    Notice,
    Policy,
    ReducerConfig,
    Schema,
)
from headrace.schema.entity.readers import CONVERTER_MISMATCH, DANGLING, INVALID, MAX_FIELDS
from headrace.schema.entity.versions import (
    Bump,
    Difference,
    Version,
    bump_of,
    differences,
    distance,
    next_free_version,
    parse_version,
)
from headrace.schema.problem import Location, RequestProblem


def prune_declarations(definition: Definition) -> tuple[Definition, list[Notice]]:
    """The definition without declarations about missing fields, and notices if that changes the identity rule."""
    names = definition.fields
    kept: dict[str, Any] = {
        "canonical_name_fields": _remaining_rules(definition),
        "temporal_fields": tuple(declared for declared in definition.temporal_fields if declared.field in names),
        "reference_fields": tuple(declared for declared in definition.reference_fields if declared.field in names),
        "store_warnings": tuple(
            msgspec.structs.replace(warning, fields=left)
            for warning in definition.store_warnings
            if (left := tuple(name for name in warning.fields if name in names))
        ),
    }
    for option in ("identity_search_fields", "duplicate_detection_fields"):
        kept[option] = tuple(name for name in getattr(definition, option) if name in names)
    if definition.content_field not in names:
        kept["content_field"] = None
    cut = msgspec.structs.replace(definition, **kept)
    return ensure_identity(cut, cut.canonical_name_fields != definition.canonical_name_fields)


def ensure_identity(definition: Definition, changed: bool = True) -> tuple[Definition, list[Notice]]:
    """The definition with a coherent identity: without a rule, names are guessed."""
    if definition.canonical_name_fields:
        rules = " or ".join(" and ".join(names) for names in definition.alternatives)
        return definition, [Notice("IDENTITY_RULE_CHANGED", f"entities are told apart by {rules}")] if changed else []
    guessed = msgspec.structs.replace(
        definition,
        identity_opt_out=OPT_OUT,
        canonical_name_strict=False,
        name_collision_policy="merge",
    )
    if guessed == definition:
        return definition, []
    return guessed, [Notice("IDENTITY_OPT_OUT_IMPLIED", "there is no identity rule any more, and names are guessed")]


def prune_config(config: ReducerConfig, definition: Definition) -> ReducerConfig:
    """The configuration with policies only of fields that there are."""
    kept = {name: policy for name, policy in config.merge_policies.items() if name in definition.fields}
    return msgspec.structs.replace(config, merge_policies=kept)


def _remaining_rules(definition: Definition) -> tuple[str | Composite, ...]:
    """The identity rules with the fields that are left; a rule of which none is left is gone."""
    rules: list[str | Composite] = []
    for rule in definition.canonical_name_fields:
        if isinstance(rule, Composite):
            left = tuple(name for name in rule.composite if name in definition.fields)
            rules += [Composite(left)] if left else []
        elif rule in definition.fields:
            rules.append(rule)
    return tuple(rules)


T = TypeVar("T")

#: Options of identity, which are taken from one schema together.
_IDENTITY = ("canonical_name_fields", "identity_opt_out", "canonical_name_strict", "name_collision_policy")
_ABSENT: Any = object()
_EMPTY = Definition(fields={})
_UNSAID = ReducerConfig({})


def overlay_schema(user: Schema, base: Schema | None, current: Schema | None) -> Schema:
    """The schema that applies to the user, with the version of the user's schema."""
    if current is None:
        return user
    definition = _overlay_definition(user, base, current)
    config = _overlay_config(user.reducer_config, base.reducer_config if base else _UNSAID, current.reducer_config)
    return msgspec.structs.replace(
        user,
        schema_definition=definition,
        reducer_config=prune_config(config, definition),
        metadata=_overlay_members(user.metadata, base.metadata if base else {}, current.metadata),
    )


def _overlay_definition(user: Schema, base: Schema | None, current: Schema) -> Definition:
    own, today = user.schema_definition, current.schema_definition
    before = base.schema_definition if base else _EMPTY
    options: dict[str, Any] = {
        name: _choose(getattr(own, name), getattr(before, name), getattr(today, name))
        for name in Definition.__struct_fields__
        if name not in ("fields", *_IDENTITY)
    }
    follows = not own.canonical_name_fields if base is None else _identity(own) == _identity(before)
    options.update(_identity(today if follows else own))
    fields = _overlay_members(own.fields, before.fields, today.fields)
    return prune_declarations(Definition(fields=fields or own.fields, **options))[0]


def _identity(definition: Definition) -> dict[str, Any]:
    return {name: getattr(definition, name) for name in _IDENTITY}


def _overlay_config(own: ReducerConfig, before: ReducerConfig, today: ReducerConfig) -> ReducerConfig:
    return ReducerConfig(
        _overlay_members(own.merge_policies, before.merge_policies, today.merge_policies),
        _choose(own.observation_source_priority, before.observation_source_priority, today.observation_source_priority),
        _overlay_members(own.source_priorities, before.source_priorities, today.source_priorities),
    )


def _overlay_members(own: Mapping[str, T], before: Mapping[str, T], today: Mapping[str, T]) -> dict[str, T]:
    """Each member by itself; one that a side lacks counts as absent there."""
    chosen = {
        name: _choose(own.get(name, _ABSENT), before.get(name, _ABSENT), today.get(name, _ABSENT))
        for name in {**own, **today}
    }
    return {name: value for name, value in chosen.items() if value is not _ABSENT}


def _choose(own: T, before: T, today: T) -> T:
    """Today's value where the user left it as it was."""
    return today if own == before else own


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


def apply_update(base: Schema, update: TypeUpdate, taken: Collection[str] = ()) -> UpdatedSchema | list[RequestProblem]:
    """The next version of a schema, or all problems; ``taken`` are the versions that exist."""
    problems: list[RequestProblem] = []
    location = Location("", problems)
    _check_names(base.schema_definition, update, location)
    if problems:
        return problems
    definition, notices = _updated_definition(base.schema_definition, update)
    config = _updated_config(base.reducer_config, definition, update, base.schema_definition)
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
    if len(remaining) > MAX_FIELDS:
        location.at("fields_to_add").refuse(INVALID, f"a definition has at most {MAX_FIELDS} fields")
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


def _updated_definition(base: Definition, update: TypeUpdate) -> tuple[Definition, list[Notice]]:
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


def _updated_config(
    base: ReducerConfig, definition: Definition, update: TypeUpdate, before: Definition
) -> ReducerConfig:
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
    version = parse_version(text)
    assert version is not None, "versions are checked where they come in"
    return version
