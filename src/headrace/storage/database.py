"""Opening the SQLite database: pragmas that make a commit durable, and migrations that run once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any

import apsw

from headrace.errors import HeadraceError, Unavailable
from headrace.storage.files import create_private
from headrace.storage.page_checksums import (
    RESERVED_BYTES,
    checksum_vfs,
    damaged,
    has_checksums,
    is_damage,
    rebuild_with_checksums,
    require_checksums,
)

Connection = apsw.Connection
SQLiteError = apsw.Error
DiskFull = apsw.FullError

BUSY_TIMEOUT_MS = 5_000
_SHORT_TIMEOUT_MS = 20
# An array of a hundred events fits into two pages, and a commit of single events dirties few.
PAGE_BYTES = 8192
#: The migration from which on every page has a checksum.
CHECKSUMS_SINCE = 18
#: SQLite writes so much before the pages of a write-ahead log, and before each of them.
_LOG_HEAD_BYTES, _FRAME_HEAD_BYTES = 32, 24
_PERMIT = "let this user write to it and to its directory"
#: What a person can do about a file that SQLite refuses; anything else that it says then is a mistake of ours.
_ADVICE = {
    apsw.CantOpenError: f"see that it is a file, and {_PERMIT}",
    apsw.PermissionsError: _PERMIT,
    apsw.ReadOnlyError: _PERMIT,
    apsw.BusyError: "end the other process that holds it",
    apsw.FullError: "make room on the disk",
    apsw.IOError: "look at the disk",
}


class NewerDatabase(HeadraceError):
    """The database was written by a newer Headrace."""

    code = "newer_database"


class WriteAheadLog:
    """The file that holds what was committed and is not in the database yet, and how long it should be at most."""

    def __init__(self, database: Path, max_pages: int) -> None:
        self._path = database.with_name(f"{database.name}-wal")
        self.max_bytes = _LOG_HEAD_BYTES + max_pages * (_FRAME_HEAD_BYTES + PAGE_BYTES)
        #: So many pages are moved into the database; commits that leave that to the next one add more meanwhile.
        self.due_pages = max(1, max_pages * 3 // 4)

    @property
    def growth(self) -> int:
        """The bytes by which it may still grow."""
        return max(0, self.max_bytes - (self._path.stat().st_size if self._path.exists() else 0))


def connect(
    path: Path,
    *,
    cache_bytes: int,
    readonly: bool = False,
    log: WriteAheadLog | None = None,
    max_bytes: int = 0,
    vfs: str | None = None,
) -> Connection:
    """A connection whose commits are on disk when they return; pages that it reads are verified.

    ``vfs`` names another file system for SQLite, which must build on the one of :func:`checksum_vfs`.
    """
    with using(path):
        connection = _connect(path, cache_bytes, readonly, vfs)
        if readonly:
            require_checksums(connection, CHECKSUMS_SINCE)
            return connection
        _make_durable(connection, log, max_bytes)
        if not has_checksums(connection):
            # Another process may have made the database after this one had opened the empty file.
            connection.close()
            connection = _connect(path, cache_bytes, readonly, vfs)
            _make_durable(connection, log, max_bytes)
    return connection


def _connect(path: Path, cache_bytes: int, readonly: bool, vfs: str | None) -> Connection:
    flags = apsw.SQLITE_OPEN_READWRITE | (0 if readonly else apsw.SQLITE_OPEN_CREATE)
    if not readonly:
        with suppress(OSError):  # SQLite says why
            create_private(path)  # the files beside it get its permissions
    connection = apsw.Connection(str(path), flags=flags, vfs=vfs or checksum_vfs(), statementcachesize=200)
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    # Before anything is read: a page of another size than was written would not match its checksum.
    connection.pragma("page_size", PAGE_BYTES)
    connection.pragma("cache_size", -max(1, cache_bytes // 1024))
    if readonly:
        connection.pragma("query_only", True)
    return connection


def _make_durable(connection: Connection, log: WriteAheadLog | None, max_bytes: int) -> None:
    connection.reserve_bytes("main", RESERVED_BYTES)  # of a new database; another one keeps what it has
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "FULL")
    connection.pragma("foreign_keys", False)
    connection.pragma("secure_delete", "FAST")  # pages that are written anyway keep nothing of what was deleted
    if log is not None:
        connection.pragma("wal_autocheckpoint", log.due_pages)
        connection.pragma("journal_size_limit", log.max_bytes)  # readers can make it longer, for as long as they read
    if max_bytes:
        connection.pragma("max_page_count", max(1, max_bytes // int(connection.pragma("page_size"))))


@contextmanager
def using(path: Path) -> Iterator[None]:
    """Where SQLite refuses a file in this block, the error names the file, and says why and what to do next."""
    try:
        yield
    except SQLiteError as reason:
        if is_damage(reason):
            raise damaged(path, reason) from reason
        if type(reason) not in _ADVICE:
            raise
        message = f"{path} cannot be used: {reason}; {_ADVICE[type(reason)]}"
        raise Unavailable(message, reason=_cause(reason)) from reason


def open_migrated(path: Path, *, vfs: str | None = None, **settings: Any) -> Connection:
    """Connect to the database, which no other process uses, and migrate it to the newest version.

    A database whose pages have no checksums yet is rebuilt, which takes as much room on the disk as it has itself.
    """
    connection = connect(path, vfs=vfs, **settings)
    try:
        with using(path):
            if has_checksums(connection) or int(connection.pragma("user_version")) >= CHECKSUMS_SINCE:
                migrate(connection)
                return connection
            steps = migrations()
            _migrate(connection, steps[: CHECKSUMS_SINCE - 1])
            connection.close()
            rebuild_with_checksums(path, steps[CHECKSUMS_SINCE - 1], CHECKSUMS_SINCE, vfs or checksum_vfs())
        connection = connect(path, vfs=vfs, **settings)
        migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def migrate(connection: Connection) -> int:
    """Migrate the schema to the newest version, one transaction per step; refuse a newer or a read-only database."""
    with using(Path(connection.filename)):
        version = _migrate(connection, migrations())
        require_checksums(connection, min(CHECKSUMS_SINCE, version))
        return version


def _migrate(connection: Connection, steps: list[str]) -> int:
    if connection.readonly("main"):
        raise apsw.ReadOnlyError("it is read-only")
    version = int(connection.pragma("user_version"))
    if version > len(steps):
        raise NewerDatabase(
            f"the database has schema version {version}, this Headrace knows {len(steps)}: install a newer one",
            found=version,
            known=len(steps),
        )
    for number, text in enumerate(steps[version:], start=version + 1):
        with connection:
            connection.execute(text)
            connection.pragma("user_version", number)
    return len(steps)


def migrations() -> list[str]:
    """The texts of all migrations in order; their numbers have no gaps."""
    files = sorted(
        entry.name for entry in resources.files("headrace.storage.migrations").iterdir() if entry.name.endswith(".sql")
    )
    for number, name in enumerate(files, start=1):
        if not name.startswith(f"{number:04}_"):
            raise RuntimeError(f"migration {name} should be number {number:04}")
    return [resources.files("headrace.storage.migrations").joinpath(name).read_text() for name in files]


def unavailable(reason: SQLiteError) -> Unavailable:
    """The error for a caller whose data SQLite could not write."""
    full = isinstance(reason, DiskFull)
    message = "the disk is full; nothing was written" if full else f"the log could not be written: {reason}"
    return Unavailable(message, reason=_cause(reason))


def refusal(reason: SQLiteError, path: Path) -> HeadraceError:
    """The error for a caller when SQLite could not read or write a file."""
    return damaged(path, reason) if is_damage(reason) else unavailable(reason)


def _cause(reason: SQLiteError) -> str:
    return "disk_full" if isinstance(reason, DiskFull) else "storage"


def checkpoint(connection: Connection) -> None:
    """Move what can be moved into the database, so that the write-ahead log begins again and needs no more disk."""
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    except SQLiteError:
        pass  # the database has no room to grow either


@contextmanager
def not_growing(connection: Connection) -> Iterator[None]:
    """Keep the database from growing in this block: it uses the pages that it has, free ones included."""
    max_pages = connection.pragma("max_page_count")
    connection.pragma("max_page_count", connection.pragma("page_count"))
    try:
        yield
    finally:
        connection.pragma("max_page_count", max_pages)


def free_bytes(connection: Connection) -> int:
    """The bytes that the database can store without growing."""
    return int(connection.pragma("freelist_count")) * PAGE_BYTES


def truncate(path: Path) -> bool:
    """Move everything into the database, so that nothing is left in the write-ahead log; False where others read."""
    connection = connect(path, cache_bytes=1024 * 1024)
    connection.set_busy_timeout(_SHORT_TIMEOUT_MS)  # while it waits for readers nobody else writes
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError:
        return False
    finally:
        connection.close()
    return True


def limit_memory(limit_bytes: int) -> None:
    """Let page caches reuse the pages they have, once SQLite takes so much memory in this process."""
    apsw.soft_heap_limit(limit_bytes)


def sqlite_memory() -> dict[str, int]:
    """What SQLite's allocator holds in this process, and its peaks."""
    used, peak_used = apsw.status(apsw.SQLITE_STATUS_MEMORY_USED)
    slots, peak_slots = apsw.status(apsw.SQLITE_STATUS_PAGECACHE_USED)
    overflow, peak_overflow = apsw.status(apsw.SQLITE_STATUS_PAGECACHE_OVERFLOW)
    allocations, peak_allocations = apsw.status(apsw.SQLITE_STATUS_MALLOC_COUNT)
    return {
        "memory_used_bytes": used,
        "memory_highwater_bytes": peak_used,
        "pagecache_used_slots": slots,
        "pagecache_used_slots_highwater": peak_slots,
        "pagecache_overflow_bytes": overflow,
        "pagecache_overflow_highwater_bytes": peak_overflow,
        "malloc_count": allocations,
        "malloc_count_highwater": peak_allocations,
        "open_connections": len(apsw.connections()),
    }
