"""Companions on the local disk: their files are fetched when first asked for, and kept while there is room.

A store that is a local directory is read in place. What is fetched from elsewhere lies in one directory, under the
checksum of its bytes, and outlives a restart. Files in use are not removed, so the disk may hold more than the limit by
what is being asked right now. Companions used last stay open, and so do decoded row groups, within limits.

Every file is verified when a process opens it for the first time. A damaged copy is dropped and fetched again; a
damaged object is ``CorruptData``.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headrace.format.companion.layout import Companion, PartFile, PartName
from headrace.format.companion.reader import FileCompanion
from headrace.format.object_names import companion_key, file_name, parse_companion_key
from headrace.format.parquet_file import ParquetSource
from headrace.format.segment.decoded import DecodedCache
from headrace.storage.fetching import check, download, log_dropped
from headrace.storage.files import make_directories
from headrace.storage.objects import ObjectMissing, Objects
from headrace.storage.open_files import most_open_files

#: Files of companions that may be open.
MOST_OPEN = 256
#: Footers whose checksums are remembered.
_MOST_FOOTERS = 20_000
_SUFFIX, _PARTIAL = ".parquet", ".part"


class Usage(NamedTuple):
    """What the cache holds, how often it had to fetch, and how many damaged files it dropped."""

    bytes: int
    files: int
    opened: int
    open_bytes: int
    decoded_bytes: int
    fetches: int
    dropped: int


class _File:
    """One file of ours; the cache's lock guards it."""

    __slots__ = ("fetching", "pins", "size", "verified")

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.pins = 0
        #: Whether this process has verified its checksum.
        self.verified = False
        self.fetching: Future[None] | None = None


class FileCache:
    """Copies of objects in a directory, bounded in bytes; two that want the same one wait for the same fetch."""

    def __init__(self, objects: Objects, directory: Path, *, limit_bytes: int) -> None:
        self._objects = objects
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._files: OrderedDict[str, _File] = OrderedDict()
        self.bytes = self.fetches = self.dropped = 0
        self._find_files()

    def __len__(self) -> int:
        return len(self._files)

    @contextmanager
    def holding(self, key: str, part: PartFile) -> Iterator[Path]:
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

    def is_verified(self, part: PartFile) -> bool:
        """Whether this process has verified the file of a part that is held."""
        return self._files[part.sha256].verified

    def replace(self, key: str, part: PartFile) -> Path:
        """Drop a damaged file that is held, and fetch it again."""
        path = self._path(part.sha256)
        with self._lock:
            file = self._files.setdefault(part.sha256, _File())
            path.unlink(missing_ok=True)
            self.bytes -= file.size
            self.dropped += 1
            file.size, file.verified = 0, False
        log_dropped(path, key)
        self._ensure(file, key, part)
        return path

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
        make_directories(self._directory)
        for path in self._directory.glob(f"*{_PARTIAL}"):
            path.unlink()
        found = [(path.stat(), path.stem) for path in self._directory.glob(f"*{_SUFFIX}")]
        for stat, sha256 in sorted(found, key=lambda item: item[0].st_mtime_ns):
            self._files[sha256] = _File(stat.st_size)
            self.bytes += stat.st_size
        self._shrink(self._limit_bytes)

    def _ensure(self, file: _File, key: str, part: PartFile) -> None:
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
            file.fetching, file.size, file.verified = None, part.bytes, True
        fetching.set_result(None)

    def _fetch(self, key: str, part: PartFile) -> None:
        """Get a whole file, or none."""
        fetched = self._directory / f"{part.sha256}-{secrets.token_hex(4)}{_PARTIAL}"
        try:
            download(self._objects, key, part.bytes, fetched, self._make_room)
            check(fetched, key, part.sha256)
            fetched.replace(self._path(part.sha256))
        except BaseException:
            fetched.unlink(missing_ok=True)
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

    def __init__(
        self,
        objects: Objects,
        directory: Path,
        *,
        limit_bytes: int,
        decoded_bytes: int,
        footer_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        self._objects = objects
        #: Memory that open footers may take.
        self.footer_bytes = footer_bytes
        self._decoded = DecodedCache(decoded_bytes)
        self._cache = None if objects.is_local else FileCache(objects, directory, limit_bytes=limit_bytes)
        self._lock = threading.Lock()
        self._opened: OrderedDict[tuple[str, ...], FileCompanion] = OrderedDict()
        #: By the checksums of files that were verified, those of their footers.
        self._footers: dict[str, int] = {}

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
            sources: dict[PartName, Callable[[], ParquetSource]] = {}
            for part in wanted:
                key = companion_key(stream, incarnation, companion.name, part)
                path = self._objects.local_path(key)
                if path is None:
                    assert cache is not None
                    path = stack.enter_context(cache.holding(key, companion.parts[part]))
                sources[part] = partial(self._verified, path, key, companion.name, part, companion.parts[part])
            yield self._known(mark) or self._opened_anew(mark, companion, sources)

    def prune(self, listed: Collection[str]) -> int:
        """Let go of what is open, and of files of parts that are not listed; answers how many of those are in use."""
        with self._lock:
            self._opened.clear()
            self._footers = {sha256: footer for sha256, footer in self._footers.items() if sha256 in listed}
        return 0 if self._cache is None else self._cache.prune(listed)

    def forget(self, keys: Collection[str]) -> None:
        """Close the files of companions whose objects are removed: an open file keeps its place on the disk."""
        removed = {(place[0][1], place[1]) for key in keys if (place := parse_companion_key(key)) is not None}
        with self._lock:
            for mark in [mark for mark in self._opened if mark[:2] in removed]:
                del self._opened[mark]

    def shrink(self) -> None:
        """Close all files that nobody is reading, and keep half of what is decoded."""
        with self._lock:
            self._opened.clear()
        self._decoded.shrink(self._decoded.bytes // 2)

    def usage(self) -> Usage:
        """What is held now."""
        with self._lock:
            opened, open_bytes = len(self._opened), sum(one.footprint for one in self._opened.values())
        held, cache = (opened, open_bytes, self._decoded.bytes), self._cache
        if cache is None:
            return Usage(0, 0, *held, 0, 0)
        return Usage(cache.bytes, len(cache), *held, cache.fetches, cache.dropped)

    def _known(self, mark: tuple[str, ...]) -> FileCompanion | None:
        """The companion if it is open with these parts at hand."""
        with self._lock:
            known = self._opened.get(mark)
            if known is not None:
                self._opened.move_to_end(mark)
            return known

    def _verified(self, path: Path, key: str, name: str, part: PartName, listed: PartFile) -> ParquetSource:
        """The file of a part, verified as a whole the first time and by its footer from then on."""
        cache = self._cache
        is_verified = cache is not None and cache.is_verified(listed)
        try:
            source = ParquetSource(
                path,
                file_name(name, part),
                sha256=None if is_verified else listed.sha256,
                footer_checksum=self._footers.get(listed.sha256),
                replace=None if cache is None else partial(cache.replace, key, listed),
            )
        except FileNotFoundError as reason:
            raise ObjectMissing(f"a file of {name} is missing", object=name, check="present") from reason
        with self._lock:
            self._footers[listed.sha256] = source.footer_checksum
            if len(self._footers) > _MOST_FOOTERS:
                del self._footers[next(iter(self._footers))]
        return source

    def _opened_anew(
        self,
        mark: tuple[str, ...],
        companion: Companion,
        sources: Mapping[PartName, Callable[[], ParquetSource]],
    ) -> FileCompanion:
        made = FileCompanion(sources, name=companion.name, decoded=self._decoded)
        with self._lock:
            self._opened[mark] = made
            self._close_oldest()
        return made

    def _close_oldest(self) -> None:
        """Let go of what was used longest ago, until the rest is within the limits; who reads it is not disturbed."""
        files = sum(one.most_files for one in self._opened.values())
        size = sum(one.footprint for one in self._opened.values())
        most = most_open_files(MOST_OPEN)
        while (size > self.footer_bytes or files > most) and len(self._opened) > 1:
            _, oldest = self._opened.popitem(last=False)
            size, files = size - oldest.footprint, files - oldest.most_files
