"""The rows of ``registries``: what a stream's schema, lenses and search fields were after each change."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from headrace.storage.streams import LIVE
from headrace.storage.table import Table, TableQueries


class RegistryRow(msgspec.Struct, frozen=True):
    """A registry document as of one change."""

    revision: int
    at_us: int
    document: str


_REGISTRIES = Table("registries", RegistryRow, extra=("stream",))


class Registries(TableQueries):
    """Reads and writes registry documents through one connection."""

    def document(self, stream: int, revision: int) -> str:
        """The document of one revision."""
        sql = "SELECT document FROM registries WHERE stream = ? AND revision = ?"
        return str(self._value(sql, stream, revision))

    def newest(self) -> Iterator[tuple[str, str]]:
        """The name of each live stream that has a registry, and the newest document of it."""
        if not self._connection.table_exists("main", "registries"):
            return
        sql = """SELECT name, document FROM streams
                 JOIN registries ON registries.stream = streams.id AND registries.revision = streams.revision
                 WHERE state = ? ORDER BY name"""
        yield from self._connection.execute(sql, (LIVE,))

    def history(self, stream: int) -> list[RegistryRow]:
        """Every revision, the oldest first."""
        return self._all(_REGISTRIES, "WHERE stream = ? ORDER BY revision", stream)

    def size(self, stream: int) -> tuple[int, int]:
        """How many revisions there are, and the bytes of their documents."""
        sql = "SELECT count(*), ifnull(sum(octet_length(document)), 0) FROM registries WHERE stream = ?"
        revisions, size = self._connection.execute(sql, (stream,)).fetchone()  # type: ignore[misc]
        return int(revisions), int(size)

    def save(self, stream: int, row: RegistryRow) -> None:
        """Store a new revision."""
        self._insert(_REGISTRIES, row, stream)
        self._update("streams", {"revision": row.revision}, "id = ?", stream)
