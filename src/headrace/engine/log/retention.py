"""What time does to streams: expiry, retention, persisted accesses, and the removal of what is gone.

Each sweep is a few small operations for the writer, bounded in rows, so that appends never wait long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from headrace.engine.features.deduping import horizon
from headrace.engine.log import read as reading
from headrace.engine.log.batch import Batch
from headrace.engine.log.forks import read_by_forks
from headrace.engine.log.lifecycle import Chore
from headrace.engine.log.stream import Head, Stream
from headrace.storage.dedupe import Dedupe
from headrace.storage.idempotency import Idempotency
from headrace.storage.published import Placed, Published
from headrace.storage.streams import DELETED, LIVE
from headrace.storage.verifications import KEPT, KEPT_US, Verifications
from headrace.storage.wal import Entries, Wal
from headrace.types import NEVER_US, Steps

PURGE_ROWS = 2_000
#: How long rows of deleted streams are kept: a recovery tells by them what was deleted from what was lost.
REMEMBER_DELETED_US = 86_400_000_000
#: For how long a request is answered again as it was, and how many answers of how many bytes are kept for that.
ANSWERED_US, ANSWERED, ANSWERED_BYTES = 7 * 86_400_000_000, 50_000, 256 * 1024 * 1024


class PersistAccesses(Chore):
    """Persists the sliding windows of streams that were accessed."""

    def __init__(self, streams: tuple[Stream, ...], done: Callable[[Any], None]) -> None:
        super().__init__(done, pinned=streams, size=50 * len(streams))
        self.deadlines = [(stream, stream.deadline_us) for stream in streams]

    def perform(self, batch: Batch) -> None:
        """Store the deadlines."""
        for stream, deadline_us in self.deadlines:
            if batch.draft(stream).state == LIVE:
                batch.streams.update(stream.id, deadline_us=deadline_us)


class Purge(Chore):
    """Removes rows of deleted streams, tombstones and verifications that are a day old, and answers that are older
    than requests are repeated, or too many.
    """

    frees = True
    removed = 0

    def perform(self, batch: Batch) -> None:
        """Remove one slice."""
        self.removed = batch.streams.purge(PURGE_ROWS)
        self.removed += batch.streams.drop_tombstones(batch.now_us - REMEMBER_DELETED_US, PURGE_ROWS)
        Verifications(batch.connection).forget(batch.now_us - KEPT_US, KEPT)
        self.removed += Idempotency(batch.connection).forget(
            batch.now_us - ANSWERED_US, ANSWERED, ANSWERED_BYTES, PURGE_ROWS
        )


class Retain(Chore):
    """Moves the first retained entry of a stream forward; the rows before it go in a later commit.

    A reader that looked at the old head has finished by then, so it never finds a gap.
    """

    frees = True

    def __init__(self, stream: Stream, done: Callable[[Any], None]) -> None:
        super().__init__(done, pinned=(stream,), size=100)
        self.stream = stream

    def perform(self, batch: Batch) -> None:
        """Apply the rule to what the stream holds now."""
        stream, head = self.stream, batch.draft(self.stream)
        if head.state == DELETED:
            return
        batch.flush()
        first = first_retained(batch.wal, batch.published, stream, head, batch.now_us)
        if first.seq > head.first_seq:
            head.first_seq, head.first_bytes = first
            batch.published.mark(stream.id, batch.now_us)
        batch.save_head(stream, first_seq=head.first_seq, first_bytes=head.first_bytes)


class Trim(Chore):
    """Removes rows before the first retained entry, except those that forks still read."""

    frees = True

    def __init__(self, stream: Stream, done: Callable[[Any], None]) -> None:
        super().__init__(done, pinned=(stream,), size=100)
        self.stream = stream
        self.removed = 0

    def perform(self, batch: Batch) -> None:
        """Remove one slice."""
        batch.flush()
        start = self.removed = 0
        for first, end in sorted(read_by_forks(batch.streams, self.stream.id)):
            self._trim(batch, start, min(first, self.stream.head.first_seq))
            start = max(start, end)
        self._trim(batch, start, self.stream.head.first_seq)

    def _trim(self, batch: Batch, start: int, end: int) -> None:
        if start < end and self.removed < PURGE_ROWS:
            self.removed += batch.wal.trim(self.stream.id, start, end, PURGE_ROWS - self.removed)


class ForgetKeys(Chore):
    """Forgets keys of events that are no longer remembered."""

    frees = True

    def __init__(self, stream: Stream, done: Callable[[Any], None]) -> None:
        super().__init__(done, pinned=(stream,), size=100)
        self.stream = stream
        self.removed = 0

    def perform(self, batch: Batch) -> None:
        """Forget one slice."""
        head = batch.draft(self.stream)
        if head.registry is None or head.registry.kind is None or head.state == DELETED:
            return
        since, since_us = horizon(head.registry.kind, head.next_seq, batch.now_us)
        self.removed = Dedupe(batch.connection).forget(self.stream.id, since, since_us, PURGE_ROWS)


class Start(NamedTuple):
    """Where a stream begins, and the payload bytes before that."""

    seq: int
    bytes: int


def first_retained(wal: Wal, published: Published, stream: Stream, head: Head, now_us: int) -> Start:
    """Where the retention rule lets a stream begin: whole append requests go, of published ones whole segments."""
    start = Start(head.first_seq, head.first_bytes)
    kind = None if head.registry is None else head.registry.kind
    if kind is not None and kind.kept is not None:
        start = max(start, _first_kept(wal, published, stream, head, kind.kept, now_us))
    elif stream.retention_age_us is not None:
        start = max(start, _first_since(wal, published, stream, head, now_us - stream.retention_age_us))
    if stream.retention_bytes is not None and head.bytes - head.first_bytes > stream.retention_bytes:
        least = head.bytes - stream.retention_bytes
        kept, reached = (
            partial(published.first_beyond, size=least),
            lambda row: row.total_bytes - len(row.body) >= least,
        )
        start = max(start, _first(wal, published, stream, head, kept, reached))
    return start


def _first_since(wal: Wal, published: Published, stream: Stream, head: Head, since_us: int) -> Start:
    """Where a stream begins if it keeps what was appended since a moment."""
    kept, reached = partial(published.first_from, us=since_us), lambda row: row.append_us >= since_us
    return _first(wal, published, stream, head, kept, reached)


def _first_kept(wal: Wal, published: Published, stream: Stream, head: Head, steps: Steps, now_us: int) -> Start:
    """Where a stream begins whose events are kept for as long as was said when they came; later ones never shorter."""

    def since_us(seq: int) -> int:
        kept_ms = next(kept for since, kept in reversed(steps) if since <= seq)
        return NEVER_US if kept_ms is None else now_us - kept_ms * 1000

    def kept(owner: int) -> Placed | None:
        first = published.first_from(owner, us=since_us(head.next_seq))
        start = head.next_seq if first is None else first.segment.first_seq
        segments = published.following(owner, start, head.next_seq)
        return next((one for one in segments if one.segment.max_us >= since_us(one.segment.end_seq - 1)), None)

    def reached(row: Entries) -> bool:
        return row.append_us >= since_us(row.seq + row.count - 1)

    return _first(wal, published, stream, head, kept, reached)


def _first(
    wal: Wal,
    published: Published,
    stream: Stream,
    head: Head,
    kept: Callable[[int], Placed | None],
    reached: Callable[[Entries], bool],
) -> Start:
    """The first segment that is kept, or else the first row of the log for which ``reached`` holds."""
    for owner, start, end, _ in reading.owned(stream, head, head.first_seq):
        placed = kept(owner)
        if placed is not None and placed.segment.first_seq < end:
            inside = placed.segment.first_seq < start
            return (
                Start(start, head.first_bytes)
                if inside
                else Start(placed.segment.first_seq, placed.segment.before_bytes)
            )
        last = published.last(owner)
        low = start if last is None else min(max(start, last.segment.end_seq), end)
        seq = reading.seek_rows(wal, owner, low, end, reached)
        row = wal.holding(owner, seq) if seq < end else None
        if row is not None:
            return Start(seq, reading.bytes_within(row, seq))
    return Start(head.next_seq, head.bytes)
