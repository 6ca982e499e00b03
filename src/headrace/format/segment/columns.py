"""Arrow columns made from plain memory.

pyarrow's own conversions of Python objects first load pandas, where that is installed, to find out whether they were
given something of its: a quarter of a second and a lot of memory for nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa


def column(kind: Any, count: int, *buffers: array[int] | bytearray | bytes) -> Any:
    """A column without nulls: the buffers that its type has, after the one for nulls."""
    return pa.Array.from_buffers(kind, count, [None, *map(pa.py_buffer, buffers)])


def int32s(values: Iterable[int]) -> Any:
    """A column of whole numbers."""
    held = array("i", values)
    return column(pa.int32(), len(held), held)


def text(value: str) -> Any:
    """One value of a text column."""
    data = value.encode()
    return column(pa.string(), 1, array("i", (0, len(data))), data)[0]


def flags(values: bytes | bytearray) -> Any:
    """A column of truths, one byte for each."""
    return column(pa.uint8(), len(values), values).cast(pa.bool_())


def texts(values: Sequence[str | None]) -> Any:
    """A column of texts, of which some may be missing."""
    nulls, held = None, values
    if None in values:
        nulls = flags(bytes(value is not None for value in values)).buffers()[1]
        held = [value or "" for value in values]
    joined = "".join(held)  # type: ignore[arg-type]
    lengths = map(len, held) if joined.isascii() else (len(value.encode()) for value in held)  # type: ignore[arg-type, union-attr]
    offsets = array("i", accumulate(lengths, initial=0))
    return pa.Array.from_buffers(pa.string(), len(held), [nulls, pa.py_buffer(offsets), pa.py_buffer(joined.encode())])
