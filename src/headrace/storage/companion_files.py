"""Companions on the local disk: their files are fetched when first asked for, and kept while there is room.

A store that is a local directory is read in place. What is fetched from elsewhere lies in one directory, under the
checksum of its bytes, and outlives a restart. Files in use are not removed, so the disk may hold more than the limit by
what is in use right now. Companions used last stay open, and so do decoded row groups, within limits.

Every file is verified when a process opens it for the first time. A damaged copy is dropped and fetched again; a
damaged object is ``CorruptData``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headrace.format.companion.file_reader import FileCompanion
from headrace.format.companion.layout import Companion, PartFile, PartName
from headrace.format.decoded_columns import LruCache
from headrace.format.object_names import companion_key, file_name, parse_companion_key
from headrace.format.parquet_file import ParquetSource
from headrace.storage.file_cache import CachedFile, FileCache, OpenFiles, fetcher
from headrace.storage.objects import ObjectMissing, Objects

#: Files of companions that may be open.
MAX_OPEN = 256
#: Footers whose checksums are remembered.
_MAX_FOOTERS = 20_000
_SUFFIX = ".parquet"


class CompanionUsage(NamedTuple):
    """The size of the cache, its fetches, and the damaged files that it dropped."""

    bytes: int
    files: int
    opened: int
    open_bytes: int
    decoded_bytes: int
    fetches: int
    dropped: int


class CompanionFiles:
    """Opens companions for reading, from any thread."""

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
        self._decoded = LruCache(decoded_bytes)
        self._files = None if objects.is_local else FileCache(directory, _SUFFIX, limit_bytes=limit_bytes)
        self._opened: OpenFiles[tuple[str, ...], FileCompanion] = OpenFiles(
            MAX_OPEN,
            limit_bytes=footer_bytes,
            footprint=lambda companion: companion.footprint,
            files=lambda companion: companion.max_files,
        )
        self._lock = threading.Lock()
        #: By the checksums of files that were verified, those of their footers.
        self._footers: dict[str, int] = {}

    @contextmanager
    def open(
        self, stream: str, incarnation: str, companion: Companion, parts: Collection[PartName]
    ) -> Iterator[FileCompanion]:
        """A companion of a stream, of which only these parts are read; their files stay while the block runs."""
        files = self._files
        wanted: list[PartName] = [part for part in companion.parts if files is None or part in parts]
        mark = incarnation, companion.name, *wanted
        opened = self._opened.get(mark) if files is None else None
        if opened is not None:
            yield opened
            return
        with ExitStack() as stack:
            sources: dict[PartName, Callable[[], ParquetSource]] = {}
            for part in wanted:
                key, listed = companion_key(stream, incarnation, companion.name, part), companion.parts[part]
                path, file, replace = self._objects.local_path(key), None, None
                if path is None:
                    assert files is not None
                    file = stack.enter_context(files.pinned(listed.sha256))
                    make = fetcher(self._objects, key, listed.bytes, listed.sha256, files.make_room)
                    path = files.ensure(file, listed.bytes, make)
                    replace = partial(files.replace, file, key, listed.bytes, make)
                sources[part] = partial(
                    self._verified, path, file_name(companion.name, part), companion.name, listed, file, replace
                )
            opened = self._opened.get(mark)
            if opened is None:
                opened = FileCompanion(sources, name=companion.name, decoded=self._decoded)
                self._opened.put(mark, opened)
            yield opened

    @property
    def footer_bytes(self) -> int | None:
        """Memory that open footers may take."""
        return self._opened.limit_bytes

    @footer_bytes.setter
    def footer_bytes(self, limit_bytes: int) -> None:
        self._opened.limit_bytes = limit_bytes

    def prune(self, listed: Collection[str]) -> int:
        """Close everything, and remove files of parts that are not listed; returns how many of those are in use."""
        self._opened.clear()
        with self._lock:
            self._footers = {sha256: footer for sha256, footer in self._footers.items() if sha256 in listed}
        return 0 if self._files is None else self._files.prune(listed)

    def forget(self, keys: Collection[str]) -> None:
        """Close the files of companions whose objects are removed: an open file keeps its place on the disk."""
        removed = {(location[0][1], location[1]) for key in keys if (location := parse_companion_key(key)) is not None}
        self._opened.pop_where(lambda mark, _: mark[:2] in removed)

    def shrink(self) -> None:
        """Close all files that are not being read, and halve the cache of decoded data."""
        self._opened.clear()
        self._decoded.shrink(self._decoded.bytes // 2)

    def usage(self) -> CompanionUsage:
        """The present statistics of the cache."""
        opened, files = (len(self._opened), self._opened.bytes, self._decoded.bytes), self._files
        if files is None:
            return CompanionUsage(0, 0, *opened, 0, 0)
        return CompanionUsage(files.bytes, len(files), *opened, files.fetches, files.dropped)

    def _verified(
        self,
        path: Path,
        name: str,
        companion: str,
        listed: PartFile,
        file: CachedFile | None,
        replace: Callable[[], Path] | None,
    ) -> ParquetSource:
        """The file of a part, verified as a whole the first time and by its footer from then on."""
        try:
            source = ParquetSource(
                path,
                name,
                sha256=None if file is not None and file.verified else listed.sha256,
                footer_checksum=self._footers.get(listed.sha256),
                replace=replace,
            )
        except FileNotFoundError as reason:
            raise ObjectMissing(f"a file of {companion} is missing", object=companion, check="present") from reason
        with self._lock:
            self._footers[listed.sha256] = source.footer_checksum
            if len(self._footers) > _MAX_FOOTERS:
                del self._footers[next(iter(self._footers))]
        return source
