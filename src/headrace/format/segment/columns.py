"""Arrow columns made from plain memory.

pyarrow's own conversions of Python objects first load pandas, where that is installed, to find out whether they were
given something of its: a quarter of a second and a lot of memory for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def column(kind: Any, count: int, *buffers: Any) -> Any:
    """A column without nulls: the buffers that its type has, after the one for nulls."""
    return pa.Array.from_buffers(kind, count, [None, *map(pa.py_buffer, buffers)])


def int32s(values: Iterable[int]) -> Any:
    """A column of whole numbers."""
    held = np.fromiter(values, np.int32)
    return column(pa.int32(), len(held), held)


def spread(kind: Any, values: Any, counts: Any) -> Any:
    """A column that repeats each value so many times."""
    every = np.repeat(values, counts)
    return column(kind, len(every), every)


def flags(values: Any) -> Any:
    """A column of truths, one byte for each."""
    return column(pa.bool_(), len(values), np.packbits(values, bitorder="little"))


def pieces(kind: Any, values: Sequence[Any]) -> Any:
    """A column of bytes or of text that is UTF-8 already, each copied once."""
    return column(kind, len(values), _offsets(values), b"".join(values))


def text(value: str) -> Any:
    """One value of a text column."""
    return texts([value])[0]


def texts(values: Sequence[str | None]) -> Any:
    """A column of texts, of which some may be missing."""
    held = [value or "" for value in values]
    joined = "".join(held)
    if joined.isascii():
        found = column(pa.string(), len(held), _offsets(held), joined.encode())
    else:
        found = pieces(pa.string(), [value.encode() for value in held])
    if None not in values:
        return found
    known = flags(np.fromiter((value is not None for value in values), np.uint8, len(values)))
    return pa.Array.from_buffers(pa.string(), len(values), [known.buffers()[1], *found.buffers()[1:]])


def _offsets(values: Sequence[Any]) -> Any:
    """Where each of them begins, and where the last ends."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
    return offsets
