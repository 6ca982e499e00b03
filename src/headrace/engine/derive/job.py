"""Jobs: the kinds of work that derive something from streams.

A job says how its units are planned, how what workers made of them is checked and kept, and how it fails. The
scheduler leases and commits the units of all jobs and knows each only by the classes of this module; products
implement them, and the assembly lists them in one ``JobTable``. The planner asks all of them what is due.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from headrace.engine.derive.unit_cutter import PlannedUnit
from headrace.engine.log.batch import Batch
from headrace.format.object_names import parse_segment_key
from headrace.reduce.work_units import JobName, Result, Unit
from headrace.storage.database import Connection
from headrace.storage.derived import States
from headrace.storage.work import DueRow, UnitRow, Work

Output = TypeVar("Output")

log = logging.getLogger("headrace.work")

_PAGE = 100


class NothingDerivable(Exception):
    """Nothing can be derived from the present stream; the message says why."""


class StreamPlan(NamedTuple):
    """The plan of one job for one stream."""

    units: Sequence[PlannedUnit] = ()
    #: Whether there will be more units once others are done, or a pause is over.
    waits: bool = False
    #: The names of earlier outputs that are not needed any more.
    retired: Sequence[str] = ()


class JobPlanner:
    """Finds the units of one job through one connection, for one thread at a time."""

    def queued_units(self, now_us: int, each: int) -> Iterator[PlannedUnit]:
        """Return units of a job that keeps requests in rows of its own, at most ``each`` of a request."""
        return iter(())

    def stream_units(self, due: DueRow, room: int, names: Collection[JobName], now_us: int) -> StreamPlan:
        """Up to ``room`` units of these names for a stream that is marked as due; raises NothingDerivable."""
        return StreamPlan()

    def progress(self, stream: int) -> tuple[int, int]:
        """How many published entries of a stream have outputs that are up to date, and how many should have."""
        return 0, 0


class JobCommitter(Generic[Output]):
    """Accepts the outputs of workers for one job, in one commit of the log."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def accept(self, row: UnitRow, unit: Unit, output: Output) -> str | None:
        """Accept an output, or return why it is discarded."""
        raise NotImplementedError

    def is_listed(self, row: UnitRow, unit: Unit, output: Output) -> bool:
        """Whether the objects of an output are in use, or may be: all others are removed."""
        return True

    def is_outdated(self, row: UnitRow, unit: Unit) -> bool:
        """Whether something that a unit reads is not listed any more."""
        if unit.states:
            listed = {state.name for state in States(self._batch.connection).listed(row.stream)}
            if not {state.name for state in unit.states} <= listed:
                return True
        locations = [location for source in unit.segments if (location := parse_segment_key(source.key)) is not None]
        return any(self._batch.published.is_orphan(location[1], name) for location, name in locations)

    def finish(self) -> None:
        """Called once, after the last output of the commit."""
        return


class Job(Generic[Output]):
    """One kind of derived work; the same object serves all threads."""

    #: What its units are called, in the order in which they are given out.
    names: ClassVar[tuple[JobName, ...]]
    #: The field of a result that holds what it makes.
    output: ClassVar[str]
    #: Whether its units are found anew among the streams that are marked as due; others have rows of their own.
    scans_streams: ClassVar[bool] = False
    #: Whether it writes objects, so that the stream is planned again once a unit has ended.
    writes_objects: ClassVar[bool] = True
    #: Whether a unit that has failed is tried again as it was; otherwise each of its segments may fail by itself.
    is_indivisible: ClassVar[bool] = False

    def planner(self, connection: Connection) -> JobPlanner:
        """Make a planner that finds its units."""
        raise NotImplementedError

    def committer(self, batch: Batch) -> JobCommitter[Output]:
        """Make a committer that accepts its outputs."""
        raise NotImplementedError

    def refusal(self, unit: Unit, output: Output) -> str | None:
        """Return why an output does not belong to a unit, for the worker that has sent it; None where it does."""
        raise NotImplementedError

    def written(self, unit: Unit, output: Output) -> dict[str, int]:
        """Return the objects of an output, and how many bytes each has."""
        return {}

    def parked(self, batch: Batch, unit: Unit, reason: str) -> None:
        """Called when a unit has failed so often that it is not tried again."""
        return

    def retire(self, batch: Batch, stream: int, names: Sequence[str]) -> None:
        """Retire outputs that a plan has listed as not needed any more."""
        return

    def definition_changes(self, reader: Connection) -> Iterator[Callable[[Batch], None]]:
        """Return functions that mark the streams whose definitions have changed, in a commit; on the event loop."""
        return iter(())

    def notify(self, streams: set[int]) -> None:
        """Called when outputs of these streams were committed; on the event loop."""
        return

    def is_rewriting(self, connection: Connection, stream: int) -> bool:
        """Whether it is about to replace events of a stream, from which nothing else is derived meanwhile."""
        return False

    def has_rewritten(self, connection: Connection, stream: int, since_us: int) -> bool:
        """Whether it has replaced events of a stream since a moment."""
        return False


class JobTable:
    """All jobs of a server, in the order in which their units are leased."""

    def __init__(self, jobs: Iterable[Job[Any]]) -> None:
        self._jobs = tuple(jobs)
        self._by_name: dict[str, Job[Any]] = {name: job for job in self._jobs for name in job.names}

    def __iter__(self) -> Iterator[Job[Any]]:
        return iter(self._jobs)

    def __getitem__(self, name: str) -> Job[Any]:
        return self._by_name[name]

    def outputs(self, result: Result) -> list[tuple[Job[Any], Any]]:
        """Return the outputs in a result, each with the job that makes such outputs."""
        outputs = ((job, getattr(result, job.output)) for job in self._jobs)
        return [(job, output) for job, output in outputs if output is not None]

    def is_rewriting(self, connection: Connection, stream: int) -> bool:
        """Whether any job is about to replace events of a stream."""
        return any(job.is_rewriting(connection, stream) for job in self._jobs)

    def has_rewritten(self, connection: Connection, stream: int, since_us: int) -> bool:
        """Whether any job has replaced events of a stream since a moment."""
        return any(job.has_rewritten(connection, stream, since_us) for job in self._jobs)


class Retired(NamedTuple):
    """Outputs of a job that a stream does not need any more."""

    job: Job[Any]
    stream: int
    names: Sequence[str]


class WorkPlan(NamedTuple):
    """Units to lease, streams that need none, outputs to retire, and whether all streams were planned."""

    units: list[PlannedUnit]
    idle: list[DueRow]
    retired: list[Retired]
    is_complete: bool
    #: Streams that may have something to do once their events are rewritten.
    suspended: list[int]
    #: How many may have something to do and were not planned.
    unseen: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether the plan has nothing to commit."""
        return not (self.units or self.idle or self.retired)


class Planner:
    """Plans the units of all jobs by one connection; for one thread at a time."""

    def __init__(self, connection: Connection, jobs: JobTable) -> None:
        self._connection = connection
        self._jobs = jobs
        self._planners = [(job, job.planner(connection)) for job in jobs]
        self._work = Work(connection)

    def plan(
        self, limit: int, each: int, names: Collection[JobName], now_us: int, may_continue: Callable[[], bool]
    ) -> WorkPlan:
        """Plan up to so many units of these names, in all and for each stream, for as long as ``may_continue`` says so.

        Needs a snapshot.
        """
        plan = WorkPlan([], [], [], True, [])
        for job, planner in self._planners:
            if any(name in names for name in job.names):
                plan.units.extend(islice(planner.queued_units(now_us, each), limit - len(plan.units)))
        for seen, due in enumerate(self._due()):
            if len(plan.units) >= limit or not may_continue():
                return plan._replace(is_complete=False, unseen=self._work.count_due() - seen)
            self._plan_stream(plan, due, min(each, limit - len(plan.units)), names, now_us)
        return plan

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read from one snapshot of the database meanwhile."""
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
