"""A row group in the making: entries as they come in, columns when it is full."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, repeat
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.format.segment import layout
from headrace.format.segment.columns import column, flags, int32s, texts

Payload = bytes | msgspec.Raw
Keys = str | Sequence[str | None] | None


class Run(NamedTuple):
    """The entries of one append request; ``keys`` is one key or None for all, or one for each."""

    seq: int
    append_us: int
    version: int
    keys: Keys
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
        if count < len(payloads):
            payloads = payloads[start:stop]
            keys = keys if keys is None or isinstance(keys, str) else keys[start:stop]
        self._payloads += payloads
        self._runs.append((count, not start, append_us, version, keys))
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
        # For each run: how many entries, whether they begin it, their time, their version, and their keys.
        self._runs: list[tuple[int, bool, int, int, Keys]] = []

    def _end(self) -> None:
        """Turn the entries gathered one by one into columns."""
        if not self._payloads:
            return
        count = len(self._payloads)
        first = self.first_seq + self.rows - count
        counts, begins, times, versions, keys = zip(*self._runs, strict=True)
        ends = array("i", accumulate(counts))
        columns = [
            pa.arange(first, first + count),
            _spread(ends, column(layout.TIME, len(ends), array("q", times))),
            _keys(count, counts, keys),
            _spread(ends, int32s(versions)),
            _marks(count, ends, begins),
            self._joined(count),
        ]
        self._pieces.append(pa.record_batch(columns, schema=self._schema))
        self._begin()

    def _joined(self, count: int) -> Any:
        """The payloads, each copied once."""
        ends = pc.cumulative_sum(int32s(map(len, self._payloads)))
        offsets = pa.concat_arrays([int32s((0,)), ends]).buffers()[1]
        kind, data = self._schema.field(layout.PAYLOAD).type, pa.py_buffer(b"".join(self._payloads))
        return pa.Array.from_buffers(kind, count, [None, offsets, data])


def _spread(ends: array[int], values: Any) -> Any:
    """One value for each run as one for each entry."""
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(column(pa.int32(), len(ends), ends), values))


def _keys(count: int, counts: Iterable[int], runs: Iterable[Keys]) -> Any:
    """The key of each entry."""
    if not any(keys is not None for keys in runs):
        return pa.nulls(count, pa.string())
    every = (
        repeat(keys, times) if keys is None or isinstance(keys, str) else keys
        for keys, times in zip(runs, counts, strict=True)
    )
    return texts(list(chain.from_iterable(every)))


def _marks(count: int, ends: array[int], begins: Iterable[bool]) -> Any:
    """Whether each entry is the first of its run."""
    marks = bytearray(count)
    for place, begin in zip(chain((0,), ends), begins, strict=False):
        marks[place] = begin
    return flags(marks)


def payload_bytes(batch: Any) -> int:
    """How many payload bytes a batch holds."""
    return int(pc.sum(pc.binary_length(batch.column(layout.PAYLOAD))).as_py())
