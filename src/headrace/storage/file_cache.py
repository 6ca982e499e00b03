"""Copies of objects on the local disk, and files that are kept open: both within limits, the ones used last longest.

A cache has one directory. The name of a file begins with the SHA-256 of the object that it was made from, so files
outlive a restart. Files in use are not removed, so the disk may hold more than the limit by what is in use right now.
Where the disk is full, everything else of a cache is removed and the object is fetched once more.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import resource
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from headrace.errors import CorruptData, Unavailable
from headrace.storage.files import make_directories, open_private
from headrace.storage.objects import Objects

log = logging.getLogger("headrace.cache")

_PARTIAL = ".part"

#: Writes a file to the path that it is given; returns what its name has between the checksum and the suffix.
Make = Callable[[Path], str]


class CachedFile:
    """One file of a cache, whose lock guards it; one that belongs to the store itself has no size."""

    __slots__ = ("making", "path", "pins", "remembered", "sha256", "size", "verified")

    def __init__(self, sha256: str, path: Path, size: int = 0) -> None:
        self.sha256, self.path = sha256, path
        #: Bytes in the directory of the cache; 0 where the file is not there.
        self.size = size
        self.pins = 0
        #: Whether this process has verified what is in it.
        self.verified = False
        self.making: Future[None] | None = None
        #: What the opener of the file remembers of its contents.
        self.remembered: Any = None


class FileCache:
    """Files in a directory, bounded in bytes; two threads that want the same one wait for it to be made once."""

    def __init__(
        self,
        directory: Path,
        suffix: str,
        *,
        limit_bytes: int,
        max_files: int | None = None,
        on_remove: Callable[[str], object] = lambda sha256: None,
    ) -> None:
        """``on_remove`` is called, with the lock held, when a file is forgotten."""
        self._directory, self._suffix = directory, suffix
        self._limit_bytes, self._max_files = limit_bytes, max_files
        self._on_remove = on_remove
        self._lock = threading.Lock()
        #: The one used longest ago first.
        self._files: OrderedDict[str, CachedFile] = OrderedDict()
        #: What is in the directory, how often a file was made, and how many damaged ones were dropped.
        self.bytes = self.fetches = self.dropped = 0
        self._find_files()

    def __len__(self) -> int:
        return len(self._files)

    def pin(self, sha256: str) -> CachedFile:
        """The file of an object, made or not; it stays until it is unpinned."""
        with self._lock:
            file = self._files.get(sha256)
            if file is None:
                file = self._files[sha256] = CachedFile(sha256, self._path(sha256))
            self._files.move_to_end(sha256)
            file.pins += 1
            return file

    def unpin(self, file: CachedFile) -> None:
        """Release a pinned file."""
        with self._lock:
            file.pins -= 1
            if not file.pins and not file.size and not file.verified and self._files.get(file.sha256) is file:
                del self._files[file.sha256]
            self._shrink(self._limit_bytes)

    @contextmanager
    def pinned(self, sha256: str) -> Iterator[CachedFile]:
        """The file of an object while the block runs."""
        file = self.pin(sha256)
        try:
            yield file
        finally:
            self.unpin(file)

    def ensure(self, file: CachedFile, size: int, make: Make) -> Path:
        """The path of a pinned file, which is made if need be; what is made is verified."""
        with self._lock:
            if file.size and file.path.exists():
                return file.path
            making = file.making
            if making is None:
                self._begin(file, size)
        if making is not None:
            making.result()
            return file.path
        try:
            path = self._make(file.sha256, make)
        except BaseException as reason:
            self._end(file, size, None).set_exception(reason)
            raise
        self._end(file, size, path).set_result(None)
        return path

    def replace(self, file: CachedFile, name: str, size: int, make: Make) -> Path:
        """Drop a damaged file and make it again; ``name`` is that of its object."""
        self.drop(file, name)
        with self._lock:
            file = self._files.setdefault(file.sha256, file)
            self._files.move_to_end(file.sha256)
        return self.ensure(file, size, make)

    def drop(self, file: CachedFile, name: str) -> None:
        """Forget a damaged file, though it is in use, so that it is made again; ``name`` is that of its object."""
        with self._lock:
            if self._files.get(file.sha256, file) is not file or file.making is not None:
                return
            self._files.pop(file.sha256, None)
            file.path.unlink(missing_ok=True)
            self.bytes -= file.size
            file.size, file.verified = 0, False
            self.dropped += 1
        log.warning("%s, which caches %s, is damaged: it was dropped and is made anew", file.path, name)

    def adopt(self, path: Path, sha256: str, size: int) -> None:
        """Move a verified file on the same file system into the cache."""
        with self._lock:
            file = self._files.setdefault(sha256, CachedFile(sha256, self._path(sha256)))
            path.replace(file.path)
            self.bytes += size - file.size
            file.size = size
            self._shrink(self._limit_bytes)

    def discard(self, sha256s: Iterable[str]) -> None:
        """Remove files; those in use are the first to go later."""
        with self._lock:
            for sha256 in sha256s:
                file = self._files.get(sha256)
                if file is not None and file.pins:
                    self._files.move_to_end(sha256, last=False)
                elif file is not None:
                    self._remove(file)

    def prune(self, listed: Collection[str]) -> int:
        """Remove files whose checksums are not among these; returns how many of them are in use."""
        with self._lock:
            unlisted = [file for sha256, file in self._files.items() if sha256 not in listed]
            for file in unlisted:
                if not file.pins:
                    self._remove(file)
            return sum(file.pins > 0 for file in unlisted)

    def held_bytes(self, sha256s: Iterable[str]) -> int:
        """The disk that files with these checksums take."""
        with self._lock:
            return sum(self._files[sha256].size for sha256 in sha256s if sha256 in self._files)

    def make_room(self) -> None:
        """Remove all files that are not in use, since the disk is full."""
        with self._lock:
            self._shrink(0)

    def _find_files(self) -> None:
        """List the files of an earlier run, the oldest first; remove those that were cut short or are empty."""
        make_directories(self._directory)
        for path in self._directory.glob(f"*{_PARTIAL}"):
            path.unlink()
        paths = [(path.stat(), path) for path in self._directory.glob(f"*{self._suffix}")]
        for stat, path in sorted(paths, key=lambda pair: pair[0].st_mtime_ns):
            sha256 = path.stem.partition("-")[0]
            if not stat.st_size:
                path.unlink()
                continue
            if sha256 in self._files:
                self._remove(self._files[sha256])
            self._files[sha256] = CachedFile(sha256, path, stat.st_size)
            self.bytes += stat.st_size
        self._shrink(self._limit_bytes)

    def _begin(self, file: CachedFile, size: int) -> None:
        file.making = Future()
        self.fetches += 1
        self.bytes += size - file.size
        file.size = 0
        self._shrink(self._limit_bytes)

    def _end(self, file: CachedFile, size: int, path: Path | None) -> Future[None]:
        with self._lock:
            making, file.making = file.making, None
            assert making is not None, "only who began to make a file ends it"
            self.bytes -= size
            if path is not None:
                file.path, file.size, file.verified = path, path.stat().st_size, True
                self.bytes += file.size
            return making

    def _make(self, sha256: str, make: Make) -> Path:
        """Make a whole file, or none."""
        partial = self._directory / f"{sha256}-{secrets.token_hex(4)}{_PARTIAL}"
        try:
            path = self._path(sha256, make(partial))
            partial.replace(path)
            return path
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def _path(self, sha256: str, tag: str = "") -> Path:
        return self._directory / f"{sha256}{tag}{self._suffix}"

    def _shrink(self, limit_bytes: int) -> None:
        """Remove what was used longest ago until the rest is within the limits; nothing that is in use."""
        if self._fits(limit_bytes):
            return
        for file in [file for file in self._files.values() if not file.pins]:
            if self._fits(limit_bytes):
                return
            self._remove(file)

    def _fits(self, limit_bytes: int) -> bool:
        return self.bytes <= limit_bytes and (self._max_files is None or len(self._files) <= self._max_files)

    def _remove(self, file: CachedFile) -> None:
        del self._files[file.sha256]
        self._on_remove(file.sha256)
        if file.size:
            self.bytes -= file.size
            file.size = 0
            file.path.unlink(missing_ok=True)


def fetcher(objects: Objects, key: str, size: int, sha256: str, make_room: Callable[[], None]) -> Make:
    """What makes a file of a cache: it fetches an object and checks it."""

    def make(path: Path) -> str:
        download(objects, key, size, path, make_room)
        verify_copy(path, key, sha256)
        return ""

    return make


Key = TypeVar("Key", bound=Hashable)
Opened = TypeVar("Opened")


class OpenFiles(Generic[Key, Opened]):
    """What is open, the one used longest ago first: bounded in files and in memory, and never less than one."""

    def __init__(
        self,
        max_files: int,
        *,
        limit_bytes: int | None = None,
        footprint: Callable[[Opened], int] = lambda opened: 0,
        files: Callable[[Opened], int] = lambda opened: 1,
    ) -> None:
        """``footprint`` and ``files`` say how much memory and how many files something takes as long as it is open."""
        self._max_files = max_files
        #: Memory that all of it may take.
        self.limit_bytes = limit_bytes
        self._footprint, self._files = footprint, files
        self._lock = threading.Lock()
        self._opened: OrderedDict[Key, Opened] = OrderedDict()

    def __len__(self) -> int:
        return len(self._opened)

    @property
    def bytes(self) -> int:
        """The memory that all of it takes."""
        with self._lock:
            return sum(map(self._footprint, self._opened.values()))

    def peek(self, key: Key) -> Opened | None:
        """What is open under a key; never waits, and does not count as a use."""
        return self._opened.get(key)

    def get(self, key: Key) -> Opened | None:
        """What is open under a key, used now."""
        with self._lock:
            opened = self._opened.get(key)
            if opened is not None:
                self._opened.move_to_end(key)
            return opened

    def put(self, key: Key, opened: Opened) -> list[Opened]:
        """Keep something open; returns what is to be closed for it, which may still be in use."""
        with self._lock:
            self._opened[key] = opened
            self._opened.move_to_end(key)
            return self._surplus()

    def pop(self, key: Key) -> Opened | None:
        """Remove what is open under a key, and return it."""
        with self._lock:
            return self._opened.pop(key, None)

    def pop_where(self, is_chosen: Callable[[Key, Opened], bool]) -> list[Key]:
        """Remove what is chosen; returns its keys."""
        with self._lock:
            keys = [key for key, opened in self._opened.items() if is_chosen(key, opened)]
            for key in keys:
                del self._opened[key]
            return keys

    def pop_oldest(self, count: int) -> list[Opened]:
        """Remove so many, those used longest ago, and return them."""
        with self._lock:
            return [self._opened.popitem(last=False)[1] for _ in range(min(count, len(self._opened)))]

    def clear(self) -> list[Opened]:
        """Remove everything, and return it."""
        return self.pop_oldest(len(self._opened))

    def _surplus(self) -> list[Opened]:
        surplus = []
        size = sum(map(self._footprint, self._opened.values()))
        files = sum(map(self._files, self._opened.values()))
        max_files = max_open_files(self._max_files)
        while len(self._opened) > 1 and (
            files > max_files or (self.limit_bytes is not None and size > self.limit_bytes)
        ):
            _, oldest = self._opened.popitem(last=False)
            size, files = size - self._footprint(oldest), files - self._files(oldest)
            surplus.append(oldest)
        return surplus


def max_open_files(wanted: int, divisor: int = 16) -> int:
    """As many as are wanted, or a small part of those that the system lets this process open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else min(wanted, files // divisor)


def download(objects: Objects, key: str, size: int, path: Path, make_room: Callable[[], None]) -> None:
    """Write an object of this size to a file; where the disk is full, room is made once."""
    try:
        _write(objects, key, size, path)
    except OSError as reason:
        if reason.errno != errno.ENOSPC:
            raise Unavailable(f"{key} could not be kept: {reason.strerror}", reason="storage") from reason
        make_room()
        try:
            _write(objects, key, size, path)
        except OSError as again:
            raise Unavailable(f"the disk is full; {key} could not be fetched", reason="disk_full") from again


def verify_copy(path: Path, key: str, sha256: str) -> None:
    """Raise CorruptData where a file is not the object that was written."""
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise CorruptData(f"{key} is not what was written: its checksum differs", object=key, check="checksum")


def _write(objects: Objects, key: str, size: int, path: Path) -> None:
    with open(path, "wb", opener=open_private) as file:
        objects.download(key, size, file)
