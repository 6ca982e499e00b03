"""Sources: what requests brought, put together again from the observations that were made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from headrace.engine.history.stored_events import Events
from headrace.engine.log.catalog import Catalog
from headrace.engine.log.stream import Stream
from headrace.errors import NotFound, TooLarge
from headrace.format.decoded_columns import DecodedCache
from headrace.reduce.states.fold import runs_of_batch
from headrace.schema.entity.accept import rejoin_fragments
from headrace.schema.entity.observation import Observation, decode
from headrace.schema.entity.request import ADDRESSED, address_of_contents
from headrace.schema.entries import entries_of
from headrace.storage.database import Connection
from headrace.storage.entities import SourceRange, Sources
from headrace.storage.streams import LIVE, Streams
from headrace.types import rfc3339

if TYPE_CHECKING:
    from headrace.engine.history.stored_events import Events
    from headrace.storage.segments import Segments

_SLICE_BYTES = 1024 * 1024
#: More observations of a source are not put together at once.
MAX_OBSERVATIONS = 100_000


Timestamp = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]


class SourceObservation(msgspec.Struct, kw_only=True):
    """An observation that an entity of a source became; ``item`` is the number of the entity."""

    observation_id: str
    entity_id: str
    entity_type: str
    schema_version: str
    schema_scope: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["global", "user"]})]
    observed_at: Timestamp
    item: int | None


class SourceSummary(msgspec.Struct):
    """What a source held: the entities as they were given, and the observations that they became."""

    source_id: str
    #: Whether the id is that of the content, so that anybody can tell that nothing of it is missing or other.
    content_addressed: bool
    #: Whether every entity of it is here.
    complete: bool
    stored_at: Timestamp
    entities: list[dict[str, Any]]
    observations: list[SourceObservation]


class Place(NamedTuple):
    """Where observations of a source lie; ``stream`` is None where it is gone."""

    stream: Stream | None
    range: SourceRange


class SourceReader:
    """Finds sources on the event loop, and reads them in threads with connections of their own."""

    def __init__(
        self,
        *,
        reader: Connection,
        catalog: Catalog,
        connect: Callable[[], Connection],
        segments: Callable[[], Segments],
    ) -> None:
        self._sources, self._streams, self._catalog = Sources(reader), Streams(reader), catalog
        self._connect, self._segments = connect, segments

    def places(self, user_id: str, source_id: str) -> list[Place]:
        """Where the observations of a user's source lie."""
        ranges = self._sources.ranges(user_id, source_id)
        if not ranges:
            raise NotFound("there is no such source", source_id=source_id)
        if sum(source_range.count for source_range in ranges) > MAX_OBSERVATIONS:
            raise TooLarge(f"the source has more than {MAX_OBSERVATIONS} observations", limit=MAX_OBSERVATIONS)
        return [Place(self._stream(source_range.stream), source_range) for source_range in ranges]

    def _stream(self, stream: int) -> Stream | None:
        row = self._streams.by_id(stream)
        return None if row is None or row.state != LIVE else self._catalog.find(row.name)

    def read(self, user_id: str, source_id: str, places: list[Place]) -> SourceSummary:
        """Put a source together."""
        observations: list[Observation] = []
        connection = self._connect()
        try:
            for stream, source_range in places:
                if stream is not None:
                    observations += _observations(
                        self._events(connection, stream), stream, source_range, user_id, source_id
                    )
        finally:
            connection.close()
        entities_given, is_addressed = _given(observations), source_id.startswith(ADDRESSED)
        if is_addressed:  # what came again, with other things said besides, was the same
            entities_given = {number: entities[:1] for number, entities in entities_given.items()}
        entities = [entity for number in sorted(entities_given) for entity in entities_given[number]]
        complete = len(observations) == sum(source_range.range.count for source_range in places)
        if is_addressed:
            complete = address_of_contents(entities, user_id) == source_id
        stored_at = rfc3339(min(source_range.range.at_us for source_range in places))
        return SourceSummary(
            source_id,
            is_addressed,
            complete,
            stored_at,
            entities,
            [_summary(observation) for observation in observations],
        )

    def _events(self, connection: Connection, stream: Stream) -> Events:

        return Events(connection, self._segments, DecodedCache(0), stream, stream.head)


def _observations(
    events: Events, stream: Stream, source_range: SourceRange, user_id: str, source_id: str
) -> Iterator[Observation]:
    """The observations of a source that lie in one place, those that are still there."""
    at, stop = (
        max(source_range.first_seq, stream.head.first_seq),
        min(source_range.first_seq + source_range.count, stream.head.next_seq),
    )
    while at < stop:
        chunk = events.first_chunk(at, stop)
        for batch in events.batches(chunk):
            for run in runs_of_batch(batch, _SLICE_BYTES):
                for body in entries_of(run.body):
                    observation = _decoded(bytes(body))
                    if observation is not None and (observation.user_id, observation.source_id) == (user_id, source_id):
                        yield observation
        at = chunk.stop


def _decoded(body: bytes) -> Observation | None:
    """An observation; None where something else stands in its place, because it was erased."""
    try:
        return decode(body)
    except msgspec.ValidationError:
        return None


def _given(observations: list[Observation]) -> dict[int, list[dict[str, Any]]]:
    """The entities as they were given, by their places in the request."""
    entities: dict[int, list[dict[str, Any]]] = {}
    for observation in observations:
        details = observation.details
        entity = {
            "entity_type": details.get("given_type", observation.entity_type),
            **rejoin_fragments(observation.fields, observation.fragments),
        }
        if "meta" in details:
            entity["_meta"] = details["meta"]
        for number in (details.get("item", 0), *details.get("again", ())):
            entities.setdefault(number, []).append(entity)
    return entities


def _summary(observation: Observation) -> SourceObservation:
    return SourceObservation(
        observation_id=observation.id,
        entity_id=observation.entity_id,
        entity_type=observation.entity_type,
        schema_version=observation.schema_version,
        schema_scope=observation.schema_scope,
        observed_at=rfc3339(observation.observed_at_us),
        item=observation.details.get("item"),
    )
