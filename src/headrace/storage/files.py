"""Making files and directory entries durable."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import stat
from pathlib import Path


def fsync_path(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


log = logging.getLogger("headrace.storage")

FILE, DIRECTORY = 0o600, 0o700
_OTHERS = 0o077
#: What a directory does not share with its files: the permission to pass through it.
_NO_EXECUTE = 0o666


def restrict_process() -> None:
    """Set the umask so that this process and its children create files that only their owner can access."""
    os.umask(_OTHERS)


def open_private(path: str | Path, flags: int) -> int:
    """Open a file that only its owner may read, an existing one too, and no symbolic link; an opener for ``open``."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, FILE)
    if stat.S_IMODE(os.fstat(descriptor).st_mode) & _OTHERS:
        os.fchmod(descriptor, FILE)
    return descriptor


def create_private(path: Path) -> None:
    """Create an empty file for its owner alone where there is none; one that is there is tightened."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, FILE))
    except FileExistsError:
        if path.lstat().st_mode & _OTHERS and not path.is_symlink():
            path.chmod(FILE)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read."""
    with open(path, "wb", opener=open_private) as file:
        file.write(data)


def copy_private(source: Path, target: Path) -> None:
    """Copy what is in a file to another that only its owner may read."""
    with source.open("rb") as reading, open(target, "wb", opener=open_private) as writing:
        shutil.copyfileobj(reading, writing, 1024 * 1024)


def make_directories(path: Path, mode: int = DIRECTORY) -> None:
    """Make a directory, and those above it that are missing; one that is there keeps what its owner may do.

    Others may do with it what the mode says: where they could do more until now, there is a warning.
    """
    if path.is_dir():
        _adjust(path, mode)
        return
    if not path.parent.is_dir():
        make_directories(path.parent, mode)
    make_directory(path, mode)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def make_directory(path: Path, mode: int) -> None:
    """Make one directory with exactly this mode, unless something is there; others may remove it at any time."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=mode)
        path.chmod(mode)


def file_mode(directory_mode: int) -> int:
    """What files may have done to them in a directory of this mode."""
    return directory_mode & _NO_EXECUTE


def _adjust(path: Path, mode: int) -> None:
    before = stat.S_IMODE(path.stat().st_mode)
    wanted = (before & ~_OTHERS) | (mode & _OTHERS)
    if wanted == before:
        return
    # A sticky directory, such as /tmp, is meant for many.
    is_open, changed = bool(before & _OTHERS & ~mode), False
    if not before & stat.S_ISVTX:
        try:
            path.chmod(wanted)
            changed = True
        except OSError:
            pass
    if is_open and changed:
        log.warning("others could open %s (mode %04o): its mode is %04o now", path, before, wanted)
    elif is_open:
        log.warning("others may open %s (mode %04o), which was not changed: use one of your own", path, before)
