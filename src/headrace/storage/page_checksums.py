"""Checksums of database pages: SQLite's checksum VFS keeps one in the last eight bytes of every page.

The VFS computes the checksum of a page when it is written to the database file, and verifies it when the page is read
from there. Frames of the write-ahead log have checksums of their own. A database written by a server from before there
were page checksums is copied to a new file once, which then takes its place.
"""

from __future__ import annotations

import threading
from pathlib import Path

import apsw
import apsw.sqlite_extra

from headrace.errors import CorruptData, HeadraceError
from headrace.storage.files import create_private, fsync_path

RESERVED_BYTES = 8
_VFS = "cksmvfs"
_registering = threading.Lock()


def checksum_vfs() -> str:
    """Register SQLite's checksum VFS in this process, and return its name; the default VFS stays what it was."""
    with _registering:
        names = apsw.vfs_names()
        if _VFS not in names:
            loader = apsw.Connection(":memory:")
            try:
                apsw.sqlite_extra.load(loader, "cksumvfs")
            except (apsw.sqlite_extra.NotAvailable, LookupError, apsw.Error) as reason:
                raise HeadraceError(
                    f"this installation of apsw has no cksumvfs extension ({reason}); install apsw from its wheel"
                ) from reason
            finally:
                loader.close()
            apsw.set_default_vfs(names[0])
    return _VFS


def has_checksums(connection: apsw.Connection) -> bool:
    """Whether pages of the database have checksums that are verified when they are read."""
    connection.pragma("user_version")  # the VFS knows once the first page was read
    return int(connection.pragma("checksum_verification") or 0) == 1


def require_checksums(connection: apsw.Connection, since: int) -> None:
    """Raise CorruptData for a database of version ``since`` or newer whose header says that it has no checksums."""
    if int(connection.pragma("user_version")) >= since and not has_checksums(connection):
        raise damaged(Path(connection.filename), "its header says that its pages have no checksums")


def is_damage(reason: BaseException) -> bool:
    """Whether SQLite failed because what it read is not what was written."""
    return isinstance(reason, apsw.NotADBError | apsw.CorruptError) or is_bad_checksum(reason)


def is_bad_checksum(reason: BaseException) -> bool:
    """Whether this, or what it followed from, is that SQLite read a page that does not match its checksum.

    SQLite rolls a transaction back by itself then, so a second error says that there is nothing to roll back.
    """
    code = getattr(reason, "extendedresult", None)
    if isinstance(reason, apsw.IOError) and code == apsw.SQLITE_IOERR_DATA:
        return True
    earlier = reason.__cause__ or reason.__context__
    return isinstance(reason, apsw.Error) and isinstance(earlier, apsw.Error) and is_bad_checksum(earlier)


def damaged(path: Path, why: object) -> CorruptData:
    """The error for a damaged database file."""
    if isinstance(why, BaseException) and is_bad_checksum(why):
        why = "a page does not match its checksum"
    return CorruptData(
        f"{path} is damaged, or not a database: {why}; move it away, and put a copy from a backup in its place",
        object=str(path),
        check="database",
    )


def connect_to_copy(path: Path, source: apsw.Connection) -> apsw.Connection:
    """A connection to a new file that the pages of ``source`` are copied to; they get checksums where it has them."""
    copy = apsw.Connection(str(path), vfs=checksum_vfs())
    if has_checksums(source):
        # The VFS goes by the header in the file, and a backup may write other pages before the first one.
        copy.reserve_bytes("main", RESERVED_BYTES)
        copy.pragma("page_size", int(source.pragma("page_size")))
        copy.execute("CREATE TABLE first_page (x); DROP TABLE first_page")
    return copy


def rebuild_with_checksums(path: Path, step: str, version: int, vfs: str) -> None:
    """Copy a database that nobody else has open to a file whose pages have checksums, and put that in its place.

    ``step`` and ``version`` are the migration that the copy gets, so that no older server opens it. A process that is
    killed leaves the database as it was, or the whole copy; the next one begins again.
    """
    partial = path.with_name(f"{path.name}.partial")
    for suffix in ("", "-wal", "-shm", "-journal"):
        partial.with_name(partial.name + suffix).unlink(missing_ok=True)
    source = apsw.Connection(str(path), vfs=vfs)
    try:
        source.pragma("journal_mode", "delete")  # everything is in the database file, and nobody else has it open
        source.reserve_bytes("main", RESERVED_BYTES)
        create_private(partial)
        source.execute("VACUUM INTO ?", (str(partial),))
    finally:
        source.close()
    copy = apsw.Connection(str(partial), vfs=vfs)
    try:
        with copy:
            copy.execute(step)
            copy.pragma("user_version", version)
    finally:
        copy.close()
    fsync_path(partial)
    partial.replace(path)
    fsync_path(path.parent)


def vacuum_with_checksums(connection: apsw.Connection) -> None:
    """Rewrite a small database in place so that its pages have checksums; the connection must be closed afterwards.

    Raises BusyError, and changes nothing, where another process has the database open.
    """
    connection.set_busy_timeout(0)
    connection.pragma("journal_mode", "delete")
    connection.pragma("page_size", int(connection.pragma("page_size")))
    connection.pragma("cache_spill", False)  # the first page, by which the VFS goes, is written first
    connection.reserve_bytes("main", RESERVED_BYTES)
    connection.execute("VACUUM")


class Damage:
    """Distinguishes damage of the database from other failures, and records the first; for any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: The first damage that was found.
        self.first_error: CorruptData | None = None

    def note(self, reason: BaseException) -> CorruptData | None:
        """The error for a failure that was caused by a page with a wrong checksum; it names the database."""
        if not is_bad_checksum(reason):
            return None
        self.first_error = self.first_error or damaged(self._path, reason)
        return damaged(self._path, reason)
