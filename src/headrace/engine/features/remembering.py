"""Keys of events after a recovery: read from the events again, as far back as their sources remember."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headrace.engine.features.deduping import horizon
from headrace.engine.features.recovering import DEDUPE_DUE, managed
from headrace.engine.log.batch import Batch
from headrace.engine.log.stream import Stream
from headrace.reduce.states.fold import runs_of_batch
from headrace.storage.database import Connection
from headrace.storage.dedupe import Dedupe
from headrace.storage.published import Published

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

_SLICE_BYTES = 1024 * 1024


def remember(
    batch: Batch, find: Callable[[str], Stream | None], connection: Connection, segments: Callable[[], Segments]
) -> None:
    """Fill in what a recovery could not bring, for every source whose events are stored once."""
    dedupe = Dedupe(batch.connection)
    for row in managed(batch):
        stream = find(row.name)
        if stream is not None:
            dedupe.save(_keys(stream, connection, segments, batch.now_us))
    batch.streams.set_meta(DEDUPE_DUE, 0)


def _keys(
    stream: Stream, connection: Connection, segments: Callable[[], Segments], now_us: int
) -> Iterator[tuple[int, str, int, int]]:
    from headrace.engine.history.stored_events import Events
    from headrace.format.segment.decoded import DecodedCache

    head = stream.head
    kind = None if head.registry is None else head.registry.kind
    if kind is None or not kind.dedupes:
        return
    since, since_us = horizon(kind, head.next_seq, now_us)
    placed = Published(connection).first_from(stream.id, since_us)
    at = max(head.first_seq, since, head.published_seq if placed is None else placed.segment.first_seq)
    events = Events(connection, segments, DecodedCache(0), stream, head)
    while at < head.next_seq:
        chunk = events.first_chunk(at, head.next_seq)
        for batch in events.batches(chunk):
            for told in runs_of_batch(batch, _SLICE_BYTES):
                for number, key in enumerate(kind.unique(told.body)):
                    if key is not None and told.times_us[number] > since_us:
                        yield stream.id, key, told.first_seq + number, told.times_us[number]
        at = chunk.stop
