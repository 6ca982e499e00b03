"""Merges, splits and their undoing: observations that assign others to another entity. No state is rewritten."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from headrace.engine.entities.entity_type import EntityType
from headrace.engine.entities.read.observations import StoredObservation, owned_entity
from headrace.engine.entities.read.snapshots import EntityView
from headrace.engine.log.append import Append
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import StreamChange, run_change
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
from headrace.schema.entity.observation import Kind, Observation, encode, observation_id, scope_details
from headrace.storage.database import Connection
from headrace.storage.entities import Aliases, AliasRow, Entities, EntityRow, SplitRow
from headrace.storage.streams import LIVE

#: The source kind of merges and splits.
_SOURCE = "human"


class Moved(NamedTuple):
    """An observation to be moved: the entity that it was stored for, and the one that it belongs to now."""

    observation_id: str
    entity_id: str
    from_id: str


def merge_observation(batch: Batch, head: Head, at_us: int, user_id: str, from_id: str, to_id: str) -> Observation:
    """The observation that merges an entity into another; refused where one of them is merged already."""
    entities, aliases = Entities(batch.connection), Aliases(batch.connection)
    source, target = owned_entity(entities, from_id, user_id), owned_entity(entities, to_id, user_id)
    if (alias := aliases.alias(from_id)) is not None:
        raise EntityAlreadyMerged("the entity was merged already", entity_id=from_id, merged_into=alias.into_id)
    if (alias := aliases.alias(to_id)) is not None:
        message = "the entity to merge into was merged itself"
        raise MergeTargetAlreadyMerged(message, entity_id=to_id, merged_into=alias.into_id)
    if source.stream != target.stream:
        raise BadRequest("entities of different types cannot be merged", field="to_entity_id")
    return _observation(head, "merge", source, at_us, {"into": to_id})


def unmerge_observation(batch: Batch, head: Head, at_us: int, user_id: str, entity_id: str) -> Observation:
    """The observation that undoes a merge."""
    row = owned_entity(Entities(batch.connection), entity_id, user_id)
    alias = Aliases(batch.connection).alias(entity_id)
    if alias is None:
        raise Conflict("the entity is not merged", entity_id=entity_id)
    return _observation(head, "undo", row, at_us, {"undoes": "merge", "into": alias.into_id})


def split_observation(
    batch: Batch, head: Head, at_us: int, user_id: str, entity_id: str, into: EntityRow, moved: list[Moved]
) -> Observation:
    """The observation that moves others to another entity."""
    entities = Entities(batch.connection)
    row, target_row = owned_entity(entities, entity_id, user_id), entities.find(into.entity_id)
    if target_row is not None and (target_row.user_id != user_id or target_row.stream != row.stream):
        raise EntityNotFound("there is no such entity of this type", entity_id=into.entity_id)
    aliases = Aliases(batch.connection)
    if (alias := aliases.alias(into.entity_id)) is not None:
        message = "the entity to split into was merged"
        raise MergeTargetAlreadyMerged(message, entity_id=into.entity_id, merged_into=alias.into_id)
    moves = aliases.moved([observation.entity_id for observation in moved])
    into_ids = {(move.entity_id, move.observation_id): move.into_id for move in moves}
    if any(into_ids.get((move.entity_id, move.observation_id), move.entity_id) != move.from_id for move in moved):
        raise Conflict("some of the observations were moved meanwhile; look at them again", entity_id=entity_id)
    details: dict[str, Any] = {"into": into.entity_id, "observations": [list(move) for move in moved]}
    if target_row is None:
        details["created"] = into.canonical_name
    return _observation(head, "split", row, at_us, details)


def unsplit_observation(batch: Batch, head: Head, at_us: int, user_id: str, split: Observation) -> Observation:
    """The observation that undoes a split, for observations that were not moved again since."""
    row, into = owned_entity(Entities(batch.connection), split.entity_id, user_id), split.details["into"]
    moved = [Moved(*move) for move in split.details["observations"]]
    moves = Aliases(batch.connection).moved([into])
    still_moved = {(move.entity_id, move.observation_id) for move in moves if move.into_id == into}
    undone = [move for move in moved if (move.entity_id, move.observation_id) in still_moved]
    if not undone:
        raise Conflict("nothing of this split is left to undo", split_id=split.id)
    details = {"undoes": "split", "split": split.id, "into": into, "observations": [list(move) for move in undone]}
    return _observation(head, "undo", row, at_us, details)


def apply_relation(connection: Connection, stream: int, seq: int, at_us: int, observation: Observation) -> None:
    """Apply an observation of a merge, a split or an undo to the tables; a recovery applies them again."""
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
        chained = [move for move in moved if move.from_id != move.entity_id]
        aliases.move(
            SplitRow(move.observation_id, move.entity_id, move.from_id, user, stream, seq, at_us) for move in chained
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
        details=details if effective is None else {**details, **scope_details(effective.schema.scope)},
    )


_RELATION_KINDS = ("merge", "split", "undo")


class SplitPredicate(NamedTuple):
    """Which observations a split moves: those that meet every condition that is set."""

    observation_ids: Collection[str] | None = None
    source_id: str | None = None
    #: Fields that must have these values.
    fields: Mapping[str, Any] = {}
    observed_from_us: int | None = None
    observed_until_us: int | None = None

    def matches(self, stored: StoredObservation) -> bool:
        """Whether an observation is moved."""
        observation, ids = stored.observation, self.observation_ids
        return (
            observation.kind not in _RELATION_KINDS
            and (ids is None or observation.id in ids)
            and (self.source_id is None or observation.source_id == self.source_id)
            and all(
                name in observation.fields and observation.fields[name] == value for name, value in self.fields.items()
            )
            and (self.observed_from_us is None or observation.observed_at_us >= self.observed_from_us)
            and (self.observed_until_us is None or observation.observed_at_us < self.observed_until_us)
        )


def moved_observations(
    view: EntityView, predicate: SplitPredicate, observations: Collection[StoredObservation]
) -> list[Moved]:
    """The observations that match a predicate; refused where there are none, or ids are unknown."""
    chosen = [stored.observation for stored in observations if predicate.matches(stored)]
    ids = predicate.observation_ids
    if ids is not None and (unknown := set(ids) - {observation.id for observation in chosen}):
        raise BadRequest("the entity has no such observation", field="observation_ids", unknown=sorted(unknown))
    if not chosen:
        raise BadRequest("no observation of the entity is meant", field="predicate")
    into_ids = {(row.entity_id, row.observation_id): row.into_id for row in view.group.moved}
    return [
        Moved(
            observation.id,
            observation.entity_id,
            into_ids.get((observation.entity_id, observation.id), observation.entity_id),
        )
        for observation in chosen
    ]


def split_target(view: EntityView, name: str) -> EntityRow:
    """The entity of a name, as it is created if it does not exist; later observations of the name belong to it."""
    row, spelled = view.group.row, name_part(name)
    if spelled is None:
        raise BadRequest("the name is empty", field="to_canonical_name")
    prefix = view.entity_type + ":"
    canonical = spelled if spelled.startswith(prefix) else prefix + spelled
    return EntityRow(entity_id(row.user_id, canonical), row.stream, row.user_id, canonical, 0, 0)


class StoredRelation(NamedTuple):
    """A stored observation of a merge, a split or an undo, and when it was stored."""

    observation: Observation
    at_us: int


Decide = Callable[[Batch, Head, int], Observation]


class StoreRelation(StreamChange):
    """Stores an observation that is decided in its commit; ``stored`` holds it afterwards."""

    appends = True
    stored: StoredRelation | None = None

    def __init__(self, log: Log, stream: Stream, decide: Decide, done: Callable[[Any], None]) -> None:
        """``decide`` makes the observation in the commit, at a given time, or raises why it is refused."""
        super().__init__(done, pinned=(stream,), size=2_000)
        self._log, self._stream, self._decide = log, stream, decide
        self._append: Append | None = None

    def perform(self, batch: Batch) -> None:
        """Decide, append and apply the observation."""
        head = batch.draft(self._stream)
        if head.state != LIVE:
            raise NotFound("the entity type is gone", stream=self._stream.name)
        at_us = max(batch.now_us, head.last_us)
        observation = self._decide(batch, head, at_us)
        apply_relation(batch.connection, self._stream.id, head.next_seq, at_us, observation)
        append = Append(self._stream, encode(observation), 1, _ignore_append)
        append.route([observation.entity_id], head)
        append.write(batch, head, at_us)
        self._append, self.stored = append, StoredRelation(observation, at_us)

    def answer(self) -> None:
        """Wake the readers of the stream once settled, and answer."""
        if self.settled and self._append is not None:
            self._append.error = self.error
            self._log.settled(self._append)
        super().answer()


class EntityRelations:
    """Merges and splits entities; runs on the event loop."""

    def __init__(self, *, writer: Writer, log: Log, stream_of: Callable[[int], Stream], reader: Connection) -> None:
        self._writer, self._log, self._stream_of, self._entities = writer, log, stream_of, Entities(reader)

    async def merge(self, user_id: str, from_id: str, to_id: str) -> StoredRelation:
        """Merge an entity into another."""
        if from_id == to_id:
            raise BadRequest("an entity cannot be merged into itself", field="to_entity_id")
        return await self._store(
            user_id, from_id, lambda batch, head, at_us: merge_observation(batch, head, at_us, user_id, from_id, to_id)
        )

    async def unmerge(self, user_id: str, entity_id: str) -> StoredRelation:
        """Undo the merge of an entity."""
        return await self._store(
            user_id, entity_id, lambda batch, head, at_us: unmerge_observation(batch, head, at_us, user_id, entity_id)
        )

    async def split(self, user_id: str, entity_id: str, into: EntityRow, moved: list[Moved]) -> StoredRelation:
        """Move observations to another entity, which is created where it does not exist."""
        return await self._store(
            user_id,
            entity_id,
            lambda batch, head, at_us: split_observation(batch, head, at_us, user_id, entity_id, into, moved),
        )

    async def unsplit(self, user_id: str, split: Observation) -> StoredRelation:
        """Undo a split: move its observations back."""
        return await self._store(
            user_id, split.entity_id, lambda batch, head, at_us: unsplit_observation(batch, head, at_us, user_id, split)
        )

    async def _store(self, user_id: str, entity_id: str, decide: Decide) -> StoredRelation:
        row = owned_entity(self._entities, entity_id, user_id)
        change = await run_change(self._writer, StoreRelation, self._log, self._stream_of(row.stream), decide)
        assert change.stored is not None
        return change.stored


def _ignore_append(append: Append) -> None:
    """Do nothing: the change answers for its append."""
