"""A data directory before it is opened: a write-ahead log that lost commits, and a database that is gone, are refused.

SQLite would go on without a word with what it can read, and overwrite the rest.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import CorruptData
from headrace.storage import database
from headrace.storage.database import PAGE_BYTES, Connection
from headrace.storage.files import copy_private, fsync_path
from headrace.storage.lock import DirectoryLock
from headrace.storage.page_checksums import RESERVED_BYTES
from headrace.storage.streams import Streams

if TYPE_CHECKING:
    from headrace.format.sqlite_wal import LogDamage

log = logging.getLogger("headrace.storage")

_CACHE_BYTES = 1024 * 1024
_TRIES, _PAUSE_S = 3, 0.02
#: Noted in a database: its tail may be lost, and the store may have gone on without it.
RESTORED = "restored"
#: What a server that is killed in its very first moments may leave beside an empty database.
_FRESH = ("lock", "keys.db", "keys.db-wal", "keys.db-shm", "keys.db-journal")


def refuse_lost_database(path: Path, lock: DirectoryLock) -> None:
    """Raise CorruptData where a database is empty in a directory that was used, or missing beside its log."""
    if path.exists() and path.stat().st_size:
        return
    wal = _wal_path(path)
    has_log = wal.exists() and wal.stat().st_size > 0
    others = sorted(other.name for other in path.parent.iterdir() if not _is_fresh(other, path))
    if not has_log and not (path.exists() and (lock.is_marked or others)):
        return
    evidence = f"{path.parent} holds {', '.join(others[:3])}" if others else "the directory was used"
    state = "empty" if path.exists() else "missing"
    raise CorruptData(
        f"{path} is {state}, and {evidence}: put a copy from a backup in its place; to "
        f"go on without what was in it, move it and {wal.name} away, and start again",
        object=str(path),
        check="database",
    )


def _is_fresh(other: Path, path: Path) -> bool:
    return other.name in _FRESH or other.name in (path.name, f"{path.name}-journal") or _is_empty(other)


def _is_empty(other: Path) -> bool:
    return next(other.iterdir(), None) is None if other.is_dir() else not other.stat().st_size


def refuse_log_damage(path: Path) -> None:
    """Raise CorruptData, naming the range, where the write-ahead log of a database is damaged."""
    wal = _wal_path(path)
    damage = _find_damage(wal)
    if damage is not None:
        raise _refusal(
            wal,
            damage,
            f"nothing was changed. Put a backup in the place of {path}, or start with --accept-log-damage to go on "
            f"with what was committed before byte {damage.intact_bytes}",
        )


def accept_log_damage(path: Path, mark: Callable[[Connection], None] | None = None) -> None:
    """Repair a closed database: keep the commits before the damage of its write-ahead log.

    The damaged file is kept beside it. ``mark`` notes in the database that commits were dropped. A process that is
    killed meanwhile leaves a marker file, which :func:`is_accepting` checks.
    """
    wal = _wal_path(path)
    accepted, damage = _acceptance_path(path), _find_damage(wal)
    if damage is not None:
        if _has_later_pages(path, wal, damage.intact_bytes):
            raise _refusal(
                wal, damage, f"{path} holds some of these commits already and cannot go back; put a backup in its place"
            )
        _keep(wal, accepted)
        os.truncate(wal, damage.intact_bytes)
        fsync_path(wal)
    if accepted.exists():
        if mark is not None:
            _commit(path, mark)
        kept = _free_name(wal)
        accepted.rename(kept)
        fsync_path(path.parent)
        log.warning("commits behind damage were given up; the damaged write-ahead log is kept in %s", kept)


def is_accepting(path: Path) -> bool:
    """Whether a process was killed while it accepted the damage of a write-ahead log."""
    return _acceptance_path(path).exists()


def _wal_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _acceptance_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal.accepted")


def _refusal(wal: Path, damage: LogDamage, advice: str) -> CorruptData:
    return CorruptData(
        f"{wal} is damaged between byte {damage.start} and byte {damage.end}, and SQLite would drop {damage.commits} "
        f"commits from there on; {advice}",
        object=str(wal),
        check="write_ahead_log",
        start=damage.start,
        end=damage.end,
    )


def mark_restored(connection: Connection) -> None:
    """Note that a database lacks a tail, and that others may have used the epochs it had reserved."""
    streams = Streams(connection)
    for name, value in ((RESTORED, 1), ("epoch_end", 0), ("spare_epoch", -1)):
        streams.set_meta(name, value)


def _commit(path: Path, mark: Callable[[Connection], None]) -> None:
    connection = database.connect(path, cache_bytes=_CACHE_BYTES)
    try:
        with database.using(path), connection:
            mark(connection)
    finally:
        connection.close()


def _find_damage(wal: Path) -> LogDamage | None:
    from headrace.format.sqlite_wal import find_damage  # NumPy, where a log is damaged

    damage: LogDamage | None = None
    for _ in range(_TRIES):
        data = wal.read_bytes() if wal.exists() else b""
        damage = find_damage(data, PAGE_BYTES)
        if damage is None:
            return None
        time.sleep(_PAUSE_S)  # another process may be writing to it, and have been seen halfway
    return damage


def _has_later_pages(path: Path, wal: Path, intact_bytes: int) -> bool:
    """Whether a checkpoint has moved pages into the database that were committed after a byte of its log."""
    from headrace.format.sqlite_wal import later_pages  # NumPy, where a log is damaged

    compared = PAGE_BYTES - RESERVED_BYTES
    with wal.open("rb") as file, path.open("rb") as database_file:
        for number, before, after in later_pages(file.read(), intact_bytes, PAGE_BYTES):
            database_file.seek((number - 1) * PAGE_BYTES)
            page = database_file.read(compared)
            if page == after[:compared] and (before is None or page != before[:compared]):
                return True
    return False


def _keep(wal: Path, accepted: Path) -> None:
    """Keep a copy of the damaged log; that it is there says that the damage was accepted."""
    partial = accepted.with_name(f"{accepted.name}.partial")
    partial.unlink(missing_ok=True)
    copy_private(wal, partial)
    fsync_path(partial)
    partial.rename(accepted)
    fsync_path(wal.parent)


def _free_name(wal: Path) -> Path:
    number = 1
    while (kept := wal.with_name(f"{wal.name}.damaged-{number}")).exists():
        number += 1
    return kept
