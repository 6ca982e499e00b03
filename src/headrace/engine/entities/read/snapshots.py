"""Snapshots of entities: computed from states and the tail, or by folding all observations of an entity.

Everything here runs on the event loop, but observations are folded in a thread. That is done where no state was
folded by the policies of the query: they have changed and new states are not complete yet, observations were moved,
or the query is about the past or another version. So an answer is always by one configuration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.engine.derive.generation import Generation, NotReady
from headrace.engine.derive.state_builder import StateBuilder
from headrace.engine.derive.state_reader import FoldPace, StateReader
from headrace.engine.entities.entity_type import ENTITIES, EntityType, schema_of
from headrace.engine.entities.read.observations import EntityGroup, EntityGroups, ObservationReader
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Head, Stream
from headrace.engine.runtime.gates import Gate
from headrace.errors import EntityNotFound, NotFound, UnknownEntityType
from headrace.format.decoded_columns import LruCache
from headrace.reduce.policies.build import SHAPES
from headrace.reduce.policies.definition import TypeDefinition
from headrace.reduce.policies.reducer import EVERYONE, EntityState, Snapshot, TypeReducer, policy_hash
from headrace.schema.entity.nodes import ReducerConfig, Schema
from headrace.schema.entity.versions import parse_version
from headrace.storage.database import Connection
from headrace.storage.derived import States
from headrace.storage.entity_types import EVERYBODY, SchemaRegistry
from headrace.storage.journals import EntityChanges
from headrace.storage.streams import Streams
from headrace.storage.wal import Wal

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

#: Types by name, each with the number of its last change.
_CachedTypes = dict[str, tuple[int, TypeDefinition]]


def definition_of(kind: EntityType) -> TypeDefinition:
    """The definition of the states of a type."""
    return TypeDefinition(kind.entity_type, ENTITIES + kind.entity_type, dict(kind.configs), kind.undone)


class TypeDefinitions:
    """The definitions of entity types as of one change, read through one connection."""

    def __init__(self, connection: Connection, version: int, cache: _CachedTypes | None = None) -> None:
        """``cache`` keeps definitions between versions; those that have not changed are not read again."""
        self._connection, self._registry = connection, SchemaRegistry(connection)
        self.version = version
        self._cache: _CachedTypes = {} if cache is None else cache

    @classmethod
    def read(cls, connection: Connection) -> TypeDefinitions:
        """The definitions as of the last stored change."""
        return cls(connection, EntityChanges(connection).newest())

    @property
    def streams(self) -> Collection[str]:
        """The streams of all types."""
        return [ENTITIES + name for name in self._registry.types()]

    def names_over(self, stream: str) -> tuple[str, ...]:
        """The entity type of a stream."""
        name = stream.removeprefix(ENTITIES)
        return (name,) if self.stream_of(name) == stream else ()

    def stream_of(self, name: str) -> str | None:
        """The stream of a type; None where there is no such type."""
        return ENTITIES + name if self._registry.knows(name) else None

    def defined(self, name: str) -> TypeDefinition:
        """The definition of a type."""
        number, cached = EntityChanges(self._connection).newest_of(name), self._cache.get(name)
        if cached is None or cached[0] != number:
            if not self._registry.knows(name):
                raise UnknownEntityType("there is no entity type of this name", entity_type=name)
            cached = self._cache[name] = number, definition_of(EntityType.load(self._connection, name))
        return cached[1]


#: Entities that are folded at the same time; others wait.
MAX_CONCURRENT_FOLDS = 4
#: Folding an observation takes longer than folding an event, and packing an entity longer still.
PACE = FoldPace(step_rows=64, hot_rows=16_384)
_EVER = 1 << 62
#: About the memory of an entity that was folded from its observations.
_ROW_BYTES = 4096


_OWNERS: dict[str | None, Callable[[str], tuple[str, ...]]] = {
    None: lambda user: (user, EVERYBODY),
    "user": lambda user: (user,),
    "global": lambda _: (EVERYBODY,),
}


class EntityQuery(NamedTuple):
    """An entity of a user, as observed and ingested until some moments, and by a version of its schema."""

    entity_id: str
    user_id: str
    as_of_us: int | None = None
    at_ingested_us: int | None = None
    schema_version: str | None = None
    #: Whose version that is, ``user`` or ``global``; by default the user's own where they have one.
    scope: str | None = None

    @property
    def is_past(self) -> bool:
        """Whether only observations until a moment count."""
        return self.as_of_us is not None or self.at_ingested_us is not None


class EntityView(NamedTuple):
    """The entity of a query: its group, its stream, and the schema and policies that its snapshot is computed by."""

    query: EntityQuery
    group: EntityGroup
    stream: Stream
    head: Head
    kind: EntityType
    schema: Schema | None
    #: The user whose policies apply, EVERYONE for the shared ones, and these policies.
    policy_user: str
    config: ReducerConfig

    @property
    def entity_type(self) -> str:
        """The type of the entity."""
        return self.kind.entity_type


class EntityAnswer(NamedTuple):
    """An entity with its snapshot, or None where it is deleted; ``kept`` if it was computed from states and a tail."""

    view: EntityView
    snapshot: Snapshot | None
    kept: bool


class _FoldedEntity(NamedTuple):
    """An entity folded from its observations before an event."""

    row: EntityState | None
    through: int


class Snapshots:
    """Computes the snapshots of all entities of this node."""

    def __init__(
        self,
        *,
        log: Log,
        reader: Connection,
        connect: Callable[[], Connection],
        segments: Callable[[], Segments],
        state_builder: StateBuilder,
        newest_change: Callable[[], int],
        fold_rows: int,
        row_bytes: int,
    ) -> None:
        """``newest_change`` returns the number of the last change of any entity type."""
        self._log, self._reader, self._newest_change = log, reader, newest_change
        self.observation_reader = ObservationReader(connect, segments)
        self._cached_types: _CachedTypes = {}
        self._types = TypeDefinitions(reader, -1, self._cached_types)
        self.state_reader: StateReader[TypeDefinition] = StateReader(
            log,
            Wal(reader),
            States(reader),
            self.current,
            lambda *_: SHAPES,
            state_builder,
            fold_rows,
            PACE,
        )
        self.groups = EntityGroups(reader)
        self._stream_names: dict[int, str] = {}
        self._definitions: dict[str, tuple[EntityType, TypeDefinition]] = {}
        #: Entities that were folded from their observations.
        self.rows = LruCache(row_bytes)
        self._gate = Gate(MAX_CONCURRENT_FOLDS)
        log.on_append.append(self.state_reader.appended)

    async def stop(self) -> None:
        """Stop reading; nothing in memory has to be saved."""
        await self.state_reader.stop()
        self.observation_reader.close()

    def current(self) -> TypeDefinitions:
        """The definitions of entity types as they are now."""
        number = self._newest_change()
        if number != self._types.version:
            self._types = TypeDefinitions(self._reader, number, self._cached_types)
        return self._types

    def get(self, query: EntityQuery) -> EntityAnswer:
        """An entity; raises NotReady where its snapshot is not in memory, EntityNotFound where it does not exist."""
        return self._answer(self.view(query))

    async def find(self, query: EntityQuery) -> EntityAnswer:
        """An entity; folds its observations where its snapshot is not in memory."""
        while True:
            view = self.view(query)
            try:
                return self._answer(view)
            except NotReady:
                if self._has_states(view):
                    await self.state_reader.ready(view.entity_type)
                else:
                    return await self._fold_observations(view)

    def view(self, query: EntityQuery) -> EntityView:
        """The entity of a query; raises EntityNotFound where it does not exist."""
        row = self.groups.row(query.entity_id, query.user_id)
        group = self.groups.group(row, _EVER if query.at_ingested_us is None else query.at_ingested_us)
        stream = self.stream(row.stream)
        head = stream.head
        kind = None if head.registry is None else head.registry.hook
        assert isinstance(kind, EntityType)
        policy_user = row.user_id if row.user_id in kind.configs else EVERYONE
        config = kind.configs[policy_user]
        if query.schema_version is None:
            effective = kind.effective(row.user_id)
            schema = None if effective is None else effective.schema
        else:
            schema = self._version(kind.entity_type, row.user_id, query.schema_version, query.scope)
            config = schema.reducer_config
        return EntityView(query, group, stream, head, kind, schema, policy_user, config)

    def clear_folded(self) -> None:
        """Drop entities that were folded from their observations: some were erased."""
        self.rows = LruCache(self.rows.limit_bytes)

    def stream(self, id: int) -> Stream:
        """The stream of an entity's type."""
        name = self._stream_names.get(id)
        if name is None:
            row = Streams(self._reader).by_id(id)
            if row is None:
                raise EntityNotFound("the entity type is gone")
            name = self._stream_names[id] = row.name
        return self._log.find(name)

    def _version(self, entity_type: str, user_id: str, version: str, scope: str | None) -> Schema:
        """A version of a type by its number: that of the scope, or else the user's own or the global one."""
        parsed, registry = parse_version(version), SchemaRegistry(self._reader)
        normalized = version if parsed is None else str(parsed)
        for owner in _OWNERS[scope](user_id):
            row = registry.version(entity_type, owner, normalized)
            if row is not None:
                return schema_of(row)
        raise NotFound("the entity type has no such version", entity_type=entity_type, schema_version=version)

    def _answer(self, view: EntityView) -> EntityAnswer:
        if self._may_use_states(view):
            defined = self.state_reader.defined(view.entity_type)
            generation, _ = self.state_reader.current_generation(defined, view.head)
            if self._is_folded(generation, view):
                reducer = generation.fold.reducer
                rows = [row for id in view.group.members if (row := generation.row(id.encode())) is not None]
                row = rows[0] if rows else None
                for other in rows[1:]:
                    row = reducer.merge(row, other)
                return EntityAnswer(view, reducer.finish(row, version_name=view.policy_user, schema=view.schema), True)
        cached = None if view.query.is_past else self.rows.get(_cache_key(view))
        if cached is None or cached.through != view.head.next_seq:
            raise NotReady
        return _finish(view, cached.row)

    def _may_use_states(self, view: EntityView) -> bool:
        if view.query.is_past or view.group.moved or view.group.since:
            return False
        return view.query.schema_version is None or policy_hash(view.config) == policy_hash(
            view.kind.configs[view.policy_user]
        )

    def _is_folded(self, generation: Generation, view: EntityView) -> bool:
        """Whether a generation is folded by the policies of a view."""
        return generation.is_folded(view.policy_user, self._definition(view.kind).lives[view.policy_user].id)

    def _definition(self, kind: EntityType) -> TypeDefinition:
        cached = self._definitions.get(kind.entity_type)
        if cached is None or cached[0] is not kind:
            cached = self._definitions[kind.entity_type] = kind, definition_of(kind)
        return cached[1]

    def _has_states(self, view: EntityView) -> bool:
        generation = self.state_reader.tail_of(view.entity_type) if self._may_use_states(view) else None
        return generation is not None and self._is_folded(generation, view)

    async def _fold_observations(self, view: EntityView) -> EntityAnswer:
        async with self._gate:
            folded = (
                _FoldedEntity(None, 0)
                if view.query.is_past
                else self.rows.get(_cache_key(view)) or _FoldedEntity(None, 0)
            )
            if folded.through >= view.head.next_seq > 0:
                return _finish(view, folded.row)  # another request has just folded it
            row = await asyncio.to_thread(self._fold, view, folded)
            if not view.query.is_past:
                self.rows.put(_cache_key(view), _FoldedEntity(row, view.head.next_seq), _ROW_BYTES)
            return _finish(view, row)

    def _fold(self, view: EntityView, folded: _FoldedEntity) -> EntityState | None:
        """Fold the observations that a folded entity lacks."""
        reducer, query = _reducer(view), view.query
        row = None if folded.row is None else reducer.unpack(reducer.pack(folded.row))
        with self.observation_reader.open(view.stream, view.head) as observations:
            for seq, at_us, observation in view.group.observations(observations, folded.through):
                if query.as_of_us is not None and observation.observed_at_us > query.as_of_us:
                    continue
                if query.at_ingested_us is not None and at_us > query.at_ingested_us:
                    continue
                if reducer.key_and_row(observation) is not None:
                    row = reducer.fold(row, at_us // 1000, seq, observation)
        return row


def _reducer(view: EntityView) -> TypeReducer:
    return TypeReducer({EVERYONE: view.config}, view.kind.undone)


def _finish(view: EntityView, row: EntityState | None) -> EntityAnswer:
    return EntityAnswer(view, _reducer(view).finish(row, schema=view.schema), False)


def _cache_key(view: EntityView) -> tuple[Any, ...]:
    """The key of a cached row: all values that it depends on."""
    version_id = policy_hash(view.config, None, view.kind.undone)
    group = view.group
    return view.stream.incarnation, group.members, group.moved, group.since, group.row.first_seq, version_id
