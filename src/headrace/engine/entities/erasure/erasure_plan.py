"""The plan of an erasure: the data that it would remove, read in a thread before it begins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.engine.entities.read.observations import Observations, StoredObservation
from headrace.engine.history.stored_events import Events
from headrace.engine.log.stream import Head, Stream
from headrace.errors import Conflict
from headrace.extract.erasure import Targets
from headrace.format.decoded_columns import LruCache
from headrace.schema.entity.identity import EntityId
from headrace.schema.entity.observation import decode
from headrace.storage.database import Connection
from headrace.storage.dedupe import Idempotency
from headrace.storage.derived import Companions, States
from headrace.storage.entities import Aliases, SourceRange, Sources
from headrace.storage.published import Published, SegmentObject
from headrace.storage.streams import Streams
from headrace.storage.wal import Wal
from headrace.types import NonNegativeInt

if TYPE_CHECKING:
    from headrace.storage.segments import Segments


class AffectedObject(msgspec.Struct):
    """An object with data that would be erased."""

    name: str
    bytes: NonNegativeInt
    #: How many of its observations would be erased; 0 where that is not counted.
    observations: NonNegativeInt = 0


class ErasurePlan(msgspec.Struct):
    """The data that an erasure would remove."""

    ids: list[EntityId]
    observations: NonNegativeInt
    #: Rows of the log with such observations.
    log_rows: NonNegativeInt
    segments: list[AffectedObject]
    companions: list[AffectedObject]
    states: list[AffectedObject]
    #: The sources of the observations.
    sources: list[str]
    idempotency_answers: NonNegativeInt


class PlannedErasure(NamedTuple):
    """A plan, and what the first commit of the erasure removes."""

    plan: ErasurePlan
    targets: Targets
    #: The head up to which the stream was read.
    head: Head
    seqs: list[int]
    #: Ranges of sources without any other observations, by source.
    emptied: dict[str, list[SourceRange]]
    #: Idempotency keys of answers that name the entity or its observations.
    answers: list[str]
    #: The ids of the observations.
    observation_ids: frozenset[bytes]
    #: The time at which reading began.
    at_us: int


def refuse_forked(streams: Streams, stream: int, entity_id: str) -> None:
    """Refuse an erasure of data that a fork holds too."""
    if forks := [row.name for id, _ in streams.forks(stream) if (row := streams.by_id(id))]:
        raise Conflict("forks of the stream hold the entity, too: delete them first", entity_id=entity_id, forks=forks)


def find_targets(connection: Connection, entity_id: str, entity_type: str) -> Targets:
    """The observations of an entity, and of all that were merged into it, after splits."""
    aliases = Aliases(connection)
    ids = tuple(aliases.with_merged(entity_id))
    moved = sorted(aliases.moved(ids))
    moved_in = tuple((row.entity_id, row.observation_id) for row in moved if row.into_id in ids)
    moved_out = tuple((row.entity_id, row.observation_id) for row in moved if row.into_id not in ids)
    return Targets(entity_type, ids, moved_in, moved_out)


def plan_erasure(
    connection: Connection,
    segments: Callable[[], Segments],
    stream: Stream,
    head: Head,
    user_id: str,
    targets: Targets,
    now_us: int,
) -> PlannedErasure:
    """Plan an erasure by reading everything of its targets up to a head."""
    refuse_forked(Streams(connection), stream.id, targets.ids[0])
    targets = msgspec.structs.replace(targets, before_seq=head.next_seq)
    observations = sorted(_read(Observations(connection, segments, stream, head), targets))
    seqs = [stored.seq for stored in observations]
    published = Published(connection).following(stream.id, head.first_seq, head.next_seq)
    affected = [(placed, count) for placed in published if (count := _count_contained(seqs, placed))]
    observation_ids = frozenset(stored.observation.id.encode() for stored in observations)
    answers = Idempotency(connection).mentioning(user_id, [id.encode() for id in targets.ids], observation_ids, 0)
    sources = sorted({source for stored in observations if (source := stored.observation.source_id) is not None})
    plan = ErasurePlan(
        ids=list(targets.ids),
        observations=len(seqs),
        log_rows=_log_rows(connection, stream, head, targets),
        segments=[AffectedObject(placed.segment.name, placed.segment.bytes, count) for placed, count in affected],
        companions=_companions(connection, stream, [placed for placed, _ in affected]),
        states=[AffectedObject(state.name, state.bytes) for state in States(connection).listed(stream.id)],
        sources=sources,
        idempotency_answers=len(answers),
    )
    has_rest = partial(_has_rest, connection, segments, stream, head)
    emptied = emptied_sources(connection, user_id, sources, stream, set(seqs), has_rest)
    return PlannedErasure(plan, targets, head, seqs, emptied, answers, observation_ids, now_us)


def emptied_sources(
    connection: Connection,
    user_id: str,
    sources: Collection[str],
    stream: Stream,
    erased: set[int],
    has_rest: Callable[[Collection[int]], bool] = bool,
) -> dict[str, list[SourceRange]]:
    """The ranges of sources in which nothing is left once some observations are erased.

    ``has_rest`` says whether any of the other entries of a range still exists.
    """
    ranges_by_source = {source: Sources(connection).ranges(user_id, source) for source in sources}
    return {
        source: [
            source_range
            for source_range in ranges
            if source_range.stream == stream.id
            and not has_rest(
                [
                    seq
                    for seq in range(source_range.first_seq, source_range.first_seq + source_range.count)
                    if seq not in erased
                ]
            )
        ]
        for source, ranges in ranges_by_source.items()
    }


def _has_rest(
    connection: Connection, segments: Callable[[], Segments], stream: Stream, head: Head, seqs: Collection[int]
) -> bool:
    """Whether any of some entries still exists, and was not erased earlier."""
    events = Events(connection, segments, LruCache(0), stream, head)
    retained = (seq for seq in seqs if head.first_seq <= seq < head.next_seq)
    return any(decode(events.get([seq])[seq].payload).kind != "erased" for seq in retained)


def _read(observations: Observations, targets: Targets) -> Iterator[StoredObservation]:
    for key in targets.keys:
        yield from (stored for stored in observations.read(key) if targets.take(stored.seq, stored.observation))


def _count_contained(seqs: list[int], placed: SegmentObject) -> int:
    return sum(placed.segment.first_seq <= seq < placed.segment.end_seq for seq in seqs)


def _log_rows(connection: Connection, stream: Stream, head: Head, targets: Targets) -> int:
    wal = Wal(connection)
    return len({row.seq for key in targets.keys for row in wal.scan_key(stream.id, key, 0, head.next_seq)})


def _companions(connection: Connection, stream: Stream, segments: list[SegmentObject]) -> list[AffectedObject]:
    return [
        AffectedObject(companion.name, sum(part.bytes for part in companion.parts.values()))
        for companion in Companions(connection).listed(stream.id)
        if any(
            companion.first_seq < placed.segment.end_seq and placed.segment.first_seq < companion.end_seq
            for placed in segments
        )
    ]
