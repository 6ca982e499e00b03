"""Objects as files below a directory, on disk when a write returns.

An object is written to a staging file, synced, and linked or renamed into place; then the directories above it are
synced. obstore has a local store too, which does not sync. Files and directories get the permissions of the root, so
every process that writes here lets the same others in.
"""

from __future__ import annotations

import errno
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headrace.storage.files import (
    DIRECTORY,
    copy_private,
    file_mode,
    fsync_path,
    make_directories,
    make_directory,
    write_private,
)
from headrace.storage.objects.backend import PAGE, ObjectInfo

STAGING = ".staging"
_ABANDONED_S = 86_400.0
_TRIES = 20


class Directory:
    """A backend on a local file system, which several processes may share."""

    def __init__(self, root: Path, mode: int | None = None) -> None:
        """With a mode the root is given these permissions; without one it keeps those that it has."""
        self.root = root
        if mode is not None or not root.is_dir():
            make_directories(root, DIRECTORY if mode is None else mode)
        self._mode = stat.S_IMODE(root.stat().st_mode) & 0o777 if mode is None else mode
        self._staging = root / STAGING
        self._make(self._staging)
        for left in self._staging.iterdir():
            if left.stat().st_mtime < time.time() - _ABANDONED_S:
                left.unlink(missing_ok=True)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object that does not exist yet; False if it does."""
        staged = self._stage(data)
        try:
            self._place(staged, self.root / key, os.link)
        except FileExistsError:
            return False
        finally:
            staged.unlink(missing_ok=True)
        return True

    def put(self, key: str, data: bytes) -> None:
        """Write an object, whatever was there."""
        self._place(self._stage(data), self.root / key, os.replace)

    def upload(self, key: str, path: Path) -> None:
        """Write an object from a file that nobody changes any more; on the same file system nothing is copied."""
        staged = self._staging / uuid.uuid4().hex
        try:
            os.link(path, staged)
        except OSError as reason:
            if reason.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP):
                raise
            copy_private(path, staged)
        staged.chmod(self.file_mode)
        fsync_path(staged)
        self._place(staged, self.root / key, os.replace)

    @property
    def file_mode(self) -> int:
        """The permissions of an object."""
        return file_mode(self._mode)

    def get(self, key: str) -> bytes:
        """All of an object."""
        return (self.root / key).read_bytes()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """A part of an object, shorter where the object ends."""
        with (self.root / key).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def head(self, key: str) -> ObjectInfo:
        """An object's size and age."""
        return _info(key, (self.root / key).stat())

    def list(self, prefix: str) -> Iterator[Sequence[ObjectInfo]]:
        """All objects below a prefix, page by page."""
        page: list[ObjectInfo] = []
        for info in self._walk(prefix):
            page.append(info)
            if len(page) == PAGE:
                yield page
                page = []
        if page:
            yield page

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects, and the directories that they leave empty."""
        for key in keys:
            path = self.root / key
            path.unlink(missing_ok=True)
            try:
                for parent in path.relative_to(self.root).parents[:-1]:
                    (self.root / parent).rmdir()
            except OSError:
                pass  # not empty, or someone was quicker

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        try:
            with os.scandir(self.root / prefix) as unsorted:
                entries = sorted(unsorted, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            key = f"{prefix}/{entry.name}" if prefix else entry.name
            try:
                if not entry.is_dir():
                    yield _info(key, entry.stat())
                elif key != STAGING:
                    yield from self._walk(key)
            except FileNotFoundError:
                continue

    def _stage(self, data: bytes) -> Path:
        staged = self._staging / uuid.uuid4().hex
        write_private(staged, data)
        staged.chmod(self.file_mode)
        fsync_path(staged)
        return staged

    def _place(self, staged: Path, path: Path, move: Callable[[Path, Path], None]) -> None:
        """Give a staged file its name; the directory may be removed under us until something is in it."""
        for left in reversed(range(_TRIES)):
            try:
                self._make(path.parent)
                move(staged, path)
                break
            except FileNotFoundError:
                if not left:
                    raise
        fsync_path(path.parent)

    def _make(self, directory: Path) -> None:
        """Make a directory that survives a power failure, with those above it."""
        if directory.is_dir():
            return
        self._make(directory.parent)
        make_directory(directory, self._mode)
        fsync_path(directory.parent)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, status.st_mtime_ns // 1000)
