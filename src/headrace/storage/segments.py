"""Segments on the local disk: fetched when they are first read, checked once, kept while there is room.

A store that is a local directory is read in place. What is fetched from elsewhere lies in one directory, under the
checksum of its bytes, and outlives a restart. Files in use are not removed, so the disk may hold more than the limit by
what is being read right now. Footers of the segments used last stay open, and so do decoded row groups, within limits.

A copy that turns out to be damaged is dropped and fetched again; a damaged object is ``CorruptData``.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headrace.format.decoded_columns import LruCache
from headrace.format.manifest import Segment
from headrace.format.segment.columns import RowMask
from headrace.format.segment.reader import SegmentReader
from headrace.storage.file_cache import CachedFile, FileCache, OpenFiles, fetcher
from headrace.storage.objects import ObjectMissing, Objects

MAX_FILES = 20_000
MAX_READERS = 512
_SUFFIX = ".parquet"


class SegmentUsage(NamedTuple):
    """What the cache holds, how often it had to fetch, and how many damaged files it dropped."""

    bytes: int
    files: int
    readers: int
    reader_bytes: int
    decoded_bytes: int
    fetches: int
    dropped: int


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
        masks: Mapping[str, RowMask] | None = None,
    ) -> None:
        """``masks`` are what is hidden now, by the incarnation of the stream; the caller may change them any time."""
        self._objects = objects
        self._masks: Mapping[str, RowMask] = {} if masks is None else masks
        self._decoded = LruCache(decoded_bytes)
        self._readers: OpenFiles[str, SegmentReader] = OpenFiles(
            MAX_READERS, limit_bytes=footer_bytes, footprint=lambda reader: reader.footprint
        )
        self._files = FileCache(
            directory, _SUFFIX, limit_bytes=limit_bytes, max_files=MAX_FILES, on_remove=self._readers.pop
        )
        self._lock = threading.Lock()
        #: Readers that a thread is opening, by the checksums of their segments.
        self._openings: dict[str, Future[SegmentReader]] = {}

    @property
    def footer_bytes(self) -> int | None:
        """Memory that open footers may take."""
        return self._readers.limit_bytes

    @footer_bytes.setter
    def footer_bytes(self, limit_bytes: int) -> None:
        self._readers.limit_bytes = limit_bytes

    @contextmanager
    def open(self, key: str, segment: Segment) -> Iterator[SegmentReader]:
        """The segment of this key, fetched and checked if need be; its file stays while the block runs."""
        file = self._files.pin(segment.sha256)
        try:
            yield self._current_reader(file, key, segment)
        finally:
            self._files.unpin(file)

    @contextmanager
    def open_unmasked(self, key: str, segment: Segment) -> Iterator[SegmentReader]:
        """The same without a mask, for removing what masks hide."""
        with self._files.pinned(segment.sha256) as file:
            reader = self._current_reader(file, key, segment)
            yield reader if reader.mask is None else self._load(file, key, segment, None)

    def ready(self, segment: Segment) -> SegmentReader | None:
        """The segment, if it is open already; never waits."""
        reader = self._readers.peek(segment.sha256)
        if reader is not None and (self._masks or reader.mask is not None) and not self._is_current(reader):
            return None
        return reader

    def mask_number(self, key: str) -> int:
        """Which mask hides rows of a segment now; 0 where none does."""
        mask = self._mask(key)
        return 0 if mask is None else mask.number

    def _mask(self, key: str) -> RowMask | None:
        # segments/<hash of the stream's name>/<incarnation>/<name>
        return self._masks.get(key.split("/")[2]) if self._masks else None

    def _is_current(self, reader: SegmentReader) -> bool:
        """Whether a reader hides what has to be hidden now, and nothing else."""
        return reader.mask is self._mask(reader.name)

    def adopt(self, path: Path, segment: Segment) -> None:
        """Move the file of a segment that was just uploaded into the cache.

        It must be on the same file system. A local store has just verified these bytes, so they are not checked again.
        """
        if not self._objects.is_local:
            self._files.adopt(path, segment.sha256, segment.bytes)
            return
        path.unlink()
        with self._files.pinned(segment.sha256) as file:
            file.verified = True

    def forget(self, keys: Collection[str]) -> None:
        """Close and remove segments whose objects are removed: an open file would keep its disk space."""
        self._files.discard(self._readers.pop_where(lambda _, reader: reader.name in keys))

    def prune(self, listed: Collection[str]) -> int:
        """Remove segments whose checksums are not among these; returns how many of them are being read."""
        return self._files.prune(listed)

    def shrink(self) -> None:
        """Keep half of what is decoded, and of what is open."""
        self._decoded.shrink(self._decoded.bytes // 2)
        self._readers.pop_oldest((len(self._readers) + 1) // 2)

    def held_bytes(self, checksums: Iterable[str]) -> int:
        """The bytes on disk of segments with these checksums."""
        return self._files.held_bytes(checksums)

    def usage(self) -> SegmentUsage:
        """What the cache holds now."""
        return SegmentUsage(
            bytes=self._files.bytes,
            files=len(self._files),
            readers=len(self._readers),
            reader_bytes=self._readers.bytes,
            decoded_bytes=self._decoded.bytes,
            fetches=self._files.fetches,
            dropped=self._files.dropped,
        )

    def _current_reader(self, file: CachedFile, key: str, segment: Segment) -> SegmentReader:
        while True:
            reader = self._readers.get(segment.sha256)
            if reader is not None and self._is_current(reader):
                return reader
            reader = self._open_reader(file, key, segment)
            if self._is_current(reader):
                return reader

    def _open_reader(self, file: CachedFile, key: str, segment: Segment) -> SegmentReader:
        """Open a segment, or wait for the thread that is opening it."""
        sha256 = segment.sha256
        with self._lock:
            reader = self._readers.get(sha256)
            if reader is not None and self._is_current(reader):
                return reader
            awaited, opening = self._openings.get(sha256), Future[SegmentReader]()
            if awaited is None:
                self._openings[sha256] = opening
        if awaited is not None:
            return awaited.result()
        try:
            reader = self._load(file, key, segment, self._mask(key))
        except BaseException as reason:
            with self._lock:
                del self._openings[sha256]
            opening.set_exception(reason)
            raise
        with self._lock:
            del self._openings[sha256]
            file.verified, file.remembered = True, reader.checksums
            self._readers.put(sha256, reader)
        opening.set_result(reader)
        return reader

    def _load(self, file: CachedFile, key: str, segment: Segment, mask: RowMask | None) -> SegmentReader:
        path, replace = self._objects.local_path(key), None
        if path is None:
            make = fetcher(self._objects, key, segment.bytes, segment.sha256, self._files.make_room)
            path = self._files.ensure(file, segment.bytes, make)
            replace = partial(self._files.replace, file, key, segment.bytes, make)
        try:
            return SegmentReader(
                path,
                name=key,
                decoded=self._decoded,
                sha256=None if file.verified else segment.sha256,
                mask=mask,
                checksums=file.remembered,
                replace=replace,
            )
        except FileNotFoundError as reason:
            raise ObjectMissing(f"the object {key} is missing", object=key, check="present") from reason
