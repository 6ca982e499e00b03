"""Commits: operations become one transaction, all of it on disk, or fail together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from uuid import uuid4

from headrace.config import Config
from headrace.engine.log.batch import Batch, Operation, commit_alone
from headrace.engine.log.wal_names import Logged
from headrace.errors import CorruptData, HeadraceError
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


class Committer:
    """Owns the writing connection; one thread at a time may commit."""

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
        held_back = self._log_file.most_bytes + _RESERVE_BYTES
        self.reserve = Reserve(path.with_name("reserve"), held_back, self._log_file)
        self.reserve.restock()
        #: Whether the last commit wrote anything, and how many in a row that did were quick.
        self._wrote = False
        self._quick = 0
        #: Called on the loop when something was noted; nothing is while nobody listens.
        self.on_noted: Callable[[], None] | None = None
        self._noted = False
        self.damage = Damage(path)
        self.logged = Logged()
        self.commits = 0
        self.failed_commits = 0

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

    def _commit(self, operations: list[Operation]) -> None:
        """Commit operations and do whatever that takes: a checkpoint, or room on a full disk."""
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
        """Do what frees space on a full disk, with what was set aside for that if need be."""
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
        """Commit operations, or fail all of them; answers why that failed."""
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
            batch.publish(self.logged)
            self.commits += 1
            self._noted = self._noted or batch.noted
        except Exception as reason:
            self._roll_back(operations, reason)
            return reason
        return None

    def _roll_back(self, operations: list[Operation], reason: Exception) -> None:
        self.failed_commits += 1
        self._quick = 0
        told = None if isinstance(reason, DiskFull) else reason
        failure_id = uuid4().hex
        log.error("a commit failed and was rolled back (%s): %s", failure_id, reason, exc_info=told)
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except SQLiteError:
                log.exception("the rollback failed too")
        damage = self.damage.note(reason)
        _refuse(operations, reason if damage is None else damage, failure_id)


def _refuse(operations: list[Operation], reason: Exception, failure_id: str = "") -> None:
    for operation in operations:
        if isinstance(reason, CorruptData):
            operation.error = reason
        elif isinstance(reason, SQLiteError):
            operation.error = database.unavailable(reason)
        else:
            message = "the server failed while committing; nothing was written, and its log has the details"
            operation.error = HeadraceError(message, request_id=failure_id)
