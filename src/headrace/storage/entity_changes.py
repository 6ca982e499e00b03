"""The rows of ``entity_changes``: everything that was done to entity types, in order."""

from __future__ import annotations

import msgspec

from headrace.storage.database import Connection


class EntityChangeRow(msgspec.Struct, frozen=True):
    """One change: of which type, of whose schema (empty: the global one), when, by whom, and what it was."""

    number: int
    entity_type: str
    user_id: str
    at_us: int
    who: str
    document: str


_SELECT = "SELECT number, entity_type, user_id, at_us, who, document FROM entity_changes"


class EntityChanges:
    """Reads and writes the journal through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def newest(self) -> int:
        """The number of the last change; 0 where there was none."""
        return int(self._connection.execute("SELECT coalesce(max(number), 0) FROM entity_changes").get)

    def newest_of(self, entity_type: str) -> int:
        """The number of the last change of a type; 0 where there was none."""
        sql = "SELECT coalesce(max(number), 0) FROM entity_changes WHERE entity_type = ?"
        return int(self._connection.execute(sql, (entity_type,)).get)

    def save(self, row: EntityChangeRow, *, published: bool = False) -> None:
        """Store a change."""
        values = (*msgspec.structs.astuple(row), int(published))
        self._connection.execute("INSERT INTO entity_changes VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def page(self, entity_type: str, user_id: str, after: int, limit: int) -> list[EntityChangeRow]:
        """Changes of a type that concern a user, after one, in order."""
        sql = f"{_SELECT} WHERE entity_type = ? AND user_id IN ('', ?) AND number > ? ORDER BY number LIMIT ?"
        return [EntityChangeRow(*row) for row in self._connection.execute(sql, (entity_type, user_id, after, limit))]

    def every(self, after: int, limit: int) -> list[EntityChangeRow]:
        """Changes after one, in order."""
        sql = f"{_SELECT} WHERE number > ? ORDER BY number LIMIT ?"
        return [EntityChangeRow(*row) for row in self._connection.execute(sql, (after, limit))]

    def get(self, number: int) -> EntityChangeRow | None:
        """One change."""
        row = self._connection.execute(f"{_SELECT} WHERE number = ?", (number,)).fetchone()
        return None if row is None else EntityChangeRow(*row)

    def unpublished(self, after: int, limit: int) -> list[EntityChangeRow]:
        """Changes after one that the object store does not have yet, the oldest first."""
        sql = f"{_SELECT} WHERE published = 0 AND number > ? ORDER BY number LIMIT ?"
        return [EntityChangeRow(*row) for row in self._connection.execute(sql, (after, limit))]

    def note_published(self, until: int) -> None:
        """The object store has every change up to one."""
        sql = "UPDATE entity_changes SET published = 1 WHERE published = 0 AND number <= ?"
        self._connection.execute(sql, (until,))

    def drop_from(self, number: int) -> None:
        """Forget a change and what follows it."""
        self._connection.execute("DELETE FROM entity_changes WHERE number >= ?", (number,))
