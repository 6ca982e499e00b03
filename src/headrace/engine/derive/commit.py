"""Commits results of work: each is checked by its job, and accepted or discarded in one commit of the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.engine.derive import leases
from headrace.engine.derive.job import Job, JobCommitter, JobTable
from headrace.engine.derive.leases import StallLimit
from headrace.engine.log.batch import Batch
from headrace.errors import BadRequest
from headrace.reduce.work_units import Outcome, Result, Settled, Unit
from headrace.storage.work import UnitRow, Work

log = logging.getLogger("headrace.work")


class Leased(NamedTuple):
    """A lease and its units, as the worker got them."""

    id: str
    token: int
    units: dict[str, Unit]


class Committed(NamedTuple):
    """How each unit ended, and when the lease expires."""

    settled: list[Settled]
    expires_us: int


def check(jobs: JobTable, results: Sequence[Result], units: dict[str, Unit]) -> None:
    """Raises BadRequest for a result that does not belong to its unit."""
    for number, unit_result in enumerate(results):
        unit = units.get(unit_result.unit)
        if unit is None:
            raise BadRequest(f"{unit_result.unit!r} is no unit of this lease", field=f"results[{number}].unit")
        outputs = jobs.outputs(unit_result)
        if len(outputs) + (unit_result.error is not None) + unit_result.gone != 1:
            raise BadRequest(
                "a result is a companion, a state, a segment, findings, rows, gone or an error",
                field=f"results[{number}]",
            )
        for job, output in outputs:
            if (refusal := job.refusal(unit, output)) is not None:
                raise BadRequest(refusal, field=f"results[{number}].{job.output}")
    if len({unit_result.unit for unit_result in results}) != len(results):
        raise BadRequest("a unit has one result", field="results")


def commit(
    batch: Batch, lease: Leased, results: Sequence[Result], jobs: JobTable, stall: StallLimit
) -> tuple[Committed, list[Settled]]:
    """Commit checked results of units; for a unit that was committed before, return the same outcome.

    Those that had no outcome before are the second part of the answer.
    """
    work, id = Work(batch.connection), lease.id
    row = leases.find(batch, id, lease.token)
    units = {unit.id: unit for unit in work.units(id)}
    if any(units[unit_result.unit].outcome in (None, "released", "lost") for unit_result in results):
        leases.held(batch, id, lease.token)
    settling = _Settling(batch, work, jobs)
    settled = [
        settling.settle(units[unit_result.unit], lease.units[unit_result.unit], unit_result) for unit_result in results
    ]
    settling.finish()
    newly_settled = [row_settled for row_settled in settled if units[row_settled.unit].outcome is None]
    if row.ended_us is not None:
        return Committed(settled, row.expires_us), newly_settled
    if newly_settled:
        stall.settle(row, batch.now_us)
    else:
        stall.report(row, row.done, batch.now_us)
    expires_us = stall.extended(row, batch.now_us)
    work.renew(id, expires_us, row.done, row.total)
    if not any(unit.outcome is None for unit in work.units(id)):
        leases.finish(batch, row, jobs)
    return Committed(settled, expires_us), newly_settled


class _Settling:
    """Settles units one after the other in one commit."""

    def __init__(self, batch: Batch, work: Work, jobs: JobTable) -> None:
        self._batch = batch
        self._work = work
        self._jobs = jobs
        self._committers: dict[str, JobCommitter[Any]] = {}

    def settle(self, row: UnitRow, unit: Unit, result: Result) -> Settled:
        job = self._jobs[unit.job]
        if row.outcome is not None:
            if row.outcome == "dropped":
                self._discard(row, unit, job, result)
            return Settled(row.id, row.outcome, row.reason)
        outcome, reason = self._judge(row, unit, job, result)
        if outcome in ("failed", "parked"):
            log.warning("%s of %r from entry %d on %s: %s", unit.job, unit.stream, unit.first_seq, outcome, reason)
        self._work.end_unit(row.id, outcome, reason)
        if job.writes_objects and self._batch.streams.by_incarnation(unit.incarnation) is not None:
            # What is left may be less than is worth the work by itself.
            is_left = job.scans_streams and outcome in ("failed", "gone")
            self._work.mark(row.stream, self._batch.now_us, run=is_left)
        return Settled(row.id, outcome, reason)

    def finish(self) -> None:
        """Call the ``finish`` hook of each job after the last output."""
        for committer in self._committers.values():
            committer.finish()

    def _judge(self, row: UnitRow, unit: Unit, job: Job[Any], result: Result) -> tuple[Outcome, str | None]:
        error, committer = result.error, self._committer(job)
        if result.gone:
            if committer.is_outdated(row, unit):
                return "gone", None
            error = "an object that it reads is listed, and not in the store"
        if error is not None:
            outcome = leases.record_failure(
                self._work, row.stream, unit, error, self._batch.now_us, indivisible=job.is_indivisible
            )
            if outcome == "parked":
                job.parked(self._batch, unit, error)
            return outcome, error
        if job.scans_streams and self._is_rewritten(row, unit, committer):
            reason: str | None = "events were erased that it was made of"
        else:
            reason = committer.accept(row, unit, getattr(result, job.output))
        if reason is None:
            self._work.forget_failures_on(row.stream, unit.concern, unit.first_seq, unit.end_seq)
            return "committed", None
        self._discard(row, unit, job, result)
        return "dropped", reason

    def _committer(self, job: Job[Any]) -> JobCommitter[Any]:
        if job.output not in self._committers:
            self._committers[job.output] = job.committer(self._batch)
        return self._committers[job.output]

    def _is_rewritten(self, row: UnitRow, unit: Unit, committer: JobCommitter[Any]) -> bool:
        """Whether input of a unit is being erased, or was erased since the unit was leased."""
        connection = self._batch.connection
        if self._jobs.is_rewriting(connection, row.stream):
            return True
        lease = self._work.lease(row.lease)
        since_us = 0 if lease is None else lease.granted_us
        return self._jobs.has_rewritten(connection, row.stream, since_us) and committer.is_outdated(row, unit)

    def _discard(self, row: UnitRow, unit: Unit, job: Job[Any], result: Result) -> None:
        """Mark the objects of a result for removal, unless they are listed or removed with their stream."""
        output = getattr(result, job.output)
        if output is None or not job.writes_objects or leases.discard_objects(self._batch, unit):
            return
        if not self._committer(job).is_listed(row, unit, output):
            self._batch.published.discard(job.written(unit, output), self._batch.now_us)
