"""The data directory: only its owner looks into it, and one server uses it at a time."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import TextIO

from headrace.config import ConfigError
from headrace.errors import Unavailable
from headrace.storage.files import DIRECTORY, make_directories, open_private

_MARK = "used"


def make_directory(directory: Path, mode: int = DIRECTORY) -> None:
    """Make the data directory where there is none; one that others may open is tightened, with a warning."""
    try:
        make_directories(directory, mode)
    except OSError as reason:
        raise ConfigError(
            f"{directory} cannot hold the log: {reason.strerror}; choose another with --data-dir",
            field="storage.data_dir",
        ) from reason


class DirectoryLock:
    """Holds a directory for this process; the kernel lets go of it when the process ends, however it ends."""

    def __init__(self, directory: Path) -> None:
        self._file = _open(directory / "lock")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as reason:
            self._file.seek(0)
            holder = self._file.readline().strip() or "unknown"
            self._file.close()
            raise Unavailable(
                f"another server (process {holder}) uses {directory}: stop it, or choose another --data-dir",
                reason="data_dir_in_use",
            ) from reason
        self._file.seek(0)
        #: Whether the directory has held a database.
        self.is_marked = _MARK in self._file.read().splitlines()
        self._write()

    def mark(self) -> None:
        """Note that the directory holds a database from now on."""
        if not self.is_marked:
            self.is_marked = True
            self._write()

    def _write(self) -> None:
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n" + (f"{_MARK}\n" if self.is_marked else ""))
        self._file.flush()

    def release(self) -> None:
        """Release the lock of the directory."""
        self._file.close()


def _open(path: Path) -> TextIO:
    """Open the file that is locked, which must not lead elsewhere: it is overwritten."""
    try:
        return open(path, "a+", opener=open_private)
    except OSError as reason:
        if reason.errno != errno.ELOOP:
            raise
        raise Unavailable(
            f"{path} is a symbolic link, and what it leads to would be overwritten: remove it", reason="data_dir"
        ) from reason
