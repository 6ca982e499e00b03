"""The rows of ``due``, ``leases``, ``units`` and ``failures``: what is to be derived, who does it, what went wrong."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.storage.table import Table, TableQueries


class DueRow(msgspec.Struct, frozen=True):
    """A stream that may have something to do."""

    stream: int
    since_us: int
    mark: int
    run: int


class LeaseRow(msgspec.Struct, frozen=True):
    """Work that was given to a worker; without an end it is active until it expires."""

    id: str
    token: int
    worker: str
    granted_us: int
    expires_us: int
    ended_us: int | None = None
    done: int = 0
    total: int = 0


class UnitRow(msgspec.Struct, frozen=True):
    """A range of a stream's entries and what to do with it; without an outcome it is being done."""

    id: str
    lease: str
    stream: int
    job: str
    first_seq: int
    count: int
    document: str
    outcome: str | None = None
    reason: str | None = None

    @property
    def end_seq(self) -> int:
        """The sequence number after its last entry."""
        return self.first_seq + self.count


class WorkerRow(msgspec.Struct, frozen=True):
    """Totals of one worker: its first lease, its last contact, and the outcomes of its units."""

    worker: str
    since_us: int
    seen_us: int
    done: int
    failed: int
    lost: int
    released: int


class DoneRow(msgspec.Struct, frozen=True):
    """How many units of one job and one stream a worker has done."""

    worker: str
    stream: int
    job: str
    units: int


class FailureRow(msgspec.Struct, frozen=True):
    """A range on which a job has failed."""

    stream: int
    job: str
    first_seq: int
    count: int
    attempts: int
    at_us: int
    retry_us: int
    lost: int
    parked: int
    reason: str

    @property
    def end_seq(self) -> int:
        """The sequence number after its last entry."""
        return self.first_seq + self.count


#: What is derived from streams without a registry is features alone, of sources that are bound to them.
_MAY_DERIVE = "(revision > 0 OR EXISTS (SELECT 1 FROM meta WHERE name = 'bound ' || id))"
_DUE = Table("due", DueRow)
_LEASES = Table("leases", LeaseRow)
_UNITS = Table("units", UnitRow)
_FAILURES = Table("failures", FailureRow)


class Work(TableQueries):
    """Reads and writes due streams, leases, units and failures."""

    def mark(self, stream: int, now_us: int, *, run: bool = False) -> None:
        """Mark a stream as due unless nothing can be derived from it; with ``run`` every unit is due, however small."""
        sql = f"""INSERT INTO due SELECT id, ?2, 1, ?3 FROM streams WHERE id = ?1 AND {_MAY_DERIVE}
                 ON CONFLICT (stream) DO UPDATE SET mark = mark + 1, run = max(run, ?3)"""
        self._connection.execute(sql, (stream, now_us, int(run)))

    def mark_all(self, now_us: int) -> None:
        """Mark every stream from which something may be derived as due."""
        sql = f"""INSERT INTO due SELECT id, ?, 1, 0 FROM streams WHERE {_MAY_DERIVE} AND state = 0
                 ON CONFLICT (stream) DO UPDATE SET mark = mark + 1"""
        self._connection.execute(sql, (now_us,))

    def note_bound(self, stream: int) -> None:
        """Note that features may be folded over a stream, whether or not it has a registry of its own."""
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('bound ' || ?, 1)", (stream,))

    def unmark(self, stream: int, mark: int) -> None:
        """Remove the mark of a stream, unless it was marked again since."""
        self._delete("due", "stream = ? AND mark = ?", stream, mark)

    def requeue(self, stream: int, now_us: int) -> None:
        """Put a stream behind all others that are due."""
        self._update("due", {"since_us": now_us}, "stream = ?", stream)

    def due(self, limit: int, after: tuple[int, int] = (-1, 0)) -> list[DueRow]:
        """Streams that are due, the longest first, after a (since_us, stream)."""
        clause = "WHERE (since_us, stream) > (?, ?) ORDER BY since_us, stream LIMIT ?"
        return self._all(_DUE, clause, *after, limit)

    def count_due(self) -> int:
        """How many streams are marked."""
        return self._count("due")

    def is_due(self, stream: int) -> bool:
        """Whether a stream is marked."""
        return self._exists("due", "stream = ?", stream)

    def drop(self, stream: int) -> None:
        """Remove everything of a deleted stream; units that are being done end as dropped."""
        for table in ("due", "failures", "verifications", "histories"):
            self._delete(table, "stream = ?", stream)
        self._delete("meta", "name = 'bound ' || ?", stream)
        columns = {"outcome": "dropped", "reason": "the stream was deleted"}
        self._update("units", columns, "stream = ? AND outcome IS NULL", stream)

    def grant(self, lease: LeaseRow, units: Iterable[UnitRow]) -> None:
        """Store a lease and its units."""
        self._insert(_LEASES, lease)
        self._write(_UNITS.insert, _UNITS, units)

    def lease(self, id: str) -> LeaseRow | None:
        """The lease with this id, active or ended."""
        return self._first(_LEASES, "WHERE id = ?", id)

    def active_leases(self, now_us: int, limit: int = -1) -> list[LeaseRow]:
        """The leases that have neither ended nor expired, the oldest first."""
        clause = "WHERE ended_us IS NULL AND expires_us > ? ORDER BY token LIMIT ?"
        return self._all(_LEASES, clause, now_us, limit)

    def expired_leases(self, now_us: int) -> list[LeaseRow]:
        """The leases that have expired and not ended, the oldest first."""
        return self._all(_LEASES, "WHERE ended_us IS NULL AND expires_us <= ? ORDER BY token", now_us)

    def next_expiry(self) -> int | None:
        """When the first of the leases expires that have not ended."""
        expires_us: int | None = self._value("SELECT min(expires_us) FROM leases WHERE ended_us IS NULL")
        return expires_us

    def renew(self, id: str, expires_us: int, done: int, total: int) -> None:
        """Extend a lease, and store its progress."""
        self._update("leases", {"expires_us": expires_us, "done": done, "total": total}, "id = ?", id)

    def end(self, id: str, now_us: int) -> int:
        """End a lease and release its open units; returns how many these are."""
        self._update("leases", {"ended_us": now_us}, "id = ?", id)
        return self._update("units", {"outcome": "released"}, "lease = ? AND outcome IS NULL", id)

    def worker_totals(self, ttl_us: int) -> list[WorkerRow]:
        """Totals of each worker over the stored leases; an expired lease was last extended a ``ttl_us`` before."""
        sql = """SELECT worker, min(granted_us),
                 max(max(granted_us, iif(coalesce(ended_us, expires_us) < expires_us, ended_us, expires_us - ?1))),
                 sum(outcome = 'committed'), sum(outcome IN ('failed', 'parked')), sum(outcome = 'lost'),
                 sum(outcome = 'released')
                 FROM leases JOIN units ON lease = leases.id GROUP BY worker"""
        rows = self._connection.execute(sql, (ttl_us,))
        return [WorkerRow(worker, *(int(fact or 0) for fact in facts)) for worker, *facts in rows]

    def done_units(self) -> list[DoneRow]:
        """What workers have done, as far as their leases are remembered."""
        sql = """SELECT worker, stream, job, count(*) FROM leases JOIN units ON lease = leases.id
                 WHERE outcome = 'committed' GROUP BY worker, stream, job"""
        return [DoneRow(*row) for row in self._connection.execute(sql)]

    def forget_ended_leases(self, before_us: int) -> None:
        """Remove leases that ended before a moment, and their units."""
        self._delete("units", "lease IN (SELECT id FROM leases WHERE ended_us < ?)", before_us)
        self._delete("leases", "ended_us < ?", before_us)

    def forget_leases(self) -> None:
        """Remove all leases and units: another server may have granted the same work."""
        for table in ("leases", "units"):
            self._delete(table, "true")

    def units(self, lease: str, limit: int = -1) -> list[UnitRow]:
        """The units of a lease, in the order of streams and entries."""
        return self._all(_UNITS, "WHERE lease = ? ORDER BY stream, first_seq, job LIMIT ?", lease, limit)

    def open_units(self, stream: int) -> list[UnitRow]:
        """The units of a stream that are being done, or were when their worker was lost."""
        return self._all(_UNITS, "WHERE stream = ? AND outcome IS NULL", stream)

    def end_unit(self, unit: str, outcome: str, reason: str | None) -> None:
        """Store how a unit ended."""
        self._update("units", {"outcome": outcome, "reason": reason}, "id = ?", unit)

    def failures(self, stream: int) -> list[FailureRow]:
        """The ranges of a stream on which work has failed."""
        return self._all(_FAILURES, "WHERE stream = ? ORDER BY first_seq", stream)

    def save_failure(self, failure: FailureRow) -> None:
        """Store a failure, in place of the last one on the same range."""
        self._replace(_FAILURES, [failure])

    def forget_failures_on(self, stream: int, job: str, first_seq: int, end_seq: int) -> None:
        """Remove failures on parts of a range."""
        condition = "stream = ? AND job = ? AND first_seq >= ? AND first_seq + count <= ?"
        self._delete("failures", condition, stream, job, first_seq, end_seq)

    def forget_failures(self, stream: int, before_seq: int | None = None) -> None:
        """Remove the failures of a stream, all of them or those before an entry."""
        self._delete("failures", "stream = ?1 AND (?2 IS NULL OR first_seq + count <= ?2)", stream, before_seq)

    def parked(self, limit: int) -> list[FailureRow]:
        """Ranges that are not tried again."""
        return self._all(_FAILURES, "WHERE parked ORDER BY stream, job, first_seq LIMIT ?", limit)

    def resting(self, now_us: int, limit: int) -> list[FailureRow]:
        """Ranges that are tried again after a pause which is not over yet, the next first."""
        clause = "WHERE NOT parked AND retry_us > ? ORDER BY retry_us, stream, job, first_seq LIMIT ?"
        return self._all(_FAILURES, clause, now_us, limit)

    def counts(self, now_us: int) -> dict[str, int]:
        """How many streams are marked, leases held, units being done, and ranges resting after a failure or parked."""
        held = "ended_us IS NULL AND expires_us > ?"
        return {
            "due": self.count_due(),
            "leases": self._count("leases", held, now_us),
            "units": self._count("units JOIN leases ON leases.id = lease", f"outcome IS NULL AND {held}", now_us),
            "resting": self._count("failures", "NOT parked AND retry_us > ?", now_us),
            "parked": self._count("failures", "parked"),
        }
