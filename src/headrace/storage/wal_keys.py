"""The routing keys of rows of the log: by the index of keys, and row by row where entries have different ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from headrace.storage.database import Connection

_KEYS = msgspec.json.Decoder(list[str | None])


class Mixed(NamedTuple):
    """The keys of a row's entries, each with its own or none: ``entries`` of them from ``seq`` on."""

    seq: int
    entries: int
    keys: list[str | None]


class WalKeys:
    """Looks keys up through one connection, within one of its transactions."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def shared(self, stream: int, start: int, end: int, after: str) -> Iterator[str]:
        """The keys after this one that all entries of a row have which holds entries of [start, end); ascending."""
        start = self._row_at(stream, start)
        key: str | None = after
        while (key := self._connection.execute(_NEXT, (stream, key)).get) is not None:
            if self._connection.execute(_IS_HELD, (stream, key, start, end)).get:
                yield key

    def mixed(self, stream: int, start: int, end: int) -> Iterator[Mixed]:
        """The rows with different keys that hold entries of [start, end), in order."""
        cursor = self._connection.cursor()
        try:
            for row in cursor.execute(_MIXED, (stream, self._row_at(stream, start), end)):
                seq, count, keys = row
                yield Mixed(seq, count, _KEYS.decode(keys))
        finally:
            cursor.close()

    def every(self, stream: int, start: int, end: int) -> Iterator[Mixed]:
        """The keys of every row that holds entries of [start, end), in order."""
        cursor = self._connection.cursor()
        try:
            for row in cursor.execute(_EVERY, (stream, self._row_at(stream, start), end)):
                seq, count, key, keys = row
                yield Mixed(seq, count, [key] * count if keys is None else _KEYS.decode(keys))
        finally:
            cursor.close()

    def _row_at(self, stream: int, seq: int) -> int:
        """Where the row begins that holds an entry; the entry itself where there is none."""
        row: Any = self._connection.execute(_HOLDING, (stream, seq)).fetchone()
        return int(row[0]) if row is not None and seq < row[0] + row[1] else seq


# The least key after another leads through the index from key to key, however many rows each has.
_NEXT = "SELECT min(key) FROM wal WHERE stream = ? AND key > ?"
_IS_HELD = "SELECT EXISTS (SELECT 1 FROM wal WHERE stream = ? AND key = ? AND seq >= ? AND seq < ?)"
_MIXED = """SELECT seq, count, keys FROM wal
            WHERE stream = ? AND keys IS NOT NULL AND seq >= ? AND seq < ? ORDER BY seq"""
_EVERY = "SELECT seq, count, key, keys FROM wal WHERE stream = ? AND seq >= ? AND seq < ? ORDER BY seq"
_HOLDING = "SELECT seq, count FROM wal WHERE stream = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
