"""The rows of ``verifications``: which proposed changes are checked on stored events, and how far that is."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.storage.database import Connection

RUNNING, DONE, FAILED = "running", "done", "failed"
#: How many are kept once they have ended, and for how long.
KEPT = 1_000
KEPT_US = 86_400_000_000


class VerificationRow(msgspec.Struct, frozen=True):
    """A check of a proposed registry on the events of a stream from ``start`` to ``target``.

    ``looked`` and ``findings`` are JSON, and so is ``proposal``, which goes when the check has ended.
    """

    id: str
    stream: int
    state: str
    from_version: int
    begun_us: int
    ended_us: int | None
    start: int
    target: int
    tail: int
    looked: str
    findings: str
    reason: str | None
    proposal: str | None


_COLUMNS = VerificationRow.__struct_fields__
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM verifications"


class Verifications:
    """Reads and writes verifications through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, id: str) -> VerificationRow | None:
        """The one with this id, if it is still known."""
        row: Any = self._connection.execute(f"{_SELECT} WHERE id = ?", (id,)).fetchone()
        return None if row is None else VerificationRow(*row)

    def running(self) -> list[VerificationRow]:
        """Those that have not ended, the oldest first."""
        sql = f"{_SELECT} WHERE state = 'running' ORDER BY begun_us, id"
        return [VerificationRow(*row) for row in self._connection.execute(sql)]

    def count(self) -> int:
        """How many have not ended."""
        return int(self._connection.execute("SELECT count(*) FROM verifications WHERE state = 'running'").get)

    def add(self, row: VerificationRow) -> None:
        """Write one down."""
        marks = ", ".join("?" * len(_COLUMNS))
        self._connection.execute(f"INSERT INTO verifications VALUES ({marks})", msgspec.structs.astuple(row))

    def update(self, id: str, **values: object) -> None:
        """Change some columns of one."""
        assignments = ", ".join(f"{column} = ?" for column in values)
        self._connection.execute(f"UPDATE verifications SET {assignments} WHERE id = ?", (*values.values(), id))

    def outdate(self, stream: int, version: int, now_us: int) -> None:
        """End those that lead on from another version than a stream has now."""
        reason = f"the stream got schema version {version} meanwhile; plan the change again"
        sql = """UPDATE verifications SET state = 'failed', ended_us = ?, reason = ?, proposal = NULL
                 WHERE stream = ? AND state = 'running' AND from_version != ?"""
        self._connection.execute(sql, (now_us, reason, stream, version))

    def forget(self, before_us: int, most: int) -> None:
        """Those that ended before a moment, and of the others all but so many that ended last."""
        sql = """DELETE FROM verifications WHERE ended_us < max(?, ifnull(
                 (SELECT ended_us FROM verifications WHERE ended_us IS NOT NULL
                  ORDER BY ended_us DESC LIMIT 1 OFFSET ?), 0))"""
        self._connection.execute(sql, (before_us, most - 1))
