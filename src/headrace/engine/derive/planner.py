"""Finding work: units of all jobs, outputs that are of no more use, and streams that need nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

from headrace.engine.derive.job import Job, JobTable, NothingDerivable
from headrace.engine.derive.unit_cutter import PlannedUnit
from headrace.reduce.work_units import JobName
from headrace.storage.database import Connection
from headrace.storage.work import DueRow, Work

log = logging.getLogger("headrace.work")

_PAGE = 100


class Retired(NamedTuple):
    """Outputs of a job that are of no more use for a stream."""

    job: Job[Any]
    stream: int
    names: Sequence[str]


class WorkPlan(NamedTuple):
    """Units to give away, streams that need none, what is of no more use, and whether all streams were looked at."""

    units: list[PlannedUnit]
    idle: list[DueRow]
    retired: list[Retired]
    is_complete: bool
    #: Streams that may have something to do once their events are rewritten.
    suspended: list[int]
    #: How many may have something to do and were not looked at.
    unseen: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write down."""
        return not (self.units or self.idle or self.retired)


class Planner:
    """Reads one database; for one thread at a time."""

    def __init__(self, connection: Connection, jobs: JobTable) -> None:
        self._connection = connection
        self._jobs = jobs
        self._planners = [(job, job.planner(connection)) for job in jobs]
        self._work = Work(connection)

    def plan(
        self, limit: int, each: int, names: Collection[JobName], now_us: int, goes_on: Callable[[], bool]
    ) -> WorkPlan:
        """Up to so many units of these names, in all and for each stream; looks for them for as long as it may go on.

        Needs a snapshot.
        """
        plan = WorkPlan([], [], [], True, [])
        for job, planner in self._planners:
            if any(name in names for name in job.names):
                plan.units.extend(islice(planner.queued_units(now_us, each), limit - len(plan.units)))
        for seen, due in enumerate(self._due()):
            if len(plan.units) >= limit or not goes_on():
                return plan._replace(is_complete=False, unseen=self._work.count_due() - seen)
            self._plan_stream(plan, due, min(each, limit - len(plan.units)), names, now_us)
        return plan

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything that is read meanwhile is of one moment."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    def progress(self, stream: int) -> tuple[int, int]:
        """How many published entries of a stream have outputs that are up to date, and how many should have."""
        progress = [planner.progress(stream) for _, planner in self._planners]
        return sum(done for done, _ in progress), sum(total for _, total in progress)

    def _due(self) -> Iterator[DueRow]:
        after = (-1, 0)
        while page := self._work.due(_PAGE, after):
            yield from page
            after = page[-1].since_us, page[-1].stream

    def _plan_stream(self, plan: WorkPlan, due: DueRow, room: int, names: Collection[JobName], now_us: int) -> None:
        if self._jobs.is_rewriting(self._connection, due.stream):
            plan.suspended.append(due.stream)
            return  # what would be derived now holds what is erased
        units, retired, waits = list[PlannedUnit](), list[Retired](), False
        try:
            for job, planner in self._planners:
                stream_plan = planner.stream_units(due, room - len(units), names, now_us)
                units += stream_plan.units
                waits = waits or stream_plan.waits
                if stream_plan.retired:
                    retired.append(Retired(job, due.stream, stream_plan.retired))
        except NothingDerivable as reason:
            log.error("nothing can be derived from stream %d: %s", due.stream, reason)
            plan.idle.append(due)
            return
        plan.units.extend(units)
        plan.retired.extend(retired)
        if not units and not waits:
            plan.idle.append(due)
