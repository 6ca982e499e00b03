"""A user's schema over the global one: what the user changed wins, everything else follows the global schema.

There are three sides: the user's schema, the global version it was made from, and the global version of today. What
the user left as it was is as it is today; what the user changed, added or took away stays so. A schema that was made
from none lies over whatever is global, and hides only what it has itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from headrace.schema.entity.nodes import OPT_OUT, Composite, Definition, ReducerConfig, Schema
from headrace.schema.entity.problem import Notice


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
    """The definition with an identity that is coherent: without a rule, names are guessed."""
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

#: What tells entities apart goes together: rules of two schemas are not mixed.
_IDENTITY = ("canonical_name_fields", "identity_opt_out", "canonical_name_strict", "name_collision_policy")
_ABSENT: Any = object()
_EMPTY = Definition(fields={})
_UNSAID = ReducerConfig({})


def overlay_schema(user: Schema, base: Schema | None, current: Schema | None) -> Schema:
    """The schema that applies to the user, with the version of the user's schema."""
    if current is None:
        return user
    definition = _definition(user, base, current)
    config = _config(user.reducer_config, base.reducer_config if base else _UNSAID, current.reducer_config)
    return msgspec.structs.replace(
        user,
        schema_definition=definition,
        reducer_config=prune_config(config, definition),
        metadata=_members(user.metadata, base.metadata if base else {}, current.metadata),
    )


def _definition(user: Schema, base: Schema | None, current: Schema) -> Definition:
    own, today = user.schema_definition, current.schema_definition
    before = base.schema_definition if base else _EMPTY
    options: dict[str, Any] = {
        name: _choose(getattr(own, name), getattr(before, name), getattr(today, name))
        for name in Definition.__struct_fields__
        if name not in ("fields", *_IDENTITY)
    }
    follows = not own.canonical_name_fields if base is None else _identity(own) == _identity(before)
    options.update(_identity(today if follows else own))
    fields = _members(own.fields, before.fields, today.fields)
    return prune_declarations(Definition(fields=fields or own.fields, **options))[0]


def _identity(definition: Definition) -> dict[str, Any]:
    return {name: getattr(definition, name) for name in _IDENTITY}


def _config(own: ReducerConfig, before: ReducerConfig, today: ReducerConfig) -> ReducerConfig:
    return ReducerConfig(
        _members(own.merge_policies, before.merge_policies, today.merge_policies),
        _choose(own.observation_source_priority, before.observation_source_priority, today.observation_source_priority),
    )


def _members(own: Mapping[str, T], before: Mapping[str, T], today: Mapping[str, T]) -> dict[str, T]:
    """Each member by itself; one that a side lacks counts as absent there."""
    chosen = {
        name: _choose(own.get(name, _ABSENT), before.get(name, _ABSENT), today.get(name, _ABSENT))
        for name in {**own, **today}
    }
    return {name: value for name, value in chosen.items() if value is not _ABSENT}


def _choose(own: T, before: T, today: T) -> T:
    """Today's value where the user left it as it was."""
    return today if own == before else own
