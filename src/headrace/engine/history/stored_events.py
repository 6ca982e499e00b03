"""Stored events by sequence number, from segments or from rows of the log, for threads.

What was committed stays the same while it moves from the log into a segment, so that each question may look anew.
Only retention takes events away: then ``EventsMoved`` is raised, and the caller begins again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.engine.log.read import OwnedEntries, owned_entries
from headrace.engine.log.stream import Head, Stream
from headrace.errors import ObjectMissing
from headrace.format.decoded_columns import LruCache
from headrace.format.segment import layout
from headrace.format.segment.row_group import AppendRun, RowGroupBuilder
from headrace.reduce.states.definition import EventRun
from headrace.reduce.states.fold import runs_of_batch
from headrace.schema.entries import entries_of
from headrace.storage.database import Connection
from headrace.storage.published import Published, SegmentObject
from headrace.storage.wal import Entries, Wal

if TYPE_CHECKING:
    from headrace.storage.segments import Segments


#: At most so many events, and about so much of their payload, are read together.
CHUNK_ROWS, CHUNK_BYTES = 65_536, 16 * 1024 * 1024
_OVERHEAD = 200
#: Of a payload so many events are read first, then twice as many.
_FIRST_GUESS = 1_024


class EventsMoved(Exception):
    """Events are not retained any more, or their stream is gone."""


class Event(NamedTuple):
    """One stored event: the schema version it was appended under, and its payload."""

    version: int
    payload: bytes


class Chunk(NamedTuple):
    """Consecutive events in one segment, or in rows of the log where ``placed`` is None."""

    owner: int
    start: int
    stop: int
    placed: SegmentObject | None


class Events:
    """The events of one stream up to one head, through one connection; for one thread at a time."""

    def __init__(
        self, connection: Connection, segments: Callable[[], Segments], recent: LruCache, stream: Stream, head: Head
    ) -> None:
        self._connection = connection
        self._wal, self._published = Wal(connection), Published(connection)
        self._segments = segments
        self._recent = recent
        self._stream = stream
        self._owned = list(owned_entries(stream, head, head.first_seq))
        self.fetched_bytes = 0

    def last_chunk(self, start: int, stop: int) -> Chunk:
        """Return the last events of a range, as many as are read together."""
        part = self._part(stop - 1)
        start = max(start, part.start, stop - CHUNK_ROWS)
        with self._transaction():
            placed = self._published.holding(part.owner, stop - 1)
            if placed is not None:
                start = max(start, placed.segment.first_seq, stop - _events_at_once(placed))
                return Chunk(part.owner, start, stop, placed)
            start = max(start, self._published.published_until(part.owner))
            while stop - start > 1 and self._log_bytes(part.owner, start, stop) > CHUNK_BYTES:
                start += (stop - start) // 2
            return Chunk(part.owner, start, stop, None)

    def first_chunk(self, start: int, stop: int) -> Chunk:
        """Return the first events of a range, as many as are read together."""
        part = self._part(start)
        stop = min(stop, part.end, start + CHUNK_ROWS)
        with self._transaction():
            placed = self._published.holding(part.owner, start)
            if placed is not None:
                stop = min(stop, placed.segment.end_seq, start + _events_at_once(placed))
                return Chunk(part.owner, start, stop, placed)
            while stop - start > 1 and self._log_bytes(part.owner, start, stop) > CHUNK_BYTES:
                stop -= (stop - start) // 2
            return Chunk(part.owner, start, stop, None)

    def batches(self, chunk: Chunk) -> Iterator[Any]:
        """The rows of a chunk as Arrow record batches, in the columns of a segment."""
        if chunk.placed is None:
            with self._transaction():
                rows = list(self._wal.scan(chunk.owner, chunk.start, chunk.stop))
            if rows and rows[0].seq <= chunk.start and rows[-1].seq + rows[-1].count >= chunk.stop:
                yield from _batches_of_rows(rows, chunk.start, chunk.stop, is_json=self._stream.is_json)
                return
            chunk = self._find_sealed(chunk)
        assert chunk.placed is not None
        with self._segments().open(chunk.placed.key, chunk.placed.segment) as reader:
            self.fetched_bytes += chunk.placed.segment.bytes
            yield from reader.batches(chunk.start, chunk.stop)

    def runs(self, start: int, stop: int, run_bytes: int) -> Iterator[EventRun]:
        """The events of a range in order, in runs of about so much payload."""
        while start < stop:
            chunk = self.first_chunk(start, stop)
            for batch in self.batches(chunk):
                yield from runs_of_batch(batch, run_bytes)
            start = chunk.stop

    def get(self, seqs: Iterable[int]) -> dict[int, Event]:
        """Return some events; those used last are cached."""
        events: dict[int, Event] = {}
        for seq in sorted(seqs):
            name = self._stream.incarnation, seq
            event: Event | None = self._recent.get(name)
            if event is None:
                event = self._read(seq)
                self._recent.put(name, event, len(event.payload) + _OVERHEAD)
            events[seq] = event
        return events

    def appended_us(self, seq: int) -> int:
        """When an event was appended, or the first of the segment that holds it."""
        part = self._part(seq)
        with self._transaction():
            placed = self._published.holding(part.owner, seq)
            if placed is not None:
                return placed.segment.min_us
            return self._row(part.owner, seq).append_us

    def published_until(self) -> int:
        """The sequence number before which all events are in segments."""
        with self._transaction():
            return max(
                (min(part.end, max(part.start, self._published.published_until(part.owner))) for part in self._owned),
                default=0,
            )

    def segments_in(self, start: int, stop: int) -> int:
        """How many segments hold events of a range."""
        count = 0
        with self._transaction():
            for part in self._owned:
                low, high = max(start, part.start), min(stop, part.end)
                if low < high:
                    count += len(self._published.following(part.owner, low, high))
        return count

    def payload_bytes(self, start: int, stop: int) -> int:
        """About how much payload the events of a range have."""
        with self._transaction():
            return sum(self._part_bytes(part, max(start, part.start), min(stop, part.end)) for part in self._owned)

    def end_for_bytes(self, start: int, stop: int, size: int) -> int:
        """Where events from ``start`` on end that have at most about so much payload; one at least, all at most."""
        count = _FIRST_GUESS
        while start + count < stop and self.payload_bytes(start, start + count) <= size:
            count *= 2
        ends = range(start + 1, min(stop, start + count) + 1)
        return start + max(1, bisect_right(ends, size, key=lambda end: self.payload_bytes(start, end)))

    def _part_bytes(self, part: OwnedEntries, start: int, stop: int) -> int:
        size = 0
        for placed in self._published.following(part.owner, start, stop) if start < stop else ():
            segment = placed.segment
            rows = min(stop, segment.end_seq) - start
            size += segment.payload_bytes * rows // segment.count
            start = segment.end_seq
        return size + (self._log_bytes(part.owner, start, stop) if start < stop else 0)

    def _read(self, seq: int) -> Event:
        part = self._part(seq)
        with self._transaction():
            placed = self._published.holding(part.owner, seq)
            if placed is None:
                row = self._row(part.owner, seq)
                return Event(row.version, bytes(memoryview(entries_of(row.body)[seq - row.seq])))
        with self._segments().open(placed.key, placed.segment) as reader:
            self.fetched_bytes += placed.segment.bytes
            version, _, body = reader.read(seq, seq + 1, 1).parts[0]
        return Event(version, bytes(body))

    def _part(self, seq: int) -> OwnedEntries:
        return next(part for part in self._owned if part.start <= seq < part.end)

    def _row(self, owner: int, seq: int) -> Entries:
        row = self._wal.holding(owner, seq)
        if row is None:
            raise EventsMoved(f"event {seq} is gone")
        return row

    def _log_bytes(self, owner: int, start: int, stop: int) -> int:
        """Payload of a range in rows of the log; of the first and the last row, their share of it."""
        first, last = self._row(owner, start), self._row(owner, stop - 1)
        before = len(first.body) * (start - first.seq) // first.count
        behind = len(last.body) * (last.seq + last.count - stop) // last.count
        return last.total_bytes - first.total_bytes + len(first.body) - before - behind

    def _find_sealed(self, chunk: Chunk) -> Chunk:
        """The chunk with the segment into which its events were sealed meanwhile; raises EventsMoved."""
        with self._transaction():
            placed = self._published.holding(chunk.owner, chunk.start)
        if placed is None or placed.segment.end_seq < chunk.stop:
            raise EventsMoved(f"events from {chunk.start} on have moved")
        return chunk._replace(placed=placed)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """One moment of the database; short, for the log cannot be trimmed meanwhile."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")


def _events_at_once(placed: SegmentObject) -> int:
    """How many events of a segment are read together."""
    return max(1, placed.segment.count * CHUNK_BYTES // max(1, placed.segment.payload_bytes))


def _batches_of_rows(rows: list[Entries], start: int, stop: int, *, is_json: bool) -> Iterator[Any]:
    gathering = RowGroupBuilder(layout.schema(is_json), start, entries_of)
    for row in rows:
        keys = row.key if row.keys is None else msgspec.json.decode(row.keys, type=list[str | None])
        run = AppendRun(row.seq, row.append_us, row.version, keys, entries_of(row.body) if is_json else [row.body])
        gathering.extend(run, max(0, start - row.seq), min(row.count, stop - row.seq), 0)
    yield from gathering.table().to_batches()


class MissingObjects:
    """The objects that were missing so far while one request was answered."""

    def __init__(self) -> None:
        self._objects: set[object] = set()

    def note(self, reason: ObjectMissing) -> None:
        """Remember an object; raises where it was missed before, since then nothing has taken its place."""
        key = reason.facts.get("object")
        if key in self._objects:
            raise reason
        self._objects.add(key)
