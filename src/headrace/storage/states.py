"""The rows of ``states``: what features have folded of the events of a stream, and in which objects it lies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from headrace.format.state.layout import State
from headrace.format.state.names import state_key
from headrace.storage.database import Connection

_DECODER = msgspec.json.Decoder(State)

#: How many count and how many do not, and the last that came: changes whenever the states of a stream do.
Stamp = tuple[int, int, int]


class States:
    """Reads and writes states through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def listed(self, stream: int) -> list[State]:
        """Those that count, by table and first event."""
        return self._found(stream, "retired = 0")

    def retired(self, stream: int) -> list[State]:
        """Those that count no more, and whose objects are still there."""
        return self._found(stream, "retired = 1")

    def stamp(self, stream: int) -> Stamp:
        """What changes whenever the states of a stream do."""
        sql = "SELECT count(*) - total(retired), total(retired), ifnull(max(id), 0) FROM states WHERE stream = ?"
        row: Any = self._connection.execute(sql, (stream,)).fetchone()
        return int(row[0]), int(row[1]), int(row[2])

    def add(self, stream: int, state: State) -> None:
        """List a state."""
        document = msgspec.json.encode(state).decode()
        values = (stream, state.table, state.name, state.first_seq, state.count, document)
        sql = 'INSERT INTO states (stream, "table", name, first_seq, count, document) VALUES (?, ?, ?, ?, ?, ?)'
        self._connection.execute(sql, values)

    def has(self, stream: int, name: str) -> bool:
        """Whether a state of this name is known, counting or not."""
        sql = "SELECT EXISTS (SELECT 1 FROM states WHERE stream = ? AND name = ?)"
        return bool(self._connection.execute(sql, (stream, name)).get)

    def retire(self, stream: int, names: Iterable[str]) -> None:
        """Let states count no more; their objects stay until no manifest lists them."""
        sql = "UPDATE states SET retired = 1 WHERE stream = ? AND name = ?"
        self._connection.executemany(sql, [(stream, name) for name in names])

    def retire_all(self, stream: int) -> None:
        """The same for all of a stream."""
        self._connection.execute("UPDATE states SET retired = 1 WHERE stream = ? AND retired = 0", (stream,))

    def remove(self, stream: int, names: Iterable[str]) -> None:
        """Take states off the list."""
        sql = "DELETE FROM states WHERE stream = ? AND name = ?"
        self._connection.executemany(sql, [(stream, name) for name in names])

    def drop(self, stream: int) -> None:
        """Take all states of a stream off the list."""
        self._connection.execute("DELETE FROM states WHERE stream = ?", (stream,))

    def is_orphan(self, incarnation: str, name: str) -> bool:
        """Whether a stream of ours lives that does not list this state, and nobody works on the stream."""
        sql = """SELECT EXISTS (SELECT 1 FROM states WHERE stream = s.id AND states.name = ?)
                     OR EXISTS (SELECT 1 FROM units WHERE stream = s.id AND outcome IS NULL)
                 FROM streams AS s WHERE s.incarnation = ? AND s.state != 2"""
        row = self._connection.execute(sql, (name, incarnation)).fetchone()
        return row is not None and not row[0]

    def _found(self, stream: int, clause: str) -> list[State]:
        sql = f'SELECT document FROM states WHERE stream = ? AND {clause} ORDER BY "table", first_seq, id'
        return [_DECODER.decode(row[0]) for row in self._connection.execute(sql, (stream,))]


def object_keys(stream: str, incarnation: str, states: Iterable[State]) -> Iterator[str]:
    """The keys of the objects of some states."""
    return (state_key(stream, incarnation, state.name) for state in states)
