"""Which entries of the log's tail have a key: an index in memory, so that nobody reads the tail for each key."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from headrace.engine.log.stream import Stream
from headrace.storage.database import Connection
from headrace.storage.wal import WalKeys

#: Entries that are indexed, of all streams together: 16 bytes each.
MOST_ENTRIES = 2_000_000
_LEAST_ROOM = 1024


class TailKeys:
    """The tails of the streams that were asked for last; for threads."""

    def __init__(self, most_entries: int = MOST_ENTRIES) -> None:
        self._most = most_entries
        self._lock = threading.Lock()
        self._tails: OrderedDict[str, _Tail] = OrderedDict()

    def of(
        self, connection: Connection, stream: Stream, key: str, floor: int, start: int, stop: int
    ) -> list[int] | None:
        """The entries of [start, stop) that have a key, and those of keys with the same hash; None where it is unknown.

        ``floor`` is where the tail began for whoever saw it shortest: nobody asks for entries before it any more.
        """
        with self._lock:
            tail = self._tails.get(stream.incarnation)
            if tail is None or start < tail.start:
                tail = self._tails[stream.incarnation] = _Tail(start)
            self._tails.move_to_end(stream.incarnation)
            tail.forget(floor)
            tail.fill(WalKeys(connection), stream.id, stop)
            self._make_room()
            return None if start < tail.start or stop > tail.end else tail.of(key, start, stop)

    def _make_room(self) -> None:
        while self._tails and sum(tail.count for tail in self._tails.values()) > self._most:
            self._tails.popitem(last=False)[1].drop()


class _Tail:
    """The hashes of the keys of entries from ``start`` to ``end``, as they come."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.count = 0
        self._hashes: Any = np.empty(_LEAST_ROOM, np.int64)
        self._seqs: Any = np.empty(_LEAST_ROOM, np.int64)

    def of(self, key: str, start: int, stop: int) -> list[int]:
        seqs = self._seqs[: self.count][self._hashes[: self.count] == hash(key)]
        matching_seqs: list[int] = seqs[(seqs >= start) & (seqs < stop)].tolist()
        return matching_seqs

    def fill(self, rows: WalKeys, stream: int, stop: int) -> None:
        """Take in the rows up to an entry. Where rows have gone that were not seen, the tail begins after them."""
        if stop <= self.end:
            return
        for row in rows.every(stream, self.end, stop):
            if row.seq > self.end:
                self.start, self.count = row.seq, 0
            self._add(row.seq, row.keys)
            self.end = row.seq + row.entries

    def forget(self, floor: int) -> None:
        """Let go of entries before one; not each time, as that takes longer than to leave them out."""
        if floor <= self.start or not self.count:
            return
        kept = self._seqs[: self.count] >= floor
        left = int(np.count_nonzero(kept))
        if 2 * left <= self.count:
            self._hashes, self._seqs = self._hashes[: self.count][kept], self._seqs[: self.count][kept]
            self.start, self.count = floor, left

    def drop(self) -> None:
        """Know nothing."""
        self.start = self.end + 1

    def _add(self, seq: int, keys: list[str | None]) -> None:
        stop = self.count + len(keys)
        if stop > len(self._hashes):
            room = max(2 * stop, _LEAST_ROOM)
            self._hashes = np.resize(self._hashes, room)
            self._seqs = np.resize(self._seqs, room)
        self._hashes[self.count : stop] = np.fromiter(map(hash, keys), np.int64, len(keys))
        self._seqs[self.count : stop] = np.arange(seq, seq + len(keys))
        self.count = stop
