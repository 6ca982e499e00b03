"""Sources: the entities of a stored request, put together again from their observations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from headrace.engine.entities.read.observations import decode_unless_erased
from headrace.engine.history.stored_events import Events
from headrace.engine.log.catalog import Catalog
from headrace.engine.log.stream import Stream
from headrace.errors import NotFound, TooLarge
from headrace.format.decoded_columns import LruCache
from headrace.schema.entity.accept import rejoin_fragments
from headrace.schema.entity.observation import Observation
from headrace.schema.entity.request import address_of_contents
from headrace.schema.entity.sources import CONTENT_PREFIX, name_of
from headrace.schema.entries import entries_of
from headrace.storage.database import Connection
from headrace.storage.entities import SourceRange, Sources
from headrace.storage.streams import LIVE, Streams
from headrace.types import rfc3339

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

_SLICE_BYTES = 1024 * 1024
#: The observations of a source that is read.
MAX_OBSERVATIONS = 100_000


Timestamp = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]


class SourceObservation(msgspec.Struct, kw_only=True):
    """An observation of a source; ``item`` is the number of its entity."""

    observation_id: str
    entity_id: str
    entity_type: str
    schema_version: str
    schema_scope: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["global", "user"]})]
    observed_at: Timestamp
    item: int | None


class SourceSummary(msgspec.Struct):
    """A source: the entities as they were sent, and their observations."""

    source_id: str
    #: Its name; null where the id is a hash of the content.
    name: str | None
    #: Whether the id is a hash of the content, so that completeness can be checked.
    content_addressed: bool
    #: Whether no entity is missing.
    complete: bool
    stored_at: Timestamp
    entities: list[dict[str, Any]]
    observations: list[SourceObservation]


class SourcePart(NamedTuple):
    """A range of observations of a source; ``stream`` is None where it was deleted."""

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

    def require(self, user_id: str, source_id: str) -> str:
        """The id of a source that a user has; raises NotFound for any other."""
        if not self._sources.has(user_id, source_id):
            raise NotFound("there is no such source", source_id=source_id)
        return source_id

    def find_parts(self, user_id: str, source_id: str) -> list[SourcePart]:
        """The ranges of the observations of a user's source."""
        ranges = self._sources.ranges(user_id, source_id)
        if not ranges:
            raise NotFound("there is no such source", source_id=source_id)
        if sum(source_range.count for source_range in ranges) > MAX_OBSERVATIONS:
            raise TooLarge(f"the source has more than {MAX_OBSERVATIONS} observations", limit=MAX_OBSERVATIONS)
        return [SourcePart(self._stream(source_range.stream), source_range) for source_range in ranges]

    def _stream(self, stream: int) -> Stream | None:
        row = self._streams.by_id(stream)
        return None if row is None or row.state != LIVE else self._catalog.find(row.name)

    def read(self, user_id: str, source_id: str, parts: list[SourcePart]) -> SourceSummary:
        """Read a source."""
        observations: list[Observation] = []
        connection = self._connect()
        try:
            for stream, source_range in parts:
                if stream is not None:
                    observations += _observations(
                        self._events(connection, stream), stream, source_range, user_id, source_id
                    )
        finally:
            connection.close()
        by_number, is_addressed = _entities_by_number(observations), source_id.startswith(CONTENT_PREFIX)
        if is_addressed:  # an entity that was sent again, with other metadata, was the same
            by_number = {number: entities[:1] for number, entities in by_number.items()}
        entities = [entity for number in sorted(by_number) for entity in by_number[number]]
        complete = len(observations) == sum(source_range.range.count for source_range in parts)
        if is_addressed:
            complete = address_of_contents(entities, user_id) == source_id
        stored_at = rfc3339(min(source_range.range.at_us for source_range in parts))
        return SourceSummary(
            source_id,
            name_of(source_id),
            is_addressed,
            complete,
            stored_at,
            entities,
            [_describe(observation) for observation in observations],
        )

    def _events(self, connection: Connection, stream: Stream) -> Events:
        return Events(connection, self._segments, LruCache(0), stream, stream.head)


def _observations(
    events: Events, stream: Stream, source_range: SourceRange, user_id: str, source_id: str
) -> Iterator[Observation]:
    """The observations of a source in a range that are not erased."""
    start = max(source_range.first_seq, stream.head.first_seq)
    stop = min(source_range.first_seq + source_range.count, stream.head.next_seq)
    for run in events.runs(start, stop, _SLICE_BYTES):
        for body in entries_of(run.body):
            observation = decode_unless_erased(bytes(body))
            if observation is not None and (observation.user_id, observation.source_id) == (user_id, source_id):
                yield observation


def _entities_by_number(observations: list[Observation]) -> dict[int, list[dict[str, Any]]]:
    """The entities as they were sent, by their numbers in the request."""
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


def _describe(observation: Observation) -> SourceObservation:
    return SourceObservation(
        observation_id=observation.id,
        entity_id=observation.entity_id,
        entity_type=observation.entity_type,
        schema_version=observation.schema_version,
        schema_scope=observation.schema_scope,
        observed_at=rfc3339(observation.observed_at_us),
        item=observation.details.get("item"),
    )
