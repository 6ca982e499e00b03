"""The sweeper: expiry, retention, persisted access times, and removal of the rows of deleted streams.

Each sweep is a few small operations for the writer, bounded in rows, so that appends never wait long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from headrace.engine.log import read as reading
from headrace.engine.log.append import dedupe_horizon
from headrace.engine.log.batch import Batch
from headrace.engine.log.catalog import AppendHooks
from headrace.engine.log.forks import read_by_forks
from headrace.engine.log.lifecycle import Delete, apply, make_done_callback
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Head, Stream
from headrace.engine.log.writer import Writer
from headrace.engine.runtime.background import BackgroundLoop
from headrace.errors import HeadraceError
from headrace.storage.background_requests import KEPT, KEPT_US, Verifications
from headrace.storage.dedupe import Dedupe, Idempotency
from headrace.storage.published import Published, SegmentObject
from headrace.storage.streams import DELETED, LIVE, Streams
from headrace.storage.wal import Entries, Wal
from headrace.types import NEVER_US, Steps

SWEEP_S = 10.0
_STREAMS = 500
PURGE_ROWS = 2_000
#: How long rows of deleted streams are kept: a recovery tells by them what was deleted from what was lost.
REMEMBER_DELETED_US = 86_400_000_000
#: For how long a request is answered again as it was, and how many answers of how many bytes are kept for that.
ANSWERED_US, ANSWERED, ANSWERED_BYTES = 7 * 86_400_000_000, 50_000, 256 * 1024 * 1024


def store_deadlines(batch: Batch, deadlines: list[tuple[Stream, int | None]]) -> None:
    """Store the sliding windows of streams that were accessed."""
    for stream, deadline_us in deadlines:
        if batch.draft(stream).state == LIVE:
            batch.streams.update(stream.id, deadline_us=deadline_us)


def purge(batch: Batch) -> int:
    """Remove some rows of deleted streams, and tombstones and verifications that are a day old; returns how many.

    Answers go that are older than requests are repeated, or too many.
    """
    removed = batch.streams.purge(PURGE_ROWS)
    removed += batch.streams.drop_tombstones(batch.now_us - REMEMBER_DELETED_US, PURGE_ROWS)
    Verifications(batch.connection).forget(batch.now_us - KEPT_US, KEPT)
    return removed + Idempotency(batch.connection).forget(
        batch.now_us - ANSWERED_US, ANSWERED, ANSWERED_BYTES, PURGE_ROWS
    )


def retain(batch: Batch, stream: Stream) -> None:
    """Move the first retained entry of a stream forward; the rows before it go in a later commit.

    A reader that looked at the old head has finished by then, so it never finds a gap.
    """
    head = batch.draft(stream)
    if head.state == DELETED:
        return
    first = first_retained(batch.wal, batch.published, stream, head, batch.now_us)
    if first.seq > head.first_seq:
        head.first_seq, head.first_bytes = first
        batch.published.mark(stream.id, batch.now_us)
    batch.save_head(stream, first_seq=head.first_seq, first_bytes=head.first_bytes)


def trim(batch: Batch, stream: Stream) -> int:
    """Remove some rows before the first retained entry, except those that forks still read; returns how many."""
    start = removed = 0
    for first, end in [*sorted(read_by_forks(batch.streams, stream.id)), (stream.head.first_seq, 0)]:
        until = min(first, stream.head.first_seq)
        if start < until and removed < PURGE_ROWS:
            removed += batch.wal.trim(stream.id, start, until, PURGE_ROWS - removed)
        start = max(start, end)
    return removed


def forget_dedupe_keys(batch: Batch, stream: Stream) -> int:
    """Remove some keys of events that are no longer remembered; returns how many."""
    head = batch.draft(stream)
    if head.registry is None or head.registry.hook is None or head.state == DELETED:
        return 0
    since, since_us = dedupe_horizon(head.registry.hook, head.next_seq, batch.now_us)
    return Dedupe(batch.connection).forget(stream.id, since, since_us, PURGE_ROWS)


class RetainedStart(NamedTuple):
    """Where a stream begins, and the payload bytes before that."""

    seq: int
    bytes: int


def first_retained(wal: Wal, published: Published, stream: Stream, head: Head, now_us: int) -> RetainedStart:
    """Where the retention rule lets a stream begin: whole append requests go, of published ones whole segments."""
    start = RetainedStart(head.first_seq, head.first_bytes)
    hook = None if head.registry is None else head.registry.hook
    if hook is not None and hook.lifetimes_ms is not None:
        start = max(start, _first_kept(wal, published, stream, head, hook.lifetimes_ms, now_us))
    elif stream.retention_age_us is not None:
        start = max(start, _first_since(wal, published, stream, head, now_us - stream.retention_age_us))
    if stream.retention_bytes is not None and head.bytes - head.first_bytes > stream.retention_bytes:
        least = head.bytes - stream.retention_bytes
        first_kept, is_kept = (
            partial(published.first_beyond, size=least),
            lambda row: row.total_bytes - len(row.body) >= least,
        )
        start = max(start, _first(wal, published, stream, head, first_kept, is_kept))
    return start


def _first_since(wal: Wal, published: Published, stream: Stream, head: Head, since_us: int) -> RetainedStart:
    """Where a stream begins if it keeps what was appended since a moment."""
    kept, reached = partial(published.first_from, us=since_us), lambda row: row.append_us >= since_us
    return _first(wal, published, stream, head, kept, reached)


def _first_kept(wal: Wal, published: Published, stream: Stream, head: Head, steps: Steps, now_us: int) -> RetainedStart:
    """Where a stream begins whose events are kept for as long as was said when they came; later ones never shorter."""

    def since_us(seq: int) -> int:
        kept_ms = next(kept for since, kept in reversed(steps) if since <= seq)
        return NEVER_US if kept_ms is None else now_us - kept_ms * 1000

    def kept(owner: int) -> SegmentObject | None:
        first = published.first_from(owner, us=since_us(head.next_seq))
        start = head.next_seq if first is None else first.segment.first_seq
        segments = published.following(owner, start, head.next_seq)
        for placed in segments:
            if placed.segment.max_us >= since_us(placed.segment.end_seq - 1):
                return placed
        return None

    def reached(row: Entries) -> bool:
        return row.append_us >= since_us(row.seq + row.count - 1)

    return _first(wal, published, stream, head, kept, reached)


def _first(
    wal: Wal,
    published: Published,
    stream: Stream,
    head: Head,
    kept: Callable[[int], SegmentObject | None],
    reached: Callable[[Entries], bool],
) -> RetainedStart:
    """The first segment that is kept, or else the first row of the log for which ``reached`` holds."""
    for owner, start, end, _ in reading.owned_entries(stream, head, head.first_seq):
        placed = kept(owner)
        if placed is not None and placed.segment.first_seq < end:
            inside = placed.segment.first_seq < start
            return (
                RetainedStart(start, head.first_bytes)
                if inside
                else RetainedStart(placed.segment.first_seq, placed.segment.before_bytes)
            )
        last = published.last(owner)
        low = start if last is None else min(max(start, last.segment.end_seq), end)
        seq = reading.seek_rows(wal, owner, low, end, reached)
        row = wal.holding(owner, seq) if seq < end else None
        if row is not None:
            return RetainedStart(seq, reading.bytes_before_entry(row, seq))
    return RetainedStart(head.next_seq, head.bytes)


class Sweeper:
    """Expires streams, drops what is not retained, persists accesses and removes what is gone."""

    def __init__(
        self,
        *,
        writer: Writer,
        log: Log,
        streams: Streams,
        wal: Wal,
        published: Published,
        hooks: AppendHooks,
        retain_from: Callable[[Stream], int | None],
    ) -> None:
        """``retain_from`` says from which event on a managed stream must be kept, whatever its retention rule says."""
        self._writer = writer
        self._log = log
        self._catalog = log.catalog
        self._streams = streams
        self._wal = wal
        self._published = published
        self._hooks = hooks
        self.retain_from = retain_from
        self._loop = BackgroundLoop("headrace.engine", self._sweep_again, failed="a sweep failed", retry_s=SWEEP_S)

    def start(self) -> None:
        """Sweep every few seconds from now on."""
        self._loop.start(after_s=SWEEP_S)

    async def stop(self) -> None:
        """Stop sweeping."""
        await self._loop.stop(timeout_s=0)

    async def sweep(self) -> None:
        """Expire, retain, persist accesses and purge, once."""
        # What frees space comes first, and a full disk that stops one step does not stop the others.
        for step in (self._purge, self._persist_accesses, self._expire, self._retain, self._purge):
            with contextlib.suppress(HeadraceError):
                await step()
        await asyncio.to_thread(self._writer.reserve.restock)

    async def _sweep_again(self) -> float:
        await self.sweep()
        return SWEEP_S

    async def _purge(self) -> None:
        await self._remove_all(purge)

    async def _persist_accesses(self) -> None:
        accessed = self._catalog.accessed
        for _ in range(0, len(accessed), _STREAMS):
            streams = tuple(islice(accessed, _STREAMS))
            deadlines = [(stream, stream.deadline_us) for stream in streams]
            await apply(self._writer, partial(store_deadlines, deadlines=deadlines), is_chore=True, pinned=streams)
            # Until then they stay in memory, where alone it is known that they were accessed.
            for stream, deadline_us in deadlines:
                if stream in accessed:
                    del accessed[stream]
                    if stream.deadline_us != deadline_us:
                        accessed[stream] = None

    async def _expire(self) -> None:
        while True:
            rows = self._streams.due(self._log.clock.now_us(), _STREAMS)
            streams = [self._catalog.find(row.name) for row in rows]
            living = [stream for stream in streams if stream is not None and stream.head.state == LIVE]
            over = [stream for stream in living if self._catalog.expired(stream)]
            outcomes = await asyncio.gather(*(self._expire_one(stream) for stream in over), return_exceptions=True)
            for failure in filter(None, outcomes):
                raise failure
            # The others were accessed since their deadline was stored, and would hide those that come later.
            self._catalog.accessed.update(dict.fromkeys(set(living) - set(over)))
            await self._persist_accesses()
            if len(rows) < _STREAMS:
                break

    async def _expire_one(self, stream: Stream) -> None:
        settled: asyncio.Future[Delete] = asyncio.get_running_loop().create_future()
        self._log.delete(stream, make_done_callback(settled), deadline_us=stream.deadline_us)
        if (error := (await settled).error) is not None:
            raise error
        self._log.counters.expired += stream.head.state != LIVE  # an access may have come before the commit

    async def _retain(self) -> None:
        after = 0
        while rows := self._streams.with_retention(after, _STREAMS):
            for row in rows:
                after = row.id
                if not self._hooks.is_retained(row):
                    continue
                stream = self._catalog.find(row.name)
                if stream is not None and stream.id == row.id:
                    await self._retain_one(stream)

    async def _retain_one(self, stream: Stream) -> None:
        retain_from = self.retain_from(stream) if stream.managed else None
        first = first_retained(self._wal, self._published, stream, stream.head, self._log.clock.now_us())
        if first.seq > stream.head.first_seq and (retain_from is None or first.seq <= retain_from):
            await self._apply(retain, stream)
        if self._wal.starts_before(stream.id, stream.head.first_seq):
            await self._remove_all(trim, stream)
        hook = None if stream.head.registry is None else stream.head.registry.hook
        if hook is not None and hook.deduplicates:
            await self._remove_all(forget_dedupe_keys, stream)

    async def _remove_all(self, remove: Callable[..., int], *streams: Stream) -> None:
        """Remove rows in one commit after the other, until one finds fewer than it may remove."""
        while await self._apply(remove, *streams) >= PURGE_ROWS:
            await asyncio.sleep(0)

    async def _apply(self, perform: Callable[..., Any], *streams: Stream) -> Any:
        return await apply(
            self._writer, lambda batch: perform(batch, *streams), is_chore=True, frees=True, pinned=streams
        )
