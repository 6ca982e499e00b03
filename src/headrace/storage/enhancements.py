"""Schema enhancement of entity types: settings, recommendations, and migrations that were undone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Literal, NamedTuple

import msgspec

from headrace.storage.table import IN_LIST, DocumentTable, Table, TableQueries, json_list

ChangeKind = Literal["add_fields", "add_converters"]
Status = Literal["pending", "approved", "rejected", "applied", "auto_applied"]
#: The states of recommendations that are decided.
SETTLED: tuple[Status, ...] = ("rejected", "applied", "auto_applied")


class Recommendation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A field or converters that fragments of a key suggest, what is decided about it, and the evidence."""

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
        """The idempotency key, which keeps it from being applied twice."""
        return f"auto_enhance_{self.entity_type}_{self.field}_{self.user_id or 'global'}"

    @property
    def can_rollback(self) -> bool:
        """Whether it made a version that can be rolled back."""
        return self.schema_version is not None


class EnhancementSettings(NamedTuple):
    """The settings of a type for an owner, as a JSON document; the owner is empty for the global schema."""

    entity_type: str
    user_id: str
    document: str


class _UndoneMigration(NamedTuple):
    """A run whose observations do not count any more, and its fields as a JSON list."""

    entity_type: str
    run_id: str
    fields: str


_SETTINGS = Table("enhancement_settings", EnhancementSettings)
_UNDONE = Table("undone_migrations", _UndoneMigration)
_RECOMMENDATIONS = DocumentTable(
    "recommendations", Recommendation, ("entity_type", "user_id", "field", "change", "status")
)


class Enhancements(TableQueries):
    """Reads and writes settings, recommendations and undone migrations."""

    # -- settings

    def settings(self, entity_type: str, user_id: str) -> str | None:
        """The document of the settings of a type, for an owner."""
        sql = "SELECT document FROM enhancement_settings WHERE entity_type = ? AND user_id = ?"
        document: str | None = self._value(sql, entity_type, user_id)
        return document

    def every_setting(self) -> list[EnhancementSettings]:
        """The settings of all types and owners."""
        return self._all(_SETTINGS, "ORDER BY entity_type, user_id")

    def set(self, entity_type: str, user_id: str, document: str) -> None:
        """Replace the settings of an owner."""
        self._replace(_SETTINGS, [EnhancementSettings(entity_type, user_id, document)])

    # -- recommendations

    def recommendations(self, entity_type: str, user_id: str) -> list[Recommendation]:
        """The recommendations for an owner, by field."""
        clause = "WHERE entity_type = ? AND user_id = ? ORDER BY field, change"
        return self._all(_RECOMMENDATIONS, clause, entity_type, user_id)

    def recommend(self, recommendations: Iterable[Recommendation]) -> None:
        """Store recommendations, in place of earlier ones."""
        self._replace(_RECOMMENDATIONS, recommendations)

    # -- migrations that were undone

    def undone(self, entity_type: str) -> dict[str, tuple[str, ...]]:
        """The runs that were undone, and their fields."""
        rows = self._all(_UNDONE, "WHERE entity_type = ? ORDER BY run_id", entity_type)
        return {row.run_id: tuple(msgspec.json.decode(row.fields)) for row in rows}

    def undo(self, entity_type: str, run_id: str, fields: Iterable[str]) -> None:
        """Mark a run as undone."""
        self._replace(_UNDONE, [_UndoneMigration(entity_type, run_id, json_list(fields))])

    # -- types whose fragments are read

    def read_types(self) -> list[str]:
        """The types whose fragments were read."""
        return self._texts("SELECT entity_type FROM fragment_readers ORDER BY entity_type")

    def is_read(self, entity_type: str) -> bool:
        """Whether the fragments of a type were read."""
        return self._exists("fragment_readers", "entity_type = ?", entity_type)

    def note_reader(self, entity_type: str) -> None:
        """Note that the fragments of a type are read."""
        self._connection.execute("INSERT OR IGNORE INTO fragment_readers VALUES (?)", (entity_type,))

    def clear(self) -> None:
        """Remove what a recovery restores."""
        for table in ("enhancement_settings", "recommendations", "undone_migrations"):
            self._delete(table, "true")


Job = Literal["enhance", "migrate"]
State = Literal["pending", "processing", "completed", "failed", "skipped"]
#: The states of runs that have not ended.
OPEN: tuple[State, ...] = ("pending", "processing")


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of work on the fragments of a type; it may be started again from ``through``, with the same result.

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


_RUNS = DocumentTable("enhancement_runs", Run, ("id", "entity_type", "user_id", "state", "begun_us", "ended_us"))


class EnhancementRuns(TableQueries):
    """Reads and writes runs through one connection."""

    def find(self, id: str) -> Run | None:
        """The run with this id."""
        return self._first(_RUNS, "WHERE id = ?", id)

    def of_type(self, entity_type: str, job: Job, users: Collection[str], limit: int) -> list[Run]:
        """The runs of a type that concern some owners, the newest first."""
        clause = f"WHERE entity_type = ? AND user_id {IN_LIST} AND document ->> 'job' = ?"
        clause += " ORDER BY begun_us DESC, id LIMIT ?"
        return self._all(_RUNS, clause, entity_type, json_list(users), job, limit)

    def open(self) -> list[Run]:
        """The runs that have not ended, the oldest first."""
        return self._all(_RUNS, "WHERE ended_us IS NULL ORDER BY begun_us, id")

    def save(self, run: Run) -> None:
        """Store a run as it is now."""
        self._replace(_RUNS, [run])

    def has_ended_before(self, before_us: int) -> bool:
        """Whether a search for candidates ended before a moment."""
        return self._exists("enhancement_runs", _ENDED, before_us)

    def purge(self, before_us: int) -> None:
        """Remove searches for candidates that ended before a moment; migrations stay, as they can be undone."""
        self._delete("enhancement_runs", _ENDED, before_us)


#: The condition for searches for candidates that ended before a moment.
_ENDED = "ended_us < ? AND document ->> 'job' = 'enhance'"
