"""Leases, granted and ended inside commits of the log: each unit is leased to one worker at a time.

Work that fails is tried again after a pause that grows, alone where it took others along, and parked in the end. An
error is the unit's own. A worker that is lost may have been lost over any of its units: those it had twice are given
out one at a time, so that only the one to blame is parked.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Iterator
from typing import NamedTuple

import msgspec

from headrace import decoding
from headrace.engine.derive.job import JobTable, WorkPlan
from headrace.engine.derive.unit_cutter import PlannedUnit
from headrace.engine.log.batch import Batch
from headrace.errors import Conflict
from headrace.format.ranges import Range
from headrace.reduce.work_units import Outcome, Unit
from headrace.storage.published import DeletedStream
from headrace.storage.streams import LIVE
from headrace.storage.work import FailureRow, LeaseRow, UnitRow, Work

log = logging.getLogger("headrace.work")

SILENT = "its worker was not heard of any more"
STALLED = "its worker was alive and made no progress"
#: How long the end of a lease is remembered, for who has not heard of it.
_REMEMBERED_US = 3_600_000_000
#: A unit that has failed so often is not tried again.
ATTEMPTS = 5
_PAUSE_US, _LONGEST_PAUSE_US = 1_000_000, 60_000_000


class LeaseLost(Conflict):
    """The lease has ended, or its work was given to another worker."""

    code = "lease_lost"


def grant(
    batch: Batch, plan: WorkPlan, worker: str, ttl_us: int, stall: StallLimit
) -> tuple[LeaseRow, list[Unit]] | None:
    """Lease a plan's units to a worker, and commit the rest of the plan; None where it has no units."""
    work, now_us = Work(batch.connection), batch.now_us
    chosen = _choose_units(batch, plan)
    lease = None
    if chosen:
        lease = LeaseRow(secrets.token_hex(8), batch.new_epoch(), worker, now_us, now_us + ttl_us, total=len(chosen))
        work.grant(lease, [_row(lease.id, planned) for planned in chosen])
        stall.begin(lease.id, now_us, {other.id for other in work.active_leases(now_us)})
    for stream in {planned.stream for planned in chosen}:
        batch.streams.update(stream, attempted=1)
        work.requeue(stream, now_us)
    tidy(batch, plan)
    return None if lease is None else (lease, [planned.unit for planned in chosen])


def tidy(batch: Batch, plan: WorkPlan) -> None:
    """Unmark streams that have nothing to do, retire outputs, and forget leases that ended long ago."""
    work = Work(batch.connection)
    for due in plan.idle:
        work.unmark(due.stream, due.mark)
    for job, stream, names in plan.retired:
        job.retire(batch, stream, names)
        batch.published.mark(stream, batch.now_us)
    work.forget_ended_leases(batch.now_us - _REMEMBERED_US)


def _choose_units(batch: Batch, plan: WorkPlan) -> list[PlannedUnit]:
    """The units of streams that are not deleted; one over which workers were lost is leased alone."""
    rows = {stream: batch.streams.by_id(stream) for stream in {planned.stream for planned in plan.units}}
    alive = {stream for stream, row in rows.items() if row is not None and row.state == LIVE}
    units = [planned for planned in plan.units if planned.stream in alive]
    return [planned for planned in units if planned.suspect][:1] or units


def _row(lease: str, planned: PlannedUnit) -> UnitRow:
    unit = planned.unit
    document = msgspec.json.encode(msgspec.structs.replace(unit, registry=None, defined=None, question=None)).decode()
    return UnitRow(unit.unit, lease, planned.stream, unit.job, unit.first_seq, unit.count, document)


def find(batch: Batch, id: str, token: int) -> LeaseRow:
    """A lease that was given with this token, held or not; raises LeaseLost where there is none."""
    lease = Work(batch.connection).lease(id)
    if lease is None or lease.token != token:
        raise LeaseLost("there is no such lease any more", lease=id)
    return lease


def held(batch: Batch, id: str, token: int) -> LeaseRow:
    """A lease that its worker still holds; raises LeaseLost otherwise."""
    lease = find(batch, id, token)
    if lease.ended_us is not None or lease.expires_us <= batch.now_us:
        raise LeaseLost("the lease has ended", lease=id)
    return lease


def heartbeat(batch: Batch, id: str, token: int, progress: tuple[int, int], stall: StallLimit) -> tuple[int, list[str]]:
    """Extend a lease; returns when it expires now, and the units whose results would be dropped."""
    lease, work = held(batch, id, token), Work(batch.connection)
    stall.report(lease, progress[0], batch.now_us)
    expires_us = stall.extended(lease, batch.now_us)
    work.renew(lease.id, expires_us, *progress)
    return expires_us, [unit.id for unit in work.units(lease.id) if unit.outcome == "dropped"]


def release(batch: Batch, id: str, token: int, jobs: JobTable) -> int:
    """End a lease and return how many unfinished units are free again; 0 if it had ended already."""
    lease = find(batch, id, token)
    return finish(batch, lease, jobs) if lease.ended_us is None else 0


def finish(batch: Batch, lease: LeaseRow, jobs: JobTable) -> int:
    """End a lease and return how many units are free again; marks objects of deleted streams for removal."""
    work = Work(batch.connection)
    freed = work.end(lease.id, batch.now_us)
    rows = work.units(lease.id)
    freed_rows = [row for row in rows if row.outcome in ("released", "lost")]
    for stream in {row.stream for row in freed_rows if jobs[row.job].scans_streams}:
        # What is left may be less than is worth the work by itself.
        work.mark(stream, batch.now_us, run=True)
    for row in rows:
        if row.outcome == "dropped":
            discard_objects(batch, unit_of(row))
    return freed


def discard_objects(batch: Batch, unit: Unit) -> bool:
    """Have everything removed that was written for a stream if the stream was deleted; returns whether it was."""
    if batch.streams.by_incarnation(unit.incarnation) is not None:
        return False
    batch.published.mark_deleted(DeletedStream(unit.incarnation, unit.stream))
    return True


def end_expired(batch: Batch, stall: StallLimit, jobs: JobTable) -> list[tuple[str, int]]:
    """End the leases that have expired; returns which workers have lost how many units."""
    work, lost = Work(batch.connection), list[tuple[str, int]]()
    for lease in work.expired_leases(batch.now_us):
        reason = STALLED if stall.has_stalled(lease) else SILENT
        left = [row for row in work.units(lease.id) if row.outcome is None]
        for row in left:
            indivisible, alone = jobs[row.job].is_indivisible, len(left) == 1
            record_lost(work, row.stream, unit_of(row), reason, batch.now_us, indivisible=indivisible, alone=alone)
            work.end_unit(row.id, "lost", reason)
        if left:
            log.warning("%d units of worker %r are free again: %s", len(left), lease.worker, reason)
        lost.append((lease.worker, len(left)))
        finish(batch, lease, jobs)
    return lost


def unit_of(row: UnitRow) -> Unit:
    """A unit as it was leased."""
    return decoding.decode(row.document, Unit)


def record_failure(work: Work, stream: int, unit: Unit, reason: str, now_us: int, *, indivisible: bool) -> Outcome:
    """Note that a unit has failed; ``indivisible``: it is tried again as it was, not segment by segment."""
    return _record(work, stream, unit, reason, now_us, max_attempts=ATTEMPTS, lost=0, indivisible=indivisible)


def record_lost(
    work: Work, stream: int, unit: Unit, reason: str, now_us: int, *, indivisible: bool, alone: bool
) -> Outcome:
    """Note that the worker of a unit was lost, or has stalled; ``alone``: it had nothing else to do."""
    max_attempts = ATTEMPTS if alone else ATTEMPTS - 1
    return _record(work, stream, unit, reason, now_us, max_attempts=max_attempts, lost=1, indivisible=indivisible)


def _record(
    work: Work, stream: int, unit: Unit, reason: str, now_us: int, *, max_attempts: int, lost: int, indivisible: bool
) -> Outcome:
    earlier_failures = {(failure.job, failure.first_seq, failure.count): failure for failure in work.failures(stream)}
    outcome: Outcome = "failed"
    for first, end in _ranges(unit, indivisible):
        before = earlier_failures.get((unit.concern, first, end - first))
        attempts = min(max_attempts, 1 + (before.attempts if before else 0))
        outcome = "parked" if attempts >= ATTEMPTS else "failed"
        work.save_failure(
            FailureRow(
                stream=stream,
                job=unit.concern,
                first_seq=first,
                count=end - first,
                attempts=attempts,
                at_us=now_us,
                retry_us=now_us + min(_LONGEST_PAUSE_US, _PAUSE_US << (attempts - 1)),
                lost=lost + (before.lost if before else 0),
                parked=int(attempts >= ATTEMPTS),
                reason=reason,
            )
        )
    return outcome


def _ranges(unit: Unit, indivisible: bool) -> Iterator[Range]:
    """The parts of a unit that are tried by themselves next time: its segments, or else all of it."""
    if indivisible or not unit.segments:
        yield Range(unit.first_seq, unit.end_seq)
        return
    for source in unit.segments:
        yield Range(max(unit.first_seq, source.first_seq), min(unit.end_seq, source.first_seq + source.count))


class _Progress(NamedTuple):
    done: int
    at_us: int


class StallLimit:
    """How long a lease may go on without progress; remembers when each made some, since the server has started.

    Progress is a unit with a result, or a greater number of units done than the worker has reported before. For the
    thread that writes.
    """

    def __init__(self, limit_us: int, ttl_us: int) -> None:
        self._limit_us = limit_us
        self._ttl_us = ttl_us
        self._newest: dict[str, _Progress] = {}

    def begin(self, lease: str, now_us: int, held: Collection[str]) -> None:
        """Start tracking a new lease, and stop tracking leases that are not held."""
        self._newest = {lease_id: progress for lease_id, progress in self._newest.items() if lease_id in held}
        self._newest[lease] = _Progress(0, now_us)

    def report(self, lease: LeaseRow, done: int, now_us: int) -> None:
        """Record the number of finished units that a worker has reported."""
        newest = self._newest.get(lease.id)
        if newest is None:
            self._newest[lease.id] = _Progress(max(done, lease.done), now_us)
        elif done > newest.done:
            self._newest[lease.id] = _Progress(done, now_us)

    def settle(self, lease: LeaseRow, now_us: int) -> None:
        """Record that units of a lease have results."""
        newest = self._newest.get(lease.id)
        self._newest[lease.id] = _Progress(lease.done if newest is None else newest.done, now_us)

    def extended(self, lease: LeaseRow, now_us: int) -> int:
        """When a lease expires whose worker has just sent a heartbeat."""
        newest = self._newest.get(lease.id)
        deadline_us = now_us + self._limit_us if newest is None else newest.at_us + self._limit_us
        return max(lease.expires_us, min(now_us + self._ttl_us, deadline_us))

    def has_stalled(self, lease: LeaseRow) -> bool:
        """Whether an expired lease was not extended because it made no progress."""
        newest = self._newest.get(lease.id)
        return newest is not None and lease.expires_us == newest.at_us + self._limit_us
