"""Companions on the local disk: their files are fetched when first asked for, and kept while there is room.

A store that is a local directory is read in place. What is fetched from elsewhere lies in one directory, under the
checksum of its bytes, and outlives a restart. Files in use are not removed, so the disk may hold more than the limit by
what is being asked right now. Companions used last stay open, and so do decoded row groups, within limits.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from headrace.errors import CorruptData
from headrace.format.companion.layout import Companion, Part, PartName
from headrace.format.companion.names import companion_key
from headrace.format.companion.reader import FileCompanion
from headrace.format.segment.decoded import Decoded
from headrace.storage.fetching import check, download
from headrace.storage.objects import ObjectMissing, Objects

#: Memory that open footers may take.
OPEN_BYTES = 32 * 1024 * 1024
_SUFFIX, _PARTIAL = ".parquet", ".part"


class Usage(NamedTuple):
    """What the cache holds, and how often it had to fetch."""

    bytes: int
    files: int
    opened: int
    decoded_bytes: int
    fetches: int


class _File:
    """One file of ours; the cache's lock guards it."""

    __slots__ = ("fetching", "pins", "size")

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.pins = 0
        self.fetching: Future[None] | None = None


class FileCache:
    """Copies of objects in a directory, bounded in bytes; two that want the same one wait for the same fetch."""

    def __init__(self, objects: Objects, directory: Path, *, limit_bytes: int) -> None:
        self._objects = objects
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._files: OrderedDict[str, _File] = OrderedDict()
        self.bytes = self.fetches = 0
        self._find_files()

    def __len__(self) -> int:
        return len(self._files)

    @contextmanager
    def holding(self, key: str, part: Part) -> Iterator[Path]:
        """The file of an object, fetched and checked if need be; it stays while the block runs."""
        with self._lock:
            file = self._files.setdefault(part.sha256, _File())
            self._files.move_to_end(part.sha256)
            file.pins += 1
        try:
            self._ensure(file, key, part)
            yield self._path(part.sha256)
        finally:
            with self._lock:
                file.pins -= 1
                if not file.size and not file.pins:
                    self._files.pop(part.sha256, None)
                self._shrink(self._limit_bytes)

    def prune(self, listed: Collection[str]) -> int:
        """Remove files whose checksums are not among these; answers how many of them are in use."""
        with self._lock:
            unlisted = [sha256 for sha256 in self._files if sha256 not in listed]
            pinned = [sha256 for sha256 in unlisted if self._files[sha256].pins]
            for sha256 in set(unlisted).difference(pinned):
                self.bytes -= self._files.pop(sha256).size
                self._path(sha256).unlink(missing_ok=True)
            return len(pinned)

    def _find_files(self) -> None:
        """Know what an earlier run left behind, the oldest first; fetches that were cut short go."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in self._directory.glob(f"*{_PARTIAL}"):
            path.unlink()
        found = [(path.stat(), path.stem) for path in self._directory.glob(f"*{_SUFFIX}")]
        for stat, sha256 in sorted(found, key=lambda item: item[0].st_mtime_ns):
            self._files[sha256] = _File(stat.st_size)
            self.bytes += stat.st_size
        self._shrink(self._limit_bytes)

    def _ensure(self, file: _File, key: str, part: Part) -> None:
        with self._lock:
            if file.size:
                return
            awaited, fetching = file.fetching, Future[None]()
            if awaited is None:
                file.fetching = fetching
                self.fetches += 1
                self.bytes += part.bytes
                self._shrink(self._limit_bytes)
        if awaited is not None:
            awaited.result()
            return
        try:
            self._fetch(key, part)
        except BaseException as reason:
            with self._lock:
                file.fetching = None
                self.bytes -= part.bytes
            fetching.set_exception(reason)
            raise
        with self._lock:
            file.fetching, file.size = None, part.bytes
        fetching.set_result(None)

    def _fetch(self, key: str, part: Part) -> None:
        """Get a whole file, or none."""
        path = self._path(part.sha256)
        partial = path.with_suffix(_PARTIAL)
        try:
            download(self._objects, key, part.bytes, partial, self._make_room)
            check(partial, key, part.sha256)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def _make_room(self) -> None:
        with self._lock:
            self._shrink(0)

    def _path(self, sha256: str) -> Path:
        return self._directory / (sha256 + _SUFFIX)

    def _shrink(self, limit_bytes: int) -> None:
        """Remove what was used longest ago until the rest is within the limit; nothing that is in use."""
        for sha256 in [sha256 for sha256, file in self._files.items() if not file.pins]:
            if self.bytes <= limit_bytes:
                return
            self.bytes -= self._files.pop(sha256).size
            self._path(sha256).unlink(missing_ok=True)


class CompanionFiles:
    """Opens companions for asking, from any thread."""

    def __init__(self, objects: Objects, directory: Path, *, limit_bytes: int, decoded_bytes: int) -> None:
        self._objects = objects
        self._decoded = Decoded(decoded_bytes)
        self._cache = None if objects.is_local else FileCache(objects, directory, limit_bytes=limit_bytes)
        self._lock = threading.Lock()
        self._opened: OrderedDict[tuple[str, ...], FileCompanion] = OrderedDict()

    @contextmanager
    def open(
        self, stream: str, incarnation: str, companion: Companion, parts: Collection[PartName]
    ) -> Iterator[FileCompanion]:
        """A companion of a stream, of which only these parts will be asked; their files stay while the block runs."""
        cache = self._cache
        wanted: list[PartName] = [part for part in companion.parts if cache is None or part in parts]
        mark = incarnation, companion.name, *wanted
        known = self._known(mark) if cache is None else None
        if known is not None:
            yield known
            return
        with ExitStack() as stack:
            paths: dict[PartName, Path] = {}
            for part in wanted:
                key = companion_key(stream, incarnation, companion.name, part)
                path = self._objects.local_path(key)
                if path is None:
                    assert cache is not None
                    path = stack.enter_context(cache.holding(key, companion.parts[part]))
                paths[part] = path
            yield self._known(mark) or self._opened_anew(mark, companion, paths)

    def prune(self, listed: Collection[str]) -> int:
        """Let go of what is open, and of files of parts that are not listed; answers how many of those are in use."""
        with self._lock:
            self._opened.clear()
        return 0 if self._cache is None else self._cache.prune(listed)

    def usage(self) -> Usage:
        """What is held now."""
        files = (0, 0, 0) if self._cache is None else (self._cache.bytes, len(self._cache), self._cache.fetches)
        return Usage(files[0], files[1], len(self._opened), self._decoded.bytes, files[2])

    def _known(self, mark: tuple[str, ...]) -> FileCompanion | None:
        """The companion if it is open with these parts at hand."""
        with self._lock:
            known = self._opened.get(mark)
            if known is not None:
                self._opened.move_to_end(mark)
            return known

    def _opened_anew(self, mark: tuple[str, ...], companion: Companion, paths: dict[PartName, Path]) -> FileCompanion:
        try:
            made = FileCompanion(
                paths["columns"],
                paths.get("postings"),
                paths.get("panes"),
                name=companion.name,
                decoded=self._decoded,
            )
        except CorruptData as reason:
            if paths["columns"].exists():
                raise
            message = f"a file of {companion.name} is missing"
            raise ObjectMissing(message, object=companion.name, check="present") from reason
        with self._lock:
            self._opened[mark] = made
            while sum(one.footprint for one in self._opened.values()) > OPEN_BYTES and len(self._opened) > 1:
                self._opened.popitem(last=False)
        return made
