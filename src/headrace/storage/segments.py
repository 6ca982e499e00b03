"""Segments on the local disk: fetched when they are first read, checked once, kept while there is room.

A store that is a local directory is read in place. What is fetched from elsewhere lies in one directory, under the
checksum of its bytes, and outlives a restart. Files in use are not removed, so the disk may hold more than the limit by
what is being read right now. Footers of the segments used last stay open, and so do decoded row groups, within limits.

A copy that turns out to be damaged is dropped and fetched again; a damaged object is ``CorruptData``.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headrace.format.manifest import Segment
from headrace.format.segment.decoded import DecodedCache
from headrace.format.segment.mask import Mask
from headrace.format.segment.reader import Checksums, SegmentReader
from headrace.storage.fetching import check, download, log_dropped
from headrace.storage.files import make_directories
from headrace.storage.objects import ObjectMissing, Objects
from headrace.storage.open_files import most_open_files

KNOWN_FILES = 20_000
MOST_READERS = 512
_SUFFIX, _PARTIAL = ".parquet", ".part"


class Usage(NamedTuple):
    """What the cache holds, how often it had to fetch, and how many damaged files it dropped."""

    bytes: int
    files: int
    readers: int
    reader_bytes: int
    decoded_bytes: int
    fetches: int
    dropped: int


class _File:
    """What is known of one segment's file; the cache's lock guards it."""

    __slots__ = ("checked", "checksums", "opening", "pins", "size")

    def __init__(self, size: int = 0) -> None:
        #: Bytes in our directory; 0 where the file is not ours.
        self.size = size
        self.pins = 0
        self.checked = False
        #: Of the parts that are compared when the file is opened again; None until it was opened.
        self.checksums: Checksums | None = None
        self.opening: Future[SegmentReader] | None = None


class Segments:
    """Opens segments for reading, from any thread; two that want the same one wait for the same fetch."""

    def __init__(
        self,
        objects: Objects,
        directory: Path,
        *,
        limit_bytes: int,
        decoded_bytes: int,
        footer_bytes: int = 24 * 1024 * 1024,
        masks: Mapping[str, Mask] | None = None,
    ) -> None:
        """``masks`` are what is hidden now, by the incarnation of the stream; the caller may change them any time."""
        self._objects = objects
        self._masks: Mapping[str, Mask] = {} if masks is None else masks
        self._directory = directory
        self._limit_bytes = limit_bytes
        #: Memory that open footers may take.
        self.footer_bytes = footer_bytes
        self._decoded = DecodedCache(decoded_bytes)
        self._lock = threading.Lock()
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._readers: OrderedDict[str, SegmentReader] = OrderedDict()
        self._bytes = self._reader_bytes = self._fetches = self._dropped = 0
        self._find_files()

    @contextmanager
    def open(self, key: str, segment: Segment) -> Iterator[SegmentReader]:
        """The segment of this key, fetched and checked if need be; its file stays while the block runs."""
        with self._lock:
            file = self._files.setdefault(segment.sha256, _File())
            self._files.move_to_end(segment.sha256)
            file.pins += 1
        try:
            yield self._reader(file, key, segment)
        finally:
            with self._lock:
                file.pins -= 1
                self._shrink(self._limit_bytes)

    @contextmanager
    def open_unmasked(self, key: str, segment: Segment) -> Iterator[SegmentReader]:
        """The same with everything that the file holds, for who removes what is hidden."""
        with self.open(key, segment) as reader:
            if reader.mask is None:
                yield reader
            else:
                yield self._load(self._files[segment.sha256], key, segment, None)

    def ready(self, segment: Segment) -> SegmentReader | None:
        """The segment, if it is open already; never waits."""
        reader = self._readers.get(segment.sha256)
        if reader is not None and (self._masks or reader.mask is not None) and not self._is_current(reader):
            return None
        return reader

    def mask_number(self, key: str) -> int:
        """Which mask hides rows of a segment now; 0 where none does."""
        mask = self._mask(key)
        return 0 if mask is None else mask.number

    def _mask(self, key: str) -> Mask | None:
        # segments/<hash of the stream's name>/<incarnation>/<name>
        return self._masks.get(key.split("/")[2]) if self._masks else None

    def _is_current(self, reader: SegmentReader) -> bool:
        """Whether a reader hides what has to be hidden now, and nothing else."""
        return reader.mask is self._mask(reader.name)

    def adopt(self, path: Path, segment: Segment) -> None:
        """Take over the file of a segment that was just uploaded, so that nobody has to fetch it.

        It must lie on the same file system. A local store was just given these very bytes: they need no second look.
        """
        with self._lock:
            file = self._files.setdefault(segment.sha256, _File())
            if self._objects.is_local:
                path.unlink()
                file.checked = True
            else:
                path.replace(self._path(segment.sha256))
                self._resize(file, segment.bytes)
            self._shrink(self._limit_bytes)

    def forget(self, keys: Collection[str]) -> None:
        """Let go of segments whose objects are removed: an open file would keep its place on the disk."""
        with self._lock:
            for sha256 in [sha256 for sha256, reader in self._readers.items() if reader.name in keys]:
                if self._files[sha256].pins:
                    self._close(sha256)
                    self._files.move_to_end(sha256, last=False)
                else:
                    self._remove(sha256)

    def prune(self, listed: Collection[str]) -> int:
        """Forget segments whose checksums are not among these; answers how many of them are being read."""
        with self._lock:
            unlisted = [sha256 for sha256 in self._files if sha256 not in listed]
            pinned = [sha256 for sha256 in unlisted if self._files[sha256].pins]
            for sha256 in set(unlisted).difference(pinned):
                self._remove(sha256)
            return len(pinned)

    def shrink(self) -> None:
        """Keep half of what is decoded, and of what is open."""
        self._decoded.shrink(self._decoded.bytes // 2)
        with self._lock:
            for sha256 in list(self._readers)[: (len(self._readers) + 1) // 2]:
                self._close(sha256)

    def held_bytes(self, checksums: Iterable[str]) -> int:
        """The disk that segments with these checksums take here."""
        with self._lock:
            return sum(self._files[sha256].size for sha256 in checksums if sha256 in self._files)

    def usage(self) -> Usage:
        """What the cache holds now."""
        with self._lock:
            return Usage(
                bytes=self._bytes,
                files=len(self._files),
                readers=len(self._readers),
                reader_bytes=self._reader_bytes,
                decoded_bytes=self._decoded.bytes,
                fetches=self._fetches,
                dropped=self._dropped,
            )

    def _find_files(self) -> None:
        """Know what an earlier run left behind, the oldest first; fetches that were cut short go."""
        make_directories(self._directory)
        for path in self._directory.glob(f"*{_PARTIAL}"):
            path.unlink()
        found = [(path.stat(), path.stem) for path in self._directory.glob(f"*{_SUFFIX}")]
        for stat, sha256 in sorted(found, key=lambda item: item[0].st_mtime_ns):
            self._files[sha256] = _File(stat.st_size)
            self._bytes += stat.st_size
        self._shrink(self._limit_bytes)

    def _reader(self, file: _File, key: str, segment: Segment) -> SegmentReader:
        while True:
            reader = self._open_reader(file, key, segment)
            if self._is_current(reader):
                return reader

    def _open_reader(self, file: _File, key: str, segment: Segment) -> SegmentReader:
        with self._lock:
            found = self._readers.get(segment.sha256)
            if found is not None and not self._is_current(found):
                self._close(segment.sha256)
                found = None
            if found is not None:
                self._readers.move_to_end(segment.sha256)
                return found
            awaited, opening = file.opening, Future[SegmentReader]()
            if awaited is None:
                file.opening = opening
        if awaited is not None:
            return awaited.result()
        try:
            reader = self._load(file, key, segment, self._mask(key))
        except BaseException as reason:
            with self._lock:
                file.opening = None
            opening.set_exception(reason)
            raise
        with self._lock:
            file.opening, file.checked, file.checksums = None, True, reader.checksums
            self._keep_open(segment.sha256, reader)
        opening.set_result(reader)
        return reader

    def _keep_open(self, sha256: str, reader: SegmentReader) -> None:
        self._readers[sha256] = reader
        self._reader_bytes += reader.footprint
        most = most_open_files(MOST_READERS)
        while (self._reader_bytes > self.footer_bytes or len(self._readers) > most) and len(self._readers) > 1:
            self._close(next(iter(self._readers)))

    def _close(self, sha256: str) -> None:
        """Let go of a reader; whoever still uses it is not disturbed."""
        reader = self._readers.pop(sha256, None)
        if reader is not None:
            self._reader_bytes -= reader.footprint

    def _load(self, file: _File, key: str, segment: Segment, mask: Mask | None) -> SegmentReader:
        sha256 = None if file.checked else segment.sha256
        path, replace = self._objects.local_path(key), None
        if path is None:
            path, replace = self._path(segment.sha256), partial(self._replaced, file, key, segment)
            if not path.exists():
                self._fetch(file, key, segment, path)
                sha256 = None
        try:
            return SegmentReader(
                path,
                name=key,
                decoded=self._decoded,
                sha256=sha256,
                mask=mask,
                checksums=file.checksums,
                replace=replace,
            )
        except FileNotFoundError as reason:
            raise ObjectMissing(f"the object {key} is missing", object=key, check="present") from reason

    def _replaced(self, file: _File, key: str, segment: Segment) -> Path:
        """Drop a damaged copy, and fetch the object again."""
        path = self._path(segment.sha256)
        with self._lock:
            file = self._files.setdefault(segment.sha256, file)
            path.unlink(missing_ok=True)
            self._resize(file, 0)
            self._dropped += 1
        log_dropped(path, key)
        self._fetch(file, key, segment, path)
        return path

    def _fetch(self, file: _File, key: str, segment: Segment, path: Path) -> None:
        """Get a whole file, or none."""
        with self._lock:
            self._fetches += 1
            self._resize(file, segment.bytes)
            self._shrink(self._limit_bytes)
        fetched = self._directory / f"{segment.sha256}-{secrets.token_hex(4)}{_PARTIAL}"
        try:
            download(self._objects, key, segment.bytes, fetched, self._make_room)
            check(fetched, key, segment.sha256)
            fetched.replace(path)
        except BaseException:
            fetched.unlink(missing_ok=True)
            with self._lock:
                self._resize(file, 0)
            raise

    def _make_room(self) -> None:
        with self._lock:
            self._shrink(0)

    def _path(self, sha256: str) -> Path:
        return self._directory / (sha256 + _SUFFIX)

    def _resize(self, file: _File, size: int) -> None:
        self._bytes += size - file.size
        file.size = size

    def _shrink(self, limit_bytes: int) -> None:
        """Remove what was used longest ago until the rest is within the limits; nothing that is in use."""
        if self._bytes <= limit_bytes and len(self._files) <= KNOWN_FILES:
            return
        for sha256 in [sha256 for sha256, file in self._files.items() if not file.pins]:
            if self._bytes <= limit_bytes and len(self._files) <= KNOWN_FILES:
                return
            self._remove(sha256)

    def _remove(self, sha256: str) -> None:
        file = self._files.pop(sha256)
        self._close(sha256)
        if file.size:
            self._resize(file, 0)
            self._path(sha256).unlink(missing_ok=True)
