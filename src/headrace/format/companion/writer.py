"""Writing a companion: tables go in piece by piece, row groups go out as they fill up.

A row group of postings holds consecutive terms of one field. A term with more postings than a row group holds has row
groups of its own, and several rows.

Memory: one row group in the making for each file, within `layout.Limits`; while it is written it also exists as encoded
and as compressed pages.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headrace.format import bloom
from headrace.format.companion.layout import (
    INDEX,
    LIMITS,
    METADATA,
    ByteRange,
    ColumnsIndex,
    Companion,
    CompanionInfo,
    Limits,
    PanesIndex,
    PartFile,
    PartName,
    PostingsIndex,
    companion_entry,
    encode_index,
    first_letters,
)
from headrace.format.companion.postings import (
    LIST,
    SCHEMA,
    Block,
    Piece,
    blocks,
    concatenate_pieces,
    offsets,
    one_array,
)
from headrace.format.companion.tables import zone
from headrace.format.object_names import file_name, range_name

_COMPRESSION_LEVEL = 1
# A column of a row group is one page, and compresses as one.
_PAGE_BYTES = 64 * 1024 * 1024
_ENCODINGS = {
    "term": "PLAIN",
    "rows.list.element": "DELTA_BINARY_PACKED",
    "positions.list.element": "DELTA_BINARY_PACKED",
}


def write(
    directory: Path,
    info: CompanionInfo,
    *,
    unique: str,
    columns: Any,
    postings: Any,
    panes: Any = None,
    limits: Limits = LIMITS,
) -> Companion:
    """Write the files of a companion into a directory, and return its entry in metadata.

    ``unique`` distinguishes attempts. The tables are the stored columns and the postings as ``extract.postings`` makes
    them, and the panes of ``reduce.rollup``, None where there is no rollup.
    """
    if not 0 < columns.num_rows == info.count:
        raise ValueError(f"a companion of {info.count} events cannot have {columns.num_rows} rows")
    name = range_name(info.first_seq, info.count, unique)
    column_file = ColumnsWriter(directory / file_name(name, "columns"), info, columns.schema, limits)
    column_file.add(columns)
    posting_file = PostingsWriter(directory / file_name(name, "postings"), info, limits)
    for field, block in blocks(postings):
        posting_file.add(field, block)
    parts: dict[PartName, PartFile] = {"columns": column_file.close(), "postings": posting_file.close()}
    if panes is not None:
        parts["panes"] = write_panes(directory / file_name(name, "panes"), info, panes, limits)
    return companion_entry(info, name, parts)


class ColumnsWriter:
    """The file of stored columns while it is written."""

    def __init__(self, path: Path, info: CompanionInfo, schema: Any, limits: Limits = LIMITS) -> None:
        dates = (f"f.{name}" for name, shape in info.fields.items() if shape.kind == "date" and not shape.many)
        encodings = dict.fromkeys(("seq", *dates), "DELTA_BINARY_PACKED")
        self._sink = FileWriter(path, info, schema, encodings=encodings, statistics=True)
        self._limits = limits
        self._index = ColumnsIndex([], {name: [] for name in schema.names})
        self._pending = schema.empty_table()

    def add(self, table: Any) -> None:
        """Take the next rows."""
        self._pending = pa.concat_tables([self._pending, table])
        while (rows := self._full()) is not None:
            self._write(self._pending.slice(0, rows))
            self._pending = self._pending.slice(rows)

    def close(self) -> PartFile:
        """Write what is left, and return what was written."""
        if self._pending.num_rows:
            self._write(self._pending)
        return self._sink.close(self._index)

    def _full(self) -> int | None:
        """How many rows make the next row group, or None where there are too few yet."""
        limits, ahead = self._limits, self._pending.slice(0, self._limits.rows)
        rows, size = int(ahead.num_rows), int(ahead.nbytes)
        if size > limits.column_bytes and rows > 1:
            return max(1, rows * limits.column_bytes // size)
        return rows if rows == limits.rows else None

    def _write(self, table: Any) -> None:
        self._sink.write(table)
        self._index.rows.append(table.num_rows)
        for name, zones in self._index.zones.items():
            zones.append(zone(one_array(table.column(name))))


def write_panes(path: Path, info: CompanionInfo, panes: Any, limits: Limits = LIMITS) -> PartFile:
    """Write the file of panes: no row group has panes of two rollups or two intervals."""
    sink, index = FileWriter(path, info, panes.schema, encodings={}, statistics=False), PanesIndex([])
    rollups, intervals = one_array(panes.column("rollup")), panes.column("interval").to_numpy()
    codes = rollups.dictionary_encode().indices.to_numpy()
    borders = np.flatnonzero((np.diff(codes) != 0) | (np.diff(intervals) != 0)) + 1
    starts = [0, *borders.tolist(), panes.num_rows]
    for first, end in pairwise(starts):
        for start in range(first, end, limits.rows):
            sink.write(panes.slice(start, min(limits.rows, end - start)))
            index.groups.append((rollups[start].as_py(), int(intervals[start])))
    return sink.close(index)


class PostingsWriter:
    """Takes blocks in the order of fields and terms."""

    def __init__(self, path: Path, info: CompanionInfo, limits: Limits = LIMITS) -> None:
        self._sink = FileWriter(path, info, SCHEMA, encodings=_ENCODINGS, statistics=False)
        self._limits = limits
        self._index = PostingsIndex([], [])
        self._pending: list[Block] = []

    def add(self, field: str, block: Block) -> None:
        """Take the next terms of a field."""
        self._begin(field)
        start = 0
        while start < len(block.terms):
            stop = self._fitting(block, start)
            if stop > start:
                self._pending.append(block.part(start, stop))
            elif self._pending:
                self._flush()
            else:
                stop = start + 1
                self._alone(field, block.part(start, stop))
            start = stop

    def add_long(self, field: str, term: str, pieces: Iterable[Piece]) -> None:
        """Take the next term of a field, whose postings come piece by piece."""
        self._begin(field)
        is_long, waiting = False, list[Piece]()
        for piece in pieces:
            waiting.append(piece)
            while sum(len(rows) for rows, _ in waiting) > self._limits.postings:
                if not is_long:
                    self._flush()
                full, *waiting = _cut_lists(concatenate_pieces(waiting), self._limits.postings)
                self._write([_single(term, full)])
                is_long = True
        last = _single(term, concatenate_pieces(waiting))
        if is_long:
            self._write([last])
        else:
            self.add(field, last)

    def close(self) -> PartFile:
        """Write what is left, and return what was written."""
        self._flush()
        return self._sink.close(self._index)

    def _begin(self, field: str) -> None:
        if not self._index.fields or self._index.fields[-1][0] != field:
            self._flush()
            self._index.fields.append((field, []))

    def _fitting(self, block: Block, start: int) -> int:
        """Up to which term a block still fits into the row group in the making."""
        postings = self._limits.postings - sum(pending.postings for pending in self._pending)
        text = self._limits.term_bytes - sum(pending.term_bytes for pending in self._pending)
        terms = self._limits.terms - sum(len(pending.terms) for pending in self._pending)
        stops = (
            _last_fitting(block.ends, start, postings),
            _last_fitting(offsets(block.terms), start, text),
            start + terms,
            len(block.terms),
        )
        return min(stops)

    def _alone(self, field: str, block: Block) -> None:
        """A term that is too large to share a row group."""
        if block.postings > self._limits.postings:
            self.add_long(field, block.terms[0].as_py(), _cut_lists(block.lists(), self._limits.postings))
        else:
            self._write([block])

    def _flush(self) -> None:
        if self._pending:
            self._write(self._pending)
        self._pending = []

    def _write(self, blocks: list[Block]) -> None:
        """One row group of the field begun last."""
        field, firsts = self._index.fields[-1]
        terms = pa.concat_arrays([block.terms for block in blocks])
        counts = np.concatenate([np.diff(block.ends) for block in blocks])
        ends = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        rows, positions = concatenate_pieces([block.lists() for block in blocks])
        lists = pa.ListArray.from_arrays(ends, pa.array(rows), type=LIST)
        places = pa.nulls(len(terms), LIST)
        if positions is not None:
            places = pa.ListArray.from_arrays(ends, pa.array(positions), type=LIST)
        self._sink.write(pa.table([pa.repeat(field, len(terms)), terms, lists, places], schema=SCHEMA))
        firsts.append(first_letters(terms[0].as_py()))
        has_filter = len(terms) >= self._limits.filtered
        self._index.filters.append(self._sink.put(bloom.make_filter(terms)) if has_filter else None)


def _last_fitting(ends: NDArray[np.int32], start: int, room: int) -> int:
    """The last term that ends at most ``room`` after ``start``."""
    return int(np.searchsorted(ends, np.int64(ends[start]) + room, side="right")) - 1


def _single(term: str, lists: Piece) -> Block:
    """A block of one term."""
    return Block(pa.array([term], pa.string()), np.array([0, len(lists[0])], np.int32), *lists)


def _cut_lists(lists: Piece, size: int) -> Iterator[Piece]:
    rows, positions = lists
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        yield rows[part], None if positions is None else positions[part]


class FileWriter:
    """One file; every table becomes a row group."""

    def __init__(
        self, path: Path, info: CompanionInfo, schema: Any, *, encodings: dict[str, str], statistics: bool
    ) -> None:
        self._path, self._info = path, info
        self._out = pa.OSFile(str(path), "wb")
        self._file = pq.ParquetWriter(
            self._out,
            schema,
            compression="zstd",
            compression_level=_COMPRESSION_LEVEL,
            use_dictionary=[path for path in map(_leaf, schema) if path not in encodings],
            column_encoding=encodings,
            write_statistics=statistics,
            write_page_checksum=True,
            data_page_size=_PAGE_BYTES,
            store_schema=False,
        )

    def write(self, table: Any) -> None:
        """Append a row group."""
        self._file.write_table(table, row_group_size=max(1, table.num_rows))

    def put(self, content: bytes) -> ByteRange:
        """Append bytes that belong to no row group, and return where; readers of Parquet pass over them."""
        byte_range = ByteRange(self._out.tell(), len(content), zlib.crc32(content))
        self._out.write(content)
        return byte_range

    def close(self, index: msgspec.Struct) -> PartFile:
        """Finish the file, and return what was written; it is not synced."""
        self._file.add_key_value_metadata({METADATA: msgspec.json.encode(self._info), INDEX: encode_index(index)})
        self._file.close()
        self._out.close()
        with self._path.open("rb") as file:
            return PartFile(self._path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _leaf(field: Any) -> str:
    """How Parquet calls what a column consists of."""
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else str(field.name)
