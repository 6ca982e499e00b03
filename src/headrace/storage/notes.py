"""The rows of ``notes``: audit notes, written in the commit that they describe, until the audit stream has them."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.storage.table import TableQueries


class Notes(TableQueries):
    """Reads and writes notes."""

    def add(self, documents: Iterable[str]) -> None:
        """Store notes, in this order."""
        self._connection.executemany("INSERT INTO notes (document) VALUES (?)", ((document,) for document in documents))

    def first(self, limit: int) -> list[tuple[int, str]]:
        """The oldest notes, with their numbers."""
        sql = "SELECT id, document FROM notes ORDER BY id LIMIT ?"
        return [(int(row[0]), str(row[1])) for row in self._connection.execute(sql, (limit,))]

    def remove(self, through: int) -> None:
        """Remove notes up to a number."""
        self._delete("notes", "id <= ?", through)
