"""Postings in memory: sorted terms, and natively the rows behind one, behind a prefix, behind a part of a term."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Int32s = NDArray[np.int32]
Mask = NDArray[np.bool_]

LIST = pa.list_(pa.field("element", pa.int32(), nullable=False))
#: The postings table, sorted by field and term.
SCHEMA = pa.schema(
    [
        pa.field("field", pa.string(), nullable=False),
        pa.field("term", pa.string(), nullable=False),
        pa.field("rows", LIST, nullable=False),
        pa.field("positions", LIST),
    ]
)
Span = tuple[int, int]

NO_ROWS: Int32s = np.empty(0, np.int32)
# Where so small a part of all rows was found, sorting it is quicker than marking all rows.
_FEW = 64


class Lists(NamedTuple):
    """The list of term t is ``rows[ends[t]:ends[t + 1]]``."""

    ends: NDArray[np.int32]
    rows: Int32s


class PostingRun(ABC):
    """Consecutive terms of one field, sorted, with a list of rows and, for a text field, of positions behind each."""

    terms: Any

    @abstractmethod
    def lists(self) -> Lists:
        """The rows of all terms."""

    @abstractmethod
    def positions(self) -> Int32s:
        """The position beside every row."""

    def rows(self, span: Span) -> Int32s:
        """The rows of the terms in a span, one list after another."""
        ends, rows = self.lists()
        return rows[ends[span[0]] : ends[span[1]]]

    def occurrences(self, span: Span) -> tuple[Int32s, Int32s]:
        """The rows and positions of the terms in a span, one list after another."""
        ends, rows = self.lists()
        part = slice(ends[span[0]], ends[span[1]])
        return rows[part], self.positions()[part]

    def containing(self, part: str) -> Int32s:
        """The rows of every term with this part, in no order."""
        mask = containing(self.terms, part)
        if not mask.any():
            return NO_ROWS
        ends, rows = self.lists()
        return rows[np.repeat(mask, np.diff(ends))]


class TableRun(PostingRun):
    """The postings of one field, as their table holds them."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.terms = one_array(table.column("term"))
        self._lists = flat(one_array(table.column("rows")))
        positions = one_array(table.column("positions"))
        self._positions = NO_ROWS if positions.null_count else flat(positions).rows

    def lists(self) -> Lists:
        """The rows of all terms."""
        return self._lists

    def positions(self) -> Int32s:
        """The position beside every row."""
        return self._positions


#: Rows, and the positions beside them if there are any.
Piece = tuple[Int32s, Int32s | None]


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
        """The terms from ``start`` to before ``stop``."""
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


def blocks(table: Any) -> Iterator[tuple[str, Block]]:
    """A postings table field by field."""
    fields = one_array(table.column("field"))
    runs = pc.run_end_encode(fields)
    start = 0
    for stop, field in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        yield field, Block.of(table.slice(start, stop - start))
        start = stop


def concatenate_pieces(pieces: list[Piece]) -> Piece:
    """Lists one after another; either all have positions or none has."""
    positions = [part_positions for _, part_positions in pieces if part_positions is not None]
    return np.concatenate([rows for rows, _ in pieces]), np.concatenate(positions) if positions else None


def exact_span(terms: Any, term: str) -> Span:
    """Where a term stands among sorted terms; it may stand there several times."""
    start = bisect_left(terms, term, key=text_of)
    return start, bisect_right(terms, term, start, key=text_of)


def prefix_span(terms: Any, prefix: str) -> Span:
    """Where the terms stand that begin so."""
    start, size = bisect_left(terms, prefix, key=text_of), len(prefix)
    return start, bisect_right(terms, prefix, start, key=lambda term: term.as_py()[:size])


def containing(column: Any, part: str) -> Mask:
    """Which elements of an array of texts, or of lists of texts, have this part."""
    mask = np.zeros(len(column), np.bool_)
    if pa.types.is_list(column.type):
        mask[pc.list_parent_indices(column).filter(pc.match_substring(column.flatten(), part)).to_numpy()] = True
    else:
        mask[pc.indices_nonzero(pc.match_substring(column, part)).to_numpy()] = True
    return mask


def distinct(parts: Iterable[Int32s], count: int) -> Int32s:
    """The rows among so many that are in any of these arrays, each once and ascending."""
    rows = concatenate(parts)
    if len(rows) * _FEW < count:
        return np.unique(rows)
    marked = np.zeros(count, np.bool_)
    marked[rows] = True
    return as_rows(marked)


def drop_repeats(rows: Int32s) -> Int32s:
    """Ascending rows, each once."""
    if len(rows) < 2:
        return rows
    fresh = np.empty(len(rows), np.bool_)
    fresh[0] = True
    np.not_equal(rows[1:], rows[:-1], out=fresh[1:])
    return rows[fresh]


def as_rows(mask: Mask) -> Int32s:
    """Where a mask is true."""
    return np.flatnonzero(mask).astype(np.int32)


def concatenate(parts: Iterable[Int32s]) -> Int32s:
    """One array after another."""
    arrays = list(parts)
    return arrays[0] if len(arrays) == 1 else np.concatenate([NO_ROWS, *arrays])


def sort_occurrences(rows: Int32s, positions: Int32s) -> tuple[Int32s, Int32s]:
    """Rows and positions, sorted by both; positions count as unsigned."""
    both = np.sort((rows.astype(np.uint64) << np.uint64(32)) | positions.view(np.uint32))
    return (both >> np.uint64(32)).astype(np.int32), both.astype(np.uint32).view(np.int32)


def flat(lists: Any) -> Lists:
    """An array of lists without nulls as plain numbers."""
    ends = lists.offsets.to_numpy()
    return Lists(ends - ends[0] if ends[0] else ends, lists.flatten().to_numpy())


def offsets(texts: Any) -> NDArray[np.int32]:
    """Where each text of an array begins in its bytes, and where the last one ends."""
    bounds = np.frombuffer(texts.buffers()[1] or b"\0\0\0\0", np.int32)
    return bounds[texts.offset : texts.offset + len(texts) + 1]


def one_array(column: Any) -> Any:
    """A column in one piece."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def text_of(term: Any) -> str:
    """An Arrow text as Python's."""
    text: str = term.as_py()
    return text


def is_unicode(text: str) -> bool:
    """Whether a text could be stored: one with half a surrogate pair is in no value."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
