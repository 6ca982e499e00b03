"""What follows from a version of an entity type: what is written for its owner and for those who follow, and what it
does to snapshots.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import uuid4

import msgspec

from headrace.engine.entities.types.journal import Action, TypeChange
from headrace.engine.entities.types.type_base import TypeBase, followers
from headrace.reduce.policies.reducer import life_of
from headrace.schema.entity.nodes import ReducerConfig, Schema
from headrace.schema.plan import Effect, Impact, Plan
from headrace.storage.entity_types import EVERYBODY, SchemaRow

#: How many entities and observations there are, as far as that is known.
Counts = Mapping[str, int]


class OwnerChange(NamedTuple):
    """What a change does for one owner."""

    owner: str
    document: TypeChange


def steps(
    base: TypeBase, plan: Plan[Schema], action: Action, made: SchemaRow | None, active: Schema | None, now_us: int
) -> tuple[OwnerChange, ...]:
    """What is done for the owner, and for the users who follow."""
    own = TypeChange(
        action,
        made=made,
        active=None if active is None else active.schema_version,
        from_version=str(plan.from_version),
        to_version=str(plan.to_version),
        changes=tuple(change.dump() for change in plan.changes),
        reasons=plan.reasons,
    )
    follow = followers(base, active) if base.owner == EVERYBODY and active is not None else ()
    return (OwnerChange(base.owner, own), *(_follow(base, schema, now_us) for schema in follow))


def _follow(base: TypeBase, schema: Schema, now_us: int) -> OwnerChange:
    user, version = str(schema.user_id), schema.schema_version
    before = base.rows[user].schema_version
    document = TypeChange(
        "follow", made=row_of(schema, now_us), active=version, from_version=before, to_version=version
    )
    return OwnerChange(user, document)


def row_of(schema: Schema, now_us: int) -> SchemaRow:
    """A version that is to be stored."""
    return SchemaRow(
        id=str(uuid4()),
        entity_type=schema.entity_type,
        schema_version=schema.schema_version,
        scope=schema.scope,
        user_id=schema.user_id or EVERYBODY,
        schema_definition=msgspec.json.encode(schema.schema_definition).decode(),
        reducer_config=msgspec.json.encode(schema.reducer_config).decode(),
        metadata=msgspec.json.encode(schema.metadata).decode(),
        base_version=schema.base_version,
        created_us=now_us,
    )


def impact(base: TypeBase, old: Schema | None, new: Schema, counts: Counts) -> list[Impact]:
    """What the change does to snapshots, and to users' schemas that follow."""
    before = old or base.common
    config = ReducerConfig({}) if before is None else before.reducer_config
    same = life_of(config) == life_of(new.reducer_config)
    impacts = [Impact("snapshots", Effect.KEPT if same else Effect.REBUILT, counts)]
    if base.owner == EVERYBODY and (users := sum(1 for _ in followers(base, new))):
        impacts.append(Impact("user_schemas", Effect.REBUILT, {"users": users}))
    return impacts


def after(base: TypeBase) -> str:
    """What holds once the owner has no active version."""
    if base.owner != EVERYBODY and base.common is not None:
        return f"the global version {base.common.schema_version} holds from then on"
    return "no schema holds from then on; what is stored makes one of its own"
