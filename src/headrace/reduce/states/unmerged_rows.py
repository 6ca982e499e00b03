"""Packed rows of keys, made at once from the columns of many events, that nobody has merged with earlier rows yet.

Most rows are not asked for before more events come, and merging a row costs more than its events did as columns. So a
row is merged when it is needed, and others when there are too many of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.format.state_file import PackedColumns

#: Runs of events whose rows wait to be merged; every look-up of a key searches each.
_MAX_RUNS = 12


class _RunRows:
    """The rows of one run of events."""

    def __init__(self, rows: PackedColumns) -> None:
        self._rows = rows
        self._is_taken = np.zeros(len(rows.keys), np.bool_)
        #: How many keys have a row here.
        self.left = len(rows.keys)
        self.memory = sum(column.nbytes for column in (rows.keys, *rows.columns.values()))

    def has(self, key: bytes) -> bool:
        """Whether there is a row of a key."""
        return self._find(key) is not None

    def take(self, key: bytes) -> Mapping[str, bytes] | None:
        """Remove the row of a key and return it."""
        at = self._find(key)
        if at is None:
            return None
        self._is_taken[at] = True
        self.left -= 1
        parts = ((name, column[at].as_py()) for name, column in self._rows.columns.items())
        return {name: part for name, part in parts if part is not None}

    def keys(self) -> Iterator[bytes]:
        """The keys that have a row here when the call is made."""
        left: list[bytes] = self._rows.keys.filter(pa.array(~self._is_taken)).to_pylist()
        return iter(left)

    def _find(self, key: bytes) -> int | None:
        keys = self._rows.keys
        at = bisect_left(range(len(keys)), key, key=lambda number: keys[number].as_py())
        return at if at < len(keys) and not self._is_taken[at] and keys[at].as_py() == key else None


class UnmergedRows:
    """The rows of several runs of events, in the order of the log."""

    def __init__(self) -> None:
        self._runs: list[_RunRows] = []
        self.memory = 0

    def __bool__(self) -> bool:
        return bool(self._runs)

    def has(self, key: bytes) -> bool:
        """Whether there is a row of a key."""
        return any(run.has(key) for run in self._runs)

    def add(self, rows: PackedColumns) -> None:
        """Add the rows of the next run of events."""
        if len(rows.keys):
            self._runs.append(_RunRows(rows))
            self.memory += self._runs[-1].memory

    def take(self, key: bytes) -> list[Mapping[str, bytes]]:
        """Remove the rows of a key and return them, in the order of the log."""
        taken = [row for run in self._runs if (row := run.take(key)) is not None]
        if not all(run.left for run in self._runs):
            self._runs = [run for run in self._runs if run.left]
            self.memory = sum(run.memory for run in self._runs)
        return taken

    def is_full(self, limit_bytes: int) -> bool:
        """Whether rows should be merged before any are added."""
        return len(self._runs) >= _MAX_RUNS or self.memory > limit_bytes

    def next_keys(self) -> Iterator[bytes]:
        """The keys of the run with the fewest, which are merged first."""
        return min(self._runs, key=lambda run: run.left).keys() if self._runs else iter(())


def common_keys(keys: Collection[bytes], rows: PackedColumns) -> list[bytes]:
    """Those of some keys that have a row."""
    array = pa.array(keys, pa.binary())
    common: list[bytes] = array.filter(pc.is_in(array, value_set=rows.keys)).to_pylist()
    return common
