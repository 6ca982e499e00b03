"""What fragments speak for: those that states hold, and those that came since, always together.

The fragments of a type are counted ahead from the first time that somebody asks about them: by workers, or by the
server where none comes. What no state holds is counted when it is asked for, so that appends cost nothing more.
Everything here runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any, NamedTuple

import msgspec

from headrace.engine.derive.generation import Generation, NotReady
from headrace.engine.derive.lease_scheduler import LeaseScheduler
from headrace.engine.derive.state_builder import StateBuilder
from headrace.engine.derive.state_reader import StateReader
from headrace.engine.entities.enhancement import settings
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

#: Users that are looked at before others come to their turn.
_STEP = 64


class Fragments:
    """The types whose fragments are counted ahead, read through one connection."""

    def __init__(self, connection: Connection, version: int) -> None:
        self._enhancements = Enhancements(connection)
        self.version = version

    @classmethod
    def read(cls, connection: Connection) -> Fragments:
        """The types as they are stored; none is ever forgotten."""
        return cls(connection, len(Enhancements(connection).read_types()))

    @property
    def streams(self) -> Collection[str]:
        """The streams of these types."""
        return [ENTITIES + name for name in self._enhancements.read_types()]

    def names_over(self, stream: str) -> tuple[str, ...]:
        """What is counted over a stream."""
        entity_type = stream.removeprefix(ENTITIES)
        return (name_of(entity_type),) if self._enhancements.is_read(entity_type) else ()

    def stream_of(self, name: str) -> str | None:
        """The stream of a name; None where nothing is counted."""
        entity_type = _type_of(name)
        return ENTITIES + entity_type if self._enhancements.is_read(entity_type) else None

    def defined(self, name: str) -> FragmentsDefinition:
        """What is counted under a name."""
        stream = self.stream_of(name)
        if stream is None:
            raise UnknownEntityType("nobody has asked about the fragments of this type", entity_type=_type_of(name))
        return FragmentsDefinition(_type_of(name), stream)


class Tallied(NamedTuple):
    """What is known of fragments, by key, from which event on and up to which."""

    keys: UserFragments
    first_seq: int
    next_seq: int
    #: How many events before these are not counted yet.
    missing: int

    @property
    def complete(self) -> bool:
        """Whether everything is counted, and no key was left out."""
        return not self.missing and not self.keys.truncated


class Analysis(NamedTuple):
    """What the fragments of an owner speak for, by which schema and settings, and what was recommended before."""

    schema: Schema
    held: settings.EffectiveSettings
    tallied: Tallied
    candidates: list[Candidate]
    recommendations: list[Recommendation]


class FragmentCandidates:
    """Answers for every entity type of this node."""

    def __init__(
        self,
        *,
        types: EntityTypes,
        log: Log,
        work: LeaseScheduler,
        reader: Connection,
        bench: StateBuilder,
        apply: Callable[[Callable[[Any], Any]], Awaitable[Any]],
        fold_rows: int,
    ) -> None:
        self._types, self._log, self._work, self._reader, self._apply = types, log, work, reader, apply
        self._enhancements, self._entities = Enhancements(reader), Entities(reader)
        self._current = Fragments(reader, -1)
        self.serving: StateReader[FragmentsDefinition] = StateReader(
            log, Wal(reader), States(reader), self.current, lambda _: SHAPES, bench, fold_rows
        )

    def current(self) -> Fragments:
        """What is counted now."""
        fragments = Fragments.read(self._reader)
        if fragments.version != self._current.version:
            self._current = fragments
        return self._current

    def schema(self, entity_type: str, owner: str) -> Schema:
        """The schema that an owner's fragments are held against: what holds for them."""
        kind = self._types.find(entity_type)
        if kind is None:
            raise unknown(entity_type)
        row = kind.rows.get(owner) or kind.rows.get(EVERYBODY)
        if row is None and owner != EVERYBODY:
            raise unknown(entity_type)  # it is somebody else's
        if row is None:
            raise NoSchemaForEntityType(f"{entity_type} has no global schema", entity_type=entity_type)
        return schema_of(row)

    async def analysed(self, entity_type: str, owner: str) -> Analysis:
        """What the fragments of a user, or of everybody, would change."""
        self.schema(entity_type, owner)
        tallied = await self.tallied(entity_type, owner)
        schema = self.schema(entity_type, owner)
        held = settings.load(self._enhancements, entity_type, owner)
        recommendations = self._enhancements.recommendations(entity_type, owner)
        settings_asked = held.asked(owner, _decided(recommendations, schema))
        judged = [
            _judged(candidate, held.own.min_confidence)
            for candidate in candidates(tallied.keys.stats, schema, settings_asked)
        ]
        return Analysis(schema, held, tallied, judged, recommendations)

    async def tallied(self, entity_type: str, owner: str) -> Tallied:
        """What is known of the fragments of a user, or of everybody."""
        stream = self._types.stream(entity_type)
        if stream is None:
            raise unknown(entity_type)
        await self._note_reader(entity_type, stream)
        while True:
            generation = await self._at_hand(entity_type, stream)
            users = [owner] if owner else self._entities.users(stream.id)
            keys = await self._keys(entity_type, generation, users)
            if keys is not None:
                break
        first, start = stream.head.first_seq, generation.base.start
        missing = max(0, start - first) if "" in generation.base.backfilling else 0
        return Tallied(keys, first + missing, generation.position, missing)

    async def _note_reader(self, entity_type: str, stream: Stream) -> None:
        if not self._enhancements.is_read(entity_type):
            await self._apply(lambda batch: Enhancements(batch.connection).note_reader(entity_type))
            await self._work.notice(stream)

    async def _at_hand(self, entity_type: str, stream: Stream) -> Generation:
        name = name_of(entity_type)
        while True:
            try:
                return self.serving.at_hand(self.serving.defined(name), stream.head)[0]
            except NotReady:
                await self.serving.ready(name)

    async def _keys(self, entity_type: str, generation: Generation, users: list[str]) -> UserFragments | None:
        """What all of these users have; None where something else answers meanwhile."""
        reducer, keys = FragmentReducer(), UserFragments()
        for some in _steps(users):
            if self.serving.tail_of(name_of(entity_type)) is not generation:
                return None
            try:
                rows = [generation.row(user.encode()) for user in some]
            except NotReady:
                return None
            for row in rows:
                if row is not None:
                    keys = reducer.merge_both(keys, row)
            await asyncio.sleep(0)
        return keys


def _steps(users: list[str]) -> Iterator[list[str]]:
    return (users[at : at + _STEP] for at in range(0, len(users), _STEP))


def _decided(recommendations: list[Recommendation], schema: Schema) -> frozenset[str]:
    """The keys that nothing is done about again; a field that has converters may get more."""
    fields = schema.schema_definition.fields
    return frozenset(
        recommendation.field
        for recommendation in recommendations
        if (recommendation.change == "add_converters") == (recommendation.field in fields)
        and recommendation.status in (SETTLED if recommendation.change == "add_fields" else ("rejected",))
    )


def _judged(candidate: Candidate, min_confidence: float) -> Candidate:
    if candidate.confidence >= min_confidence:
        return candidate
    reason = Reason(UNSURE, f"the confidence is {candidate.confidence}, and {min_confidence} is asked for")
    return msgspec.structs.replace(candidate, reasons=(*candidate.reasons, reason))


def _type_of(name: str) -> str:
    return name.rpartition("/")[0]
