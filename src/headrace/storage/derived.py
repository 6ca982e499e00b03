"""Rows that list what was derived from a stream: each with a range and a document, counting or retired."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from headrace import decoding
from headrace.format.companion.layout import Companion
from headrace.format.object_names import companion_key, state_key
from headrace.format.state import State
from headrace.storage.database import Connection

Kind = TypeVar("Kind")

#: How many count and how many do not, and the last that came: changes whenever what is derived from a stream does.
Stamp = tuple[int, int, int]


class Derived(Generic[Kind]):
    """Reads and writes the rows of one table through one connection."""

    table: ClassVar[str]
    order: ClassVar[str]
    decoder: ClassVar[msgspec.json.Decoder[Any]]

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def listed(self, stream: int) -> list[Kind]:
        """Those that count, in order."""
        return self._found(stream, "retired = 0")

    def every(self) -> list[Kind]:
        """Those that count, of all streams."""
        sql = f"SELECT document FROM {self.table} WHERE retired = 0"
        return [self.decoder.decode(row[0]) for row in self._connection.execute(sql)]

    def retired(self, stream: int) -> list[Kind]:
        """Those that count no more, and whose objects are still there."""
        return self._found(stream, "retired = 1")

    def stamp(self, stream: int) -> Stamp:
        """What changes whenever those of a stream do."""
        sql = f"SELECT count(*) - total(retired), total(retired), ifnull(max(id), 0) FROM {self.table} WHERE stream = ?"
        row: Any = self._connection.execute(sql, (stream,)).fetchone()
        return int(row[0]), int(row[1]), int(row[2])

    def has(self, stream: int, name: str) -> bool:
        """Whether one of this name is known, counting or not."""
        sql = f"SELECT EXISTS (SELECT 1 FROM {self.table} WHERE stream = ? AND name = ?)"
        return bool(self._connection.execute(sql, (stream, name)).get)

    def retire(self, stream: int, names: Iterable[str]) -> None:
        """Let some count no more; their objects stay until no manifest lists them."""
        sql = f"UPDATE {self.table} SET retired = 1 WHERE stream = ? AND name = ?"
        self._connection.executemany(sql, [(stream, name) for name in names])

    def retire_all(self, stream: int) -> None:
        """The same for all of a stream."""
        self._connection.execute(f"UPDATE {self.table} SET retired = 1 WHERE stream = ? AND retired = 0", (stream,))

    def remove(self, stream: int, names: Iterable[str]) -> None:
        """Take some off the list."""
        sql = f"DELETE FROM {self.table} WHERE stream = ? AND name = ?"
        self._connection.executemany(sql, [(stream, name) for name in names])

    def drop(self, stream: int) -> None:
        """Take all of a stream off the list."""
        self._connection.execute(f"DELETE FROM {self.table} WHERE stream = ?", (stream,))

    def is_orphan(self, incarnation: str, name: str) -> bool:
        """Whether a stream of ours lives that does not list this one, and nobody works on the stream."""
        sql = f"""SELECT EXISTS (SELECT 1 FROM {self.table} AS t WHERE t.stream = s.id AND t.name = ?)
                      OR EXISTS (SELECT 1 FROM units WHERE stream = s.id AND outcome IS NULL)
                  FROM streams AS s WHERE s.incarnation = ? AND s.state != 2"""
        row = self._connection.execute(sql, (name, incarnation)).fetchone()
        return row is not None and not row[0]

    def _found(self, stream: int, clause: str) -> list[Kind]:
        sql = f"SELECT document FROM {self.table} WHERE stream = ? AND {clause} ORDER BY {self.order}"
        return [self.decoder.decode(row[0]) for row in self._connection.execute(sql, (stream,))]


class Companions(Derived[Companion]):
    """Those that count are listed by their first entries; of those that begin together the newest comes last."""

    table = "companions"
    order = "first_seq, id"
    decoder = decoding.make_decoder(Companion)

    def are_there(self) -> bool:
        """Whether any stream has one."""
        return bool(self._connection.execute("SELECT EXISTS (SELECT 1 FROM companions)").get)

    def add(self, stream: int, companion: Companion) -> None:
        """List a companion; once more is no more."""
        document = msgspec.json.encode(companion).decode()
        values = (stream, companion.name, companion.first_seq, companion.count, document)
        sql = "INSERT OR IGNORE INTO companions (stream, name, first_seq, count, document) VALUES (?, ?, ?, ?, ?)"
        self._connection.execute(sql, values)


def companion_object_keys(stream: str, incarnation: str, companions: Iterable[Companion]) -> Iterator[str]:
    """The keys of all objects of some companions."""
    for companion in companions:
        yield from (companion_key(stream, incarnation, companion.name, part) for part in companion.parts)


class States(Derived[State]):
    """Those that count are listed by table and first event."""

    table = "states"
    order = '"table", first_seq, id'
    decoder = decoding.make_decoder(State)

    def add(self, stream: int, state: State) -> None:
        """List a state."""
        document = msgspec.json.encode(state).decode()
        values = (stream, state.table, state.name, state.first_seq, state.count, document)
        sql = 'INSERT INTO states (stream, "table", name, first_seq, count, document) VALUES (?, ?, ?, ?, ?, ?)'
        self._connection.execute(sql, values)


def state_object_keys(stream: str, incarnation: str, states: Iterable[State]) -> Iterator[str]:
    """The keys of the objects of some states."""
    return (state_key(stream, incarnation, state.name) for state in states)
