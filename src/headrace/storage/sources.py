"""The rows of ``sources``: where the observations lie that came from one source."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.storage.database import Connection


class SourceRange(msgspec.Struct, frozen=True):
    """Adjacent observations of a source in the stream of a type, and when they came."""

    stream: int
    first_seq: int
    count: int
    at_us: int


class Sources:
    """Reads and writes sources through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ranges(self, user_id: str, source_id: str) -> list[SourceRange]:
        """Where the observations of a user's source lie, in the order they came."""
        sql = """SELECT stream, first_seq, count, at_us FROM sources
                 WHERE source_id = ? AND user_id = ? ORDER BY at_us, stream, first_seq"""
        return [SourceRange(*row) for row in self._connection.execute(sql, (source_id, user_id))]

    def save(self, user_id: str, source_id: str, ranges: Iterable[SourceRange]) -> None:
        """Note where further observations of a source lie."""
        rows = ((source_id, one.stream, one.first_seq, one.count, user_id, one.at_us) for one in ranges)
        sql = """INSERT OR REPLACE INTO sources (source_id, stream, first_seq, count, user_id, at_us)
                 VALUES (?, ?, ?, ?, ?, ?)"""
        self._connection.executemany(sql, rows)

    def drop(self, user_id: str, source_id: str, ranges: Iterable[SourceRange]) -> None:
        """Forget where some observations of a source lie."""
        sql = "DELETE FROM sources WHERE source_id = ? AND stream = ? AND first_seq = ? AND user_id = ?"
        self._connection.executemany(sql, [(source_id, one.stream, one.first_seq, user_id) for one in ranges])
