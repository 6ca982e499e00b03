"""Moves values of fragments into fields: reads them from stored observations, and stores them as new ones.

The id of a new observation depends on the one that the value was read from, so that it is stored once however often
the migration runs. After a migration of a field was undone, the next one has other ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.engine.entities.entity_type import dedupe_key
from headrace.engine.entities.read.observations import decode_unless_erased
from headrace.engine.entities.write.store_request import Draft, Prepared, ResolvedType, bodies
from headrace.engine.history.stored_events import Events
from headrace.engine.log.stream import Stream
from headrace.extract.erasure import load
from headrace.format.decoded_columns import LruCache
from headrace.schema.entity.accept import Splitter
from headrace.schema.entity.identity import Identity
from headrace.schema.entity.observation import MIGRATED, Kind, Observation, observation_id, scope_details
from headrace.schema.entity.request import EntityOutcome, Warnings
from headrace.schema.entity.values import ConstraintChecker
from headrace.schema.entries import entries_of
from headrace.storage.background_requests import Erasures
from headrace.storage.database import Connection
from headrace.storage.entities import Aliases, Entities

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

#: The observations that one step reads, and the values that one commit stores.
MAX_OBSERVATIONS, MAX_VALUES = 20_000, 2_000
_SLICE_BYTES = 1024 * 1024
_KIND: Kind = "migration"


class FragmentValue(NamedTuple):
    """A value without a field: its observation, its key, and the entity that it belongs to now."""

    origin: Observation
    key: str
    value: Any
    entity_id: str


class FragmentSlice(NamedTuple):
    """The values of some observations, and the first observation after them."""

    values: list[FragmentValue]
    through: int
    #: The number of erasures of the type at that time.
    erasures: int


def read_values(
    stream: Stream,
    connection: Connection,
    segments: Callable[[], Segments],
    start: int,
    stop: int,
    fields: Collection[str],
    user_id: str | None,
) -> FragmentSlice:
    """Read the next values of some keys, of one user or of all; for threads."""
    values: list[FragmentValue] = []
    erasures = Erasures(connection).count(stream.id)
    erased = [load(row.targets) for row in Erasures(connection).running(stream.id)]
    at = start = max(start, stream.head.first_seq)
    for seq, body in _entries(stream, connection, segments, start, stop):
        if seq - start >= MAX_OBSERVATIONS or len(values) >= MAX_VALUES:
            break
        at = seq + 1
        if b'"fragments"' not in body:
            continue
        observation = decode_unless_erased(body)
        if observation is None or observation.kind != "observation" or user_id not in (None, observation.user_id):
            continue
        if any(erasure.take(seq, observation) for erasure in erased):
            continue  # it is being erased, and an entity of its id may be another
        values += [
            FragmentValue(observation, fragment.key, fragment.value, observation.entity_id)
            for fragment in observation.fragments
            if fragment.key in fields and fragment.reason == "unknown_field"
        ]
    else:
        at = stop
    return FragmentSlice(_follow_splits(connection, values), at, erasures)


def _entries(
    stream: Stream, connection: Connection, segments: Callable[[], Segments], start: int, stop: int
) -> Iterator[tuple[int, bytes]]:
    head = stream.head
    events = Events(connection, segments, LruCache(0), stream, head)
    for run in events.runs(max(start, head.first_seq), min(stop, head.next_seq), _SLICE_BYTES):
        yield from enumerate(map(bytes, entries_of(run.body)), run.first_seq)


def _follow_splits(connection: Connection, values: list[FragmentValue]) -> list[FragmentValue]:
    """Values with the entities that they belong to after splits, without those of entities that are gone."""
    if not values:
        return []
    ids = {fragment.entity_id for fragment in values}
    moved = {(row.entity_id, row.observation_id): row.into_id for row in Aliases(connection).moved(ids)}
    followed = [
        fragment._replace(entity_id=moved.get((fragment.entity_id, fragment.origin.id), fragment.entity_id))
        for fragment in values
    ]
    existing = Entities(connection).existing(list({fragment.entity_id for fragment in followed}))
    return [fragment for fragment in followed if fragment.entity_id in existing]


class FragmentMove:
    """Stores values of one user as observations, by the schema at the time of the commit."""

    idempotency_key: str | None = None
    digest = b""
    commit = True

    def __init__(
        self, entity_type: str, values: list[FragmentValue], run_id: str, rounds: Mapping[str, int], erasures: int
    ) -> None:
        """``rounds`` counts how often migrations of each field were undone."""
        self.erasures: int | None = erasures
        self.user_id = values[0].origin.user_id
        self._entity_type, self._values, self._run_id, self._rounds = entity_type, values, run_id, rounds
        #: How many values the schema does not take.
        self.unfit = 0

    def prepare(self, typed: Mapping[str, ResolvedType]) -> Prepared:
        """An observation for every value that fits."""
        entity_type = typed[self._entity_type]
        definition = entity_type.effective.schema.schema_definition
        splitter, limits = Splitter(definition), ConstraintChecker(definition)
        drafts = []
        for fragment in self._values:
            fields = splitter.split({fragment.key: fragment.value}).fields
            if fields and not (limits.rejects and limits.violations(fields)):
                drafts.append(self._draft(entity_type, fragment, fields))
        self.unfit = len(self._values) - len(drafts)
        if not drafts:
            return Prepared({}, [], Warnings(), [], {})
        outcomes = [draft.outcome for draft in drafts]
        return Prepared({self._entity_type: drafts}, outcomes, Warnings(), [], {self._entity_type: bodies(drafts)})

    def answer(self, prepared: Prepared) -> bytes:
        """An empty answer: there is no request to answer."""
        return b""

    def _draft(self, typed: ResolvedType, value: FragmentValue, fields: dict[str, Any]) -> Draft:
        origin, version = value.origin, typed.effective.schema.schema_version
        details = {"of": origin.id, "round": self._rounds.get(value.key, 0)}
        identifier = observation_id(
            entity_id=origin.entity_id,
            fields={value.key: value.value},
            kind=_KIND,
            source_id=origin.source_id,
            observed_at_us=origin.observed_at_us,
            source_priority=MIGRATED,
            observation_source=origin.observation_source,
            specificity_score=origin.specificity_score,
            details=details,
        )
        observation = Observation(
            id=identifier,
            kind=_KIND,
            entity_id=value.entity_id,
            entity_type=origin.entity_type,
            user_id=origin.user_id,
            schema_version=version,
            source_id=origin.source_id,
            observed_at_us=origin.observed_at_us,
            source_priority=MIGRATED,
            observation_source=origin.observation_source,
            specificity_score=origin.specificity_score,
            fields=fields,
            identity_basis="target_id",
            run_id=self._run_id,
            details={**details, **scope_details(typed.effective.schema.scope)},
        )
        identity = Identity(value.entity_id, origin.canonical_name or "", "target_id", "")
        ids = value.entity_id, origin.entity_type, "", identifier, version
        outcome = EntityOutcome(*ids, identity.canonical_name, identity.basis, "", [], [])
        return Draft(typed, observation, identity, dedupe_key(identifier, origin.source_id), outcome, 0, False)
