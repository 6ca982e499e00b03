"""What an erasure would concern: found by reading, in a thread, before anything is done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.engine.entities.read.observations import Observations, Observed
from headrace.engine.history.stored_events import Events
from headrace.engine.log.stream import Head, Stream
from headrace.errors import Conflict
from headrace.extract.erasure import Targets
from headrace.format.decoded_columns import DecodedCache
from headrace.schema.entity.observation import decode
from headrace.storage.database import Connection
from headrace.storage.dedupe import Idempotency
from headrace.storage.derived import Companions, States
from headrace.storage.entities import Aliases, SourceRange, Sources
from headrace.storage.published import Published, SegmentObject
from headrace.storage.streams import Streams
from headrace.storage.wal import Wal

if TYPE_CHECKING:
    from headrace.storage.segments import Segments


class AffectedObject(msgspec.Struct):
    """An object that holds something of what goes."""

    name: str
    bytes: int
    #: How many observations of it go; 0 where that is not counted.
    observations: int = 0


class ErasurePlan(msgspec.Struct):
    """What would go, and where it lies."""

    ids: list[str]
    observations: int
    #: Rows of the log that hold some of them.
    log_rows: int
    segments: list[AffectedObject]
    companions: list[AffectedObject]
    states: list[AffectedObject]
    #: Sources that brought them.
    sources: list[str]
    idempotency_answers: int


class PlannedErasure(NamedTuple):
    """A plan, and what the commit that begins has to remove with it."""

    plan: ErasurePlan
    targets: Targets
    #: Up to where the stream was read.
    head: Head
    seqs: list[int]
    #: What is left of no source, by source.
    emptied: dict[str, list[SourceRange]]
    #: Requests whose answers tell of it.
    answers: list[str]
    #: The observations that go.
    observation_ids: frozenset[bytes]
    #: When reading began.
    at_us: int


def refuse_forked(streams: Streams, stream: int, entity_id: str) -> None:
    """Refuse an erasure that would leave the data to a fork, which is nobody's entities any more."""
    if forks := [row.name for id, _ in streams.forks(stream) if (row := streams.by_id(id))]:
        raise Conflict("forks of the stream hold the entity, too: delete them first", entity_id=entity_id, forks=forks)


def targets_of(connection: Connection, entity_id: str, entity_type: str) -> Targets:
    """An entity and everything that was merged into it, as far as observations were moved until now."""
    aliases = Aliases(connection)
    ids = tuple(aliases.with_merged(entity_id))
    moved = sorted(aliases.moved(ids))
    here = tuple((row.entity_id, row.observation_id) for row in moved if row.into_id in ids)
    away = tuple((row.entity_id, row.observation_id) for row in moved if row.into_id not in ids)
    return Targets(entity_type, ids, here, away)


def planned(
    connection: Connection,
    segments: Callable[[], Segments],
    stream: Stream,
    head: Head,
    user_id: str,
    targets: Targets,
    now_us: int,
) -> PlannedErasure:
    """Read everything that is about some targets, up to a head."""
    refuse_forked(Streams(connection), stream.id, targets.ids[0])
    targets = msgspec.structs.replace(targets, before_seq=head.next_seq)
    observed = sorted(_observed(Observations(connection, segments, stream, head), targets))
    seqs = [entry.seq for entry in observed]
    published = Published(connection).following(stream.id, head.first_seq, head.next_seq)
    held = [(placed, count) for placed in published if (count := _within(seqs, placed))]
    observation_ids = frozenset(entry.observation.id.encode() for entry in observed)
    answers = Idempotency(connection).mentioning(user_id, [id.encode() for id in targets.ids], observation_ids, 0)
    brought = sorted({source for entry in observed if (source := entry.observation.source_id) is not None})
    plan = ErasurePlan(
        ids=list(targets.ids),
        observations=len(seqs),
        log_rows=_log_rows(connection, stream, head, targets),
        segments=[AffectedObject(placed.segment.name, placed.segment.bytes, count) for placed, count in held],
        companions=_companions(connection, stream, [placed for placed, _ in held]),
        states=[AffectedObject(state.name, state.bytes) for state in States(connection).listed(stream.id)],
        sources=brought,
        idempotency_answers=len(answers),
    )
    is_left = partial(_is_left, connection, segments, stream, head)
    emptied = emptied_sources(connection, user_id, brought, stream, set(seqs), is_left)
    return PlannedErasure(plan, targets, head, seqs, emptied, answers, observation_ids, now_us)


def emptied_sources(
    connection: Connection,
    user_id: str,
    sources: Collection[str],
    stream: Stream,
    gone: set[int],
    is_left: Callable[[Collection[int]], bool] = bool,
) -> dict[str, list[SourceRange]]:
    """The places of some sources of which nothing is left without some observations.

    ``is_left`` says whether some other entries of a place are still there.
    """
    places = {source: Sources(connection).ranges(user_id, source) for source in sources}
    return {
        source: [
            source_range
            for source_range in ranges
            if source_range.stream == stream.id
            and not is_left(
                [
                    seq
                    for seq in range(source_range.first_seq, source_range.first_seq + source_range.count)
                    if seq not in gone
                ]
            )
        ]
        for source, ranges in places.items()
    }


def _is_left(
    connection: Connection, segments: Callable[[], Segments], stream: Stream, head: Head, seqs: Collection[int]
) -> bool:
    """Whether one of some entries is still there, and was not erased earlier."""
    events = Events(connection, segments, DecodedCache(0), stream, head)
    retained = (seq for seq in seqs if head.first_seq <= seq < head.next_seq)
    return any(decode(events.get([seq])[seq].payload).kind != "erased" for seq in retained)


def _observed(observations: Observations, targets: Targets) -> Iterator[Observed]:
    for key in targets.keys:
        yield from (observed for observed in observations.of(key) if targets.take(observed.seq, observed.observation))


def _within(seqs: list[int], placed: SegmentObject) -> int:
    return sum(placed.segment.first_seq <= seq < placed.segment.end_seq for seq in seqs)


def _log_rows(connection: Connection, stream: Stream, head: Head, targets: Targets) -> int:
    wal = Wal(connection)
    return len({row.seq for key in targets.keys for row in wal.scan_key(stream.id, key, 0, head.next_seq)})


def _companions(connection: Connection, stream: Stream, held: list[SegmentObject]) -> list[AffectedObject]:
    return [
        AffectedObject(companion.name, sum(part.bytes for part in companion.parts.values()))
        for companion in Companions(connection).listed(stream.id)
        if any(
            companion.first_seq < placed.segment.end_seq and placed.segment.first_seq < companion.end_seq
            for placed in held
        )
    ]
