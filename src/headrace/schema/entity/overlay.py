"""A user's schema over the global one: what is the user's own wins, and everything else follows what is global.

There are three sides: the user's schema, the global version it was made from, and the global version of today. What
the user left as it was is as it is today; what the user changed, added or took away stays so. A schema that was made
from none lies over whatever is global, and hides only what it has itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from headrace.schema.entity.nodes import Definition, ReducerConfig, Schema
from headrace.schema.entity.prune import pruned, pruned_config

T = TypeVar("T")

#: What tells entities apart goes together: rules of two schemas are not mixed.
_IDENTITY = ("canonical_name_fields", "identity_opt_out", "canonical_name_strict", "name_collision_policy")
_ABSENT: Any = object()
_EMPTY = Definition(fields={})
_UNSAID = ReducerConfig({})


def overlaid(user: Schema, base: Schema | None, current: Schema | None) -> Schema:
    """What holds for the user; it keeps the version of the user's schema."""
    if current is None:
        return user
    definition = _definition(user, base, current)
    config = _config(user.reducer_config, base.reducer_config if base else _UNSAID, current.reducer_config)
    return msgspec.structs.replace(
        user,
        schema_definition=definition,
        reducer_config=pruned_config(config, definition),
        metadata=_members(user.metadata, base.metadata if base else {}, current.metadata),
    )


def _definition(user: Schema, base: Schema | None, current: Schema) -> Definition:
    own, today = user.schema_definition, current.schema_definition
    before = base.schema_definition if base else _EMPTY
    options: dict[str, Any] = {
        name: _chosen(getattr(own, name), getattr(before, name), getattr(today, name))
        for name in Definition.__struct_fields__
        if name not in ("fields", *_IDENTITY)
    }
    follows = not own.canonical_name_fields if base is None else _identity(own) == _identity(before)
    options.update(_identity(today if follows else own))
    fields = _members(own.fields, before.fields, today.fields)
    return pruned(Definition(fields=fields or own.fields, **options))[0]


def _identity(definition: Definition) -> dict[str, Any]:
    return {name: getattr(definition, name) for name in _IDENTITY}


def _config(own: ReducerConfig, before: ReducerConfig, today: ReducerConfig) -> ReducerConfig:
    return ReducerConfig(
        _members(own.merge_policies, before.merge_policies, today.merge_policies),
        _chosen(own.observation_source_priority, before.observation_source_priority, today.observation_source_priority),
    )


def _members(own: Mapping[str, T], before: Mapping[str, T], today: Mapping[str, T]) -> dict[str, T]:
    """Each member by itself; one that a side lacks counts as absent there."""
    chosen = {
        name: _chosen(own.get(name, _ABSENT), before.get(name, _ABSENT), today.get(name, _ABSENT))
        for name in {**own, **today}
    }
    return {name: value for name, value in chosen.items() if value is not _ABSENT}


def _chosen(own: T, before: T, today: T) -> T:
    """Today's value where the user left it as it was."""
    return today if own == before else own
