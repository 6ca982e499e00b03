"""The rows of ``erasures`` and ``erased``: entities that are removed for good, and how far that is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from headrace import decoding
from headrace.format.manifest import Segment
from headrace.storage.database import Connection

RUNNING, DONE = "running", "done"
#: The step in which segments are left to workers.
OFFERED = "offered"


class ErasureRow(msgspec.Struct, frozen=True):
    """The removal of an entity's observations before a number; ``targets``, ``plan`` and ``report`` are JSON."""

    id: str
    entity_id: str
    user_id: str
    stream: int
    before_seq: int
    state: str
    step: str
    begun_us: int
    ended_us: int | None
    targets: str
    plan: str
    report: str


_COLUMNS = ErasureRow.__struct_fields__
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM erasures"


class Erasures:
    """Reads and writes erasures through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, id: str) -> ErasureRow | None:
        """The one with this id."""
        row: Any = self._connection.execute(f"{_SELECT} WHERE id = ?", (id,)).fetchone()
        return None if row is None else ErasureRow(*row)

    def running(self, stream: int | None = None) -> list[ErasureRow]:
        """Those that have not ended, of one stream or all, the oldest first."""
        sql = f"{_SELECT} WHERE state = 'running' AND ifnull(?1, stream) = stream ORDER BY begun_us, id"
        return [ErasureRow(*row) for row in self._connection.execute(sql, (stream,))]

    def of_stream(self, stream: int) -> list[ErasureRow]:
        """All of a stream, the oldest first."""
        sql = f"{_SELECT} WHERE stream = ? ORDER BY before_seq, id"
        return [ErasureRow(*row) for row in self._connection.execute(sql, (stream,))]

    def count(self, stream: int) -> int:
        """How many there ever were of a stream."""
        return int(self._connection.execute("SELECT count(*) FROM erasures WHERE stream = ?", (stream,)).get)

    def is_running(self, stream: int) -> bool:
        """Whether one of a stream has not ended."""
        sql = "SELECT EXISTS (SELECT 1 FROM erasures WHERE stream = ? AND state = 'running')"
        return bool(self._connection.execute(sql, (stream,)).get)

    def has_ended(self, stream: int, since_us: int) -> bool:
        """Whether one of a stream has ended since a moment."""
        sql = "SELECT EXISTS (SELECT 1 FROM erasures WHERE stream = ? AND state = 'done' AND ended_us >= ?)"
        return bool(self._connection.execute(sql, (stream, since_us)).get)

    def page(self, user_id: str, before: str, limit: int) -> list[ErasureRow]:
        """The newest of a user, older than one of them."""
        sql = f"""{_SELECT} WHERE user_id = ?1 AND (?2 = '' OR (begun_us, id) <
                  (SELECT begun_us, id FROM erasures WHERE id = ?2)) ORDER BY begun_us DESC, id DESC LIMIT ?3"""
        return [ErasureRow(*row) for row in self._connection.execute(sql, (user_id, before, limit))]

    def add(self, row: ErasureRow, ids: Iterable[str]) -> None:
        """Write one down, and which ids it is about."""
        marks = ", ".join("?" * len(_COLUMNS))
        columns = ", ".join(_COLUMNS)
        self._connection.execute(f"INSERT INTO erasures ({columns}) VALUES ({marks})", msgspec.structs.astuple(row))
        self._connection.executemany(
            "INSERT INTO erased VALUES (?, ?, ?)", [(entity_id, row.id, row.before_seq) for entity_id in ids]
        )

    def update(self, id: str, **values: object) -> None:
        """Change some columns of one."""
        assignments = ", ".join(f"{column} = ?" for column in values)
        self._connection.execute(f"UPDATE erasures SET {assignments} WHERE id = ?", (*values.values(), id))

    def end(self, id: str, now_us: int, report: str) -> None:
        """Nothing of it is left: its ids are like any others."""
        self.update(id, state=DONE, step=DONE, ended_us=now_us, report=report)
        self._connection.execute("DELETE FROM erased WHERE erasure = ?", (id,))
        sql = "DELETE FROM rewrites WHERE stream NOT IN (SELECT stream FROM erasures WHERE state = 'running')"
        self._connection.execute(sql)

    def note_rewritten(self, stream: int, name: str, segment: Segment) -> None:
        """Keep what is to take the place of a segment."""
        document = msgspec.json.encode(segment).decode()
        self._connection.execute("INSERT OR REPLACE INTO rewrites VALUES (?, ?, ?)", (stream, name, document))

    def rewritten(self, stream: int, name: str) -> Segment | None:
        """What is to take the place of a segment, if somebody has made it."""
        sql = "SELECT document FROM rewrites WHERE stream = ? AND name = ?"
        document = self._connection.execute(sql, (stream, name)).get
        return None if document is None else decoding.decode(document, Segment)

    def since(self, entity_id: str) -> int:
        """The first observation that counts of an entity; 0 where none is being removed."""
        sql = "SELECT max(before_seq) FROM erased WHERE entity_id = ?"
        return int(self._connection.execute(sql, (entity_id,)).get or 0)
