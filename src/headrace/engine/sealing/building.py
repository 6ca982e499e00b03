"""Building segments: the rows of a stream that are not published yet, as files."""

from __future__ import annotations

import logging
import secrets
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from headrace.config import StorageConfig
from headrace.engine.sealing.publishing import Built
from headrace.engine.sealing.snapshot import Snapshot
from headrace.errors import CorruptData
from headrace.format.manifest import listed, segment_name
from headrace.format.segment.gathering import Note, Run
from headrace.format.segment.writer import Writer
from headrace.schema.entries import entries_of
from headrace.storage.published import Placed
from headrace.storage.segments import Segments
from headrace.storage.wal import Entries, Wal
from headrace.types import JSON, media_type

log = logging.getLogger("headrace.sealing")

#: So many rows, or about so many bytes, are looked at together.
_STRETCH_ROWS, _STRETCH_BYTES = 256, 256 * 1024


class _File:
    """One segment being written."""

    def __init__(self, file: BinaryIO, path: Path, snapshot: Snapshot, first_seq: int, before_bytes: int) -> None:
        self.path = path
        self.before_bytes = self.total_bytes = before_bytes
        self._file = file
        self._is_json = media_type(snapshot.row.content_type) == JSON
        self.writer = Writer(
            file,
            stream=snapshot.row.name,
            incarnation=snapshot.row.incarnation,
            is_json=self._is_json,
            first_seq=first_seq,
            split=entries_of,
        )

    def add(self, rows: list[Entries]) -> None:
        if self._is_json:
            notes: list[Note] = [(row.count, True, row.append_us, row.version, _keys(row)) for row in rows]
            self.writer.add_joined(rows[0].seq, notes, [row.body for row in rows])
        else:
            for row in rows:
                self.writer.add(Run(row.seq, row.append_us, row.version, row.key, [row.body]))
        self.total_bytes = rows[-1].total_bytes

    def finish(self) -> Built:
        sealed = self.writer.finish()
        self._file.flush()
        name = segment_name(sealed.info.first_seq, sealed.info.count, secrets.token_hex(4))
        return Built(self.path, listed(sealed, name, self.before_bytes, self.total_bytes))


class Builder:
    """Builds the segments of a snapshot in a directory."""

    def __init__(self, wal: Wal, segments: Segments, directory: Path, config: StorageConfig) -> None:
        self._wal = wal
        self._segments = segments
        self._directory = directory
        self._config = config

    def build(self, snapshot: Snapshot) -> tuple[list[Built], Placed | None]:
        """Segments of everything that is not published, and the small one that the first of them replaces."""
        row = snapshot.row
        if row.published_seq >= row.next_seq:
            return [], None
        small = self._small(snapshot)
        built: list[Built] = []
        with ExitStack() as stack:
            file = None if small is None else self._rewrite(stack, snapshot, small)
            small = small if file is not None else None
            for rows in _stretches(self._wal.scan(row.id, row.published_seq, row.next_seq)):
                start = 0
                while start < len(rows):
                    first = rows[start]
                    if file is not None and (first.seq != file.writer.next_seq or self._is_full(file)):
                        built.append(file.finish())
                        file = None
                    if file is None:
                        before = first.total_bytes - len(first.body)
                        file = stack.enter_context(self._opened(snapshot, first.seq, before))
                    stop = self._enough(file, rows, start)
                    file.add(rows[start:stop])
                    start = stop
            if file is not None:
                built.append(file.finish())
        return built, small

    def _small(self, snapshot: Snapshot) -> Placed | None:
        """The newest segment, if it ends where the rows begin and is small enough to be written again."""
        last = snapshot.segments[-1] if snapshot.segments else None
        if last is None or last.segment.end_seq != snapshot.row.published_seq:
            return None
        most_bytes, most_rows = self._config.seal_bytes // 2, self._config.seal_rows // 2
        return last if last.segment.payload_bytes < most_bytes and last.segment.count < most_rows else None

    def _rewrite(self, stack: ExitStack, snapshot: Snapshot, small: Placed) -> _File | None:
        """A segment that begins with all of another; None where that is damaged, and so must be left as it is."""
        file = stack.enter_context(self._opened(snapshot, small.segment.first_seq, small.segment.before_bytes))
        try:
            with self._segments.open(small.key, small.segment) as reader:
                file.writer.copy(reader.batches(small.segment.first_seq, small.segment.end_seq))
        except CorruptData as reason:
            log.error("%s", reason.message)
            return None
        file.total_bytes = small.segment.total_bytes
        return file

    def _is_full(self, file: _File) -> bool:
        rows = file.writer.next_seq - file.writer.first_seq
        return file.total_bytes - file.before_bytes >= self._config.seal_bytes or rows >= self._config.seal_rows

    def _enough(self, file: _File, rows: list[Entries], start: int) -> int:
        """Where to stop, so that the rows between make the file just full, or the last of them is reached."""
        end_bytes = file.before_bytes + self._config.seal_bytes
        end_seq = file.writer.first_seq + self._config.seal_rows
        filling = bisect_left(
            rows, True, start, key=lambda row: row.total_bytes >= end_bytes or row.seq + row.count >= end_seq
        )
        return min(filling + 1, len(rows))

    @contextmanager
    def _opened(self, snapshot: Snapshot, first_seq: int, before_bytes: int) -> Iterator[_File]:
        path = self._directory / f"{secrets.token_hex(8)}.parquet"
        with path.open("wb") as file:
            yield _File(file, path, snapshot, first_seq, before_bytes)


def _stretches(rows: Iterable[Entries]) -> Iterator[list[Entries]]:
    """Rows that follow one another, some at a time."""
    some: list[Entries] = []
    size = due = 0
    for row in rows:
        if some and (row.seq != due or size >= _STRETCH_BYTES or len(some) >= _STRETCH_ROWS):
            yield some
            some, size = [], 0
        some.append(row)
        size += len(row.body)
        due = row.seq + row.count
    if some:
        yield some


def _keys(row: Entries) -> str | msgspec.Raw | None:
    return row.key if row.keys is None else msgspec.Raw(row.keys.encode())
