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

from headrace.config import Config
from headrace.engine.batch import Batch, Operation, commit_alone
from headrace.engine.logged import Logged
from headrace.errors import Fenced, HeadraceError, Overloaded, Unavailable
from headrace.storage import database
from headrace.storage.database import DiskFull, SQLiteError
from headrace.storage.reserve import Reserve
from headrace.storage.streams import Streams
from headrace.storage.wal import Wal
from headrace.types import Clock

log = logging.getLogger("headrace.writer")

# Enough for a commit; while it is on its way to the disk, the loop reads the next ones.
_HANDED_OVER = 32
_RESERVE_BYTES = 4 * 1024 * 1024


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
        self.logged = Logged()
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
            batch.publish(self.logged)
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
