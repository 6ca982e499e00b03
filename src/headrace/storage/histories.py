"""The rows of ``histories``: requests for rows as of moments, and their results."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.storage.database import Connection

RUNNING, DONE, FAILED = "running", "done", "failed"


class HistoryRow(msgspec.Struct, frozen=True):
    """A question about the past of a table, whose events before ``target`` are folded; both texts are JSON."""

    id: str
    stream: int
    table: str
    state: str
    begun_us: int
    ended_us: int | None
    target: int
    question: str
    answer: str | None
    reason: str | None


_COLUMNS = ", ".join(f'"{name}"' for name in HistoryRow.__struct_fields__)
_SELECT = f"SELECT {_COLUMNS} FROM histories"


class Histories:
    """Reads and writes questions through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, id: str) -> HistoryRow | None:
        """The one with this id, if it is still known."""
        row: Any = self._connection.execute(f"{_SELECT} WHERE id = ?", (id,)).fetchone()
        return None if row is None else HistoryRow(*row)

    def running(self) -> list[HistoryRow]:
        """Those that have not ended, the oldest first."""
        sql = f"{_SELECT} WHERE state = 'running' ORDER BY begun_us, id"
        return [HistoryRow(*row) for row in self._connection.execute(sql)]

    def add(self, row: HistoryRow) -> None:
        """Write one down."""
        marks = ", ".join("?" * len(HistoryRow.__struct_fields__))
        self._connection.execute(f"INSERT INTO histories VALUES ({marks})", msgspec.structs.astuple(row))

    def end(self, id: str, state: str, now_us: int, *, answer: str | None = None, reason: str | None = None) -> bool:
        """One is over; False where it was before, or is not known."""
        sql = "UPDATE histories SET state = ?, ended_us = ?, answer = ?, reason = ? WHERE id = ? AND state = 'running'"
        self._connection.execute(sql, (state, now_us, answer, reason, id))
        return bool(self._connection.changes())

    def forget(self, before_us: int, most: int) -> None:
        """Those that ended before a moment, and of the others all but so many that ended last."""
        sql = """DELETE FROM histories WHERE ended_us < max(?, ifnull(
                 (SELECT ended_us FROM histories WHERE ended_us IS NOT NULL
                  ORDER BY ended_us DESC LIMIT 1 OFFSET ?), 0))"""
        self._connection.execute(sql, (before_us, most - 1))
