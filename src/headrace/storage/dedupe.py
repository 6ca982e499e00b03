"""The rows of ``dedupe``: which event of a stream had a key first, so that none is stored twice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from headrace.storage.database import Connection


class First(NamedTuple):
    """The event that had a key first, and when it came."""

    seq: int
    at_us: int


class Dedupe:
    """Reads and writes what event sources remember, through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def find(self, stream: int, keys: list[str]) -> dict[str, First]:
        """The keys that are remembered, of those given."""
        if len(keys) == 1:
            sql = "SELECT seq, at_us FROM dedupe WHERE stream = ? AND key = ?"
            row: Any = self._connection.execute(sql, (stream, keys[0])).fetchone()
            return {} if row is None else {keys[0]: First(*row)}
        sql = "SELECT key, seq, at_us FROM dedupe WHERE stream = ? AND key IN (SELECT value FROM json_each(?))"
        given = msgspec.json.encode(keys).decode()
        return {str(row[0]): First(*row[1:]) for row in self._connection.execute(sql, (stream, given))}

    def save(self, rows: Iterable[tuple[int, str, int, int]]) -> None:
        """Remember keys as (stream, key, seq, time), in place of what was remembered of them."""
        self._connection.executemany("INSERT OR REPLACE INTO dedupe VALUES (?, ?, ?, ?)", rows)

    def save_run(self, stream: int, keys: list[str], first_seq: int, at_us: int) -> None:
        """Remember the keys of events that follow each other; one statement for all, as each waits for the lock."""
        sql = "INSERT OR REPLACE INTO dedupe SELECT ?1, value, ?2 + key, ?3 FROM json_each(?4)"
        self._connection.execute(sql, (stream, first_seq, at_us, msgspec.json.encode(keys).decode()))

    def forget(self, stream: int, before_seq: int, before_us: int, limit: int) -> int:
        """Forget up to so many of the oldest keys, where they came before a number or a moment; answers how many."""
        sql = "SELECT key, seq, at_us FROM dedupe WHERE stream = ? ORDER BY seq LIMIT ?"
        oldest: list[Any] = self._connection.execute(sql, (stream, limit)).fetchall()
        gone = [(stream, key) for key, seq, at_us in oldest if seq < before_seq or at_us <= before_us]
        self._connection.executemany("DELETE FROM dedupe WHERE stream = ? AND key = ?", gone)
        return len(gone)

    def drop(self, stream: int, seqs: Iterable[int]) -> None:
        """Forget the keys of some events."""
        sql = "DELETE FROM dedupe WHERE stream = ? AND seq IN (SELECT value FROM json_each(?))"
        self._connection.execute(sql, (stream, msgspec.json.encode(list(seqs)).decode()))

    def count(self, stream: int) -> int:
        """How many keys are remembered."""
        return int(self._connection.execute("SELECT count(*) FROM dedupe WHERE stream = ?", (stream,)).get)
