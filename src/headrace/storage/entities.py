"""The rows of ``entities``: which entities were ever observed, of which type and whose they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headrace.errors import InvalidCursor
from headrace.storage.database import Connection


class EntityRow(msgspec.Struct, frozen=True):
    """One entity: the stream of its type, its user, its name, and its first observation."""

    entity_id: str
    stream: int
    user_id: str
    canonical_name: str
    first_seq: int
    at_us: int


_SELECT = "SELECT entity_id, stream, user_id, canonical_name, first_seq, at_us FROM entities"
# One statement for many rows lets go of the interpreter's lock once.
_SAVE = """INSERT OR IGNORE INTO entities (entity_id, stream, user_id, canonical_name, first_seq, at_us)
    SELECT value ->> 0, ?1, ?2, value ->> 1, value ->> 2, ?3 FROM json_each(?4)"""

# From one user to the next, without a look at their entities.
_USERS = """WITH RECURSIVE each (user_id) AS (
                SELECT min(user_id) FROM entities WHERE stream = ?1
                UNION ALL
                SELECT (SELECT min(user_id) FROM entities WHERE stream = ?1 AND user_id > each.user_id)
                FROM each WHERE each.user_id IS NOT NULL)
            SELECT user_id FROM each WHERE user_id IS NOT NULL"""


class Entities:
    """Reads and writes entities through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def find(self, entity_id: str) -> EntityRow | None:
        """One entity, whoever it belongs to."""
        row = self._connection.execute(f"{_SELECT} WHERE entity_id = ?", (entity_id,)).fetchone()
        return None if row is None else EntityRow(*row)

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of the given entities that there are."""
        sql = "SELECT entity_id FROM entities WHERE entity_id IN (SELECT value FROM json_each(?))"
        return {str(row[0]) for row in self._connection.execute(sql, (msgspec.json.encode(ids).decode(),))}

    def page(self, stream: int, user_id: str, after: str, limit: int) -> list[EntityRow]:
        """Entities of a type and a user that came after one, in the order they came; "" is before the first."""
        sql = f"{_SELECT} WHERE stream = ? AND user_id = ? AND number > ? ORDER BY number LIMIT ?"
        return self._rows(sql, stream, user_id, self._number(after), limit)

    def of_user(self, user_id: str, after: str, limit: int) -> list[EntityRow]:
        """The same for entities of a user, of any type."""
        sql = f"{_SELECT} WHERE user_id = ? AND number > ? ORDER BY number LIMIT ?"
        return self._rows(sql, user_id, self._number(after), limit)

    def of_stream(self, stream: int, after: str, limit: int) -> list[EntityRow]:
        """The same for entities of a type, whoever they belong to, by their users."""
        found = self.find(after) if after else None
        sql = f"{_SELECT} WHERE stream = ? AND (user_id, number) > (?, ?) ORDER BY user_id, number LIMIT ?"
        return self._rows(sql, stream, "" if found is None else found.user_id, self._number(after), limit)

    def _number(self, after: str) -> int:
        """The number of an entity that a page begins after."""
        number = self._connection.execute("SELECT number FROM entities WHERE entity_id = ?", (after,)).get
        if after and number is None:
            raise InvalidCursor("there is no entity to go on after", field="after")
        return int(number or 0)

    def _rows(self, sql: str, *values: object) -> list[EntityRow]:
        return [EntityRow(*row) for row in self._connection.execute(sql, values)]

    def users(self, stream: int) -> list[str]:
        """Every user who has entities of a type."""
        return [str(row[0]) for row in self._connection.execute(_USERS, (stream,))]

    def count(self, stream: int, user_id: str | None = None) -> int:
        """How many entities of a type there are, of one user or of all."""
        sql, values = "SELECT count(*) FROM entities WHERE stream = ?", (stream,)
        if user_id is None:
            return int(self._connection.execute(sql, values).get)
        return int(self._connection.execute(f"{sql} AND user_id = ?", (*values, user_id)).get)

    def save(self, stream: int, user_id: str, at_us: int, found: Iterable[tuple[str, str, int]]) -> None:
        """Note entities of a user as (id, name, first observation); one that is known stays as it is."""
        rows = msgspec.json.encode(list(found)).decode()
        self._connection.execute(_SAVE, (stream, user_id, at_us, rows))

    def drop(self, ids: Sequence[str]) -> None:
        """Forget entities."""
        sql = "DELETE FROM entities WHERE entity_id IN (SELECT value FROM json_each(?))"
        self._connection.execute(sql, (msgspec.json.encode(ids).decode(),))
