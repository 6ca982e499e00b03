"""What is known of entities after a recovery: read from their observations again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING

from headrace.engine.entities.kind import dedupe_key
from headrace.engine.entities.types.recovering import ENTITIES_DUE, managed
from headrace.engine.entities.write import appending, relating
from headrace.engine.log.batch import Batch
from headrace.engine.log.stream import Stream
from headrace.extract.erasure_mask import Targets, load
from headrace.reduce.states.fold import runs_of_batch
from headrace.schema.entity.observation import decode
from headrace.schema.entries import entries_of
from headrace.storage.database import Connection
from headrace.storage.dedupe import Dedupe
from headrace.storage.erasures import Erasures

if TYPE_CHECKING:
    from headrace.reduce.states.definition import EventRun
    from headrace.storage.segments import Segments

_SLICE_BYTES = 1024 * 1024
#: Observations that are about entities themselves; they are not stored once, but decided anew each time.
_RELATIONS = ("merge", "split", "undo")


def remember(
    batch: Batch, find: Callable[[str], Stream | None], connection: Connection, segments: Callable[[], Segments]
) -> None:
    """Fill in what a recovery could not bring: entities, their sources and aliases, and what is stored once."""
    for row in managed(batch):
        stream = find(row.name)
        if stream is not None:
            batch.streams.forget_entities(stream.id)
            erasures = Erasures(batch.connection)
            running = [load(one.targets) for one in erasures.running(stream.id)]
            erased = {id: one.before_seq for one in erasures.of_stream(stream.id) for id in load(one.targets).ids}
            for told in _told(stream, connection, segments):
                _note(batch.connection, stream.id, told, running, erased)
    batch.streams.set_meta(ENTITIES_DUE, 0)


def _told(stream: Stream, connection: Connection, segments: Callable[[], Segments]) -> Iterator[EventRun]:
    """All observations of a type."""
    from headrace.engine.history.stored_events import Events
    from headrace.format.segment.decoded import DecodedCache

    head = stream.head
    events, at = Events(connection, segments, DecodedCache(0), stream, head), head.first_seq
    while at < head.next_seq:
        chunk = events.first_chunk(at, head.next_seq)
        for batch in events.batches(chunk):
            yield from runs_of_batch(batch, _SLICE_BYTES)
        at = chunk.stop


def _note(
    connection: Connection, stream: int, told: EventRun, running: list[Targets], erased: Mapping[str, int]
) -> None:
    """What a run of observations says, without those that are being erased, and without entities that were."""
    found = map(decode, map(bytes, entries_of(told.body)))
    numbered = zip(count(told.first_seq), told.times_us, found, strict=False)
    counting = [event for event in numbered if event[2].kind != "erased"]
    events = [event for event in counting if not any(one.take(event[0], event[2]) for one in running)]
    said = [event for event in events if event[2].kind not in _RELATIONS]
    Dedupe(connection).save((stream, dedupe_key(one.id, one.source_id), seq, at_us) for seq, at_us, one in said)
    appending.replayed(connection, stream, events, erased)
    for seq, at_us, one in events:
        if one.kind in _RELATIONS:
            relating.replayed(connection, stream, seq, at_us, one)
