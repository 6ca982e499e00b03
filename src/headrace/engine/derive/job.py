"""Jobs: the kinds of work that derive something from streams.

A job says how its units are planned, how what workers made of them is checked and kept, and how it fails. The
scheduler leases and commits the units of all jobs and knows each only by the classes of this module; products
implement them, and the assembly lists them in one ``JobTable``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from headrace.engine.derive.unit_cutter import PlannedUnit
from headrace.engine.log.batch import Batch
from headrace.format.object_names import parse_segment_key
from headrace.reduce.work_units import JobName, Result, Unit
from headrace.storage.database import Connection
from headrace.storage.derived import States
from headrace.storage.work import DueRow, UnitRow

Output = TypeVar("Output")


class NothingDerivable(Exception):
    """Nothing can be derived from a stream as it is, for a reason that an operator can read."""


class StreamPlan(NamedTuple):
    """What one job has to do for one stream."""

    units: Sequence[PlannedUnit] = ()
    #: Whether there will be more units once others are done, or a pause is over.
    waits: bool = False
    #: The names of earlier outputs that are of no more use.
    retired: Sequence[str] = ()


class JobPlanner:
    """Finds the units of one job through one connection, for one thread at a time."""

    def queued_units(self, now_us: int, each: int) -> Iterator[PlannedUnit]:
        """Units of a job that keeps requests in rows of its own, at most ``each`` of a request."""
        return iter(())

    def stream_units(self, due: DueRow, room: int, names: Collection[JobName], now_us: int) -> StreamPlan:
        """Up to ``room`` units of these names for a stream that is marked as due; raises NothingDerivable."""
        return StreamPlan()

    def progress(self, stream: int) -> tuple[int, int]:
        """How many published entries of a stream have outputs that are up to date, and how many should have."""
        return 0, 0


class JobCommitter(Generic[Output]):
    """Keeps what workers have made for one job, in one commit of the log."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def accept(self, row: UnitRow, unit: Unit, output: Output) -> str | None:
        """Keep an output, or say why it is of no use."""
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
    #: Whether it writes objects, so that the stream is looked at again once a unit has ended.
    writes_objects: ClassVar[bool] = True
    #: Whether a unit that has failed is tried again as it was; otherwise each of its segments may fail by itself.
    is_indivisible: ClassVar[bool] = False

    def planner(self, connection: Connection) -> JobPlanner:
        """A planner that finds its units."""
        raise NotImplementedError

    def committer(self, batch: Batch) -> JobCommitter[Output]:
        """A committer that keeps its outputs."""
        raise NotImplementedError

    def refusal(self, unit: Unit, output: Output) -> str | None:
        """Why an output does not belong to a unit, for the worker that has sent it."""
        raise NotImplementedError

    def written(self, unit: Unit, output: Output) -> dict[str, int]:
        """The objects of an output, and how many bytes each has."""
        return {}

    def parked(self, batch: Batch, unit: Unit, reason: str) -> None:
        """A unit has failed so often that it is not tried again."""
        return

    def retire(self, batch: Batch, stream: int, names: Sequence[str]) -> None:
        """Outputs that a plan has called of no more use."""
        return

    def definition_changes(self, reader: Connection) -> Iterator[Callable[[Batch], None]]:
        """What to do in a commit so that streams are due whose definitions have changed; on the event loop."""
        return iter(())

    def notify(self, streams: set[int]) -> None:
        """Outputs of these streams were committed; on the event loop."""
        return

    def is_rewriting(self, connection: Connection, stream: int) -> bool:
        """Whether it is about to replace events of a stream, from which nothing else is derived meanwhile."""
        return False

    def has_rewritten(self, connection: Connection, stream: int, since_us: int) -> bool:
        """Whether it has replaced events of a stream since a moment."""
        return False


class JobTable:
    """All jobs of a server, in the order in which their units are given out."""

    def __init__(self, jobs: Iterable[Job[Any]]) -> None:
        self._jobs = tuple(jobs)
        self._by_name: dict[str, Job[Any]] = {name: job for job in self._jobs for name in job.names}

    def __iter__(self) -> Iterator[Job[Any]]:
        return iter(self._jobs)

    def __getitem__(self, name: str) -> Job[Any]:
        return self._by_name[name]

    def outputs(self, result: Result) -> list[tuple[Job[Any], Any]]:
        """What a result holds, each with the job that makes such outputs."""
        outputs = ((job, getattr(result, job.output)) for job in self._jobs)
        return [(job, output) for job, output in outputs if output is not None]

    def is_rewriting(self, connection: Connection, stream: int) -> bool:
        """Whether any job is about to replace events of a stream."""
        return any(job.is_rewriting(connection, stream) for job in self._jobs)

    def has_rewritten(self, connection: Connection, stream: int, since_us: int) -> bool:
        """Whether any job has replaced events of a stream since a moment."""
        return any(job.has_rewritten(connection, stream, since_us) for job in self._jobs)
