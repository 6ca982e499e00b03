"""Rows of the files derived from streams: each has a range and a document, and is active or retired."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

from headrace.format.companion.layout import Companion
from headrace.format.object_names import companion_key, state_key
from headrace.format.state import State
from headrace.storage.table import DocumentTable, TableQueries

Entry = TypeVar("Entry", Companion, State)

#: How many are active, how many are retired, and the newest id: changes whenever what is derived from a stream does.
Stamp = tuple[int, int, int]


class Derived(TableQueries, Generic[Entry]):
    """Reads and writes the rows of one table of derived files."""

    table: ClassVar[DocumentTable[Any]]
    order: ClassVar[str]

    def listed(self, stream: int) -> list[Entry]:
        """The active rows of a stream, in order."""
        return self._all(self.table, f"WHERE stream = ? AND retired = 0 ORDER BY {self.order}", stream)

    def every(self) -> list[Entry]:
        """The active rows of all streams."""
        return self._all(self.table, "WHERE retired = 0")

    def retired(self, stream: int) -> list[Entry]:
        """The retired rows of a stream, whose objects still exist."""
        return self._all(self.table, f"WHERE stream = ? AND retired = 1 ORDER BY {self.order}", stream)

    def stamp(self, stream: int) -> Stamp:
        """A value that changes whenever the rows of a stream change."""
        sql = "SELECT count(*) - total(retired), total(retired), ifnull(max(id), 0)"
        row: Any = self._connection.execute(f"{sql} FROM {self.table.name} WHERE stream = ?", (stream,)).fetchone()
        return int(row[0]), int(row[1]), int(row[2])

    def has(self, stream: int, name: str) -> bool:
        """Whether a row of this name exists, active or retired."""
        return self._exists(self.table.name, "stream = ? AND name = ?", stream, name)

    def retire(self, stream: int, names: Iterable[str]) -> None:
        """Retire some rows; their objects stay until no manifest lists them."""
        sql = f"UPDATE {self.table.name} SET retired = 1 WHERE stream = ? AND name = ?"
        self._connection.executemany(sql, [(stream, name) for name in names])

    def retire_all(self, stream: int) -> None:
        """Retire all rows of a stream."""
        self._update(self.table.name, {"retired": 1}, "stream = ? AND retired = 0", stream)

    def remove(self, stream: int, names: Iterable[str]) -> None:
        """Remove some rows."""
        self._delete_each(self.table.name, "stream = ? AND name = ?", ((stream, name) for name in names))

    def drop(self, stream: int) -> None:
        """Remove all rows of a stream."""
        self._delete(self.table.name, "stream = ?", stream)

    def is_orphan(self, incarnation: str, name: str) -> bool:
        """Whether a stream of this incarnation exists without this row, and no unit of the stream is open."""
        sql = f"""SELECT EXISTS (SELECT 1 FROM {self.table.name} AS t WHERE t.stream = s.id AND t.name = ?)
                      OR EXISTS (SELECT 1 FROM units WHERE stream = s.id AND outcome IS NULL)
                  FROM streams AS s WHERE s.incarnation = ? AND s.state != 2"""
        is_listed = self._value(sql, name, incarnation)
        return is_listed is not None and not is_listed


class Companions(Derived[Companion]):
    """Companions, ordered by first entry and, for the same first entry, by age, the newest last."""

    table = DocumentTable("companions", Companion, ("name", "first_seq", "count"), extra=("stream",))
    order = "first_seq, id"

    def exist(self) -> bool:
        """Whether any stream has one."""
        return self._exists("companions", "true")

    def add(self, stream: int, companion: Companion) -> None:
        """Store a companion, unless it is stored already."""
        self._write(self.table.insert_new, self.table, [companion], stream)


def companion_object_keys(stream: str, incarnation: str, companions: Iterable[Companion]) -> Iterator[str]:
    """The keys of all objects of some companions."""
    for companion in companions:
        yield from (companion_key(stream, incarnation, companion.name, part) for part in companion.parts)


class States(Derived[State]):
    """States, listed by table and first event."""

    table = DocumentTable("states", State, ("table", "name", "first_seq", "count"), extra=("stream",))
    order = '"table", first_seq, id'

    def add(self, stream: int, state: State) -> None:
        """Store a state."""
        self._insert(self.table, state, stream)


def state_object_keys(stream: str, incarnation: str, states: Iterable[State]) -> Iterator[str]:
    """The keys of the objects of some states."""
    return (state_key(stream, incarnation, state.name) for state in states)
