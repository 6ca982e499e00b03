"""What is to be done, who does it, and what is not tried any more: for people, and so only the beginning of lists."""

from __future__ import annotations

from typing import NamedTuple

from headrace.engine.work.planner import Plan, Planner
from headrace.storage.database import Connection
from headrace.storage.streams import Streams
from headrace.storage.work import FailureRow, LeaseRow, UnitRow, Work

#: Streams, leases, units of a lease and parked ranges that are named.
NAMED = 100


class Progress(NamedTuple):
    """How many published entries of a stream are described by companions that are up to date."""

    stream: str
    done: int
    total: int


class Overview(NamedTuple):
    """Everything about work at one moment."""

    counts: dict[str, int]
    #: Streams for which there is work to be had.
    due: list[str]
    #: These, and those that are being worked on.
    streams: list[Progress]
    leases: list[tuple[LeaseRow, list[UnitRow]]]
    parked: list[FailureRow]
    #: The names of the streams of units and parked ranges.
    names: dict[int, str]


def overview(connection: Connection, planner: Planner, plan: Plan, now_us: int) -> Overview:
    """How things stand; the plan has a unit of every stream for which there are any."""
    work, streams = Work(connection), Streams(connection)
    leases = [(lease, work.units(lease.id, NAMED)) for lease in work.held(now_us, NAMED)]
    parked = work.parked(NAMED)
    due = {planned.stream: planned.unit.stream for planned in plan.units}
    busy = [unit.stream for _, units in leases for unit in units if unit.outcome is None]
    told = {*busy, *(failure.stream for failure in parked), *(unit.stream for _, units in leases for unit in units)}
    names = {stream: row.name for stream in told if (row := streams.by_id(stream)) is not None} | due
    active = [stream for stream in dict.fromkeys((*due, *busy)) if stream in names]
    return Overview(
        counts=work.counts(now_us),
        due=list(due.values()),
        streams=[Progress(names[stream], *planner.progress(stream)) for stream in active[:NAMED]],
        leases=leases,
        parked=parked,
        names=names,
    )
