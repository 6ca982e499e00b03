"""Plain appends to the stream of an entity type: entries are entities, and become observations like any others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

from headrace import decoding
from headrace.engine.entities.entity_hook import dedupe_key
from headrace.engine.entities.write.accepting import Draft, Storing, Typed
from headrace.engine.entities.write.deciding import Share, source_of
from headrace.errors import BadRequest, NoSchemaForEntityType
from headrace.schema.entity import names
from headrace.schema.entity.answer import EntityOutcome, refusal
from headrace.schema.entity.identity import Identity
from headrace.schema.entity.observation import Observation, encode
from headrace.schema.entity.request import RequestOptions, make_store_request
from headrace.schema.entries import read
from headrace.storage.database import Connection
from headrace.storage.entities import Entities, SourceRange, Sources

if TYPE_CHECKING:
    from headrace.engine.entities.entity_hook import EntityHook
    from headrace.engine.log.append import Terms
    from headrace.engine.log.batch import Batch
    from headrace.engine.log.stream import Stream

NOTHING_ERASED: Mapping[str, int] = {}
_OBSERVATIONS = decoding.make_decoder(list[Observation])


def normalised(kind: EntityHook, joined: bytes, terms: Terms) -> bytes:
    """Observations of entities of one type, in the order in which they were given; all are the user's who appends."""
    effective = kind.effective(terms.user)
    if effective is None:
        raise NoSchemaForEntityType(f"{kind.entity_type} has no schema for you", entity_type=kind.entity_type)
    values, failures = read(joined)
    if failures:
        first = failures[0]
        raise BadRequest(
            f"entity {first.index}: {first.pointer or 'it'} {first.reason}", field="body", item=first.index
        )
    entities = [_of_type(number, value, kind.entity_type) for number, value in enumerate(values)]
    request = make_store_request(entities, RequestOptions(), terms.user)
    now_us = time.time_ns() // 1_000 if terms.timestamp_us is None else terms.timestamp_us
    storing = Storing(request, dict.fromkeys(request.types, kind.entity_type), now_us)
    prepared = storing.prepare({kind.entity_type: Typed(kind.entity_type, effective)})
    made = {draft.told.observation_id: encode(draft.observation) for draft in prepared.drafts[kind.entity_type]}
    return b",".join([made[told.observation_id] for told in prepared.told])


def _of_type(number: int, value: Any, entity_type: str) -> Any:
    """An entry as an entity of a request."""
    if not isinstance(value, dict):
        return value
    spelled = value.setdefault("entity_type", entity_type)
    if isinstance(spelled, str) and names.normalise_type_name(spelled) != entity_type:
        raise BadRequest(f"entity {number} is no {entity_type}", field="entity_type", item=number)
    return value


def check(kind: EntityHook, batch: Batch, stream: Stream, joined: bytes) -> None:
    """Refuse what may not be merged with an entity that is there."""
    observations = _OBSERVATIONS.decode(b"[" + joined + b"]")
    effective = kind.effective(observations[0].user_id)
    if effective is None or effective.schema.schema_definition.name_collision_policy != "reject":
        return
    typed = Typed(kind.entity_type, effective, stream, batch.draft(stream).registry)
    drafts = [_draft(typed, number, one) for number, one in enumerate(observations) if one.kind == "observation"]
    share = Share(batch, drafts, observations[0].user_id)
    if share.issues:
        raise refusal(share.issues)


def _draft(typed: Typed, number: int, one: Observation) -> Draft:
    basis: Any = one.identity_basis
    identity = Identity(one.entity_id, one.canonical_name or "", basis, one.identity_rule or "")
    told = EntityOutcome(
        one.entity_id, one.entity_type, "", one.id, one.schema_version, identity.canonical_name, basis, "", [], []
    )
    return Draft(typed, one, identity, dedupe_key(one.id, one.source_id), told, number, False)


def note(connection: Connection, stream: int, first_seq: int, joined: bytes, at_us: int) -> None:
    """Store which entities and sources new observations are about."""
    observations = _OBSERVATIONS.decode(b"[" + joined + b"]")
    replayed(connection, stream, ((first_seq + place, at_us, one) for place, one in enumerate(observations)))


def replayed(
    connection: Connection,
    stream: int,
    events: Iterable[tuple[int, int, Observation]],
    erased: Mapping[str, int] = NOTHING_ERASED,
) -> None:
    """Store which entities and sources observations of a stream are about, given in order with their times.

    What is known of an entity stays; so a recovery can go through all observations again. ``erased`` has entities that
    were erased, and up to where: observations before that were moved from them, and do not bring them back.
    """
    entities, sources = Entities(connection), Sources(connection)
    for (user_id, at_us), group in groupby(events, key=lambda event: (event[2].user_id, event[1])):
        run = list(group)
        found: dict[str, tuple[str, int]] = {}
        for seq, _, one in run:
            if seq >= erased.get(one.entity_id, 0):
                found.setdefault(one.entity_id, (one.canonical_name or "", seq))
        entities.save(stream, user_id, at_us, [(entity_id, name, seq) for entity_id, (name, seq) in found.items()])
        for source_id, part in groupby(run, key=lambda event: source_of(event[2])):
            seqs = [seq for seq, _, _ in part]
            if source_id is not None:
                sources.save(user_id, source_id, [SourceRange(stream, seqs[0], seqs[-1] - seqs[0] + 1, at_us)])
