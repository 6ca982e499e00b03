"""The rows of ``streams``, ``producers``, ``meta`` and ``garbage``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from headrace import decoding
from headrace.storage.table import IN_LIST, TableQueries
from headrace.types import NEVER_US

LIVE, SOFT_DELETED, DELETED = 0, 1, 2


class StreamRow(msgspec.Struct, array_like=True):
    """A stream as it is stored; what is read has the head of the newest row of the WAL."""

    name: str
    content_type: str
    created_us: int
    epochs: str
    state: int = LIVE
    ttl_s: int | None = None
    expires_us: int | None = None
    deadline_us: int | None = None
    retention_age_us: int | None = None
    retention_bytes: int | None = None
    closed: int = 0
    closed_by: str | None = None
    parent: int | None = None
    fork_seq: int | None = None
    fork_origin: str | None = None
    first_seq: int = 0
    first_bytes: int = 0
    next_seq: int = 0
    last_us: int = NEVER_US
    bytes: int = 0
    stream_seq: str | None = None
    profile: str = "generic"
    revision: int = 0
    incarnation: str = ""
    published_seq: int = 0
    published_us: int = 0
    generation: int = 0
    attempted: int = 0
    manifest_bytes: int = 0
    managed: str = ""
    id: int = 0


_COLUMNS = StreamRow.__struct_fields__
# Everything in one statement, as the locks of each take longer than a look-up; a join takes longer still.
_NEWEST = """SELECT json_array(seq + count, append_us, total_bytes, stream_seq)
             FROM wal WHERE stream = streams.id ORDER BY seq DESC LIMIT 1"""
_SELECT = f"SELECT {', '.join(_COLUMNS)}, ({_NEWEST}) FROM streams"
_SELECT_UNLOGGED = f"SELECT {', '.join(_COLUMNS)}, NULL FROM streams"
_BY_NAME, _BY_ID = f"{_SELECT} WHERE name = ?", f"{_SELECT} WHERE id = ?"
_BY_NAME_UNLOGGED = f"{_SELECT_UNLOGGED} WHERE name = ?"
# As one value: a step for each row would let go of the interpreter's lock as often.
_AMONG = f"FROM streams WHERE name {IN_LIST}"
_NAMED = f"SELECT json_group_array(json_array(json_array({', '.join(_COLUMNS)}), json(({_NEWEST})))) {_AMONG}"
_NAMED_UNLOGGED = f"SELECT json_group_array(json_array(json_array({', '.join(_COLUMNS)}), NULL)) {_AMONG}"
_BY_INCARNATION = f"{_SELECT} WHERE incarnation = ? AND state != {DELETED}"
#: Of the newest row of the WAL: the position after it, its time, the bytes up to there, and the Stream-Seq.
Newest = tuple[int, int, int, str | None]
_HEAD = decoding.make_decoder(Newest)
_ROWS = decoding.make_decoder(list[tuple[StreamRow, Newest | None]])
_ENTITIES = ("dedupe", "entities", "aliases", "splits", "sources")
_DEPENDENT = (
    "producers", "registries", "segments", "unpublished", "companions", "due", "failures", "verifications", "states",
    "touch", "touch_templates",
    *_ENTITIES,
)  # fmt: skip
_INSERT = f"INSERT INTO streams ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_NUMBER = "UPDATE meta SET value = value + 1 WHERE name = 'last_stream' RETURNING value"


class Streams(TableQueries):
    """Reads and writes stream rows through one connection."""

    def by_name(self, name: str, *, logged: bool = True) -> StreamRow | None:
        """The row of this name, whatever its state; ``logged`` unless it is known to have nothing in the log."""
        return self._one(_BY_NAME if logged else _BY_NAME_UNLOGGED, name)

    def by_names(self, names: Sequence[str], *, logged: bool = True) -> list[StreamRow]:
        """The same for many names, in any order."""
        sql = _NAMED if logged else _NAMED_UNLOGGED
        rows = _ROWS.decode(self._connection.execute(sql, (msgspec.json.encode(names).decode(),)).get)
        return [_with_newest(row, newest) for row, newest in rows]

    def by_id(self, stream: int) -> StreamRow | None:
        """The row with this id."""
        return self._one(_BY_ID, stream)

    def page(self, *, prefix: str, after: str, now_us: int, limit: int) -> list[StreamRow]:
        """Live streams in name order, strictly after a name."""
        end = beyond(prefix) if prefix else None
        clause = "WHERE name > ? AND name >= ? AND (? IS NULL OR name < ?) AND state = 0"
        clause += " AND (deadline_us IS NULL OR deadline_us > ? OR ttl_s IS NOT NULL) ORDER BY name LIMIT ?"
        return self._many(clause, after, prefix, end, end, now_us, limit)

    def due(self, now_us: int, limit: int) -> list[StreamRow]:
        """Live streams whose stored deadline has passed."""
        clause = "WHERE deadline_us IS NOT NULL AND deadline_us <= ? AND state = 0 ORDER BY deadline_us LIMIT ?"
        return self._many(clause, now_us, limit)

    def with_retention(self, after_id: int, limit: int) -> list[StreamRow]:
        """Streams with a retention rule, or whose registry may have one, in id order."""
        clause = "WHERE (retention_age_us IS NOT NULL OR retention_bytes IS NOT NULL OR managed != '') AND id > ?"
        return self._many(f"{clause} AND state != 2 ORDER BY id LIMIT ?", after_id, limit)

    def by_incarnation(self, incarnation: str) -> StreamRow | None:
        """The stream of this incarnation, unless it is deleted."""
        return self._one(_BY_INCARNATION, incarnation)

    def every(self, after_id: int, limit: int) -> list[StreamRow]:
        """Streams that are not deleted, in id order."""
        return self._many("WHERE id > ? AND state != 2 ORDER BY id LIMIT ?", after_id, limit)

    def forks(self, parent: int) -> list[tuple[int, int]]:
        """The forks of a stream that are not deleted, as (id, fork_seq)."""
        sql = "SELECT id, fork_seq FROM streams WHERE parent = ? AND state != 2"
        return [(int(row[0]), int(row[1])) for row in self._connection.execute(sql, (parent,))]

    def has_published(self) -> bool:
        """Whether any stream that is not deleted has a manifest in the object store."""
        return self._exists("streams", "generation > 0 AND state != 2")

    def insert(self, row: StreamRow) -> int:
        """Store a new stream, and return its id, which no other has had."""
        number = int(self._connection.execute(_NUMBER).get)
        self._connection.execute(_INSERT, (*msgspec.structs.astuple(row)[:-1], number))
        return number

    def update(self, stream: int, **values: object) -> None:
        """Change some columns of a stream."""
        self._update("streams", values, "id = ?", stream)

    def remove(self, stream: int) -> None:
        """Remove the row of a stream; its entries become garbage."""
        self._delete("streams", "id = ?", stream)
        self.discard(stream)

    def discard(self, stream: int) -> None:
        """Mark the entries and producers of a stream for removal by a sweep."""
        self._connection.execute("INSERT OR IGNORE INTO garbage VALUES (?)", (stream,))

    def drop_tombstones(self, deleted_before_us: int, limit: int) -> int:
        """Remove the rows of streams that were deleted before a moment, which is their deadline; returns how many."""
        due = "SELECT id FROM streams WHERE deadline_us IS NOT NULL AND deadline_us <= ? AND state = 2 LIMIT ?"
        return self._delete("streams", f"id IN ({due})", deleted_before_us, limit)

    def producer(self, stream: int, producer: str) -> tuple[int, int] | None:
        """The epoch and last sequence number of a producer."""
        sql = "SELECT epoch, seq FROM producers WHERE stream = ? AND producer = ?"
        row = self._connection.execute(sql, (stream, producer)).fetchone()
        return None if row is None else (int(row[0]), int(row[1]))

    def producers(self, stream: int) -> dict[str, tuple[int, int]]:
        """The epoch and last sequence number of every producer of a stream."""
        sql = "SELECT producer, epoch, seq FROM producers WHERE stream = ?"
        return {str(row[0]): (int(row[1]), int(row[2])) for row in self._connection.execute(sql, (stream,))}

    def save_producers(self, rows: Iterable[tuple[int, str, int, int]]) -> None:
        """Store producer states as (stream, producer, epoch, seq)."""
        self._connection.executemany("INSERT OR REPLACE INTO producers VALUES (?, ?, ?, ?)", rows)

    def meta(self, name: str, default: int = 0) -> int:
        """A stored number."""
        number = self._value("SELECT value FROM meta WHERE name = ?", name)
        return default if number is None else int(number)

    def set_meta(self, name: str, value: int) -> None:
        """Store a number."""
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def purge(self, rows: int) -> int:
        """Remove up to so many rows of deleted streams; returns how many, each stream counted as one more."""
        gone = 0
        while gone < rows:
            stream = self._value("SELECT stream FROM garbage LIMIT 1")
            if stream is None:
                break
            room = rows - gone
            removed = self._delete("wal", "id IN (SELECT id FROM wal WHERE stream = ? LIMIT ?)", stream, room)
            if removed < room:
                self._clear(stream, (*_DEPENDENT, "garbage"))
            gone += removed + 1
        return gone

    def empty(self, stream: int) -> None:
        """Remove everything of a stream except its row, at once."""
        self._clear(stream, ("wal", *_DEPENDENT))

    def forget_entities(self, stream: int) -> None:
        """Remove what was derived from the observations of a stream, so that they can be read again."""
        self._clear(stream, _ENTITIES)

    def _clear(self, stream: int, tables: Iterable[str]) -> None:
        for table in tables:
            self._delete(table, "stream = ?", stream)

    def _one(self, sql: str, value: object) -> StreamRow | None:
        row: Any = self._connection.execute(sql, (value,)).fetchone()
        return None if row is None else _stream(row)

    def _many(self, clause: str, *values: object) -> list[StreamRow]:
        rows: list[Any] = self._connection.execute(f"{_SELECT} {clause}", values).fetchall()
        return [_stream(row) for row in rows]


def beyond(prefix: str) -> str:
    """A text after all names that begin so."""
    return prefix + "\U0010ffff" * 4


def _stream(row: Any) -> StreamRow:
    return _with_newest(StreamRow(*row[:-1]), None if row[-1] is None else _HEAD.decode(row[-1]))


def _with_newest(stream: StreamRow, newest: Newest | None) -> StreamRow:
    if newest is not None and newest[0] >= stream.next_seq:  # an older row may stay for a fork alone
        stream.next_seq, stream.last_us, stream.bytes, stream.stream_seq = newest
    return stream
