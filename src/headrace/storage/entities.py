"""The rows of ``entities``: which entities were ever observed, of which type and whose they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

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
        previous = self.find(after) if after else None
        sql = f"{_SELECT} WHERE stream = ? AND (user_id, number) > (?, ?) ORDER BY user_id, number LIMIT ?"
        return self._rows(sql, stream, "" if previous is None else previous.user_id, self._number(after), limit)

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

    def save(self, stream: int, user_id: str, at_us: int, entities: Iterable[tuple[str, str, int]]) -> None:
        """Note entities of a user as (id, name, first observation); one that is known stays as it is."""
        rows = msgspec.json.encode(list(entities)).decode()
        self._connection.execute(_SAVE, (stream, user_id, at_us, rows))

    def drop(self, ids: Sequence[str]) -> None:
        """Forget entities."""
        sql = "DELETE FROM entities WHERE entity_id IN (SELECT value FROM json_each(?))"
        self._connection.execute(sql, (msgspec.json.encode(ids).decode(),))


class AliasRow(NamedTuple):
    """An entity that is told of under the name of another."""

    entity_id: str
    into_id: str
    user_id: str
    stream: int
    #: The observation that says so, and when it came.
    seq: int
    at_us: int


class SplitRow(NamedTuple):
    """An observation that is about another entity than it was stored for."""

    observation_id: str
    entity_id: str
    into_id: str
    user_id: str
    stream: int
    seq: int
    at_us: int


class Relations(NamedTuple):
    """Whether an entity was merged into another, others were merged into it, observations moved from or to it, and
    observations of its id are being erased.
    """

    is_merged: bool
    has_merged: bool
    is_split: bool
    is_erased: bool = False


_ALIAS = "SELECT entity_id, into_id, user_id, stream, seq, at_us FROM aliases"
_SPLIT = "SELECT observation_id, entity_id, into_id, user_id, stream, seq, at_us FROM splits"
_RELATIONS = """SELECT EXISTS (SELECT 1 FROM aliases WHERE entity_id = ?1),
                       EXISTS (SELECT 1 FROM aliases WHERE into_id = ?1),
                       EXISTS (SELECT 1 FROM splits WHERE entity_id = ?1)
                       OR EXISTS (SELECT 1 FROM splits WHERE into_id = ?1),
                       EXISTS (SELECT 1 FROM erased WHERE entity_id = ?1)"""
_ROOT = """WITH RECURSIVE up (id, depth) AS (
               SELECT ?, 0 UNION ALL SELECT into_id, depth + 1 FROM up JOIN aliases ON entity_id = id AND at_us <= ?)
           SELECT id FROM up ORDER BY depth DESC LIMIT 1"""
_BELOW = """WITH RECURSIVE down (id) AS (
                SELECT ? UNION SELECT entity_id FROM down JOIN aliases ON into_id = id AND at_us <= ?)
            SELECT id FROM down"""
_EVER = 1 << 62


class Aliases:
    """Reads and writes them through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def relations(self, entity_id: str) -> Relations:
        """How an entity stands to others."""
        row: Any = self._connection.execute(_RELATIONS, (entity_id,)).fetchone()
        return Relations(*map(bool, row))

    def alias(self, entity_id: str) -> AliasRow | None:
        """What an entity was merged into, if it was."""
        row: Any = self._connection.execute(f"{_ALIAS} WHERE entity_id = ?", (entity_id,)).fetchone()
        return None if row is None else AliasRow(*row)

    def root(self, entity_id: str, until_us: int = _EVER) -> str:
        """The entity that this one is told of under, by what was merged until a moment."""
        return str(self._connection.execute(_ROOT, (entity_id, until_us)).get)

    def below(self, entity_id: str, until_us: int = _EVER) -> list[str]:
        """An entity, and everything that was merged into it, directly or not."""
        ids = [str(row[0]) for row in self._connection.execute(_BELOW, (entity_id, until_us))]
        return [entity_id, *sorted(ids[1:])]

    def add(self, row: AliasRow) -> None:
        """Let an entity be told of under another."""
        self._connection.execute("INSERT OR REPLACE INTO aliases VALUES (?, ?, ?, ?, ?, ?)", row)

    def remove(self, entity_id: str) -> None:
        """Let an entity be told of by itself again."""
        self._connection.execute("DELETE FROM aliases WHERE entity_id = ?", (entity_id,))

    def drop(self, entity_ids: Iterable[str]) -> None:
        """Forget what some entities were merged into; observations that were moved stay where they are."""
        sql = "DELETE FROM aliases WHERE entity_id IN (SELECT value FROM json_each(?))"
        self._connection.execute(sql, (msgspec.json.encode(list(entity_ids)).decode(),))

    def drop_moved(self, entity_ids: Iterable[str]) -> None:
        """Forget observations that were moved to some entities."""
        sql = "DELETE FROM splits WHERE into_id IN (SELECT value FROM json_each(?))"
        self._connection.execute(sql, (msgspec.json.encode(list(entity_ids)).decode(),))

    def moved(self, entity_ids: Iterable[str]) -> list[SplitRow]:
        """Observations that were moved from or to some entities."""
        ids = msgspec.json.encode(list(entity_ids)).decode()
        where = "(SELECT value FROM json_each(?1))"
        sql = f"{_SPLIT} WHERE entity_id IN {where} UNION {_SPLIT} WHERE into_id IN {where}"
        return [SplitRow(*row) for row in self._connection.execute(sql, (ids,))]

    def move(self, rows: Iterable[SplitRow]) -> None:
        """Let observations be about other entities."""
        self._connection.executemany("INSERT OR REPLACE INTO splits VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def move_back(self, observations: Iterable[tuple[str, str]]) -> None:
        """Let observations, given with the entities that they were stored for, be about those again."""
        sql = "DELETE FROM splits WHERE observation_id = ? AND entity_id = ?"
        self._connection.executemany(sql, observations)


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
        rows = ((source_id, range.stream, range.first_seq, range.count, user_id, range.at_us) for range in ranges)
        sql = """INSERT OR REPLACE INTO sources (source_id, stream, first_seq, count, user_id, at_us)
                 VALUES (?, ?, ?, ?, ?, ?)"""
        self._connection.executemany(sql, rows)

    def drop(self, user_id: str, source_id: str, ranges: Iterable[SourceRange]) -> None:
        """Forget where some observations of a source lie."""
        sql = "DELETE FROM sources WHERE source_id = ? AND stream = ? AND first_seq = ? AND user_id = ?"
        self._connection.executemany(sql, [(source_id, range.stream, range.first_seq, user_id) for range in ranges])
