"""The payloads of a row group in one piece of memory, so that any stretch of them is one copy."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.format.segment.columns import int32s, text

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
        """Those from ``start`` on for which the mask holds."""
        return Payloads(self._array.slice(start, len(mask)).filter(mask), self._is_json)

    def _begin(self, start: int) -> int:
        """Where a payload begins, after its comma; no JSON text begins with one."""
        at = self._offsets[start]
        return at + 1 if self._is_json and self._data[at] == _COMMA else at
