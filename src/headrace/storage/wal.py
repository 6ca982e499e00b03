"""The rows of ``wal``: one per append request, found by stream and sequence number."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from headrace.format.body_compression import LEAST_BYTES, pack, unpack
from headrace.storage.table import TableQueries


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


class Bundle(msgspec.Struct, frozen=True):
    """What short append requests wrote that follow one another: the metadata of each, and all their entries joined."""

    counts: list[int]
    append_us: list[int]
    keys: Sequence[str | None]
    version: int
    end_seq: int
    total_bytes: int
    body: bytes


_COLUMNS = "seq, count, append_us, version, key, keys, stream_seq, total_bytes, body, packed"
_SELECT = f"SELECT {_COLUMNS} FROM wal"
_FROM = "seq >= ifnull((SELECT max(seq) FROM wal WHERE stream = ?1 AND seq <= ?2), ?2)"


#: Rows of one statement: each releases the interpreter's lock, so many rows share one.
AT_ONCE = 64

#: A body as it is stored, and how long it was where it is packed.
Stored = tuple[bytes, int | None]

#: A stream's id, and the fields of Entries, the body as it is stored.
Row = tuple[int, int, int, int, int, str | None, str | None, str | None, int, bytes, int | None]

#: One step for many rows, in the order of the index; of a body no more is taken than a short one has.
_BUNDLE = f"""
    SELECT json_group_array(count), json_group_array(append_us), json_group_array(key) FILTER (WHERE key IS NOT NULL),
        max(version), max(seq + count), max(total_bytes), CAST(group_concat(substr(body, 1, {LEAST_BYTES})) AS BLOB),
        min(seq) = ?2 AND min(version) = max(version) AND max(length(body)) < {LEAST_BYTES}
            AND count(packed) + count(keys) = 0
    FROM wal INDEXED BY wal_seq WHERE stream = ?1 AND seq >= ?2 AND seq < ?3"""
_NUMBERS = msgspec.json.Decoder(list[int]).decode
_TEXTS = msgspec.json.Decoder(list[str]).decode

_BEYOND = "SELECT seq FROM wal WHERE stream = ? AND seq >= ? AND seq < ? ORDER BY seq LIMIT 1 OFFSET ?"
_REWRITE = "UPDATE wal SET key = ?, keys = ?, body = ?, packed = ? WHERE stream = ? AND seq = ?"
_TRIM = "DELETE FROM wal WHERE stream = ? AND seq >= ? AND seq < ? AND seq + count <= ?"

_NO_STREAM = 0
_PROBE_BYTES = 16 * 1024


class Wal(TableQueries):
    """Reads and writes entries through one connection."""

    def insert(self, rows: Sequence[Row]) -> None:
        """Store rows, so many with each statement."""
        for start in range(0, len(rows), AT_ONCE):
            some = rows[start : start + AT_ONCE]
            self._connection.execute(_insert_sql(len(some)), tuple(chain.from_iterable(some)))

    def scan(self, stream: int, position: int, end: int) -> Generator[Entries, None, None]:
        """Rows that hold entries in [position, end), in order; the first may begin earlier, the last end later."""
        sql = f"{_SELECT} WHERE stream = ?1 AND {_FROM} AND seq < ?3 ORDER BY seq"
        return self._rows(sql, (stream, position, end))

    def bundle(self, stream: int, position: int, end: int) -> Bundle | None:
        """The rows of a JSON stream that begin in [position, end); None where they are no bundle."""
        *facts, is_plain = self._connection.execute(_BUNDLE, (stream, position, end)).get
        if not is_plain:
            return None
        counts, append_us, keys = _NUMBERS(facts[0]), _NUMBERS(facts[1]), _TEXTS(facts[2])
        bundle = Bundle(counts, append_us, keys or [None] * len(counts), *facts[3:])
        is_complete = bundle.end_seq - position == sum(counts) and len(bundle.keys) == len(counts)
        return bundle if is_complete else None

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
        return self._exists("wal", "stream = ? AND seq < ?", stream, seq)

    def probe(self) -> None:
        """Insert and delete what cannot be packed, to learn whether the database has pages for an append."""
        self.insert([(_NO_STREAM, 0, 1, 0, 0, None, None, None, 0, os.urandom(_PROBE_BYTES), None)])
        self._delete("wal", "stream = ?", _NO_STREAM)

    def rewrite(self, stream: int, seq: int, key: str | None, keys: str | None, body: bytes) -> None:
        """Replace the keys and the body of a row by others of the same count and length."""
        self._connection.execute(_REWRITE, (key, keys, *pack_body(body), stream, seq))

    def trim(self, stream: int, start: int, end: int, rows: int) -> int:
        """Remove up to ``rows`` rows within [start, end); returns how many."""
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
                yield Entries(*row[:-1]) if row[-1] is None else _unpack_row(row)
        finally:
            # An abandoned statement would keep its snapshot open and the WAL file from being reused.
            cursor.close()


def pack_body(body: bytes) -> Stored:
    """A body as it is stored: in less space where that pays."""
    packed = pack(body) if len(body) >= LEAST_BYTES else None
    return (body, None) if packed is None else (packed, len(body))


@cache
def _insert_sql(rows: int) -> str:
    marks = f"({', '.join('?' * len(_COLUMNS.split(',')))}, ?)"
    return f"INSERT INTO wal (stream, {_COLUMNS}) VALUES {', '.join([marks] * rows)}"


def _unpack_row(row: Any) -> Entries:
    """A packed row as it came."""
    *facts, packed, size = row
    return Entries(*(*facts, unpack(packed, size)))


_KEYS = msgspec.json.Decoder(list[str | None])


class KeyRow(NamedTuple):
    """The keys of a row's entries, each with its own or none: ``entries`` of them from ``seq`` on."""

    seq: int
    entries: int
    keys: list[str | None]


class WalKeys(TableQueries):
    """Looks keys up through one connection, within one of its transactions."""

    def shared(self, stream: int, start: int, end: int, after: str) -> Iterator[str]:
        """The keys after this one that all entries of a row have which holds entries of [start, end); ascending."""
        start = self._row_at(stream, start)
        key: str | None = after
        while (key := self._connection.execute(_NEXT, (stream, key)).get) is not None:
            if self._connection.execute(_IS_HELD, (stream, key, start, end)).get:
                yield key

    def mixed(self, stream: int, start: int, end: int) -> Iterator[KeyRow]:
        """The rows with different keys that hold entries of [start, end), in order."""
        cursor = self._connection.cursor()
        try:
            for row in cursor.execute(_MIXED, (stream, self._row_at(stream, start), end)):
                seq, count, keys = row
                yield KeyRow(seq, count, _KEYS.decode(keys))
        finally:
            cursor.close()

    def every(self, stream: int, start: int, end: int) -> Iterator[KeyRow]:
        """The keys of every row that holds entries of [start, end), in order."""
        cursor = self._connection.cursor()
        try:
            for row in cursor.execute(_EVERY, (stream, self._row_at(stream, start), end)):
                seq, count, key, keys = row
                yield KeyRow(seq, count, [key] * count if keys is None else _KEYS.decode(keys))
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
