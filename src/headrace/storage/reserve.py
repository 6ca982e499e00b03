"""A file that reserves disk space, to be released when the disk is full.

Whatever frees space has to write first: a deletion is a commit, and the pages of commits before it may have to be moved
from SQLite's write-ahead log into the database. So a file of some size lies in the data directory, and goes when the
disk is full and something wants to free space. It comes back once there is room again, for it and for what the
write-ahead log may still grow.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

from headrace.errors import Unavailable
from headrace.storage.database import WriteAheadLog
from headrace.storage.files import open_private

MiB = 1024 * 1024
#: What is left to others when the file comes back, and the least that is worth keeping.
LEAST_BYTES = 1 * MiB
_SHARE = 4  # of a small disk no more than a quarter is taken


class Reserve:
    """A file that takes space beside a write-ahead log; any thread may release it or make it again."""

    def __init__(self, path: Path, size: int, log: WriteAheadLog) -> None:
        self._path = path
        self._size = size
        self._log = log
        self._lock = threading.Lock()
        #: Whether the disk was full and the file had to go: what is free now is for those who free more.
        self.is_out = False

    def release(self) -> bool:
        """Free the reserved space for the next write; False where none is reserved."""
        with self._lock:
            if not self._held():
                return False
            self._path.unlink(missing_ok=True)
            self.is_out = True
            return True

    def close(self) -> None:
        """Remove the file, since nothing is written any more."""
        with self._lock:
            self._path.unlink(missing_ok=True)

    def restock(self) -> None:
        """Reserve as much as there is room for, up to the configured size."""
        with self._lock:
            held = self._held()
            disk = shutil.disk_usage(self._path.parent)
            room, least = disk.free + held, LEAST_BYTES
            size = min(self._size, room // _SHARE)
            if self.is_out:
                # Less would not last for a checkpoint, and the next time nothing could be freed.
                least = min(least + self._log.max_bytes, disk.total // _SHARE)
                size = min(self._size, room - self._log.growth - LEAST_BYTES)
            if size >= least and (held >= size or self._grow(size)):
                self.is_out = False

    def _held(self) -> int:
        if self._path.is_symlink():
            self._path.unlink()  # what it leads to is not ours to fill
        return self._path.stat().st_size if self._path.exists() else 0

    def _grow(self, size: int) -> bool:
        """Whether the file has this size now."""
        file = open_private(self._path, os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(file, 0, size)
        except OSError:  # someone else was quicker, or the file system cannot set space aside
            os.ftruncate(file, 0)
            return False
        finally:
            os.close(file)
        return True


def is_disk_full(reason: BaseException | None) -> bool:
    """Whether this, or what caused it, is a disk without space."""
    if isinstance(reason, Unavailable) and reason.facts.get("reason") == "disk_full":
        return True
    if isinstance(reason, OSError) and reason.errno == errno.ENOSPC:
        return True
    return reason is not None and is_disk_full(reason.__cause__)
