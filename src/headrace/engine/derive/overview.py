"""What is to be done, who does it, and what is not tried any more: for people, and so only the beginning of lists."""

from __future__ import annotations

from typing import NamedTuple

from headrace.engine.derive.planner import Planner, WorkPlan
from headrace.engine.derive.workers import WorkerList, WorkerStatus
from headrace.storage.database import Connection
from headrace.storage.streams import Streams
from headrace.storage.work import FailureRow, LeaseRow, UnitRow, Work

#: Streams, leases, units of a lease and parked ranges that are named.
NAMED = 100


class StreamProgress(NamedTuple):
    """How many published entries of a stream are described by companions that are up to date."""

    stream: str
    done: int
    total: int


class Overview(NamedTuple):
    """Everything about work at one moment."""

    #: How many are in each of the lists, also where those name only the first of them.
    counts: dict[str, int]
    #: Whether all streams were looked at that may be due; otherwise ``counts`` counts the others as due. Those of which
    #: something is being erased are looked at later.
    complete: bool
    #: Streams for which there is work to be had.
    due: list[str]
    #: These, and those that are being worked on.
    streams: list[StreamProgress]
    leases: list[tuple[LeaseRow, list[UnitRow]]]
    #: Ranges that have failed, and are tried again after a pause.
    resting: list[FailureRow]
    parked: list[FailureRow]
    workers: list[WorkerStatus]
    #: The names of the streams of units and parked ranges.
    names: dict[int, str]


def overview(
    connection: Connection, planner: Planner, plan: WorkPlan, worker_list: WorkerList, now_us: int
) -> Overview:
    """Everything about work now; the plan has a unit of every stream for which there are any."""
    work, streams = Work(connection), Streams(connection)
    leases = [(lease, work.units(lease.id, NAMED)) for lease in work.held(now_us, NAMED)]
    resting, parked = work.resting(now_us, NAMED), work.parked(NAMED)
    due = {planned.stream: planned.unit.stream for planned in plan.units}
    busy = [unit.stream for _, units in leases for unit in units if unit.outcome is None]
    failed = [failure.stream for failure in (*resting, *parked)]
    named = {*failed, *(unit.stream for _, units in leases for unit in units)}
    names = {stream: row.name for stream in named if (row := streams.by_id(stream)) is not None} | due
    unfinished = dict.fromkeys((*due, *busy, *(failure.stream for failure in resting)))
    active = [stream for stream in unfinished if stream in names]
    workers, unseen = worker_list.statuses(now_us), plan.unseen + len(plan.suspended)
    return Overview(
        counts=work.counts(now_us) | {"due": len(due) + unseen, "workers": sum(worker.alive for worker in workers)},
        complete=plan.is_complete and not unseen,
        due=list(due.values()),
        streams=[StreamProgress(names[stream], *planner.progress(stream)) for stream in active[:NAMED]],
        leases=leases,
        resting=resting,
        parked=parked,
        workers=workers[:NAMED],
        names=names,
    )
