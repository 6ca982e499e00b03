"""The one writer: it gathers operations, commits all of them together, answers everyone, and repeats.

There is no clock in it. While a commit waits for the disk, new operations queue up; the next commit takes them
all. An operation checks and drafts in :meth:`Operation.perform`, and is answered on the event loop after its batch is
on disk, or has failed as a whole.

A thread commits, so that the loop can serve others meanwhile. Where the disk is quick and there is little to write, the
way to the thread and back would take longer than the commit, and more of the processor: the loop does that itself.
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
from uuid import uuid4

from headrace.config import Config
from headrace.engine.log.batch import Batch, Operation, WalNameFilter, commit_alone
from headrace.engine.log.stream import Stream
from headrace.errors import CorruptData, Fenced, HeadraceError, Overloaded, Unavailable
from headrace.storage import database
from headrace.storage.database import Connection, DiskFull, SQLiteError
from headrace.storage.page_checksums import Damage
from headrace.storage.reserve import LEAST_BYTES, Reserve
from headrace.storage.streams import Streams
from headrace.storage.wal import Wal
from headrace.types import Clock

log = logging.getLogger("headrace.writer")

_RESERVE_BYTES = 4 * 1024 * 1024
#: A commit that takes the disk longer is not quick.
_QUICK_S = 0.002
# Enough for a commit; while it is on its way to the disk, the loop reads the next ones.
_HANDED_OVER = 32
# What the loop commits itself: so many bytes to so few streams, which lie on few pages, after so many quick commits.
_LITTLE_BYTES = 128 * 1024
_FEW_STREAMS = 4
_TRUSTED = 16
# A longer operation is committed by itself, after the short appends to other streams that wait by then.
_LONG_BYTES = 512 * 1024


class Writer:
    """Takes operations from the event loop, commits them, and answers their callers."""

    def __init__(self, path: Path, config: Config, clock: Clock, vfs: str | None = None) -> None:
        storage = config.storage
        self._log_file = database.WriteAheadLog(path, storage.checkpoint_pages)
        #: Whether the write-ahead log is so long that it should be moved into the database.
        self._is_long = False
        self._connection = database.open_migrated(
            path,
            cache_bytes=storage.cache_bytes,
            log=self._log_file,
            max_bytes=storage.max_database_bytes,
            vfs=vfs,
        )
        self._streams, self._wal = Streams(self._connection), Wal(self._connection)
        self._clock = clock
        # A checkpoint may have to write as much again as the write-ahead log holds, and the rest is for what frees.
        held_back = self._log_file.max_bytes + _RESERVE_BYTES
        self.reserve = Reserve(path.with_name("reserve"), held_back, self._log_file)
        self.reserve.restock()
        #: Whether the last commit wrote anything, and how many in a row that did were quick.
        self._wrote = False
        self._quick = 0
        #: Called on the loop when something was noted; nothing is noted while it is None.
        self.on_noted: Callable[[], None] | None = None
        self._noted = False
        self.damage = Damage(path)
        self.wal_names = WalNameFilter()
        self.commits = 0
        self.failed_commits = 0
        self._limits = config.limits
        self._timeouts = config.server
        self._queue: SimpleQueue[list[Operation] | None] = SimpleQueue()
        self._gathered: list[Operation] = []
        #: Whether the loop could commit what was gathered the last time; it is likely to be able to again.
        self._was_little = False
        #: Operations that the thread has.
        self._handed = 0
        self._thread = threading.Thread(target=self._run, name="headrace-writer", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._in_flight: dict[Operation, None] = {}
        self._chores_in_flight = 0
        #: What the thread has put off: long operations, and those that may not overtake them.
        self._held: deque[Operation] = deque()
        self.queued_bytes = 0
        #: Whether another node writes to the store, and how many bytes may wait for it besides those that do. Whoever
        #: publishes finds out.
        self.fenced = False
        self.room_bytes = config.storage.backlog_bytes
        #: Called on the loop when everyone in a commit has been answered.
        self.on_settled: Callable[[], None] | None = None

    def before_start(self, perform: Callable[[Batch], None]) -> None:
        """Run a function in a commit of its own, in the caller's thread, before anything else is written."""
        try:
            commit_alone(self._connection, self._clock, perform)
        except DiskFull:
            if not self.reserve.release():
                raise
            commit_alone(self._connection, self._clock, perform)

    def close(self) -> None:
        """Close the files, once nothing is written any more."""
        self._connection.close()
        self.reserve.close()

    def start(self) -> None:
        """Begin to commit; must be called on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._watch_length()
        self._thread.start()

    @property
    def queued_requests(self) -> int:
        """Operations that are not settled yet."""
        return len(self._in_flight)

    @property
    def full(self) -> bool:
        """Whether the queue takes nothing more from clients."""
        limits, requests = self._limits, len(self._in_flight) - self._chores_in_flight
        return requests >= limits.queue_requests or self.queued_bytes >= limits.queue_bytes

    def submit(self, operation: Operation) -> None:
        """Queue an operation, or refuse it while the queue is full, except operations of the server itself."""
        if self.full and not operation.is_chore:
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
            # What arrives in one turn of the loop is committed together: fewer wake-ups, larger commits.
            assert self._loop is not None
            self._loop.call_soon(self._go_on)
        operation.submitted = monotonic()
        self._in_flight[operation] = None
        self._chores_in_flight += operation.is_chore
        self.queued_bytes += operation.size
        gathered.append(operation)
        if len(gathered) >= _HANDED_OVER and not self._was_little:
            self._hand_over()

    def _go_on(self) -> None:
        """Commit the gathered operations, here or in the thread."""
        if not self._gathered:
            return
        self._was_little = self._is_little()
        if not self._was_little:
            self._hand_over()
        elif not self._handed:  # otherwise when the thread is done
            operations, self._gathered = self._gathered, []
            self._write(operations)
            self._settle(operations)

    def _is_little(self) -> bool:
        """Whether what was gathered is committed faster than it is handed over."""
        gathered = self._gathered
        if self._quick < _TRUSTED or self._is_long or self.reserve.is_out:
            return False
        if self.queued_bytes > _LITTLE_BYTES or len(gathered) > self._limits.batch_requests:
            return False
        streams = {operation.only for operation in gathered}
        return None not in streams and len(streams) <= _FEW_STREAMS

    def _hand_over(self) -> None:
        gathered, self._gathered = self._gathered, []
        self._handed += len(gathered)
        for start in range(0, len(gathered), _HANDED_OVER):
            self._queue.put(gathered[start : start + _HANDED_OVER])

    def expire(self) -> None:
        """Report a timeout to the callers of operations past their deadline; the operations continue."""
        now, timeouts, late = monotonic(), self._timeouts, list[Operation]()
        for operation in self._in_flight:
            waited = now - operation.submitted
            if waited < timeouts.append_timeout_s:
                break
            timeout_s = timeouts.append_timeout_s if operation.appends else timeouts.resolver_timeout_s
            if waited >= timeout_s and not operation.expired:
                late.append(operation)
        for operation in late:
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
        is_last = False
        while self._held or not is_last:
            operations, is_last = ([], True) if is_last else self._take()
            if operations := self._overtaking(operations):
                self._commit_in_thread(operations)
            if self._held:
                self._commit_in_thread(self._next_held())

    def _commit_in_thread(self, operations: list[Operation]) -> None:
        self._commit(operations)
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._take_back, operations)

    def _take(self) -> tuple[list[Operation], bool]:
        """The queued operations, up to the size of a batch, and whether it was the last; may wait for some."""
        operations: list[Operation] = []
        max_operations, max_bytes, size = self._limits.batch_requests, self._limits.batch_bytes, 0
        get = self._queue.get_nowait if self._held else self._queue.get
        try:
            while len(operations) < max_operations and size < max_bytes:
                more = get()
                if more is None:
                    return operations, True
                operations += more
                size += sum(operation.size for operation in more)
                get = self._queue.get_nowait
        except Empty:
            pass
        return operations, False

    def _overtaking(self, operations: list[Operation]) -> list[Operation]:
        """What is committed now: short appends, and all that comes before the first long operation.

        The others are held back in their order, and so are appends to the streams that those read or change.
        """
        held = self._held
        if not held and all(operation.size <= _LONG_BYTES for operation in operations):
            return operations
        streams, now = {stream for operation in held for stream in _streams_of(operation)}, list[Operation]()
        for operation in operations:
            stream = operation.appends_to
            if operation.size > _LONG_BYTES or (held and (stream is None or stream in streams)):
                held.append(operation)
                streams.update(_streams_of(operation))
            else:
                now.append(operation)
        return now

    def _next_held(self) -> list[Operation]:
        """The next of what was held back: a long operation by itself, or a batch of short ones before the next."""
        held, max_operations, max_bytes = self._held, self._limits.batch_requests, self._limits.batch_bytes
        operations = [held.popleft()]
        size = operations[0].size
        if size > _LONG_BYTES:
            return operations
        while held and held[0].size <= _LONG_BYTES and len(operations) < max_operations and size < max_bytes:
            size += held[0].size
            operations.append(held.popleft())
        return operations

    def _take_back(self, operations: list[Operation]) -> None:
        """Answer what the thread has committed, and go on with what was held back meanwhile."""
        self._handed -= len(operations)
        self._settle(operations)
        if self._gathered:
            self._go_on()

    def _settle(self, operations: list[Operation]) -> None:
        in_flight = self._in_flight
        for operation in operations:
            del in_flight[operation]
            self._chores_in_flight -= operation.is_chore
            self.queued_bytes -= operation.size
            operation.settled = True
            try:
                operation.answer()
            except Exception:
                log.exception("an operation could not be answered")
        try:
            if self.on_settled is not None:
                self.on_settled()
            if self._noted and self.on_noted is not None:
                self._noted = False
                self.on_noted()
        except Exception:
            log.exception("not everyone was told of a commit")

    # -- one commit; on the thread, or on the event loop while the thread has nothing

    def _commit(self, operations: list[Operation]) -> None:
        """Commit operations, with a checkpoint or the release of disk space where necessary."""
        write = self._write_without_reserve if self.reserve.is_out else self._write
        if isinstance(write(operations), DiskFull):
            self._make_room([operation for operation in operations if operation.frees])
        if self._is_long:
            self._checkpoint()

    def _write_without_reserve(self, operations: list[Operation]) -> Exception | None:
        """Commit operations into free pages of the database; those that are left are for what frees more."""
        if database.free_bytes(self._connection) < LEAST_BYTES:
            _refuse(operations, DiskFull())
            return DiskFull()
        with database.not_growing(self._connection):
            return self._write(operations)

    def _watch_length(self) -> None:
        """From now on no commit does a checkpoint by itself, and each that writes says whether one is due."""
        self._connection.set_wal_hook(self._measure)

    def _measure(self, _connection: Connection, _database: str, pages: int) -> int:
        self._is_long, self._wrote = pages >= self._log_file.due_pages, True
        return 0

    def _checkpoint(self) -> None:
        database.checkpoint(self._connection)
        self._is_long = False

    def _make_room(self, operations: list[Operation]) -> None:
        """Run operations that free space on a full disk, with the reserved space if necessary."""
        self._checkpoint()
        while operations:
            for operation in operations:
                operation.error = None
            reason = self._write(operations)
            self._checkpoint()
            if not isinstance(reason, DiskFull) or not self.reserve.release():
                break
            log.warning(
                "the disk is full; until there is room again, what fits into free pages and what frees more is done"
            )

    def _write(self, operations: list[Operation]) -> Exception | None:
        """Commit operations, or fail all of them; returns the error."""
        batch = Batch(self._connection, self._streams, self._wal, self._clock.now_us())
        batch.notes = None if self.on_noted is None else []
        try:
            for operation in operations:
                try:
                    operation.perform(batch)
                except HeadraceError as refusal:
                    operation.error = refusal.with_traceback(None)  # which holds every operation of the commit
            began_s, self._wrote = monotonic(), False
            batch.commit()
            if self._wrote:  # one that writes nothing says nothing of the disk
                self._quick = self._quick + 1 if monotonic() - began_s < _QUICK_S else 0
            batch.publish(self.wal_names)
            self.commits += 1
            self._noted = self._noted or batch.noted
        except Exception as reason:
            self._roll_back(operations, reason)
            return reason
        return None

    def _roll_back(self, operations: list[Operation], reason: Exception) -> None:
        self.failed_commits += 1
        self._quick = 0
        logged_error = None if isinstance(reason, DiskFull) else reason
        failure_id = uuid4().hex
        log.error("a commit failed and was rolled back (%s): %s", failure_id, reason, exc_info=logged_error)
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except SQLiteError:
                log.exception("the rollback failed too")
        damage = self.damage.note(reason)
        _refuse(operations, reason if damage is None else damage, failure_id)


def _streams_of(operation: Operation) -> tuple[Stream, ...]:
    """The streams that an operation reads or changes."""
    stream = operation.appends_to
    return operation.pinned if stream is None else (stream, *operation.pinned)


def _yield_to_loop() -> None:
    """Do not push the event loop off its core when the disk is done: it holds the interpreter's lock, which we need."""
    with contextlib.suppress(AttributeError, OSError):  # not everywhere, and not allowed everywhere
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _refuse(operations: list[Operation], reason: Exception, failure_id: str = "") -> None:
    for operation in operations:
        if isinstance(reason, CorruptData):
            operation.error = reason
        elif isinstance(reason, SQLiteError):
            operation.error = database.unavailable(reason)
        else:
            message = "the server failed while committing; nothing was written, and its log has the details"
            operation.error = HeadraceError(message, request_id=failure_id)
