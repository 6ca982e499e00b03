"""Where the entries of a key lie in a segment, for those who ask for one key after the other: an index in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


class Places:
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
        self.bytes = sum(one.nbytes for one in (self._hashes, self._rows, self._runs, self._run_times))

    def of(self, key: str) -> list[int]:
        """The rows of a key, in order, and those of keys with the same hash."""
        wanted = np.int64(hash(key))
        first, end = np.searchsorted(self._hashes, wanted, "left"), np.searchsorted(self._hashes, wanted, "right")
        rows: list[int] = self._rows[first:end].tolist()
        return rows

    def time(self, row: int) -> int:
        """When a row was appended."""
        return int(self._run_times[np.searchsorted(self._runs, row, "right") - 1])
