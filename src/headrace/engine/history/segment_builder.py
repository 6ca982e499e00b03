"""Building segments: the rows of a stream that are not published yet, as files."""

from __future__ import annotations

import logging
import secrets
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from headrace.config import StorageConfig
from headrace.engine.history.publication import Built, Snapshot
from headrace.engine.history.seal_watch import SealPace
from headrace.engine.log.expiry import lifetime_steps
from headrace.errors import CorruptData
from headrace.format.body_compression import LEAST_BYTES
from headrace.format.manifest import Segment, segment_entry
from headrace.format.object_names import segment_name
from headrace.format.segment.layout import GROUP_BYTES, GROUP_ROWS
from headrace.format.segment.row_group import AppendRun, RunColumns
from headrace.format.segment.writer import SegmentWriter
from headrace.schema.entries import entries_of
from headrace.storage.files import open_private
from headrace.storage.published import SegmentObject
from headrace.storage.segments import Segments
from headrace.storage.wal import Bundle, Entries, Wal
from headrace.types import JSON, media_type

log = logging.getLogger("headrace.sealing")

#: So many rows, or about so many bytes, are read together.
_BATCH_ROWS, _BATCH_BYTES = 256, 256 * 1024
#: Of what a retention rule keeps, a segment is written again only while it is less than one such part.
_RETAINED_PARTS = 8


class _File:
    """One segment being written."""

    def __init__(self, file: BinaryIO, path: Path, snapshot: Snapshot, first_seq: int, before_bytes: int) -> None:
        self.path = path
        self.before_bytes = self.total_bytes = before_bytes
        self._file = file
        self.is_json = media_type(snapshot.row.content_type) == JSON
        self.writer = SegmentWriter(
            file,
            stream=snapshot.row.name,
            incarnation=snapshot.row.incarnation,
            is_json=self.is_json,
            first_seq=first_seq,
            split=entries_of,
        )

    def add(self, rows: list[Entries]) -> None:
        if self.is_json:
            notes = RunColumns(
                [row.count for row in rows],
                [True] * len(rows),
                [row.append_us for row in rows],
                [row.version for row in rows],
                [_keys(row) for row in rows],
            )
            self.writer.add_joined(rows[0].seq, notes, [row.body for row in rows])
        else:
            for row in rows:
                self.writer.add(AppendRun(row.seq, row.append_us, row.version, row.key, [row.body]))
        self.total_bytes = rows[-1].total_bytes

    def add_bundle(self, bundle: Bundle) -> None:
        rows = len(bundle.counts)
        notes = RunColumns(bundle.counts, [True] * rows, bundle.append_us, [bundle.version] * rows, bundle.keys)
        self.writer.add_bundle(self.writer.next_seq, notes, bundle.body)
        self.total_bytes = bundle.total_bytes

    def finish(self) -> Built:
        sealed = self.writer.finish()
        self._file.flush()
        name = segment_name(sealed.info.first_seq, sealed.info.count, secrets.token_hex(4))
        return Built(self.path, segment_entry(sealed, name, self.before_bytes, self.total_bytes))


class SegmentBuilder:
    """Builds the segments of a snapshot in a directory."""

    def __init__(self, wal: Wal, segments: Segments, directory: Path, config: StorageConfig) -> None:
        self._wal = wal
        self._segments = segments
        self._directory = directory
        self._config = config

    def build(
        self, snapshot: Snapshot, pace: SealPace, *, alone: bool = False
    ) -> tuple[list[Built], SegmentObject | None]:
        """Segments of everything that is not published, and the small one that the first of them replaces.

        ``alone`` says that it replaces none.
        """
        row = snapshot.row
        if row.published_seq >= row.next_seq:
            return [], None
        small = None if alone else self._small(snapshot)
        built: list[Built] = []
        with ExitStack() as stack:
            file = None if small is None else self._rewrite(stack, snapshot, small)
            small = small if file is not None else None
            position, are_short = row.published_seq, False
            ends = iter([*_lifetime_changes(snapshot, position), row.next_seq])
            end = next(ends)
            while position < row.next_seq:
                if position >= end:
                    end = next(ends)
                    if file is not None:
                        built.append(file.finish())
                        file = None
                bundle = self._bundle(snapshot, file, position, end) if file is not None and are_short else None
                if file is not None and bundle is not None:
                    file.add_bundle(bundle)
                    position = bundle.end_seq
                    continue
                rows = self._next_rows(row.id, position, end)
                if not rows:
                    break
                start = 0
                while start < len(rows):
                    first = rows[start]
                    if file is not None and (first.seq != file.writer.next_seq or self._is_full(file)):
                        built.append(file.finish())
                        pace.rest()
                        file = None
                    if file is None:
                        before = first.total_bytes - len(first.body)
                        file = stack.enter_context(self._open_file(snapshot, first.seq, before))
                    stop = self._enough(file, rows, start)
                    file.add(rows[start:stop])
                    start = stop
                position, are_short = rows[-1].seq + rows[-1].count, len(rows[-1].body) < LEAST_BYTES
            if file is not None:
                built.append(file.finish())
        return built, small

    def _next_rows(self, stream: int, position: int, end: int) -> list[Entries]:
        """The next rows that follow one another."""
        some: list[Entries] = []
        size = due = 0
        with closing(self._wal.scan(stream, position, end)) as rows:
            for row in rows:
                if row.seq + row.count <= position:
                    continue  # the one before a gap
                if some and (row.seq != due or size >= _BATCH_BYTES or len(some) >= _BATCH_ROWS):
                    break
                some.append(row)
                size += len(row.body)
                due = row.seq + row.count
        return some

    def _bundle(self, snapshot: Snapshot, file: _File, position: int, end: int) -> Bundle | None:
        """The next rows at a small price, where they are short, follow those in the file and leave room in it."""
        if not file.is_json or file.writer.next_seq != position:
            return None
        bundle = self._wal.bundle(snapshot.row.id, position, min(position + _BATCH_ROWS, end))
        fills = bundle is not None and self._is_enough(file, bundle.total_bytes, bundle.end_seq)
        return None if fills else bundle

    def _small(self, snapshot: Snapshot) -> SegmentObject | None:
        """The newest segment, if it ends where the rows begin, is small, and they are few: then all become one."""
        last, row = snapshot.segments[-1] if snapshot.segments else None, snapshot.row
        if last is None or last.segment.end_seq != row.published_seq:
            return None
        max_bytes, max_rows = self._config.seal_bytes // 2, self._config.seal_rows // 2
        is_small = last.segment.payload_bytes < max_bytes and last.segment.count < max_rows
        more_bytes, more_rows = row.bytes - last.segment.total_bytes, row.next_seq - row.published_seq
        are_few = more_bytes < max(max_bytes // 2, GROUP_BYTES) and more_rows < max(max_rows // 2, GROUP_ROWS)
        if not is_small or not are_few or _is_retained_part(last.segment, snapshot):
            return None
        changes = _lifetime_changes(snapshot, last.segment.first_seq)
        return None if changes and changes[0] <= row.published_seq else last

    def _rewrite(self, stack: ExitStack, snapshot: Snapshot, small: SegmentObject) -> _File | None:
        """A segment that begins with all of another; None where that is damaged, and so must be left as it is."""
        file = stack.enter_context(self._open_file(snapshot, small.segment.first_seq, small.segment.before_bytes))
        try:
            with self._segments.open(small.key, small.segment) as reader:
                file.writer.copy(reader.batches(small.segment.first_seq, small.segment.end_seq))
        except CorruptData as reason:
            log.error("%s", reason.message)
            return None
        file.total_bytes = small.segment.total_bytes
        return file

    def _is_full(self, file: _File) -> bool:
        return self._is_enough(file, file.total_bytes, file.writer.next_seq)

    def _is_enough(self, file: _File, total_bytes: int, end_seq: int) -> bool:
        """Whether a file is full that ends here."""
        size, rows = total_bytes - file.before_bytes, end_seq - file.writer.first_seq
        return size >= self._config.seal_bytes or rows >= self._config.seal_rows

    def _enough(self, file: _File, rows: list[Entries], start: int) -> int:
        """Where to stop, so that the rows between make the file just full, or the last of them is reached."""
        filling = bisect_left(
            rows, True, start, key=lambda row: self._is_enough(file, row.total_bytes, row.seq + row.count)
        )
        return min(filling + 1, len(rows))

    @contextmanager
    def _open_file(self, snapshot: Snapshot, first_seq: int, before_bytes: int) -> Iterator[_File]:
        path = self._directory / f"{secrets.token_hex(8)}.parquet"
        with open(path, "wb", opener=open_private) as file:
            yield _File(file, path, snapshot, first_seq, before_bytes)


def _is_retained_part(segment: Segment, snapshot: Snapshot) -> bool:
    """Whether a segment holds so much of what retention keeps that it must end: as long as it grows nothing goes."""
    row = snapshot.row
    age_us, size = snapshot.taken_us - segment.min_us, row.bytes - segment.before_bytes
    return any(
        limit is not None and part * _RETAINED_PARTS > limit
        for part, limit in ((age_us, row.retention_age_us), (size, row.retention_bytes))
    )


def _lifetime_changes(snapshot: Snapshot, start: int) -> list[int]:
    """The events after a first one with which another lifetime begins: a segment ends there, so that it can go."""
    steps = lifetime_steps(snapshot.row.managed)
    return [since for since, _ in steps if start < since < snapshot.row.next_seq]


def _keys(row: Entries) -> str | msgspec.Raw | None:
    return row.key if row.keys is None else msgspec.Raw(row.keys.encode())
