"""The rows of ``entities``: which entities were ever observed, of which type and user."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.errors import InvalidCursor
from headrace.storage.table import IN_LIST, Table, TableQueries, json_list


class EntityRow(msgspec.Struct, frozen=True):
    """One entity: the stream of its type, its user, its name, and its first observation."""

    entity_id: str
    stream: int
    user_id: str
    canonical_name: str
    first_seq: int
    at_us: int


_ENTITIES = Table("entities", EntityRow)
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


class Entities(TableQueries):
    """Reads and writes entities through one connection."""

    def find(self, entity_id: str) -> EntityRow | None:
        """The entity with this id, of any user."""
        return self._first(_ENTITIES, "WHERE entity_id = ?", entity_id)

    def existing(self, ids: Sequence[str]) -> set[str]:
        """Those of these ids that are stored."""
        return set(self._texts(f"SELECT entity_id FROM entities WHERE entity_id {IN_LIST}", json_list(ids)))

    def page(self, stream: int, user_id: str, after: str, limit: int) -> list[EntityRow]:
        """Entities of a type and a user that came after one, in the order they came; "" is before the first."""
        clause = "WHERE stream = ? AND user_id = ? AND number > ? ORDER BY number LIMIT ?"
        return self._all(_ENTITIES, clause, stream, user_id, self._number(after), limit)

    def of_user(self, user_id: str, after: str, limit: int) -> list[EntityRow]:
        """The same for entities of a user, of any type."""
        clause = "WHERE user_id = ? AND number > ? ORDER BY number LIMIT ?"
        return self._all(_ENTITIES, clause, user_id, self._number(after), limit)

    def of_stream(self, stream: int, after: str, limit: int) -> list[EntityRow]:
        """The same for entities of a type, of all users, ordered by user."""
        previous = self.find(after) if after else None
        user_id = "" if previous is None else previous.user_id
        clause = "WHERE stream = ? AND (user_id, number) > (?, ?) ORDER BY user_id, number LIMIT ?"
        return self._all(_ENTITIES, clause, stream, user_id, self._number(after), limit)

    def _number(self, after: str) -> int:
        """The number of an entity that a page begins after."""
        number = self._value("SELECT number FROM entities WHERE entity_id = ?", after)
        if after and number is None:
            raise InvalidCursor("there is no entity to go on after", field="after")
        return int(number or 0)

    def users(self, stream: int) -> list[str]:
        """Every user who has entities of a type."""
        return self._texts(_USERS, stream)

    def count(self, stream: int, user_id: str | None = None) -> int:
        """How many entities of a type there are, of one user or of all."""
        if user_id is None:
            return self._count("entities", "stream = ?", stream)
        return self._count("entities", "stream = ? AND user_id = ?", stream, user_id)

    def save(self, stream: int, user_id: str, at_us: int, entities: Iterable[tuple[str, str, int]]) -> None:
        """Store entities of a user as (id, name, first observation); one that is stored already stays as it is."""
        self._connection.execute(_SAVE, (stream, user_id, at_us, json_list(entities)))

    def drop(self, ids: Sequence[str]) -> None:
        """Remove entities."""
        self._delete("entities", f"entity_id {IN_LIST}", json_list(ids))


class AliasRow(NamedTuple):
    """An entity that was merged into another."""

    entity_id: str
    into_id: str
    user_id: str
    stream: int
    #: The observation that says so, and when it came.
    seq: int
    at_us: int


class SplitRow(NamedTuple):
    """An observation that was moved to another entity than it was stored for."""

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


_ALIASES = Table("aliases", AliasRow)
_SPLITS = Table("splits", SplitRow)
_RELATIONS = """SELECT EXISTS (SELECT 1 FROM aliases WHERE entity_id = ?1),
                       EXISTS (SELECT 1 FROM aliases WHERE into_id = ?1),
                       EXISTS (SELECT 1 FROM splits WHERE entity_id = ?1)
                       OR EXISTS (SELECT 1 FROM splits WHERE into_id = ?1),
                       EXISTS (SELECT 1 FROM erased WHERE entity_id = ?1)"""
_ROOT = """WITH RECURSIVE up (id, depth) AS (
               SELECT ?, 0 UNION ALL SELECT into_id, depth + 1 FROM up JOIN aliases ON entity_id = id AND at_us <= ?)
           SELECT id FROM up ORDER BY depth DESC LIMIT 1"""
_WITH_MERGED = """WITH RECURSIVE down (id) AS (
                SELECT ? UNION SELECT entity_id FROM down JOIN aliases ON into_id = id AND at_us <= ?)
            SELECT id FROM down"""
_EVER = 1 << 62


class Aliases(TableQueries):
    """Reads and writes merges of entities, and observations that were moved between them."""

    def relations(self, entity_id: str) -> Relations:
        """The relations of an entity to others."""
        row: Any = self._connection.execute(_RELATIONS, (entity_id,)).fetchone()
        return Relations(*map(bool, row))

    def alias(self, entity_id: str) -> AliasRow | None:
        """The merge of an entity into another, if there is one."""
        return self._first(_ALIASES, "WHERE entity_id = ?", entity_id)

    def root(self, entity_id: str, until_us: int = _EVER) -> str:
        """The entity that this one was merged into, directly or not, until a moment; itself where there is none."""
        return str(self._value(_ROOT, entity_id, until_us))

    def with_merged(self, entity_id: str, until_us: int = _EVER) -> list[str]:
        """An entity, and all that were merged into it until a moment, directly or not."""
        return [entity_id, *sorted(self._texts(_WITH_MERGED, entity_id, until_us)[1:])]

    def add(self, row: AliasRow) -> None:
        """Store the merge of an entity into another."""
        self._replace(_ALIASES, [row])

    def remove(self, entity_id: str) -> None:
        """Remove the merge of an entity."""
        self._delete("aliases", "entity_id = ?", entity_id)

    def drop(self, entity_ids: Iterable[str]) -> None:
        """Remove the merges of some entities; observations that were moved stay where they are."""
        self._delete("aliases", f"entity_id {IN_LIST}", json_list(entity_ids))

    def drop_moved(self, entity_ids: Iterable[str]) -> None:
        """Remove the moves of observations to some entities."""
        self._delete("splits", f"into_id {IN_LIST}", json_list(entity_ids))

    def moved(self, entity_ids: Iterable[str]) -> list[SplitRow]:
        """Observations that were moved from or to some entities."""
        ids = json_list(entity_ids)
        clause = f"WHERE entity_id {IN_LIST} UNION {_SPLITS.select} WHERE into_id {IN_LIST}"
        return self._all(_SPLITS, clause, ids, ids)

    def move(self, rows: Iterable[SplitRow]) -> None:
        """Store moves of observations to other entities."""
        self._replace(_SPLITS, rows)

    def move_back(self, observations: Iterable[tuple[str, str]]) -> None:
        """Undo moves of observations, each given with the entity that it was stored for."""
        self._delete_each("splits", "observation_id = ? AND entity_id = ?", observations)


class SourceRange(msgspec.Struct, frozen=True):
    """Adjacent observations of a source in the stream of a type, and when they came."""

    stream: int
    first_seq: int
    count: int
    at_us: int


_SOURCES = Table("sources", SourceRange, extra=("user_id", "source_id"))


class Sources(TableQueries):
    """Reads and writes the ranges of the observations of sources."""

    def ranges(self, user_id: str, source_id: str) -> list[SourceRange]:
        """The ranges of the observations of a user's source, in order of arrival."""
        clause = "WHERE source_id = ? AND user_id = ? ORDER BY at_us, stream, first_seq"
        return self._all(_SOURCES, clause, source_id, user_id)

    def has(self, user_id: str, source_id: str) -> bool:
        """Whether a user has a source of this id."""
        return self._first(_SOURCES, "WHERE source_id = ? AND user_id = ? LIMIT 1", source_id, user_id) is not None

    def save(self, user_id: str, source_id: str, ranges: Iterable[SourceRange]) -> None:
        """Store the range of further observations of a source."""
        self._replace(_SOURCES, ranges, user_id, source_id)

    def drop(self, user_id: str, source_id: str, ranges: Iterable[SourceRange]) -> None:
        """Remove ranges of observations of a source."""
        keys = ((source_id, range.stream, range.first_seq, user_id) for range in ranges)
        self._delete_each("sources", "source_id = ? AND stream = ? AND first_seq = ? AND user_id = ?", keys)
