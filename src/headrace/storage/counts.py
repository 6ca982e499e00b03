"""Counting what lies in the object store by the rows of ``segments`` and ``companions``, without reading any object."""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.storage.database import Connection


class Touched(NamedTuple):
    """Segments that hold entries of a range: how many, where the first begins, and where the last ends."""

    segments: int
    first: int
    end: int


class Within(NamedTuple):
    """Segments whose entries all lie in a range: how many, and when the last of these entries was appended."""

    segments: int
    last_us: int | None


class Counts:
    """Counts through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def touched(self, stream: int, first: int, end: int) -> Touched:
        """The own segments of a stream that hold entries of [first, end)."""
        row: Any = self._connection.execute(_TOUCHED, (stream, first, end)).fetchone()
        return Touched(0, first, end) if not row[0] else Touched(*row)

    def within(self, stream: int, first: int, end: int) -> Within:
        """The own segments of a stream that lie in [first, end) as a whole."""
        row: Any = self._connection.execute(_WITHIN, (stream, first, end)).fetchone()
        return Within(*row)

    def newest_companion(self) -> int:
        """The number of the companion, of any stream, that came last."""
        return int(self._connection.execute("SELECT ifnull(max(id), 0) FROM companions").get)


_TOUCHED = """
SELECT count(*), min(first_seq), max(first_seq + count) FROM segments
WHERE stream = ?1 AND first_seq < ?3 AND first_seq + count > ?2
  AND first_seq >= ifnull((SELECT max(first_seq) FROM segments WHERE stream = ?1 AND first_seq <= ?2), ?2)
"""
_WITHIN = """
SELECT count(*), max(max_us) FROM segments
WHERE stream = ?1 AND first_seq >= ?2 AND first_seq < ?3 AND first_seq + count <= ?3
"""
