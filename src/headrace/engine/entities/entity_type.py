"""An entity type as of one change of it: which schema and which policies hold for whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import NamedTuple, Self

import msgspec

from headrace import decoding
from headrace.reduce.policies.reducer import EVERYONE, policy_hash
from headrace.schema.entity.accept import Acceptor
from headrace.schema.entity.nodes import Definition, ReducerConfig, Schema
from headrace.storage.database import Connection
from headrace.storage.enhancements import Enhancements
from headrace.storage.entity_types import EVERYBODY, SchemaRegistry, SchemaRow
from headrace.storage.journals import EntityChanges

#: What the names of the streams of entity types begin with.
ENTITIES = "entities/"
_COMPILED = 1024
_MAX_USERS = 4096


class EntityRules(msgspec.Struct, frozen=True, tag="entity", tag_field="kind"):
    """The settings of a stream that holds the observations of an entity type."""

    entity_type: str

    def dump(self) -> str:
        """The rules as they are stored."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def load(cls, text: str) -> EntityRules:
        """Read them back."""
        return decoding.decode(text, cls)


class Effective(NamedTuple):
    """The schema that holds for a user, and the acceptor of entities that fit it."""

    schema: Schema
    acceptor: Acceptor


class EntityType:
    """One entity type as of one change of it; never changed, only replaced."""

    def __init__(self, entity_type: str, number: int, rows: Iterable[SchemaRow], undone: Iterable[str] = ()) -> None:
        """``rows`` are the active versions of everybody, ``number`` is that of the last change; of migrations that were
        ``undone`` no observation counts.
        """
        self.entity_type = entity_type
        self.number = number
        self.undone = tuple(sorted(undone))
        self.rows: Mapping[str, SchemaRow] = {row.user_id: row for row in rows}
        self._effective: dict[str, Effective] = {}

    @classmethod
    def load(cls, connection: Connection, entity_type: str) -> Self:
        """The type as it is stored; on any thread, through a connection of its own."""
        number = EntityChanges(connection).newest_of(entity_type)
        undone = Enhancements(connection).undone(entity_type)
        return cls(entity_type, number, SchemaRegistry(connection).active(entity_type), undone)

    def effective(self, user_id: str) -> Effective | None:
        """The schema of a user: their own, else the global one; None where there is neither."""
        row = self.rows.get(user_id) or self.rows.get(EVERYBODY)
        if row is None:
            return None
        effective = self._effective.get(row.user_id)
        if effective is None:
            if len(self._effective) >= _MAX_USERS:
                self._effective.clear()
            acceptor = _acceptor(row.entity_type, row.schema_definition, row.reducer_config)
            effective = self._effective[row.user_id] = Effective(schema_of(row), acceptor)
        return effective

    @cached_property
    def configs(self) -> Mapping[str, ReducerConfig]:
        """The policies that snapshots are merged by: the global ones, and those of users whose own differ from them."""
        row = self.rows.get(EVERYBODY)
        common = ReducerConfig({}) if row is None else _config(row.reducer_config)
        users = {user: _config(row.reducer_config) for user, row in self.rows.items() if user != EVERYBODY}
        identity = policy_hash(common)
        return {EVERYONE: common, **{user: config for user, config in users.items() if policy_hash(config) != identity}}


def dedupe_key(observation_id: str, source_id: str | None) -> str:
    """The key that stores an observation once; keys of one source lie together, so that a request touches few pages."""
    return observation_id if source_id is None else source_id[:12] + observation_id


def schema_of(row: SchemaRow) -> Schema:
    """A stored version as a schema."""
    return Schema(
        entity_type=row.entity_type,
        schema_version=row.schema_version,
        schema_definition=_definition(row.schema_definition),
        reducer_config=_config(row.reducer_config),
        scope="user" if row.user_id else "global",
        user_id=row.user_id or None,
        metadata=msgspec.json.decode(row.metadata),
        base_version=row.base_version,
    )


def compiled(schema: Schema) -> Effective:
    """A schema that is not stored, ready for use."""
    return Effective(schema, Acceptor(schema))


@lru_cache(maxsize=_COMPILED)
def _definition(text: str) -> Definition:
    return decoding.decode(text, Definition)


@lru_cache(maxsize=_COMPILED)
def _config(text: str) -> ReducerConfig:
    return decoding.decode(text, ReducerConfig)


@lru_cache(maxsize=_COMPILED)
def _acceptor(entity_type: str, definition: str, config: str) -> Acceptor:
    """The acceptor of a schema; users with equal schemas share it."""
    schema = Schema(
        entity_type=entity_type,
        schema_version="",
        schema_definition=_definition(definition),
        reducer_config=_config(config),
    )
    return Acceptor(schema)
