"""What merges, splits and their undoing say, decided in the commit that stores them, and what follows from it."""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.engine.entities.entity_type import EntityType
from headrace.engine.log.batch import Batch
from headrace.engine.log.stream import Head
from headrace.errors import (
    BadRequest,
    Conflict,
    EntityAlreadyMerged,
    EntityNotFound,
    MergeTargetAlreadyMerged,
)
from headrace.schema.entity.observation import Kind, Observation, observation_id, of_scope
from headrace.storage.database import Connection
from headrace.storage.entities import Aliases, AliasRow, Entities, EntityRow, SplitRow

#: Whoever merges or splits decides for people.
_SOURCE = "human"


class Moved(NamedTuple):
    """An observation that is to be about another entity: which it was stored for, and which it is about now."""

    observation_id: str
    entity_id: str
    from_id: str


def owned(entities: Entities, user_id: str, entity_id: str) -> EntityRow:
    """An entity of a user; those of others are not there."""
    row = entities.find(entity_id)
    if row is None or row.user_id != user_id:
        raise EntityNotFound("there is no such entity", entity_id=entity_id)
    return row


def merging(batch: Batch, head: Head, at_us: int, user_id: str, from_id: str, to_id: str) -> Observation:
    """The observation that an entity is another, unless one of them is told of under a third already."""
    entities, aliases = Entities(batch.connection), Aliases(batch.connection)
    source, target = owned(entities, user_id, from_id), owned(entities, user_id, to_id)
    if (known := aliases.alias(from_id)) is not None:
        raise EntityAlreadyMerged("the entity was merged already", entity_id=from_id, merged_into=known.into_id)
    if (known := aliases.alias(to_id)) is not None:
        message = "the entity to merge into was merged itself"
        raise MergeTargetAlreadyMerged(message, entity_id=to_id, merged_into=known.into_id)
    if source.stream != target.stream:
        raise BadRequest("entities of different types cannot be merged", field="to_entity_id")
    return _observation(head, "merge", source, at_us, {"into": to_id})


def unmerging(batch: Batch, head: Head, at_us: int, user_id: str, entity_id: str) -> Observation:
    """The observation that a merge does not hold any more."""
    row, known = owned(Entities(batch.connection), user_id, entity_id), Aliases(batch.connection).alias(entity_id)
    if known is None:
        raise Conflict("the entity is not merged", entity_id=entity_id)
    return _observation(head, "undo", row, at_us, {"undoes": "merge", "into": known.into_id})


def splitting(
    batch: Batch, head: Head, at_us: int, user_id: str, entity_id: str, into: EntityRow, moved: list[Moved]
) -> Observation:
    """The observation that some others are about another entity."""
    entities = Entities(batch.connection)
    row, known = owned(entities, user_id, entity_id), entities.find(into.entity_id)
    if known is not None and (known.user_id != user_id or known.stream != row.stream):
        raise EntityNotFound("there is no such entity of this type", entity_id=into.entity_id)
    aliases = Aliases(batch.connection)
    if (alias := aliases.alias(into.entity_id)) is not None:
        message = "the entity to split into was merged"
        raise MergeTargetAlreadyMerged(message, entity_id=into.entity_id, merged_into=alias.into_id)
    places = {(one.entity_id, one.observation_id): one.into_id for one in aliases.moved([o.entity_id for o in moved])}
    if any(places.get((one.entity_id, one.observation_id), one.entity_id) != one.from_id for one in moved):
        raise Conflict("some of the observations were moved meanwhile; look at them again", entity_id=entity_id)
    details: dict[str, Any] = {"into": into.entity_id, "observations": [list(one) for one in moved]}
    if known is None:
        details["created"] = into.canonical_name
    return _observation(head, "split", row, at_us, details)


def unsplitting(batch: Batch, head: Head, at_us: int, user_id: str, split: Observation) -> Observation:
    """The observation that a split does not hold any more, as far as nothing was moved on since."""
    row, into = owned(Entities(batch.connection), user_id, split.entity_id), split.details["into"]
    moved = [Moved(*one) for one in split.details["observations"]]
    found = Aliases(batch.connection).moved([into])
    there = {(one.entity_id, one.observation_id) for one in found if one.into_id == into}
    back = [one for one in moved if (one.entity_id, one.observation_id) in there]
    if not back:
        raise Conflict("nothing of this split is left to undo", split_id=split.id)
    details = {"undoes": "split", "split": split.id, "into": into, "observations": [list(one) for one in back]}
    return _observation(head, "undo", row, at_us, details)


def replayed(connection: Connection, stream: int, seq: int, at_us: int, observation: Observation) -> None:
    """Note what an observation says about entities themselves; others say nothing. Also for who reads them again."""
    aliases, details, user = Aliases(connection), observation.details, observation.user_id
    if observation.kind == "merge":
        aliases.add(AliasRow(observation.entity_id, details["into"], user, stream, seq, at_us))
    elif observation.kind == "split":
        moved = [Moved(*one) for one in details["observations"]]
        into = details["into"]
        aliases.move(SplitRow(one.observation_id, one.entity_id, into, user, stream, seq, at_us) for one in moved)
        if "created" in details:
            Entities(connection).save(stream, user, at_us, [(into, details["created"], seq)])
    elif observation.kind == "undo" and details["undoes"] == "merge":
        aliases.remove(observation.entity_id)
    elif observation.kind == "undo":
        moved = [Moved(*one) for one in details["observations"]]
        aliases.move_back((one.observation_id, one.entity_id) for one in moved if one.from_id == one.entity_id)
        on = [one for one in moved if one.from_id != one.entity_id]
        aliases.move(SplitRow(one.observation_id, one.entity_id, one.from_id, user, stream, seq, at_us) for one in on)


def _observation(head: Head, kind: Kind, row: EntityRow, at_us: int, details: dict[str, Any]) -> Observation:
    known = None if head.registry is None else head.registry.hook
    assert isinstance(known, EntityType)
    effective = known.effective(row.user_id)
    identifier = observation_id(
        entity_id=row.entity_id, fields={}, kind=kind, observed_at_us=at_us, source_priority=0,
        observation_source=_SOURCE, details=details,
    )  # fmt: skip
    return Observation(
        id=identifier,
        kind=kind,
        entity_id=row.entity_id,
        entity_type=known.entity_type,
        user_id=row.user_id,
        schema_version="" if effective is None else effective.schema.schema_version,
        source_id=None,
        observed_at_us=at_us,
        source_priority=0,
        observation_source=_SOURCE,
        details=details if effective is None else {**details, **of_scope(effective.schema.scope)},
    )
