"""Merges, splits and their undoing: observations that say which entity others are about. No state is rewritten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from headrace.engine.entities.entity_type import EntityType
from headrace.engine.entities.read.observations import Observed
from headrace.engine.entities.read.snapshots import View
from headrace.engine.log.append import Append
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import StreamChange, make_done_callback
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Head, Stream
from headrace.engine.log.writer import Writer
from headrace.errors import (
    BadRequest,
    Conflict,
    EntityAlreadyMerged,
    EntityNotFound,
    MergeTargetAlreadyMerged,
    NotFound,
)
from headrace.schema.entity.identity import entity_id, name_part
from headrace.schema.entity.observation import Kind, Observation, encode, observation_id, of_scope
from headrace.storage.database import Connection
from headrace.storage.entities import Aliases, AliasRow, Entities, EntityRow, SplitRow
from headrace.storage.streams import LIVE

#: Whoever merges or splits decides for people.
_SOURCE = "human"


class Moved(NamedTuple):
    """An observation that is to be about another entity: which it was stored for, and which it is about now."""

    observation_id: str
    entity_id: str
    from_id: str


def owned_entity(entities: Entities, user_id: str, entity_id: str) -> EntityRow:
    """An entity of a user; those of others are not there."""
    row = entities.find(entity_id)
    if row is None or row.user_id != user_id:
        raise EntityNotFound("there is no such entity", entity_id=entity_id)
    return row


def merge_observation(batch: Batch, head: Head, at_us: int, user_id: str, from_id: str, to_id: str) -> Observation:
    """The observation that an entity is another, unless one of them is told of under a third already."""
    entities, aliases = Entities(batch.connection), Aliases(batch.connection)
    source, target = owned_entity(entities, user_id, from_id), owned_entity(entities, user_id, to_id)
    if (alias := aliases.alias(from_id)) is not None:
        raise EntityAlreadyMerged("the entity was merged already", entity_id=from_id, merged_into=alias.into_id)
    if (alias := aliases.alias(to_id)) is not None:
        message = "the entity to merge into was merged itself"
        raise MergeTargetAlreadyMerged(message, entity_id=to_id, merged_into=alias.into_id)
    if source.stream != target.stream:
        raise BadRequest("entities of different types cannot be merged", field="to_entity_id")
    return _observation(head, "merge", source, at_us, {"into": to_id})


def unmerge_observation(batch: Batch, head: Head, at_us: int, user_id: str, entity_id: str) -> Observation:
    """The observation that a merge does not hold any more."""
    row, alias = (
        owned_entity(Entities(batch.connection), user_id, entity_id),
        Aliases(batch.connection).alias(entity_id),
    )
    if alias is None:
        raise Conflict("the entity is not merged", entity_id=entity_id)
    return _observation(head, "undo", row, at_us, {"undoes": "merge", "into": alias.into_id})


def split_observation(
    batch: Batch, head: Head, at_us: int, user_id: str, entity_id: str, into: EntityRow, moved: list[Moved]
) -> Observation:
    """The observation that some others are about another entity."""
    entities = Entities(batch.connection)
    row, target_row = owned_entity(entities, user_id, entity_id), entities.find(into.entity_id)
    if target_row is not None and (target_row.user_id != user_id or target_row.stream != row.stream):
        raise EntityNotFound("there is no such entity of this type", entity_id=into.entity_id)
    aliases = Aliases(batch.connection)
    if (alias := aliases.alias(into.entity_id)) is not None:
        message = "the entity to split into was merged"
        raise MergeTargetAlreadyMerged(message, entity_id=into.entity_id, merged_into=alias.into_id)
    places = {
        (move.entity_id, move.observation_id): move.into_id for move in aliases.moved([o.entity_id for o in moved])
    }
    if any(places.get((move.entity_id, move.observation_id), move.entity_id) != move.from_id for move in moved):
        raise Conflict("some of the observations were moved meanwhile; look at them again", entity_id=entity_id)
    details: dict[str, Any] = {"into": into.entity_id, "observations": [list(move) for move in moved]}
    if target_row is None:
        details["created"] = into.canonical_name
    return _observation(head, "split", row, at_us, details)


def unsplit_observation(batch: Batch, head: Head, at_us: int, user_id: str, split: Observation) -> Observation:
    """The observation that a split does not hold any more, as far as nothing was moved on since."""
    row, into = owned_entity(Entities(batch.connection), user_id, split.entity_id), split.details["into"]
    moved = [Moved(*move) for move in split.details["observations"]]
    moves = Aliases(batch.connection).moved([into])
    there = {(move.entity_id, move.observation_id) for move in moves if move.into_id == into}
    back = [move for move in moved if (move.entity_id, move.observation_id) in there]
    if not back:
        raise Conflict("nothing of this split is left to undo", split_id=split.id)
    details = {"undoes": "split", "split": split.id, "into": into, "observations": [list(move) for move in back]}
    return _observation(head, "undo", row, at_us, details)


def note_relations(connection: Connection, stream: int, seq: int, at_us: int, observation: Observation) -> None:
    """Note what an observation says about entities themselves; others say nothing. Also for who reads them again."""
    aliases, details, user = Aliases(connection), observation.details, observation.user_id
    if observation.kind == "merge":
        aliases.add(AliasRow(observation.entity_id, details["into"], user, stream, seq, at_us))
    elif observation.kind == "split":
        moved = [Moved(*move) for move in details["observations"]]
        into = details["into"]
        aliases.move(SplitRow(move.observation_id, move.entity_id, into, user, stream, seq, at_us) for move in moved)
        if "created" in details:
            Entities(connection).save(stream, user, at_us, [(into, details["created"], seq)])
    elif observation.kind == "undo" and details["undoes"] == "merge":
        aliases.remove(observation.entity_id)
    elif observation.kind == "undo":
        moved = [Moved(*move) for move in details["observations"]]
        aliases.move_back((move.observation_id, move.entity_id) for move in moved if move.from_id == move.entity_id)
        on = [move for move in moved if move.from_id != move.entity_id]
        aliases.move(
            SplitRow(move.observation_id, move.entity_id, move.from_id, user, stream, seq, at_us) for move in on
        )


def _observation(head: Head, kind: Kind, row: EntityRow, at_us: int, details: dict[str, Any]) -> Observation:
    hook = None if head.registry is None else head.registry.hook
    assert isinstance(hook, EntityType)
    effective = hook.effective(row.user_id)
    identifier = observation_id(
        entity_id=row.entity_id, fields={}, kind=kind, observed_at_us=at_us, source_priority=0,
        observation_source=_SOURCE, details=details,
    )  # fmt: skip
    return Observation(
        id=identifier,
        kind=kind,
        entity_id=row.entity_id,
        entity_type=hook.entity_type,
        user_id=row.user_id,
        schema_version="" if effective is None else effective.schema.schema_version,
        source_id=None,
        observed_at_us=at_us,
        source_priority=0,
        observation_source=_SOURCE,
        details=details if effective is None else {**details, **of_scope(effective.schema.scope)},
    )


_ASIDE = ("merge", "split", "undo")


class Predicate(NamedTuple):
    """What is asked of the observations that go; all of it has to hold, and what is not said holds."""

    observation_ids: Collection[str] | None = None
    source_id: str | None = None
    #: Fields that they have, with these values.
    fields: Mapping[str, Any] = {}
    observed_from_us: int | None = None
    observed_until_us: int | None = None

    def holds(self, observed: Observed) -> bool:
        """Whether an observation goes."""
        observation, ids = observed.observation, self.observation_ids
        return (
            observation.kind not in _ASIDE
            and (ids is None or observation.id in ids)
            and (self.source_id is None or observation.source_id == self.source_id)
            and all(
                name in observation.fields and observation.fields[name] == value for name, value in self.fields.items()
            )
            and (self.observed_from_us is None or observation.observed_at_us >= self.observed_from_us)
            and (self.observed_until_us is None or observation.observed_at_us < self.observed_until_us)
        )


def moved_observations(view: View, predicate: Predicate, observed: Collection[Observed]) -> list[Moved]:
    """The observations that go, with the entities that they were stored for and are about now."""
    chosen = [entry.observation for entry in observed if predicate.holds(entry)]
    ids = predicate.observation_ids
    if ids is not None and (unknown := set(ids) - {observation.id for observation in chosen}):
        raise BadRequest("the entity has no such observation", field="observation_ids", unknown=sorted(unknown))
    if not chosen:
        raise BadRequest("no observation of the entity is meant", field="predicate")
    places = {(row.entity_id, row.observation_id): row.into_id for row in view.group.moved}
    return [
        Moved(
            observation.id,
            observation.entity_id,
            places.get((observation.entity_id, observation.id), observation.entity_id),
        )
        for observation in chosen
    ]


def split_target(view: View, name: str) -> EntityRow:
    """The entity of a name, as it will be if there is none yet; what is observed under the name later is about it."""
    row, spelled = view.group.row, name_part(name)
    if spelled is None:
        raise BadRequest("the name is empty", field="to_canonical_name")
    prefix = view.entity_type + ":"
    canonical = spelled if spelled.startswith(prefix) else prefix + spelled
    return EntityRow(entity_id(row.user_id, canonical), row.stream, row.user_id, canonical, 0, 0)


class Related(NamedTuple):
    """An observation that was stored, and when."""

    observation: Observation
    at_us: int


Decide = Callable[[Batch, Head, int], Observation]


class Relate(StreamChange):
    """One observation about entities themselves, decided in its commit; ``related`` once it is stored."""

    appends = True
    related: Related | None = None

    def __init__(self, log: Log, stream: Stream, decide: Decide, done: Callable[[Any], None]) -> None:
        """``decide`` is given the time, and raises where the tables forbid it."""
        super().__init__(done, pinned=(stream,), size=2_000)
        self._log, self._stream, self._decide = log, stream, decide
        self._part: Append | None = None

    def perform(self, batch: Batch) -> None:
        """Decide, store and note."""
        head = batch.draft(self._stream)
        if head.state != LIVE:
            raise NotFound("the entity type is gone", stream=self._stream.name)
        at_us = max(batch.now_us, head.last_us)
        observation = self._decide(batch, head, at_us)
        note_relations(batch.connection, self._stream.id, head.next_seq, at_us, observation)
        part = Append(self._stream, encode(observation), 1, _ignore_append)
        part.route([observation.entity_id], head)
        part.write(batch, head, at_us)
        self._part, self.related = part, Related(observation, at_us)

    def answer(self) -> None:
        """Tell who waits for entries, and answer."""
        if self.settled and self._part is not None:
            self._part.error = self.error
            self._log.settled(self._part)
        super().answer()


class EntityRelations:
    """The verbs, on the event loop."""

    def __init__(self, *, writer: Writer, log: Log, stream_of: Callable[[int], Stream], reader: Connection) -> None:
        self._writer, self._log, self._stream_of, self._entities = writer, log, stream_of, Entities(reader)

    async def merge(self, user_id: str, from_id: str, to_id: str) -> Related:
        """Let an entity be told of as a name_part of another, from now on."""
        if from_id == to_id:
            raise BadRequest("an entity cannot be merged into itself", field="to_entity_id")
        return await self._relate(
            user_id, from_id, lambda batch, head, at_us: merge_observation(batch, head, at_us, user_id, from_id, to_id)
        )

    async def unmerge(self, user_id: str, entity_id: str) -> Related:
        """Let an entity that was merged be told of by itself again."""
        return await self._relate(
            user_id, entity_id, lambda batch, head, at_us: unmerge_observation(batch, head, at_us, user_id, entity_id)
        )

    async def split(self, user_id: str, entity_id: str, into: EntityRow, moved: list[Moved]) -> Related:
        """Let some observations be about another entity, which is made where there is none of its id."""
        return await self._relate(
            user_id,
            entity_id,
            lambda batch, head, at_us: split_observation(batch, head, at_us, user_id, entity_id, into, moved),
        )

    async def unsplit(self, user_id: str, split: Observation) -> Related:
        """Let observations that were moved be about the entities that they came from."""
        return await self._relate(
            user_id, split.entity_id, lambda batch, head, at_us: unsplit_observation(batch, head, at_us, user_id, split)
        )

    async def _relate(self, user_id: str, entity_id: str, decide: Decide) -> Related:
        row = owned_entity(self._entities, user_id, entity_id)
        settled: asyncio.Future[Relate] = asyncio.get_running_loop().create_future()
        stream = self._stream_of(row.stream)
        relate = Relate(self._log, stream, decide, make_done_callback(settled))
        relate.submit(self._writer)
        await settled
        if relate.error is not None:
            raise relate.error
        assert relate.related is not None
        return relate.related


def _ignore_append(append: Append) -> None:
    """Whoever relates entities is told of it by the change."""
