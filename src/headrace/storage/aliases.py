"""The rows of ``aliases`` and ``splits``: entities that were merged into others, and observations that were moved."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from headrace.storage.database import Connection


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
        found = [str(row[0]) for row in self._connection.execute(_BELOW, (entity_id, until_us))]
        return [entity_id, *sorted(found[1:])]

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
