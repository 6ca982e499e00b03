"""String columns as plain bytes, for work on all rows at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]
Counts = NDArray[np.int32]
Bytes = NDArray[np.uint8]

#: An array of Arrow, most often of strings.
Column = Any


class Texts:
    """A string column without nulls: all its bytes, and where each text begins and ends among them."""

    __slots__ = ("column", "data", "ends", "starts")

    def __init__(self, column: Column) -> None:
        self.column = column
        bounds, self.data = _buffers(column)
        self.starts, self.ends = bounds[:-1], bounds[1:]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> Numbers:
        """How many bytes each text has."""
        return self.ends - self.starts

    def first(self) -> Bytes:
        """The first byte of each text; none may be empty."""
        return self.data[self.starts]

    def where(self, marked: Flags) -> Flags:
        """The texts that hold a marked byte."""
        has_mark = np.zeros(len(self), np.bool_)
        places = np.flatnonzero(marked)
        has_mark[np.searchsorted(self.ends, places, side="right")] = True
        return has_mark

    def count(self, marked: Flags) -> Counts:
        """How many marked bytes each text has; none may be empty."""
        return sum_runs(marked.view(np.uint8), self.starts)

    def chosen(self, rows: Flags) -> Texts:
        """Some of the texts."""
        return self if rows.all() else Texts(self.column.filter(pa.array(rows)))


def valid(column: Column) -> Flags:
    """The rows that are not null."""
    flags: Flags = column.is_valid().to_numpy(zero_copy_only=False)
    return flags


def sum_runs(values: Bytes, starts: Numbers) -> Counts:
    """The sums of values from each start to the next; no two starts are the same."""
    if not len(starts):
        return np.zeros(0, np.int32)
    sums: Counts = np.add.reduceat(values, starts, dtype=np.int32)
    return sums


def _buffers(column: Column) -> tuple[Numbers, Bytes]:
    if not len(column):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    content: Any = b"" if data is None else data
    return bounds - bounds[0], np.frombuffer(content, np.uint8)[bounds[0] : bounds[-1]]


def column_of(data: Bytes, lengths: Counts | Numbers) -> Column:
    """The string column with these bytes, cut into texts of these lengths."""
    bounds = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=bounds[1:])
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(bounds), pa.py_buffer(data))
