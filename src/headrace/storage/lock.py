"""The data directory: only its owner looks into it, and one server uses it at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from headrace.config import ConfigError
from headrace.errors import Unavailable

_MARK = "used"


def make_directory(directory: Path) -> None:
    """Make the data directory where there is none; one that is there keeps its permissions."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as reason:
        raise ConfigError(
            f"{directory} cannot hold the log: {reason.strerror}; choose another with --data-dir",
            field="storage.data_dir",
        ) from reason


class DirectoryLock:
    """Holds a directory for this process; the kernel lets go of it when the process ends, however it ends."""

    def __init__(self, directory: Path) -> None:
        self._file = (directory / "lock").open("a+")
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
        """Let another server have the directory."""
        self._file.close()
