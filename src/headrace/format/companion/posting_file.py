"""The file of postings while it is written: terms go in by blocks, row groups of whole terms go out.

A term with more postings than a row group holds has row groups of its own, and several rows.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headrace.format.companion import filters
from headrace.format.companion import index as indexes
from headrace.format.companion.index import ByteRange, PostingsIndex, first_letters
from headrace.format.companion.layout import INDEX, LIMITS, METADATA, CompanionInfo, Limits, PartFile
from headrace.format.companion.postings import LIST, SCHEMA, flat, offsets, one_array
from headrace.format.companion.rows import Int32s

_COMPRESSION_LEVEL = 1
# A column of a row group is one page, and compresses as one.
_PAGE_BYTES = 64 * 1024 * 1024


class Sink:
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
        """Append bytes that belong to no row group, and tell where; readers of Parquet pass over them."""
        byte_range = ByteRange(self._out.tell(), len(content), zlib.crc32(content))
        self._out.write(content)
        return byte_range

    def close(self, index: msgspec.Struct) -> PartFile:
        """Finish the file, and tell what was written; it is not synced."""
        self._file.add_key_value_metadata({METADATA: msgspec.json.encode(self._info), INDEX: indexes.encode(index)})
        self._file.close()
        self._out.close()
        with self._path.open("rb") as file:
            return PartFile(self._path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _leaf(field: Any) -> str:
    """How Parquet calls what a column consists of."""
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else str(field.name)


Piece = tuple[Int32s, Int32s | None]

_ENCODINGS = {
    "term": "PLAIN",
    "rows.list.element": "DELTA_BINARY_PACKED",
    "positions.list.element": "DELTA_BINARY_PACKED",
}


class Block(NamedTuple):
    """Consecutive terms of one field; the list of term t is ``rows[ends[t]:ends[t + 1]]``, positions likewise."""

    terms: Any
    ends: NDArray[np.int32]
    rows: Int32s
    positions: Int32s | None

    @classmethod
    def of(cls, table: Any) -> Block:
        """A piece of the postings table that is of one field."""
        ends, rows = flat(one_array(table.column("rows")))
        positions = one_array(table.column("positions"))
        return cls(one_array(table.column("term")), ends, rows, None if positions.null_count else flat(positions).rows)

    def part(self, start: int, stop: int) -> Block:
        """The terms from one place to another."""
        return Block(self.terms.slice(start, stop - start), self.ends[start : stop + 1], self.rows, self.positions)

    def lists(self) -> Piece:
        """The lists of all its terms, one after another."""
        part = slice(self.ends[0], self.ends[-1])
        return self.rows[part], None if self.positions is None else self.positions[part]

    @property
    def postings(self) -> int:
        """How many postings it has."""
        return int(self.ends[-1] - self.ends[0])

    @property
    def term_bytes(self) -> int:
        """How many bytes the text of its terms has."""
        ends = offsets(self.terms)
        return int(ends[-1] - ends[0])


class PostingsWriter:
    """Takes blocks in the order of fields and terms."""

    def __init__(self, path: Path, info: CompanionInfo, limits: Limits = LIMITS) -> None:
        self._sink = Sink(path, info, SCHEMA, encodings=_ENCODINGS, statistics=False)
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
        """Write what is left, and tell what was written."""
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
            _last_within(block.ends, start, postings),
            _last_within(offsets(block.terms), start, text),
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
        self._index.filters.append(self._sink.put(filters.make_filter(terms)) if has_filter else None)


def blocks(table: Any) -> Iterator[tuple[str, Block]]:
    """A postings table field by field."""
    fields = one_array(table.column("field"))
    runs = pc.run_end_encode(fields)
    start = 0
    for stop, field in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        yield field, Block.of(table.slice(start, stop - start))
        start = stop


def _last_within(ends: NDArray[np.int32], start: int, room: int) -> int:
    """The greatest place whose end is not more than ``room`` after that of the first."""
    return int(np.searchsorted(ends, np.int64(ends[start]) + room, side="right")) - 1


def _single(term: str, lists: Piece) -> Block:
    """A block of one term."""
    return Block(pa.array([term], pa.string()), np.array([0, len(lists[0])], np.int32), *lists)


def concatenate_pieces(pieces: list[Piece]) -> Piece:
    """Lists one after another; either all have positions or none has."""
    positions = [part_positions for _, part_positions in pieces if part_positions is not None]
    return np.concatenate([rows for rows, _ in pieces]), np.concatenate(positions) if positions else None


def _cut_lists(lists: Piece, size: int) -> Iterator[Piece]:
    rows, positions = lists
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        yield rows[part], None if positions is None else positions[part]
