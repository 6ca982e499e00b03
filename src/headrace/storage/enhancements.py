"""Schema enhancement of entity types: settings, recommendations, and migrations that were undone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Literal

import msgspec

from headrace import decoding
from headrace.storage.database import Connection

ChangeKind = Literal["add_fields", "add_converters"]
Status = Literal["pending", "approved", "rejected", "applied", "auto_applied"]
#: Decided already: nothing is done about these again.
SETTLED: tuple[Status, ...] = ("rejected", "applied", "auto_applied")


class Recommendation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A field or converters that fragments of a key speak for, what is decided about it, and the evidence."""

    entity_type: str
    #: Whose schema it is about; empty for the global one.
    user_id: str
    field: str
    change: ChangeKind
    status: Status
    #: The version that it made, where it was applied.
    schema_version: str | None = None
    who: str = ""
    at_us: int = 0
    evidence: dict[str, Any] = {}

    @property
    def key(self) -> str:
        """What guards against doing it twice."""
        return f"auto_enhance_{self.entity_type}_{self.field}_{self.user_id or 'global'}"

    @property
    def can_rollback(self) -> bool:
        """Whether it made a version that can be left again."""
        return self.schema_version is not None


class Enhancements:
    """Reads and writes all of it through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # -- settings

    def settings(self, entity_type: str, user_id: str) -> str | None:
        """The document of the settings of a type, for an owner."""
        sql = "SELECT document FROM enhancement_settings WHERE entity_type = ? AND user_id = ?"
        row = self._connection.execute(sql, (entity_type, user_id)).fetchone()
        return None if row is None else str(row[0])

    def every_setting(self) -> list[tuple[str, str, str]]:
        """All settings: the type, the owner, the document."""
        sql = "SELECT entity_type, user_id, document FROM enhancement_settings ORDER BY entity_type, user_id"
        return [
            (str(entity_type), str(user), str(document))
            for entity_type, user, document in self._connection.execute(sql)
        ]

    def set(self, entity_type: str, user_id: str, document: str) -> None:
        """Replace the settings of an owner."""
        self._connection.execute(
            "INSERT OR REPLACE INTO enhancement_settings VALUES (?, ?, ?)", (entity_type, user_id, document)
        )

    # -- recommendations

    def recommendations(self, entity_type: str, user_id: str) -> list[Recommendation]:
        """What was recommended to an owner, by field."""
        sql = "SELECT document FROM recommendations WHERE entity_type = ? AND user_id = ? ORDER BY field, change"
        rows = self._connection.execute(sql, (entity_type, user_id))
        return [decoding.decode(str(row[0]), Recommendation) for row in rows]

    def recommend(self, recommendations: Iterable[Recommendation]) -> None:
        """Keep recommendations, in the place of earlier ones."""
        rows = [
            (row.entity_type, row.user_id, row.field, row.change, row.status, msgspec.json.encode(row).decode())
            for row in recommendations
        ]
        self._connection.executemany("INSERT OR REPLACE INTO recommendations VALUES (?, ?, ?, ?, ?, ?)", rows)

    # -- migrations that were undone

    def undone(self, entity_type: str) -> dict[str, tuple[str, ...]]:
        """The runs that do not count any more, and the fields that they were about."""
        sql = "SELECT run_id, fields FROM undone_migrations WHERE entity_type = ? ORDER BY run_id"
        rows = self._connection.execute(sql, (entity_type,))
        return {str(run): tuple(msgspec.json.decode(str(fields))) for run, fields in rows}

    def undo(self, entity_type: str, run_id: str, fields: Iterable[str]) -> None:
        """Let a run count no more."""
        values = (entity_type, run_id, msgspec.json.encode(list(fields)).decode())
        self._connection.execute("INSERT OR REPLACE INTO undone_migrations VALUES (?, ?, ?)", values)

    # -- who asks about fragments

    def read_types(self) -> list[str]:
        """The types whose fragments somebody has asked about."""
        rows = self._connection.execute("SELECT entity_type FROM fragment_readers ORDER BY entity_type")
        return [str(row[0]) for row in rows]

    def is_read(self, entity_type: str) -> bool:
        """Whether somebody has asked about the fragments of a type."""
        sql = "SELECT 1 FROM fragment_readers WHERE entity_type = ?"
        return self._connection.execute(sql, (entity_type,)).fetchone() is not None

    def note_reader(self, entity_type: str) -> None:
        """Somebody asks about the fragments of a type."""
        self._connection.execute("INSERT OR IGNORE INTO fragment_readers VALUES (?)", (entity_type,))

    def clear(self) -> None:
        """Forget what a recovery brings again."""
        for table in ("enhancement_settings", "recommendations", "undone_migrations"):
            self._connection.execute(f"DELETE FROM {table}")


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
