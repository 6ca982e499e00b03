"""The rows of ``feature_registry`` and ``entity_changes``: journals of numbered records that are published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from headrace.storage.database import Connection

_PAGE = 500


#: A record: its first field is its number, its last one a document.
Row = TypeVar("Row", bound=msgspec.Struct)


class JournalRows(Generic[Row]):
    """Reads and writes the records of a journal through one connection."""

    table: str
    row_type: type[Row]

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        fields = self.row_type.__struct_fields__
        self._number, self._select = fields[0], f"SELECT {', '.join(fields)} FROM {self.table}"
        self._insert = f"INSERT INTO {self.table} VALUES ({', '.join('?' * (len(fields) + 1))})"

    def get(self, number: int) -> Row | None:
        """One record."""
        return next(self._rows(f"WHERE {self._number} = ?", number), None)

    def page(self, after: int, limit: int) -> list[Row]:
        """Records after a number, in order."""
        return list(self._rows(f"WHERE {self._number} > ? ORDER BY {self._number} LIMIT ?", after, limit))

    def all(self) -> Iterator[Row]:
        """All records, in order, a page at a time."""
        after = 0
        while rows := self.page(after, _PAGE):
            yield from rows
            after = self.number(rows[-1])

    def unpublished(self, after: int, limit: int) -> list[Row]:
        """Records after a number that the object store lacks, the oldest first."""
        where = f"WHERE published = 0 AND {self._number} > ? ORDER BY {self._number} LIMIT ?"
        return list(self._rows(where, after, limit))

    def save(self, row: Row, *, published: bool = False) -> None:
        """Store a record."""
        self._connection.execute(self._insert, (*msgspec.structs.astuple(row), int(published)))

    def drop_from(self, number: int) -> None:
        """Remove a record and those after it."""
        self._connection.execute(f"DELETE FROM {self.table} WHERE {self._number} >= ?", (number,))

    def note_published(self, until: int) -> None:
        """Note that the object store has every record up to a number."""
        sql = f"UPDATE {self.table} SET published = 1 WHERE published = 0 AND {self._number} <= ?"
        self._connection.execute(sql, (until,))

    @staticmethod
    def number(row: Row) -> int:
        """The number of a record."""
        return int(msgspec.structs.astuple(row)[0])

    @staticmethod
    def size(row: Row) -> int:
        """The length of the document of a record."""
        return len(msgspec.structs.astuple(row)[-1])

    def _rows(self, where: str, *values: Any) -> Iterator[Row]:
        return (self.row_type(*row) for row in self._connection.execute(f"{self._select} {where}", values))


class FeatureRegistryRow(msgspec.Struct, frozen=True):
    """The feature registry as of one version: who made it, for which app, and the document."""

    version: int
    at_us: int
    who: str
    app: str
    document: str


class FeatureRegistry(JournalRows[FeatureRegistryRow]):
    """Versions of the feature registry: event sources, derivations and tables, whole after each change."""

    table, row_type = "feature_registry", FeatureRegistryRow

    def newest(self) -> FeatureRegistryRow | None:
        """The version that holds now; None where nothing was ever registered."""
        return next(self._rows("ORDER BY version DESC LIMIT 1"), None)

    def drop_before(self, version: int) -> list[int]:
        """Remove the versions before one; returns which."""
        sql = "DELETE FROM feature_registry WHERE version < ? RETURNING version"
        return [int(row[0]) for row in self._connection.execute(sql, (version,))]


class EntityChangeRow(msgspec.Struct, frozen=True):
    """One change of an entity type: of whose schema (empty: the global one), when, by whom, and the document."""

    number: int
    entity_type: str
    user_id: str
    at_us: int
    who: str
    document: str


class EntityChanges(JournalRows[EntityChangeRow]):
    """Changes of entity types, all of which count."""

    table, row_type = "entity_changes", EntityChangeRow

    def newest(self) -> int:
        """The number of the last change; 0 where there was none."""
        return int(self._connection.execute("SELECT coalesce(max(number), 0) FROM entity_changes").get)

    def newest_of(self, entity_type: str) -> int:
        """The number of the last change of a type; 0 where there was none."""
        sql = "SELECT coalesce(max(number), 0) FROM entity_changes WHERE entity_type = ?"
        return int(self._connection.execute(sql, (entity_type,)).get)

    def page_of(self, entity_type: str, user_id: str, after: int, limit: int) -> list[EntityChangeRow]:
        """Changes of a type that concern a user, after a number, in order."""
        where = "WHERE entity_type = ? AND user_id IN ('', ?) AND number > ? ORDER BY number LIMIT ?"
        return list(self._rows(where, entity_type, user_id, after, limit))
