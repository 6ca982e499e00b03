"""The columns of segments as Arrow arrays: made from plain memory, cut into payloads and bodies, and masked.

pyarrow's own conversions of Python objects first load pandas, where that is installed, to find out whether they were
given something of its: a quarter of a second and a lot of memory for nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.format.segment import layout


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
    """A column of booleans, from one byte for each."""
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
        filled = column(pa.string(), len(held), _offsets(held), joined.encode())
    else:
        filled = pieces(pa.string(), [value.encode() for value in held])
    if None not in values:
        return filled
    validity = flags(np.fromiter((value is not None for value in values), np.uint8, len(values)))
    return pa.Array.from_buffers(pa.string(), len(values), [validity.buffers()[1], *filled.buffers()[1:]])


def _offsets(values: Sequence[Any]) -> Any:
    """Where each of them begins, and where the last ends."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
    return offsets


_COMMA = ord(",")
_SEPARATOR = text(",")


class Payloads:
    """Payloads end to end; those of a JSON stream have commas between, each of which counts to what it precedes."""

    __slots__ = ("_array", "_data", "_is_json", "_offsets", "bytes", "count")

    def __init__(self, array: Any, is_json: bool) -> None:
        self._array, self._is_json = array, is_json
        self.count = len(array)
        _, offsets, data = array.buffers()
        self._offsets = memoryview(offsets).cast("i")[array.offset : array.offset + self.count + 1]
        self._data = memoryview(data if data is not None else b"").cast("B").toreadonly()
        self.bytes = offsets.size + len(self._data)

    @classmethod
    def of(cls, column: Any) -> Payloads:
        """The payloads of a column as it was stored."""
        if column.type != pa.string():
            return cls(column, is_json=False)
        count = len(column)
        joined = pc.binary_join(pa.ListArray.from_arrays(int32s((0, count)), column), _SEPARATOR)
        offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + count + 1]
        shifted = offsets - offsets[0]
        shifted[1:] += np.arange(count, dtype=np.int32)  # the commas before
        buffers = [None, pa.py_buffer(shifted), joined.buffers()[2]]
        return cls(pa.Array.from_buffers(pa.string(), count, buffers), True)

    def fitting(self, start: int, stop: int, room: int) -> int:
        """Where to stop between ``start`` and ``stop``, so that the piece has at most ``room`` bytes."""
        return bisect_right(self._offsets, self._begin(start) + room, start + 1, stop + 1) - 1

    def piece(self, start: int, stop: int) -> memoryview:
        """Payloads ``start`` to ``stop`` where they lie: JSON joined by commas, bytes end to end."""
        return self._data[self._begin(start) : self._offsets[stop]]

    def chosen(self, start: int, mask: Any) -> Payloads:
        """The payloads from ``start`` on for which the mask is true."""
        return Payloads(self._array.slice(start, len(mask)).filter(mask), self._is_json)

    def _begin(self, start: int) -> int:
        """Where a payload begins, after its comma; no JSON text begins with one."""
        at = self._offsets[start]
        return at + 1 if self._is_json and self._data[at] == _COMMA else at


class BodyRun(NamedTuple):
    """Consecutive entries of one schema version: JSON joined by commas, bytes end to end."""

    first_seq: int
    version: int
    entries: int
    body: bytes


def body_runs(batch: Any, max_bytes: int) -> Iterator[BodyRun]:
    """All entries of a batch of a segment, in order, at most so many bytes at a time; an entry is never cut."""
    if not batch.num_rows:
        return
    payloads, first_seq = Payloads.of(batch.column(layout.PAYLOAD)), batch.column(layout.SEQ)[0].as_py()
    start = 0
    runs = pc.run_end_encode(batch.column(layout.VERSION_COLUMN))
    for end, version in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        while start < end:
            stop = max(start + 1, payloads.fitting(start, end, max_bytes))
            yield BodyRun(first_seq + start, version, stop - start, bytes(payloads.piece(start, stop)))
            start = stop


class RowMask(Protocol):
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


def with_tombstones(column: Any, rows: list[int], mask: RowMask) -> Any:
    """A column of payloads with tombstones of the same lengths in these rows."""
    sizes = pc.binary_length(column.take(pa.array(rows, pa.int64()))).to_pylist()
    bodies = pa.array([mask.tombstone(size).decode() for size in sizes], column.type)
    return pc.replace_with_mask(column, _marks(column, rows), bodies)


def _marks(column: Any, rows: list[int]) -> Any:
    marks = np.zeros(len(column), np.bool_)
    marks[rows] = True
    return pa.array(marks)


class KeyIndex:
    """The rows of every key, by hashes that hold for this process, and when they were appended."""

    __slots__ = ("_hashes", "_rows", "_run_times", "_runs", "bytes")

    def __init__(self, columns: Iterable[Sequence[Any]]) -> None:
        """``columns`` are the times and the keys of each row group, in order."""
        hashes, times = [], []
        for moments, keys in columns:
            hashes.append(np.fromiter(map(hash, keys.to_pylist()), np.int64, len(keys)))
            times.append(np.asarray(moments.cast("int64")))
        every, at_us = np.concatenate(hashes), np.concatenate(times)
        order = np.argsort(every, kind="stable")
        self._hashes, self._rows = every[order], order.astype(np.uint32)
        #: Entries of one request have one time, so that there are few.
        self._runs = np.flatnonzero(np.diff(at_us, prepend=at_us[0] - 1)).astype(np.uint32)
        self._run_times = at_us[self._runs]
        self.bytes = sum(array.nbytes for array in (self._hashes, self._rows, self._runs, self._run_times))

    def of(self, key: str) -> list[int]:
        """The rows of a key, in order, and those of keys with the same hash."""
        wanted = np.int64(hash(key))
        first, end = np.searchsorted(self._hashes, wanted, "left"), np.searchsorted(self._hashes, wanted, "right")
        rows: list[int] = self._rows[first:end].tolist()
        return rows

    def time(self, row: int) -> int:
        """When a row was appended."""
        return int(self._run_times[np.searchsorted(self._runs, row, "right") - 1])
