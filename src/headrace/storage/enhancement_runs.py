"""The rows of ``enhancement_runs``: what is to be done about fragments, what is being done, and what came of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import msgspec

from headrace import decoding
from headrace.storage.database import Connection

Job = Literal["enhance", "migrate"]
State = Literal["pending", "processing", "completed", "failed", "skipped"]
#: What has not come to an end.
OPEN: tuple[State, ...] = ("pending", "processing")


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of work on the fragments of a type; it may be begun again from ``through``, and gives the same.

    An *enhance* looks for candidates and promotes them. A *migrate* moves fragments of some fields up to ``until`` into
    observations, those of one user or of all.
    """

    id: str
    entity_type: str
    #: Whose schema it is about; empty for the global one.
    user_id: str
    state: State
    begun_us: int
    ended_us: int | None = None
    job: Job
    who: str
    fields: tuple[str, ...] = ()
    #: None before it is begun: then it is everything that there is.
    until: int | None = None
    through: int = 0
    #: How often it was begun since it last got on, and when it may be again.
    attempts: int = 0
    retry_us: int = 0
    #: Values that have become observations, that had before, and that the fields do not take.
    migrated: int = 0
    repeated: int = 0
    unfit: int = 0
    reason: str | None = None
    outcome: dict[str, Any] = {}


class EnhancementRuns:
    """Reads and writes runs through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def find(self, id: str) -> Run | None:
        """One run."""
        return next(iter(self._many("WHERE id = ?", id)), None)

    def of_type(self, entity_type: str, job: Job, users: Collection[str], limit: int) -> list[Run]:
        """The runs of a type that concern some owners, the newest first."""
        where = "WHERE entity_type = ? AND user_id IN (SELECT value FROM json_each(?)) AND document ->> 'job' = ?"
        users_ = msgspec.json.encode(list(users)).decode()
        return self._many(f"{where} ORDER BY begun_us DESC, id LIMIT ?", entity_type, users_, job, limit)

    def open(self) -> list[Run]:
        """What has not come to an end, the oldest first."""
        return self._many("WHERE ended_us IS NULL ORDER BY begun_us, id")

    def save(self, run: Run) -> None:
        """Keep a run as it is now."""
        values = (run.id, run.entity_type, run.user_id, run.state, run.begun_us, run.ended_us)
        document = msgspec.json.encode(run).decode()
        self._connection.execute(
            "INSERT OR REPLACE INTO enhancement_runs VALUES (?, ?, ?, ?, ?, ?, ?)", (*values, document)
        )

    def has_ended_before(self, before_us: int) -> bool:
        """Whether there is anything to forget."""
        sql = "SELECT 1 FROM enhancement_runs WHERE ended_us < ? AND document ->> 'job' = 'enhance' LIMIT 1"
        return self._connection.execute(sql, (before_us,)).fetchone() is not None

    def purge(self, before_us: int) -> None:
        """Forget looks for candidates that ended before a moment; migrations stay, as they can be undone."""
        sql = "DELETE FROM enhancement_runs WHERE ended_us < ? AND document ->> 'job' = 'enhance'"
        self._connection.execute(sql, (before_us,))

    def _many(self, clause: str, *values: Any) -> list[Run]:
        rows = self._connection.execute(f"SELECT document FROM enhancement_runs {clause}", values)
        return [decoding.decode(str(row[0]), Run) for row in rows]
