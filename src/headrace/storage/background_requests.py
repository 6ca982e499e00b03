"""The rows of requests that are answered in the background: verifications, questions about the past, and erasures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Generic, TypeVar

import msgspec

from headrace.format.manifest import Segment
from headrace.storage.table import DocumentTable, Table, TableQueries

RUNNING, DONE, FAILED = "running", "done", "failed"
#: How many verifications are kept once they have ended, and for how long.
KEPT = 1_000
KEPT_US = 86_400_000_000
#: The step of an erasure in which segments are left to workers.
OFFERED = "offered"


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


class HistoryRow(msgspec.Struct, frozen=True):
    """A question about the past of a table, whose events before ``target`` are folded; both texts are JSON."""

    id: str
    stream: int
    table: str
    state: str
    begun_us: int
    ended_us: int | None
    target: int
    question: str
    answer: str | None
    reason: str | None


class ErasureRow(msgspec.Struct, frozen=True):
    """The removal of an entity's observations before a number; ``targets``, ``plan`` and ``report`` are JSON."""

    id: str
    entity_id: str
    user_id: str
    stream: int
    before_seq: int
    state: str
    step: str
    begun_us: int
    ended_us: int | None
    targets: str
    plan: str
    report: str


_VERIFICATIONS = Table("verifications", VerificationRow)
_HISTORIES = Table("histories", HistoryRow)
_ERASURES = Table("erasures", ErasureRow)
_REWRITES = DocumentTable("rewrites", Segment, (), extra=("stream", "name"))

Request = TypeVar("Request", VerificationRow, HistoryRow, ErasureRow)


class BackgroundRequests(TableQueries, Generic[Request]):
    """Reads and writes the requests of one table."""

    table: ClassVar[Table[Request]]

    def get(self, id: str) -> Request | None:
        """The request with this id, if it is still stored."""
        return self._first(self.table, "WHERE id = ?", id)

    def running(self, stream: int | None = None) -> list[Request]:
        """The requests that have not ended, of one stream or all, the oldest first."""
        clause = "WHERE state = 'running' AND ifnull(?1, stream) = stream ORDER BY begun_us, id"
        return self._all(self.table, clause, stream)

    def update(self, id: str, **columns: object) -> None:
        """Change some columns of a request."""
        self._update(self.table.name, columns, "id = ?", id)

    def forget(self, before_us: int, max_kept: int) -> None:
        """Remove requests that ended before a moment, and of the others all but so many that ended last."""
        newest = f"SELECT ended_us FROM {self.table.name} WHERE ended_us IS NOT NULL"
        condition = f"ended_us < max(?, ifnull(({newest} ORDER BY ended_us DESC LIMIT 1 OFFSET ?), 0))"
        self._delete(self.table.name, condition, before_us, max_kept - 1)


class Verifications(BackgroundRequests[VerificationRow]):
    """Reads and writes verifications: checks of proposed changes on stored events, and their progress."""

    table = _VERIFICATIONS

    def count(self) -> int:
        """How many have not ended."""
        return self._count("verifications", "state = 'running'")

    def add(self, row: VerificationRow) -> None:
        """Store a new verification."""
        self._insert(_VERIFICATIONS, row)

    def outdate(self, stream: int, version: int, now_us: int) -> None:
        """End those that lead on from another version than a stream has now."""
        reason = f"the stream got schema version {version} meanwhile; plan the change again"
        columns = {"state": FAILED, "ended_us": now_us, "reason": reason, "proposal": None}
        condition = "stream = ? AND state = 'running' AND from_version != ?"
        self._update("verifications", columns, condition, stream, version)


class Histories(BackgroundRequests[HistoryRow]):
    """Reads and writes questions: requests for rows as of moments, and their results."""

    table = _HISTORIES

    def add(self, row: HistoryRow) -> None:
        """Store a new question."""
        self._insert(_HISTORIES, row)

    def end(self, id: str, state: str, now_us: int, *, answer: str | None = None, reason: str | None = None) -> bool:
        """End a question; False where it had ended before, or is not stored."""
        columns = {"state": state, "ended_us": now_us, "answer": answer, "reason": reason}
        return self._update("histories", columns, "id = ? AND state = 'running'", id) > 0


class Erasures(BackgroundRequests[ErasureRow]):
    """Reads and writes erasures: entities that are removed for good, and the progress of that."""

    table = _ERASURES

    def of_stream(self, stream: int) -> list[ErasureRow]:
        """All erasures of a stream, the oldest first."""
        return self._all(_ERASURES, "WHERE stream = ? ORDER BY before_seq, id", stream)

    def count(self, stream: int) -> int:
        """How many there ever were of a stream."""
        return self._count("erasures", "stream = ?", stream)

    def is_running(self, stream: int) -> bool:
        """Whether an erasure of a stream has not ended."""
        return self._exists("erasures", "stream = ? AND state = 'running'", stream)

    def has_ended(self, stream: int, since_us: int) -> bool:
        """Whether an erasure of a stream has ended since a moment."""
        return self._exists("erasures", "stream = ? AND state = 'done' AND ended_us >= ?", stream, since_us)

    def page(self, user_id: str, before: str, limit: int) -> list[ErasureRow]:
        """The newest erasures of a user, older than one of them."""
        clause = """WHERE user_id = ?1 AND (?2 = '' OR (begun_us, id) <
                    (SELECT begun_us, id FROM erasures WHERE id = ?2)) ORDER BY begun_us DESC, id DESC LIMIT ?3"""
        return self._all(_ERASURES, clause, user_id, before, limit)

    def add(self, row: ErasureRow, ids: Iterable[str]) -> None:
        """Store a new erasure, and which ids it is about."""
        self._insert(_ERASURES, row)
        self._connection.executemany(
            "INSERT INTO erased VALUES (?, ?, ?)", [(entity_id, row.id, row.before_seq) for entity_id in ids]
        )

    def end(self, id: str, now_us: int, report: str) -> None:
        """End an erasure; its entity ids can be used again."""
        self.update(id, state=DONE, step=DONE, ended_us=now_us, report=report)
        self._delete("erased", "erasure = ?", id)
        self._delete("rewrites", "stream NOT IN (SELECT stream FROM erasures WHERE state = 'running')")

    def note_rewritten(self, stream: int, name: str, segment: Segment) -> None:
        """Store the replacement of a segment."""
        self._replace(_REWRITES, [segment], stream, name)

    def rewritten(self, stream: int, name: str) -> Segment | None:
        """The replacement of a segment, if a worker has made it."""
        return self._first(_REWRITES, "WHERE stream = ? AND name = ?", stream, name)

    def since(self, entity_id: str) -> int:
        """The first observation that counts of an entity; 0 where none is being removed."""
        return int(self._value("SELECT max(before_seq) FROM erased WHERE entity_id = ?", entity_id) or 0)
