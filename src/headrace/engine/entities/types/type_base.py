"""The state of an entity type that a change starts from: schemas of users over the global one, versions and names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from headrace.engine.entities.entity_type import EntityType, schema_of
from headrace.schema.entity.nodes import Schema
from headrace.schema.entity.update import overlay_schema
from headrace.schema.entity.versions import Bump, Version, bump_of, differences, next_free_version, parse_version
from headrace.schema.plan import Refusal
from headrace.storage.entity_types import EVERYBODY, SchemaRegistry, SchemaRow

ALIAS_TAKEN = "alias_taken"


class TypeBase(NamedTuple):
    """An entity type before a change: its active schemas, and the versions that are taken."""

    entity_type: str
    #: Whose schema is to change: a user's, or the global one.
    owner: str
    #: The last change of the type, 0 before the first; another number means that all of this is outdated.
    number: int
    rows: Mapping[str, SchemaRow]
    #: Global versions that users' schemas were made from.
    globals: Mapping[str, SchemaRow]
    #: The versions of each owner concerned.
    taken: Mapping[str, Collection[str]]
    #: How many entities and observations a change concerns.
    counts: Mapping[str, int] = {}
    now_us: int = 0

    @property
    def global_schema(self) -> Schema | None:
        """The active global schema."""
        return self.active(EVERYBODY)

    def active(self, owner: str) -> Schema | None:
        """The active schema of an owner."""
        row = self.rows.get(owner)
        return None if row is None else schema_of(row)

    def made_from(self, schema: Schema) -> Schema | None:
        """The global schema that a user's was made from, if it was made from one."""
        row = self.globals.get(schema.base_version or "")
        return None if row is None else schema_of(row)

    def versions(self, owner: str) -> Collection[str]:
        """The versions that an owner has."""
        return self.taken.get(owner, ())


def load(registry: SchemaRegistry, kind: EntityType, owner: str) -> TypeBase:
    """Read the state of a type that a change of an owner's schema starts from."""
    entity_type, rows = kind.entity_type, kind.rows
    concerned = rows.values() if owner == EVERYBODY else [row for row in (rows.get(owner),) if row is not None]
    wanted = {row.base_version for row in concerned if row.base_version is not None}
    versions = (registry.version(entity_type, EVERYBODY, version) for version in wanted)
    made_from = {row.schema_version: row for row in versions if row is not None}
    taken = registry.taken_by(entity_type) if owner == EVERYBODY else {owner: registry.taken(entity_type, owner)}
    return TypeBase(entity_type, owner, kind.number, rows, made_from, taken)


def followers(base: TypeBase, common: Schema | None) -> Iterator[Schema]:
    """The next versions of users' schemas that follow a change of the global one."""
    if common is None:
        return  # users keep the fields that they have of it
    overlays: dict[object, tuple[Schema, Bump]] = {}
    for user, row in base.rows.items():
        if user == EVERYBODY:
            continue
        alike = (row.schema_definition, row.reducer_config, row.metadata, row.base_version)
        overlay = overlays.get(alike)
        if overlay is None:
            own = schema_of(row)
            made = overlay_schema(own, base.made_from(own), common)
            overlay = overlays[alike] = made, bump_of(differences(own, made))
        made, bump = overlay
        if bump is not Bump.NONE:
            version = next_version(row.schema_version, bump, base.versions(user))
            base_version = common.schema_version
            yield msgspec.structs.replace(made, user_id=user, schema_version=version, base_version=base_version)


def next_version(version: str, bump: Bump, taken: Collection[str]) -> str:
    """The first version after one, by steps of this kind, that an owner does not have."""
    return str(next_free_version(parsed(version), bump, {parsed(text) for text in taken}))


def parsed(version: str) -> Version:
    """A stored version, by which versions are ordered."""
    parsed_version = parse_version(version)
    assert parsed_version is not None, "versions are checked where they come in"
    return parsed_version


def name_refusals(registry: SchemaRegistry, schema: Schema, owner: str) -> list[Refusal]:
    """Why a schema cannot become active: names that would belong to two types of its owner."""
    entity_type = schema.entity_type
    refusals = []
    if not registry.knows(entity_type) and (other := registry.aliased(entity_type, owner)) is not None:
        message = f"{entity_type} is another name of {other}: register that, or take the alias away first"
        refusals.append(Refusal(ALIAS_TAKEN, "/entity_type", message, {"entity_type": other}))
    for number, alias in enumerate(schema.schema_definition.aliases):
        other = None if alias == entity_type else registry.named(alias, owner)
        if other not in (None, entity_type):
            message = f"{alias} names {other} already"
            refusals.append(
                Refusal(ALIAS_TAKEN, f"/schema_definition/aliases/{number}", message, {"entity_type": str(other)})
            )
    return refusals
