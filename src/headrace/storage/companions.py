"""The rows of ``companions``: what was derived from the entries of a stream, and in which objects it lies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from headrace.format.companion.layout import Companion
from headrace.format.companion.names import companion_key
from headrace.storage.database import Connection

_DECODER = msgspec.json.Decoder(Companion)

#: How many count and how many do not, and the last that came: changes whenever the companions of a stream do.
Stamp = tuple[int, int, int]


class Companions:
    """Reads and writes companions through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def listed(self, stream: int) -> list[Companion]:
        """Those that count, by their first entries; of those that begin together the newest comes last."""
        return self._found(stream, "retired = 0")

    def retired(self, stream: int) -> list[Companion]:
        """Those that count no more, and whose objects are still there."""
        return self._found(stream, "retired = 1")

    def are_there(self) -> bool:
        """Whether any stream has one."""
        return bool(self._connection.execute("SELECT EXISTS (SELECT 1 FROM companions)").get)

    def stamp(self, stream: int) -> Stamp:
        """What changes whenever the companions of a stream do."""
        sql = "SELECT count(*) - total(retired), total(retired), ifnull(max(id), 0) FROM companions WHERE stream = ?"
        row: Any = self._connection.execute(sql, (stream,)).fetchone()
        return int(row[0]), int(row[1]), int(row[2])

    def add(self, stream: int, companion: Companion) -> None:
        """List a companion; once more is no more."""
        document = msgspec.json.encode(companion).decode()
        values = (stream, companion.name, companion.first_seq, companion.count, document)
        sql = "INSERT OR IGNORE INTO companions (stream, name, first_seq, count, document) VALUES (?, ?, ?, ?, ?)"
        self._connection.execute(sql, values)

    def has(self, stream: int, name: str) -> bool:
        """Whether a companion of this name is known, counting or not."""
        sql = "SELECT EXISTS (SELECT 1 FROM companions WHERE stream = ? AND name = ?)"
        return bool(self._connection.execute(sql, (stream, name)).get)

    def retire(self, stream: int, names: Iterable[str]) -> None:
        """Let companions count no more; their objects stay until no manifest lists them."""
        sql = "UPDATE companions SET retired = 1 WHERE stream = ? AND name = ?"
        self._connection.executemany(sql, [(stream, name) for name in names])

    def retire_all(self, stream: int) -> None:
        """The same for all of a stream."""
        self._connection.execute("UPDATE companions SET retired = 1 WHERE stream = ? AND retired = 0", (stream,))

    def remove(self, stream: int, names: Iterable[str]) -> None:
        """Take companions off the list."""
        sql = "DELETE FROM companions WHERE stream = ? AND name = ?"
        self._connection.executemany(sql, [(stream, name) for name in names])

    def drop(self, stream: int) -> None:
        """Take all companions of a stream off the list."""
        self._connection.execute("DELETE FROM companions WHERE stream = ?", (stream,))

    def is_orphan(self, incarnation: str, name: str) -> bool:
        """Whether a stream of ours lives that does not list this companion, and nobody works on the stream."""
        sql = """SELECT EXISTS (SELECT 1 FROM companions WHERE stream = s.id AND companions.name = ?)
                     OR EXISTS (SELECT 1 FROM units WHERE stream = s.id AND outcome IS NULL)
                 FROM streams AS s WHERE s.incarnation = ? AND s.state != 2"""
        row = self._connection.execute(sql, (name, incarnation)).fetchone()
        return row is not None and not row[0]

    def _found(self, stream: int, clause: str) -> list[Companion]:
        sql = f"SELECT document FROM companions WHERE stream = ? AND {clause} ORDER BY first_seq, id"
        return [_DECODER.decode(row[0]) for row in self._connection.execute(sql, (stream,))]


def object_keys(stream: str, incarnation: str, companions: Iterable[Companion]) -> Iterator[str]:
    """The keys of all objects of some companions."""
    for companion in companions:
        yield from (companion_key(stream, incarnation, companion.name, part) for part in companion.parts)
