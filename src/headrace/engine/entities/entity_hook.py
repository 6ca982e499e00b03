"""The append hook of entity types: entries are entities, and become observations like any others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from headrace import decoding
from headrace.engine.entities.entity_type import EntityType, dedupe_key
from headrace.engine.entities.write.store_observations import TypeBatch, source_of
from headrace.engine.entities.write.store_request import Draft, ObservationWrite, ResolvedType
from headrace.errors import BadRequest, NoSchemaForEntityType
from headrace.profiles.hook import AppendHook
from headrace.schema.entity import names
from headrace.schema.entity.identity import Identity
from headrace.schema.entity.observation import Observation, encode
from headrace.schema.entity.request import EntityOutcome, RequestOptions, make_store_request, refusal
from headrace.schema.entries import Failure, read
from headrace.storage.database import Connection
from headrace.storage.entities import Entities, SourceRange, Sources

if TYPE_CHECKING:
    from headrace.engine.log.append import Terms
    from headrace.engine.log.batch import Batch
    from headrace.engine.log.stream import Stream

NOTHING_ERASED: Mapping[str, int] = {}
_FOREVER = 2**62
_OBSERVATIONS = decoding.make_decoder(list[Observation])


class _ObservationIds(msgspec.Struct, gc=False):
    """The ids in an observation."""

    id: str
    entity_id: str
    source_id: str | None = None


_IDS = decoding.make_decoder(list[_ObservationIds])


class EntityHook(EntityType, AppendHook):
    """Turns entries that are appended to the stream of an entity type into observations of entities."""

    normalises = True
    assigns_keys = True
    deduplicates = True
    extends_commit = True
    max_dedupe_keys = _FOREVER
    dedupe_window_us = _FOREVER

    def normalise(self, joined: bytes, terms: Terms) -> bytes:
        """Observations of entities of one type, in the order of the request, of the user who appends."""
        effective = self.effective(terms.user)
        if effective is None:
            raise NoSchemaForEntityType(f"{self.entity_type} has no schema for you", entity_type=self.entity_type)
        values, failures = read(joined)
        if failures:
            first = failures[0]
            raise BadRequest(
                f"entity {first.index + 1}: {first.pointer or 'it'} {first.reason}", field="body", item=first.index
            )
        entities = [_of_type(number, value, self.entity_type) for number, value in enumerate(values)]
        request = make_store_request(entities, RequestOptions(), terms.user)
        now_us = time.time_ns() // 1_000 if terms.timestamp_us is None else terms.timestamp_us
        write = ObservationWrite(request, dict.fromkeys(request.types, self.entity_type), now_us)
        prepared = write.prepare({self.entity_type: ResolvedType(self.entity_type, effective)})
        made = {draft.outcome.observation_id: encode(draft.observation) for draft in prepared.drafts[self.entity_type]}
        return b",".join([made[outcome.observation_id] for outcome in prepared.outcomes])

    def check_commit(self, batch: Batch, stream: Stream, joined: bytes, keys: list[str | None]) -> None:
        """Refuse what may not be merged with an entity that is there."""
        observations = _OBSERVATIONS.decode(b"[" + joined + b"]")
        effective = self.effective(observations[0].user_id)
        if effective is None or effective.schema.schema_definition.name_collision_policy != "reject":
            return
        typed = ResolvedType(self.entity_type, effective, stream, batch.draft(stream).registry)
        drafts = [
            _draft(typed, number, observation)
            for number, observation in enumerate(observations)
            if observation.kind == "observation"
        ]
        type_batch = TypeBatch(batch, drafts, observations[0].user_id)
        if type_batch.issues:
            raise refusal(type_batch.issues)

    def extend_commit(self, batch: Batch, stream: Stream, first_seq: int, joined: bytes, at_us: int) -> None:
        """Store which entities and sources new observations are about."""
        observations = _OBSERVATIONS.decode(b"[" + joined + b"]")
        note_observations(
            batch.connection,
            stream.id,
            ((first_seq + index, at_us, observation) for index, observation in enumerate(observations)),
        )

    def refusal(self, joined: bytes, failures: list[Failure], number: int = 0) -> BadRequest:
        """Why an observation does not fit."""
        first = failures[0]
        return BadRequest(f"observation {number + first.index} does not fit: {first.reason}", field=first.pointer)

    def dedupe_keys(self, joined: bytes) -> list[str | None]:
        """Each observation has a key by its id."""
        observations = _IDS.decode(b"[" + joined + b"]")
        return [dedupe_key(observation.id, observation.source_id) for observation in observations]

    def routing_keys(self, joined: bytes) -> list[str | None]:
        """Observations are routed by the entities that they are about."""
        return [observation.entity_id for observation in _IDS.decode(b"[" + joined + b"]")]


def _of_type(number: int, value: Any, entity_type: str) -> Any:
    """An entry as an entity of a request."""
    if not isinstance(value, dict):
        return value
    spelled = value.setdefault("entity_type", entity_type)
    if isinstance(spelled, str) and names.normalise_type_name(spelled) != entity_type:
        raise BadRequest(f"entity {number + 1} is no {entity_type}", field="entity_type", item=number)
    return value


def _draft(typed: ResolvedType, number: int, observation: Observation) -> Draft:
    basis: Any = observation.identity_basis
    identity = Identity(observation.entity_id, observation.canonical_name or "", basis, observation.identity_rule or "")
    answer = EntityOutcome(
        observation.entity_id,
        observation.entity_type,
        "",
        observation.id,
        observation.schema_version,
        identity.canonical_name,
        basis,
        "",
        [],
        [],
    )
    return Draft(typed, observation, identity, dedupe_key(observation.id, observation.source_id), answer, number, False)


def note_observations(
    connection: Connection,
    stream: int,
    events: Iterable[tuple[int, int, Observation]],
    erased: Mapping[str, int] = NOTHING_ERASED,
) -> None:
    """Store the entities and sources of observations of a stream, which come in order with their times.

    An entity that is stored already stays as it is, so a recovery can go through all observations again. ``erased`` has
    the end of each erased entity: observations before that were moved from it, and do not bring it back.
    """
    entities, sources = Entities(connection), Sources(connection)
    for (user_id, at_us), group in groupby(events, key=lambda event: (event[2].user_id, event[1])):
        run = list(group)
        names: dict[str, tuple[str, int]] = {}
        for seq, _, observation in run:
            if seq >= erased.get(observation.entity_id, 0):
                names.setdefault(observation.entity_id, (observation.canonical_name or "", seq))
        entities.save(stream, user_id, at_us, [(entity_id, name, seq) for entity_id, (name, seq) in names.items()])
        for source_id, observed in groupby(run, key=lambda event: source_of(event[2])):
            seqs = [seq for seq, _, _ in observed]
            if source_id is not None:
                sources.save(user_id, source_id, [SourceRange(stream, seqs[0], seqs[-1] - seqs[0] + 1, at_us)])
