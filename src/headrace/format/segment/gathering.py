"""A row group in the making: entries as they come in, columns when it is full."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.format.segment import layout

Payload = bytes | msgspec.Raw


class Run(NamedTuple):
    """The entries of one append request; ``keys`` is one key or None for all, or one for each."""

    seq: int
    append_us: int
    version: int
    keys: str | Sequence[str | None] | None
    payloads: Sequence[Payload]


class Gathering:
    """The entries of one row group so far."""

    def __init__(self, schema: Any, first_seq: int) -> None:
        self._schema = schema
        self.first_seq = first_seq
        self.rows = self.bytes = 0
        self._pieces: list[Any] = []
        self._begin()

    def extend(self, run: Run, start: int, stop: int, size: int) -> None:
        """Take entries ``start`` to ``stop`` of a run, which have so many payload bytes."""
        _, append_us, version, keys, payloads = run
        count = stop - start
        if not start:
            self._starts.append(len(self._payloads))
        self._payloads += payloads if count == len(payloads) else payloads[start:stop]
        if keys is None or isinstance(keys, str):
            self._keys += (keys,) * count
        else:
            self._keys += keys[start:stop]
        self._ends.append(len(self._payloads))
        self._times.append(append_us)
        self._versions.append(version)
        self.rows += count
        self.bytes += size

    def take(self, batch: Any, size: int) -> None:
        """Take rows of another segment, which have so many payload bytes."""
        self._end()
        self._pieces.append(batch)
        self.rows += batch.num_rows
        self.bytes += size

    def table(self) -> Any:
        """The row group as columns; nothing can be added any more."""
        self._end()
        table = pa.Table.from_batches(self._pieces, self._schema).combine_chunks()
        if self._schema.field(layout.PAYLOAD).type == pa.string():
            table.column(layout.PAYLOAD).validate(full=True)  # raises for what is not UTF-8
        return table

    def _begin(self) -> None:
        self._payloads: list[Payload] = []
        self._keys: list[str | None] = []
        # One item for each run: where it starts, if it does, where it ends, its time and its version.
        self._starts: list[int] = []
        self._ends, self._times, self._versions = array("i"), array("q"), array("i")

    def _end(self) -> None:
        """Turn the entries gathered one by one into columns."""
        if not self._payloads:
            return
        count = len(self._payloads)
        first = self.first_seq + self.rows - count
        offsets = array("i", accumulate(map(len, self._payloads), initial=0))
        columns = [
            pa.arange(first, first + count),
            self._spread(layout.TIME, self._times),
            pa.array(self._keys, pa.string()),
            self._spread(pa.int32(), self._versions),
            _marks(count, self._starts),
            _column(self._schema.field(layout.PAYLOAD).type, count, offsets, b"".join(self._payloads)),
        ]
        self._pieces.append(pa.record_batch(columns, schema=self._schema))
        self._begin()

    def _spread(self, kind: Any, values: array[int]) -> Any:
        """One value for each run as one for each entry."""
        runs = len(self._ends)
        ends = _column(pa.int32(), runs, self._ends)
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, _column(kind, runs, values)))


def _marks(count: int, places: list[int]) -> Any:
    marks = bytearray(count)
    for place in places:
        marks[place] = 1
    return _column(pa.uint8(), count, marks).cast(pa.bool_())


def _column(kind: Any, count: int, *buffers: array[int] | bytearray | bytes) -> Any:
    return pa.Array.from_buffers(kind, count, [None, *map(pa.py_buffer, buffers)])


def payload_bytes(batch: Any) -> int:
    """How many payload bytes a batch holds."""
    return int(pc.sum(pc.binary_length(batch.column(layout.PAYLOAD))).as_py())
