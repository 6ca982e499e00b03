"""Opens the database of a data directory, and updates it from the object store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.config import Config
from headrace.engine.history.journal import Journal
from headrace.engine.history.recovery import Recovered
from headrace.engine.history.takeover import take_over
from headrace.engine.log.catalog import Catalog
from headrace.engine.log.writer import Writer
from headrace.engine.products import JOURNALS
from headrace.engine.runtime import auto_tune
from headrace.storage import database, log_damage
from headrace.storage.lock import DirectoryLock, make_directory
from headrace.storage.node import Node
from headrace.storage.objects import Objects, StoreUnavailable
from headrace.storage.streams import Streams
from headrace.types import Clock

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

log = logging.getLogger("headrace.engine")


class OpenDatabase(NamedTuple):
    """The database of a locked directory, open for the writer and for the event loop."""

    lock: DirectoryLock
    writer: Writer
    reader: database.Connection
    path: Path
    vfs: str | None
    #: For each further connection.
    cache_bytes: int

    def connect(self) -> database.Connection:
        """A connection that only reads, for a thread, which closes it."""
        return database.connect(self.path, cache_bytes=self.cache_bytes, readonly=True, vfs=self.vfs)

    def release(self) -> None:
        """Close the reader, and unlock the directory."""
        self.reader.close()
        self.lock.release()


def open_database(config: Config, clock: Clock, *, vfs: str | None, accept_log_damage: bool) -> OpenDatabase:
    """Lock the data directory, and open its database; refuses one that has lost commits."""
    storage = config.storage
    data_dir = Path(storage.data_dir)
    make_directory(data_dir, storage.directory_permissions)
    lock = DirectoryLock(data_dir)
    path = data_dir / "headrace.db"
    database.limit_memory(auto_tune.sqlite_bytes(config))
    try:
        _check_files(path, lock, accept_log_damage)
        writer = Writer(path, config, clock, vfs)
        lock.mark()
        reader = database.connect(path, cache_bytes=storage.cache_bytes // 4, readonly=True, vfs=vfs)
    except BaseException:
        lock.release()
        raise
    return OpenDatabase(lock, writer, reader, path, vfs, storage.cache_bytes // 8)


class TakenOver(NamedTuple):
    """The changes that came from the object store, or why it was not available."""

    recovered: Recovered | None
    trouble: str | None = None


def take_over_store(*, objects: Objects, node: Node, streams: Streams, writer: Writer) -> TakenOver:
    """Become the writer of the object store, and recover everything that was published there meanwhile."""
    try:
        recovered = take_over(objects, node, streams, writer.before_start, journals=JOURNALS)
    except StoreUnavailable as reason:
        if not streams.meta("epoch_end") or reason.facts.get("behind"):
            raise
        message = "the object store does not answer; appends are taken, and published once it does: %s"
        log.warning(message, reason.message)
        return TakenOver(None, reason.message)
    if recovered is not None:
        log.info("what the object store knew better was taken over: %s", recovered)
    return TakenOver(recovered)


def reread_journals(
    *,
    streams: Streams,
    writer: Writer,
    catalog: Catalog,
    connect: Callable[[], database.Connection],
    segments: Callable[[], Segments],
) -> bool:
    """Read events again for journals whose recovery was not complete; returns whether there were any."""
    journals = [journal for journal in JOURNALS if streams.meta(journal.reread_key)]
    for journal in journals:
        _reread(journal, writer, catalog, connect, segments)
    return bool(journals)


def _reread(
    journal: Journal[Any],
    writer: Writer,
    catalog: Catalog,
    connect: Callable[[], database.Connection],
    segments: Callable[[], Segments],
) -> None:
    connection = connect()
    try:
        writer.before_start(lambda batch: journal.reread(batch, catalog.find, connection, segments))
    finally:
        connection.close()


def _check_files(path: Path, lock: DirectoryLock, accept_log_damage: bool) -> None:
    """Refuse a database that is gone, or that SQLite would open without commits that were acknowledged."""
    log_damage.refuse_lost_database(path, lock)
    if accept_log_damage or log_damage.is_accepting(path):
        log_damage.accept_log_damage(path, log_damage.mark_restored)
    log_damage.refuse_log_damage(path)
