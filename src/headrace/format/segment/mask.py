"""Rows of a segment that are not to be read although the file still holds them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class Mask(Protocol):
    """Which rows of a stream's segments are hidden, and what is read in their place."""

    #: Tells masks apart in caches; no two masks of a process have the same number.
    number: int
    #: Rows with other keys, or from this sequence number on, are not hidden.
    keys: tuple[str, ...]
    before_seq: int

    def rows(self, batch: Any) -> list[int]:
        """The hidden rows of a record batch, in order; ``batch`` has all columns of a segment."""

    def tombstone(self, size: int) -> bytes:
        """An entry of so many bytes that is read in the place of a hidden one."""


def without_keys(column: Any, rows: list[int]) -> Any:
    """A column of keys that has none in these rows."""
    return pc.if_else(_marks(column, rows), pa.scalar(None, pa.string()), column)


def with_tombstones(column: Any, rows: list[int], mask: Mask) -> Any:
    """A column of payloads with tombstones of the same lengths in these rows."""
    sizes = pc.binary_length(column.take(pa.array(rows, pa.int64()))).to_pylist()
    bodies = pa.array([mask.tombstone(size).decode() for size in sizes], column.type)
    return pc.replace_with_mask(column, _marks(column, rows), bodies)


def _marks(column: Any, rows: list[int]) -> Any:
    marks = np.zeros(len(column), np.bool_)
    marks[rows] = True
    return pa.array(marks)
