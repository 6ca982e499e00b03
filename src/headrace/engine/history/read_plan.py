"""Read plans: where the events of a stream are at one moment, for readers outside the server; for threads.

A range is what one reader may read by itself: it lies in one segment, or in the log. Events that are not in the store
yet, and those that only the server may show, are fetched from it as rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from headrace.engine.history.stored_events import Events, EventsMoved, MissingObjects
from headrace.engine.log.read import OwnedEntries, owned_entries
from headrace.engine.log.stream import Head, Stream
from headrace.errors import ObjectMissing, OffsetGone
from headrace.format.decoded_columns import LruCache
from headrace.format.segment import layout
from headrace.storage.database import Connection
from headrace.storage.published import Published, SegmentObject
from headrace.storage.wal import Wal

if TYPE_CHECKING:
    from headrace.storage.segments import Segments


class PlannedRange(NamedTuple):
    """Consecutive events: in one segment, or where ``placed`` is None to be fetched from the server."""

    first_seq: int
    end_seq: int
    #: Of the whole object, or about those of the payload.
    bytes: int
    placed: SegmentObject | None


def plan_ranges(
    connection: Connection, stream: Stream, head: Head, start: int, stop: int, limit: int
) -> list[PlannedRange]:
    """The first ranges of the events from ``start`` to ``stop``, in order and without gaps, at one moment."""
    ranges: list[PlannedRange] = []
    connection.execute("BEGIN")
    try:
        for part in owned_entries(stream, head, start):
            if part.start < stop and len(ranges) < limit:
                ranges += _ranges_of_part(connection, part, min(part.end, stop), limit - len(ranges))
    finally:
        connection.execute("COMMIT")
    return ranges[:limit]


def _ranges_of_part(connection: Connection, part: OwnedEntries, stop: int, limit: int) -> Iterator[PlannedRange]:
    position = part.start
    for placed in Published(connection).following(part.owner, position, stop, limit):
        end = min(placed.segment.end_seq, stop)
        yield PlannedRange(position, end, placed.segment.bytes, placed)
        position = end
        limit -= 1
    if position < stop and limit:
        yield PlannedRange(position, stop, _log_bytes(Wal(connection), part.owner, position, stop), None)


def _log_bytes(wal: Wal, owner: int, start: int, stop: int) -> int:
    """About how much payload rows of the log hold."""
    first, last = wal.holding(owner, start), wal.holding(owner, stop - 1)
    return 0 if first is None or last is None else last.total_bytes - first.total_bytes + len(first.body)


class FetchedRows(NamedTuple):
    """Some events in the columns of a segment, as an Arrow stream, and where the next ones begin."""

    body: bytes
    end_seq: int


def fetch_rows(
    connection: Connection, segments: Callable[[], Segments], stream: Stream, head: Head, start: int, stop: int
) -> FetchedRows:
    """The first rows of a range, as many as are read together; raises OffsetGone where they are not retained."""
    missing = MissingObjects()
    while True:
        events = Events(connection, segments, LruCache(0), stream, head)
        try:
            return _encode_rows(events, stream, start, stop)
        except EventsMoved as reason:
            raise OffsetGone("the entries here are no longer retained") from reason
        except ObjectMissing as reason:
            missing.note(reason)  # another segment may have taken its place


def _encode_rows(events: Events, stream: Stream, start: int, stop: int) -> FetchedRows:
    sink = pa.BufferOutputStream()
    end = start
    with pa.ipc.new_stream(sink, layout.schema(stream.is_json)) as writer:
        if start < stop:
            chunk = events.first_chunk(start, stop)
            end = chunk.stop
            for batch in events.batches(chunk):
                writer.write_batch(batch)
    return FetchedRows(sink.getvalue().to_pybytes(), end)
