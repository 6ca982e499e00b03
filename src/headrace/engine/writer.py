"""The one writer: a thread that commits everything queued, answers everyone, and repeats.

There is no clock in it. While a commit waits for the disk, new operations queue up; the next commit takes them
all. An operation checks and drafts in :meth:`Operation.perform` on the writer's thread, and is answered on
the event loop after its batch is on disk, or has failed as a whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from headrace.config import Config
from headrace.errors import Fenced, HeadraceError, Overloaded, Unavailable
from headrace.storage import database
from headrace.storage.database import Connection, DiskFull, SQLiteError
from headrace.storage.dedupe import Dedupe, First
from headrace.storage.node import EPOCH_BLOCK
from headrace.storage.notes import Notes
from headrace.storage.published import Published
from headrace.storage.registries import Registries
from headrace.storage.reserve import Reserve
from headrace.storage.streams import Streams
from headrace.storage.wal import AT_ONCE, Row, Wal
from headrace.types import Clock, rfc3339

if TYPE_CHECKING:
    from headrace.engine.stream import Head, Stream

log = logging.getLogger("headrace.writer")

_CACHED_PRODUCERS = 4096
# Enough for a commit; while it is on its way to the disk, the loop reads the next ones.
_HANDED_OVER = 32
_RESERVE_BYTES = 4 * 1024 * 1024


class Operation:
    """Something the writer does inside a commit."""

    # Defaults live on the class: most operations never set them, and the hot ones are made 30,000 times a second.
    #: Whether it waits for entries to be on disk, which has a shorter timeout than other work.
    appends = False
    #: Whether it leads to free space, so that a full disk must let it through; it may be performed twice then.
    frees = False
    size = 0
    error: HeadraceError | None = None
    submitted = 0.0
    expired = False
    settled = False

    def perform(self, batch: Batch) -> None:
        """Check and draft, on the writer's thread; raise a HeadraceError before the first write to refuse."""
        raise NotImplementedError

    def answer(self) -> None:
        """Answer, on the event loop: ``error`` says whether it failed, ``expired`` that the caller's time ran out.

        Called when the operation is settled, and before that if its time ran out.
        """
        raise NotImplementedError


class Batch:
    """One commit in the making."""

    def __init__(self, connection: Connection, streams: Streams, wal: Wal, now_us: int) -> None:
        self._connection = connection
        self._streams = streams
        self._wal = wal
        self.now_us = now_us
        self.rows: list[Row] = []
        self.heads: dict[Stream, Head] = {}
        self.producers: dict[tuple[Stream, str], tuple[int, int]] = {}
        #: Keys of events that are stored once, by stream and key.
        self.firsts: dict[tuple[int, str], First] = {}
        #: What else becomes visible once it is on disk.
        self.afterwards: list[Callable[[], None]] = []
        #: What was done, for whoever keeps account of it; None where nobody does.
        self.notes: list[str] | None = None
        self.noted = False
        self._next_epoch: int | None = None

    @property
    def connection(self) -> Connection:
        """The database, inside the transaction."""
        self._begin()
        return self._connection

    @property
    def streams(self) -> Streams:
        """The rows of streams and producers, inside the transaction."""
        self._begin()
        return self._streams

    @property
    def wal(self) -> Wal:
        """The rows of entries, inside the transaction."""
        self._begin()
        return self._wal

    def _begin(self) -> None:
        """Begin the transaction, unless someone has."""
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")

    def draft(self, stream: Stream) -> Head:
        """The head this batch is about to publish for a stream."""
        head = self.heads.get(stream)
        if head is None:
            head = self.heads[stream] = stream.head.copy()
        return head

    def save_head(self, stream: Stream, **more: object) -> None:
        """Store what the newest row of a stream knows, and more, as that row may go."""
        head = self.draft(stream)
        self.streams.update(
            stream.id,
            next_seq=head.next_seq,
            last_us=head.last_us,
            bytes=head.bytes,
            stream_seq=head.stream_seq,
            **more,
        )

    def producer(self, stream: Stream, producer: str) -> tuple[int, int] | None:
        """The epoch and last sequence number of a producer, this batch included."""
        state = self.producers.get((stream, producer)) or stream.producers.get(producer)
        return state or self.streams.producer(stream.id, producer)

    @property
    def registries(self) -> Registries:
        """The registry documents of all streams."""
        return Registries(self.connection)

    @property
    def published(self) -> Published:
        """What is known of published objects."""
        return Published(self.connection)

    def new_epoch(self) -> int:
        """An epoch that no stream has ever had, on this node or another."""
        if self._next_epoch is None:
            self._next_epoch = self.streams.meta("next_epoch")
        if self._next_epoch >= self.streams.meta("epoch_end"):
            spare = self.streams.meta("spare_epoch", -1)
            if spare < 0:
                raise Unavailable("the object store has not reserved more epochs yet", retry_after=5)
            self._next_epoch = spare
            self.streams.set_meta("epoch_end", spare + EPOCH_BLOCK)
            self.streams.set_meta("spare_epoch", -1)
        self._next_epoch += 1
        return self._next_epoch - 1

    def far_epoch(self) -> int:
        """The same for a stream of the server itself, from the far end: those of clients follow each other."""
        end = self.streams.meta("epoch_end")
        if end - 1 <= (self.streams.meta("next_epoch") if self._next_epoch is None else self._next_epoch):
            return self.new_epoch()
        self.streams.set_meta("epoch_end", end - 1)
        return end - 1

    def note(self, what: str, who: str, **facts: object) -> None:
        """Keep account of what this commit does; called once nothing can refuse it any more."""
        if self.notes is not None:
            told = {"at": rfc3339(self.now_us), "who": who, "what": what, **facts}
            self.notes.append(msgspec.json.encode(told).decode())

    def flush(self) -> None:
        """Hand what was drafted to SQLite, so that the rest of the batch can query it."""
        if self.rows:
            self.wal.insert(self.rows)
            self.rows = []
        if self.producers:
            self.streams.save_producers((s.id, p, epoch, seq) for (s, p), (epoch, seq) in self.producers.items())
        if self.firsts:
            Dedupe(self.connection).save((s, key, first.seq, first.at_us) for (s, key), first in self.firsts.items())
            self.firsts = {}
        if self.notes:
            Notes(self.connection).add(self.notes)
            self.notes = []
            self.noted = True
        if self._next_epoch is not None:
            self.streams.set_meta("next_epoch", self._next_epoch)

    def commit(self) -> None:
        """Put it on disk. A few appends and nothing else are one statement, which is a transaction by itself."""
        more = self.producers or self.firsts or self.notes or self._next_epoch is not None
        if more or self._connection.in_transaction or not 0 < len(self.rows) <= AT_ONCE:
            self.flush()
            self.connection.execute("COMMIT")
        else:
            self._wal.insert(self.rows)

    def publish(self) -> None:
        """Make the drafts visible to readers; called once they are on disk."""
        for stream, head in self.heads.items():
            stream.head = head
        for (stream, producer), state in self.producers.items():
            if len(stream.producers) >= _CACHED_PRODUCERS:
                stream.producers.clear()
            stream.producers[producer] = state
        for announce in self.afterwards:
            announce()


def commit_alone(connection: Connection, clock: Clock, perform: Callable[[Batch], None]) -> None:
    """Run a function in a commit of its own, where no writer is at work."""
    batch = Batch(connection, Streams(connection), Wal(connection), clock.now_us())
    with connection:
        perform(batch)
        batch.flush()


class Writer:
    """Owns the writing connection and its thread; operations are submitted from the event loop."""

    def __init__(self, path: Path, config: Config, clock: Clock, vfs: str | None = None) -> None:
        storage = config.storage
        self._connection = database.connect(
            path,
            cache_bytes=storage.cache_bytes,
            checkpoint_pages=storage.checkpoint_pages,
            max_bytes=storage.max_database_bytes,
            vfs=vfs,
        )
        database.migrate(self._connection)
        self._streams, self._wal = Streams(self._connection), Wal(self._connection)
        self._limits = config.limits
        self._timeouts = config.server
        self._clock = clock
        self._queue: SimpleQueue[list[Operation] | None] = SimpleQueue()
        self._gathered: list[Operation] = []
        self._gathered_s = 0.0
        self._thread = threading.Thread(target=self._run, name="headrace-writer", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._in_flight: deque[Operation] = deque()
        self.queued_bytes = 0
        #: Whether another node writes to the store, and how many bytes may wait for it besides those that do. Whoever
        #: publishes finds out.
        self.fenced = False
        self.room_bytes = storage.backlog_bytes
        # A checkpoint may have to write as much again as the write-ahead log holds, and the rest is for what frees.
        held_back = storage.checkpoint_pages * database.PAGE_BYTES
        self.reserve = Reserve(path.with_name("reserve"), held_back + _RESERVE_BYTES)
        self.reserve.restock()
        #: Called on the loop when something was noted; nothing is while nobody listens.
        self.on_noted: Callable[[], None] | None = None
        #: Called on the loop when everyone in a commit has been answered.
        self.on_settled: Callable[[], None] | None = None
        self.commits = 0
        self.failed_commits = 0

    def start(self) -> None:
        """Begin to commit; must be called on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def before_start(self, perform: Callable[[Batch], None]) -> None:
        """Run a function in a commit of its own, in the caller's thread, before anything else is written."""
        try:
            commit_alone(self._connection, self._clock, perform)
        except DiskFull:
            if not self.reserve.release():
                raise
            commit_alone(self._connection, self._clock, perform)

    def close(self) -> None:
        """Let go of the files, once nothing is written any more."""
        self._connection.close()
        self.reserve.close()

    @property
    def queued_requests(self) -> int:
        """Operations that are not settled yet."""
        return len(self._in_flight)

    @property
    def full(self) -> bool:
        """Whether the queue takes nothing more."""
        limits = self._limits
        return len(self._in_flight) >= limits.queue_requests or self.queued_bytes >= limits.queue_bytes

    def submit(self, operation: Operation) -> None:
        """Queue an operation, or refuse it while the queue is full."""
        if self.full:
            raise Overloaded("the append queue is full", retry_after=1)
        if self._stopping:
            raise Unavailable("the server is stopping")
        if self.fenced:
            raise Fenced("another node has taken over the object store; this one takes nothing more")
        if operation.appends:
            if self.room_bytes <= 0:
                raise Overloaded("the object store is behind, and the local backlog is full", retry_after=5)
            self.room_bytes -= operation.size
        gathered = self._gathered
        if not gathered:
            # What arrives in one turn of the loop is handed over together: fewer wake-ups, larger commits.
            assert self._loop is not None
            self._loop.call_soon(self._hand_over)
            self._gathered_s = monotonic()
        operation.submitted = self._gathered_s
        self._in_flight.append(operation)
        self.queued_bytes += operation.size
        gathered.append(operation)
        if len(gathered) >= _HANDED_OVER:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._gathered:
            self._queue.put(self._gathered)
            self._gathered = []

    def expire(self) -> None:
        """Tell the callers of operations whose time has run out; the operations go on."""
        now = monotonic()
        for operation in self._in_flight:
            waited = now - operation.submitted
            if waited < self._timeouts.append_timeout_s:
                break
            patience = self._timeouts.append_timeout_s if operation.appends else self._timeouts.resolver_timeout_s
            if waited >= patience and not operation.expired:
                operation.expired = True
                operation.answer()

    async def stop(self) -> None:
        """Commit and answer what was accepted, then close the log."""
        self._stopping = True
        self._hand_over()
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.sleep(0)  # the last batch settles on the loop
        self.close()

    def _run(self) -> None:
        _yield_to_loop()
        while (operations := self._queue.get()) is not None:
            last = self._take_more(operations)
            self._commit(operations)
            if last:
                break

    def _take_more(self, operations: list[Operation]) -> bool:
        """Add what else is queued, up to the size of a batch; answers whether it was the last."""
        get, most, most_bytes = self._queue.get_nowait, self._limits.batch_requests, self._limits.batch_bytes
        size = sum(operation.size for operation in operations)
        try:
            while len(operations) < most and size < most_bytes:
                more = get()
                if more is None:
                    return True
                operations += more
                size += sum(operation.size for operation in more)
        except Empty:
            pass
        return False

    def _commit(self, operations: list[Operation]) -> None:
        if self.reserve.is_out:
            _refuse([operation for operation in operations if not operation.frees], DiskFull())
            self._make_room([operation for operation in operations if operation.frees])
        elif isinstance(self._write(operations), DiskFull):
            self._make_room([operation for operation in operations if operation.frees])
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._settle, operations)

    def _make_room(self, operations: list[Operation]) -> None:
        """Do what frees space on a full disk, with what was set aside for that if need be."""
        database.checkpoint(self._connection)
        while operations:
            for operation in operations:
                operation.error = None
            reason = self._write(operations)
            database.checkpoint(self._connection)
            if not isinstance(reason, DiskFull) or not self.reserve.release():
                break
            log.warning("the disk is full; until there is room again, only what frees space is done")

    def _write(self, operations: list[Operation]) -> Exception | None:
        """Commit operations, or fail all of them; answers why that failed."""
        batch = Batch(self._connection, self._streams, self._wal, self._clock.now_us())
        batch.notes = None if self.on_noted is None else []
        try:
            for operation in operations:
                try:
                    operation.perform(batch)
                except HeadraceError as refusal:
                    operation.error = refusal
            batch.commit()
            batch.publish()
            self.commits += 1
            if batch.noted and self._loop is not None and (on_noted := self.on_noted) is not None:
                self._loop.call_soon_threadsafe(on_noted)
        except Exception as reason:
            self._roll_back(operations, reason)
            return reason
        return None

    def _roll_back(self, operations: list[Operation], reason: Exception) -> None:
        self.failed_commits += 1
        told = None if isinstance(reason, DiskFull) else reason
        log.error("a commit failed and was rolled back: %s", reason, exc_info=told)
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except SQLiteError:
                log.exception("the rollback failed too")
        _refuse(operations, reason)

    def _settle(self, operations: list[Operation]) -> None:
        settled = self._in_flight.popleft
        for operation in operations:
            settled()
            self.queued_bytes -= operation.size
            operation.settled = True
            try:
                operation.answer()
            except Exception:
                log.exception("an operation could not be answered")
        try:
            if self.on_settled is not None:
                self.on_settled()
        except Exception:
            log.exception("not everyone was told of a commit")


def _yield_to_loop() -> None:
    """Do not push the event loop off its core when the disk is done: it holds the interpreter's lock, which we need."""
    with contextlib.suppress(AttributeError, OSError):  # not everywhere, and not allowed everywhere
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _refuse(operations: list[Operation], reason: Exception) -> None:
    for operation in operations:
        if isinstance(reason, SQLiteError):
            operation.error = database.unavailable(reason)
        else:
            operation.error = HeadraceError("the server failed while committing; nothing was written")
