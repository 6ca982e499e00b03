"""The rows of ``wal``: one per append request, found by stream and sequence number."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from itertools import chain
from typing import Any

import msgspec

from headrace.format.packing import LEAST_BYTES, pack, unpack
from headrace.storage.database import Connection


class Entries(msgspec.Struct, frozen=True):
    """What one append request wrote: ``count`` entries from ``seq`` on."""

    seq: int
    count: int
    append_us: int
    version: int
    key: str | None
    keys: str | None
    stream_seq: str | None
    total_bytes: int
    body: bytes


_COLUMNS = "seq, count, append_us, version, key, keys, stream_seq, total_bytes, body"
_SELECT = f"SELECT {_COLUMNS}, packed FROM wal"
_FROM = "seq >= ifnull((SELECT max(seq) FROM wal WHERE stream = ?1 AND seq <= ?2), ?2)"


def _inserts(columns: str) -> tuple[tuple[int, str], ...]:
    """Statements by how many rows they insert: each lets go of the interpreter's lock once, so many rows share one."""
    marks = f"({', '.join('?' * len(columns.split(',')))})"
    sizes = (64, 32, 16, 8, 4, 2, 1)
    return tuple((size, f"INSERT INTO wal ({columns}) VALUES {', '.join([marks] * size)}") for size in sizes)


_AS_THEY_CAME = _inserts(f"stream, {_COLUMNS}")
_PACKED = _inserts(f"stream, {_COLUMNS}, packed")

Row = tuple[int, int, int, int, int, str | None, str | None, str | None, int, bytes]

_BEYOND = "SELECT seq FROM wal WHERE stream = ? AND seq >= ? AND seq < ? ORDER BY seq LIMIT 1 OFFSET ?"
_TRIM = "DELETE FROM wal WHERE stream = ? AND seq >= ? AND seq < ? AND seq + count <= ?"

_NO_STREAM = 0
_PROBE_BYTES = 16 * 1024


class Wal:
    """Reads and writes entries through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def insert(self, rows: Sequence[Row]) -> None:
        """Store rows: the stream's id, then the fields of Entries."""
        long = [_packed(row) for row in rows if len(row[-1]) >= LEAST_BYTES]
        if long:
            self._insert(_PACKED, long)
            rows = [row for row in rows if len(row[-1]) < LEAST_BYTES]
        self._insert(_AS_THEY_CAME, rows)

    def _insert(self, inserts: tuple[tuple[int, str], ...], rows: Sequence[tuple[Any, ...]]) -> None:
        start = 0
        for size, sql in inserts:
            while len(rows) - start >= size:
                self._connection.execute(sql, tuple(chain.from_iterable(rows[start : start + size])))
                start += size

    def scan(self, stream: int, position: int, end: int) -> Generator[Entries, None, None]:
        """Rows that hold entries in [position, end), in order; the first may begin earlier, the last end later."""
        sql = f"{_SELECT} WHERE stream = ?1 AND {_FROM} AND seq < ?3 ORDER BY seq"
        return self._rows(sql, (stream, position, end))

    def scan_key(self, stream: int, key: str, position: int, end: int) -> Generator[Entries, None, None]:
        """The same for rows of one key, and rows of several keys that may have it among them."""
        sql = f"{_SELECT} WHERE stream = ?1 AND key = ?4 AND {_FROM} AND seq < ?3"
        sql += f" UNION ALL {_SELECT} WHERE stream = ?1 AND keys IS NOT NULL AND {_FROM} AND seq < ?3"
        sql += " AND instr(keys, ?5) ORDER BY seq"
        return self._rows(sql, (stream, position, end, key, msgspec.json.encode(key).decode()))

    def holding(self, stream: int, seq: int) -> Entries | None:
        """The row that holds this entry, if it is still here."""
        row = self._one(f"{_SELECT} WHERE stream = ? AND seq <= ? ORDER BY seq DESC LIMIT 1", (stream, seq))
        return row if row is not None and seq < row.seq + row.count else None

    def starts_before(self, stream: int, seq: int) -> bool:
        """Whether there is a row that begins before a sequence number."""
        sql = "SELECT EXISTS (SELECT 1 FROM wal WHERE stream = ? AND seq < ?)"
        return bool(self._connection.execute(sql, (stream, seq)).get)

    def probe(self) -> None:
        """Take pages as an append of what cannot be packed would, and give them back."""
        self.insert([(_NO_STREAM, 0, 1, 0, 0, None, None, None, 0, os.urandom(_PROBE_BYTES))])
        self._connection.execute("DELETE FROM wal WHERE stream = ?", (_NO_STREAM,))

    def trim(self, stream: int, start: int, end: int, rows: int) -> int:
        """Remove up to so many rows whose entries all lie in [start, end); answers how many went."""
        # A range is removed faster than rows that were picked, so the first one that is too much is looked for.
        beyond = self._connection.execute(_BEYOND, (stream, start, end, rows)).get
        values = (stream, start, end if beyond is None else beyond, end)
        self._connection.execute(_TRIM, values)
        return int(self._connection.changes())

    def _one(self, sql: str, values: tuple[object, ...]) -> Entries | None:
        return next(self._rows(sql, values), None)

    def _rows(self, sql: str, values: tuple[object, ...]) -> Generator[Entries, None, None]:
        cursor = self._connection.cursor()
        try:
            for row in cursor.execute(sql, values):
                yield Entries(*row[:-1]) if row[-1] is None else _unpacked(row)
        finally:
            # An abandoned statement would keep its snapshot open and the WAL file from being reused.
            cursor.close()


def _packed(row: Row) -> tuple[object, ...]:
    """A row as it is stored, in less space where that pays."""
    packed = pack(row[-1])
    return (*row, None) if packed is None else (*row[:-1], packed, len(row[-1]))


def _unpacked(row: Any) -> Entries:
    """A packed row as it came."""
    *facts, packed, size = row
    return Entries(*(*facts, unpack(packed, size)))
