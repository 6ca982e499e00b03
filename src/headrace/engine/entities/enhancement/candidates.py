"""Candidates for fields: computed from the fragments of an entity type.

The fragments of a type are counted into states from the first query on, by workers or by the server. Those that no
state holds are counted when they are queried, so that appends cost nothing more. Everything here runs on the event
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, NamedTuple

import msgspec

from headrace.engine.derive.generation import Generation, NotReady
from headrace.engine.derive.lease_scheduler import LeaseScheduler
from headrace.engine.derive.state_builder import StateBuilder
from headrace.engine.derive.state_reader import StateReader
from headrace.engine.entities.enhancement.settings import EffectiveSettings, load
from headrace.engine.entities.entity_type import ENTITIES, schema_of
from headrace.engine.entities.types.entity_types import EntityTypes
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Stream
from headrace.errors import NoSchemaForEntityType, UnknownEntityType
from headrace.reduce.fragments.build import SHAPES, FragmentsDefinition, name_of
from headrace.reduce.fragments.candidates import Candidate, candidates
from headrace.reduce.fragments.reducer import FragmentReducer, UserFragments
from headrace.reduce.fragments.rules import UNSURE, Reason
from headrace.schema.entity.nodes import Schema
from headrace.schema.entity.plan import unknown
from headrace.storage.database import Connection
from headrace.storage.derived import States
from headrace.storage.enhancements import SETTLED, Enhancements, Recommendation
from headrace.storage.entities import Entities
from headrace.storage.entity_types import EVERYBODY
from headrace.storage.wal import Wal

#: Users whose fragments are merged before other requests have their turn.
_STEP = 64


class FragmentDefinitions:
    """The definitions of fragment states, for types that were queried; read through one connection."""

    def __init__(self, connection: Connection, version: int) -> None:
        self._enhancements = Enhancements(connection)
        self.version = version

    @classmethod
    def read(cls, connection: Connection) -> FragmentDefinitions:
        """The definitions as they are stored; types are only ever added."""
        return cls(connection, len(Enhancements(connection).read_types()))

    @property
    def streams(self) -> Collection[str]:
        """The streams of these types."""
        return [ENTITIES + name for name in self._enhancements.read_types()]

    def names_over(self, stream: str) -> tuple[str, ...]:
        """The names of the states over a stream."""
        entity_type = stream.removeprefix(ENTITIES)
        return (name_of(entity_type),) if self._enhancements.is_read(entity_type) else ()

    def stream_of(self, name: str) -> str | None:
        """The stream of a name; None where its fragments are not counted."""
        entity_type = _type_of(name)
        return ENTITIES + entity_type if self._enhancements.is_read(entity_type) else None

    def defined(self, name: str) -> FragmentsDefinition:
        """The definition of a name."""
        stream = self.stream_of(name)
        if stream is None:
            raise UnknownEntityType("nobody has asked about the fragments of this type", entity_type=_type_of(name))
        return FragmentsDefinition(_type_of(name), stream)


class FragmentCounts(NamedTuple):
    """The fragments of users by key, and the range of events in which they are counted."""

    fragments: UserFragments
    first_seq: int
    next_seq: int
    #: How many events before the range are not counted yet.
    missing: int

    @property
    def complete(self) -> bool:
        """Whether all events and all keys are counted."""
        return not self.missing and not self.fragments.truncated


class Analysis(NamedTuple):
    """The candidates of an owner, with the schema, the settings and the recommendations that they depend on."""

    schema: Schema
    settings: EffectiveSettings
    counts: FragmentCounts
    candidates: list[Candidate]
    recommendations: list[Recommendation]


class FragmentCandidates:
    """Computes the candidates of all entity types of this node."""

    def __init__(
        self,
        *,
        types: EntityTypes,
        log: Log,
        work: LeaseScheduler,
        reader: Connection,
        state_builder: StateBuilder,
        apply: Callable[[Callable[[Any], Any]], Awaitable[Any]],
        fold_rows: int,
    ) -> None:
        self._types, self._log, self._work, self._reader, self._apply = types, log, work, reader, apply
        self._enhancements, self._entities = Enhancements(reader), Entities(reader)
        self._current = FragmentDefinitions(reader, -1)
        self.state_reader: StateReader[FragmentsDefinition] = StateReader(
            log, Wal(reader), States(reader), self.current, lambda *_: SHAPES, state_builder, fold_rows
        )

    def current(self) -> FragmentDefinitions:
        """The definitions as they are now."""
        fragments = FragmentDefinitions.read(self._reader)
        if fragments.version != self._current.version:
            self._current = fragments
        return self._current

    def schema(self, entity_type: str, owner: str) -> Schema:
        """The schema that an owner's fragments are compared with."""
        kind = self._types.find(entity_type)
        if kind is None:
            raise unknown(entity_type)
        row = kind.rows.get(owner) or kind.rows.get(EVERYBODY)
        if row is None and owner != EVERYBODY:
            raise unknown(entity_type)  # it is somebody else's
        if row is None:
            raise NoSchemaForEntityType(f"{entity_type} has no global schema", entity_type=entity_type)
        return schema_of(row)

    async def analyse(self, entity_type: str, owner: str) -> Analysis:
        """The analysis of the fragments of a user, or of all users."""
        self.schema(entity_type, owner)
        counts = await self.count(entity_type, owner)
        schema = self.schema(entity_type, owner)
        settings = load(self._enhancements, entity_type, owner)
        recommendations = self._enhancements.recommendations(entity_type, owner)
        rules = settings.rules(owner, _decided(recommendations, schema))
        judged = [
            _judge(candidate, settings.own.min_confidence)
            for candidate in candidates(counts.fragments.stats, schema, rules)
        ]
        return Analysis(schema, settings, counts, judged, recommendations)

    async def count(self, entity_type: str, owner: str) -> FragmentCounts:
        """Count the fragments of a user, or of all users."""
        stream = self._types.stream(entity_type)
        if stream is None:
            raise unknown(entity_type)
        await self._note_reader(entity_type, stream)
        while True:
            generation = await self._generation(entity_type, stream)
            users = [owner] if owner else self._entities.users(stream.id)
            fragments = await self._merge_users(entity_type, generation, users)
            if fragments is not None:
                break
        first, start = stream.head.first_seq, generation.base.start
        missing = max(0, start - first) if "" in generation.base.backfilling else 0
        return FragmentCounts(fragments, first + missing, generation.position, missing)

    async def _note_reader(self, entity_type: str, stream: Stream) -> None:
        if not self._enhancements.is_read(entity_type):
            await self._apply(lambda batch: Enhancements(batch.connection).note_reader(entity_type))
            await self._work.notice(stream)

    async def _generation(self, entity_type: str, stream: Stream) -> Generation:
        name = name_of(entity_type)
        while True:
            try:
                return self.state_reader.current_generation(self.state_reader.defined(name), stream.head)[0]
            except NotReady:
                await self.state_reader.ready(name)

    async def _merge_users(self, entity_type: str, generation: Generation, users: list[str]) -> UserFragments | None:
        """The fragments of some users together; None where another generation answers meanwhile."""
        reducer, fragments = FragmentReducer(), UserFragments()
        for at in range(0, len(users), _STEP):
            if self.state_reader.tail_of(name_of(entity_type)) is not generation:
                return None
            try:
                rows = [generation.row(user.encode()) for user in users[at : at + _STEP]]
            except NotReady:
                return None
            for row in rows:
                if row is not None:
                    fragments = reducer.merge_both(fragments, row)
            await asyncio.sleep(0)
        return fragments


def _decided(recommendations: list[Recommendation], schema: Schema) -> frozenset[str]:
    """The keys that were decided before; a field that has converters may get more."""
    fields = schema.schema_definition.fields
    return frozenset(
        recommendation.field
        for recommendation in recommendations
        if (recommendation.change == "add_converters") == (recommendation.field in fields)
        and recommendation.status in (SETTLED if recommendation.change == "add_fields" else ("rejected",))
    )


def _judge(candidate: Candidate, min_confidence: float) -> Candidate:
    if candidate.confidence >= min_confidence:
        return candidate
    reason = Reason(UNSURE, f"the confidence is {candidate.confidence}, and {min_confidence} is asked for")
    return msgspec.structs.replace(candidate, reasons=(*candidate.reasons, reason))


def _type_of(name: str) -> str:
    return name.rpartition("/")[0]
