"""Snapshots: an entity as its schema shows it, from states and the tail, or folded anew from its observations.

Everything here runs on the event loop; what is folded anew is folded in a thread. That is done where no state is of
the policies that hold: they have changed and states are still made, observations were moved, or the question is about
the past or another version. So an answer is always of one configuration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.engine.derive.generation import Generation, NotReady
from headrace.engine.derive.state_builder import StateBuilder
from headrace.engine.derive.state_reader import FoldPace, StateReader
from headrace.engine.entities.entity_type import ENTITIES, EntityType, schema_of
from headrace.engine.entities.read.observations import EntityGroup, EntityGroups, Reading
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Head, Stream
from headrace.engine.runtime.gates import Gate
from headrace.errors import EntityNotFound, NotFound, UnknownEntityType
from headrace.format.decoded_columns import DecodedCache
from headrace.reduce.policies.build import SHAPES
from headrace.reduce.policies.definition import TypeDefinition
from headrace.reduce.policies.reducer import EVERYONE, EntityState, Snapshot, TypeReducer, life_of
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
Known = dict[str, tuple[int, TypeDefinition]]


def defined_of(kind: EntityType) -> TypeDefinition:
    """A type as it is now."""
    return TypeDefinition(kind.entity_type, ENTITIES + kind.entity_type, dict(kind.configs), kind.undone)


class TypeDefinitions:
    """The entity types that hold as of one change, read through one connection."""

    def __init__(self, connection: Connection, version: int, cache: Known | None = None) -> None:
        """``known`` are types that were read before: those that have not changed since are not read again."""
        self._connection, self._registry = connection, SchemaRegistry(connection)
        self.version = version
        self._known: Known = {} if cache is None else cache

    @classmethod
    def read(cls, connection: Connection) -> TypeDefinitions:
        """The types as they are stored."""
        return cls(connection, EntityChanges(connection).newest())

    @property
    def streams(self) -> Collection[str]:
        """The streams of all types."""
        return [ENTITIES + name for name in self._registry.types()]

    def names_over(self, stream: str) -> tuple[str, ...]:
        """The type that a stream holds observations of."""
        name = stream.removeprefix(ENTITIES)
        return (name,) if self.stream_of(name) == stream else ()

    def stream_of(self, name: str) -> str | None:
        """The stream of a type; None where there is none of this name."""
        return ENTITIES + name if self._registry.knows(name) else None

    def defined(self, name: str) -> TypeDefinition:
        """A type by its name."""
        number, cached = EntityChanges(self._connection).newest_of(name), self._known.get(name)
        if cached is None or cached[0] != number:
            if not self._registry.knows(name):
                raise UnknownEntityType("there is no entity type of this name", entity_type=name)
            cached = self._known[name] = number, defined_of(EntityType.load(self._connection, name))
        return cached[1]


#: Entities that are folded anew at once; the others wait for their turn.
AT_ONCE = 4
#: Folding an observation takes longer than an event, and packing a row of an entity longer still.
PACE = FoldPace(step_rows=64, hot_rows=16_384)
_EVER = 1 << 62
#: About what a row takes in memory that was folded anew.
_ROW_BYTES = 4096


_OWNERS: dict[str | None, Callable[[str], tuple[str, ...]]] = {
    None: lambda user: (user, EVERYBODY),
    "user": lambda user: (user,),
    "global": lambda _: (EVERYBODY,),
}


class Asked(NamedTuple):
    """Whose entity is asked for, and as of when: observed and ingested until then, and by which version."""

    entity_id: str
    user_id: str
    as_of_us: int | None = None
    at_ingested_us: int | None = None
    schema_version: str | None = None
    #: Whose version that is: the user's own where they have it, if it is not said.
    scope: str | None = None

    @property
    def is_past(self) -> bool:
        """Whether some observations do not count."""
        return self.as_of_us is not None or self.at_ingested_us is not None


class View(NamedTuple):
    """What is asked for, found: the entity, its stream, and the schema and policies that it is seen by."""

    asked: Asked
    group: EntityGroup
    stream: Stream
    head: Head
    kind: EntityType
    schema: Schema | None
    #: The life that has the policies, and the policies.
    life: str
    config: ReducerConfig

    @property
    def entity_type(self) -> str:
        """The type of the entity."""
        return self.kind.entity_type


class Shown(NamedTuple):
    """An entity as it is answered, without a snapshot where it is deleted; ``kept`` if it is of states and a tail."""

    view: View
    snapshot: Snapshot | None
    kept: bool


class _Folded(NamedTuple):
    """A row that was folded anew, with everything before an event."""

    row: EntityState | None
    through: int


class Snapshots:
    """Answers for every entity of this node."""

    def __init__(
        self,
        *,
        log: Log,
        reader: Connection,
        connect: Callable[[], Connection],
        segments: Callable[[], Segments],
        bench: StateBuilder,
        number: Callable[[], int],
        fold_rows: int,
        row_bytes: int,
    ) -> None:
        """``number`` is that of the last change of any entity type."""
        self._log, self._reader, self._number = log, reader, number
        #: How observations are read.
        self.reading = Reading(connect, segments)
        self._known: Known = {}
        self._types = TypeDefinitions(reader, -1, self._known)
        self.serving: StateReader[TypeDefinition] = StateReader(
            log,
            Wal(reader),
            States(reader),
            self.current,
            lambda _: SHAPES,
            bench,
            fold_rows,
            PACE,
        )
        self.groups = EntityGroups(reader)
        self._names: dict[int, str] = {}
        self._kinds: dict[str, tuple[EntityType, TypeDefinition]] = {}
        #: Rows that were folded anew.
        self.rows = DecodedCache(row_bytes)
        self._gate = Gate(AT_ONCE)
        log.on_append.append(self.serving.appended)

    async def stop(self) -> None:
        """Let go of everything; nothing that is in memory has to be kept."""
        await self.serving.stop()
        self.reading.close()

    def current(self) -> TypeDefinitions:
        """The entity types that hold now."""
        number = self._number()
        if number != self._types.version:
            self._types = TypeDefinitions(self._reader, number, self._known)
        return self._types

    def get(self, query: Asked) -> Shown:
        """An entity, where that is at hand; raises NotReady where not, EntityNotFound where there is none."""
        return self._at_hand(self.view(query))

    async def find(self, query: Asked) -> Shown:
        """The same, however long it takes."""
        while True:
            view = self.view(query)
            try:
                return self._at_hand(view)
            except NotReady:
                if self._has_states(view):
                    await self.serving.ready(view.entity_type)
                else:
                    return await self._folded_anew(view)

    def view(self, query: Asked) -> View:
        """What is asked for."""
        row = self.groups.row(query.entity_id, query.user_id)
        group = self.groups.of(row, _EVER if query.at_ingested_us is None else query.at_ingested_us)
        stream = self.stream(row.stream)
        head = stream.head
        kind = None if head.registry is None else head.registry.hook
        assert isinstance(kind, EntityType)
        life = row.user_id if row.user_id in kind.configs else EVERYONE
        config = kind.configs[life]
        if query.schema_version is None:
            effective = kind.effective(row.user_id)
            schema = None if effective is None else effective.schema
        else:
            schema = self._version(kind.entity_type, row.user_id, query.schema_version, query.scope)
            config = schema.reducer_config
        return View(query, group, stream, head, kind, schema, life, config)

    def forget(self) -> None:
        """Keep no row that was folded anew: observations were erased."""
        self.rows = DecodedCache(self.rows.limit_bytes)

    def stream(self, id: int) -> Stream:
        """The stream of an entity's type."""
        name = self._names.get(id)
        if name is None:
            row = Streams(self._reader).by_id(id)
            if row is None:
                raise EntityNotFound("the entity type is gone")
            name = self._names[id] = row.name
        return self._log.find(name)

    def _version(self, entity_type: str, user_id: str, version: str, scope: str | None) -> Schema:
        """A version of a type by its number: the user's own, else the global one, unless it is said whose."""
        parsed, registry = parse_version(version), SchemaRegistry(self._reader)
        named = version if parsed is None else str(parsed)
        for owner in _OWNERS[scope](user_id):
            row = registry.version(entity_type, owner, named)
            if row is not None:
                return schema_of(row)
        raise NotFound("the entity type has no such version", entity_type=entity_type, schema_version=version)

    def _at_hand(self, view: View) -> Shown:
        if self._may_use_states(view):
            defined = self.serving.defined(view.entity_type)
            generation, _ = self.serving.at_hand(defined, view.head)
            if self._is_folded(generation, view):
                reducer = generation.fold.reducer
                rows = [row for id in view.group.members if (row := generation.row(id.encode())) is not None]
                row = rows[0] if rows else None
                for other in rows[1:]:
                    row = reducer.merge(row, other)
                return Shown(view, reducer.finish(row, life=view.life, schema=view.schema), True)
        cached = None if view.asked.is_past else self.rows.get(_mark(view))
        if cached is None or cached.through != view.head.next_seq:
            raise NotReady
        return _finished(view, cached.row)

    def _may_use_states(self, view: View) -> bool:
        if view.asked.is_past or view.group.moved or view.group.since:
            return False
        return view.asked.schema_version is None or life_of(view.config) == life_of(view.kind.configs[view.life])

    def _is_folded(self, generation: Generation, view: View) -> bool:
        """Whether a generation answers for the very policies that are asked for."""
        return generation.is_folded(view.life, self._defined(view.kind).lives[view.life].id)

    def _defined(self, kind: EntityType) -> TypeDefinition:
        cached = self._kinds.get(kind.entity_type)
        if cached is None or cached[0] is not kind:
            cached = self._kinds[kind.entity_type] = kind, defined_of(kind)
        return cached[1]

    def _has_states(self, view: View) -> bool:
        generation = self.serving.tail_of(view.entity_type) if self._may_use_states(view) else None
        return generation is not None and self._is_folded(generation, view)

    async def _folded_anew(self, view: View) -> Shown:
        async with self._gate:
            folded = _Folded(None, 0) if view.asked.is_past else self.rows.get(_mark(view)) or _Folded(None, 0)
            if folded.through >= view.head.next_seq > 0:
                return _finished(view, folded.row)  # somebody else has just done it
            row = await asyncio.to_thread(self._fold, view, folded)
            if not view.asked.is_past:
                self.rows.keep(_mark(view), _Folded(row, view.head.next_seq), _ROW_BYTES)
            return _finished(view, row)

    def _fold(self, view: View, folded: _Folded) -> EntityState | None:
        """Go on with a row that was folded, from the observations that it lacks."""
        reducer, query = _reducer(view), view.asked
        row = None if folded.row is None else reducer.unpack(reducer.pack(folded.row))
        with self.reading.opened(view.stream, view.head) as observations:
            for seq, at_us, observation in view.group.observations(observations, folded.through):
                if query.as_of_us is not None and observation.observed_at_us > query.as_of_us:
                    continue
                if query.at_ingested_us is not None and at_us > query.at_ingested_us:
                    continue
                if reducer.place(observation) is not None:
                    row = reducer.fold(row, at_us // 1000, seq, observation)
        return row


def _reducer(view: View) -> TypeReducer:
    return TypeReducer({EVERYONE: view.config}, view.kind.undone)


def _finished(view: View, row: EntityState | None) -> Shown:
    return Shown(view, _reducer(view).finish(row, schema=view.schema), False)


def _mark(view: View) -> tuple[Any, ...]:
    """What tells rows apart that were folded anew."""
    life = life_of(view.config, None, view.kind.undone)
    group = view.group
    return view.stream.incarnation, group.members, group.moved, group.since, group.row.first_seq, life
