"""The overview of work for operators: due work, workers, leases and failures.

Lists in an overview have only their first members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from headrace.engine.derive.job import Planner, WorkPlan
from headrace.storage.database import Connection
from headrace.storage.streams import Streams
from headrace.storage.work import DoneRow, FailureRow, LeaseRow, UnitRow, Work, WorkerRow

#: Streams, leases, units of a lease and parked ranges that are named.
NAMED = 100
#: The name under which the server itself leases work.
LOCAL_WORKER = "server"
#: How many workers are remembered, and for how long after they were last heard of.
MAX_WORKERS = 1_000
#: Streams of which is remembered who did what.
MAX_STREAMS = 1_000
_REMEMBERED_US = 86_400_000_000


class StreamProgress(NamedTuple):
    """How many published entries of a stream are described by companions that are up to date."""

    stream: str
    done: int
    total: int


class Overview(NamedTuple):
    """The overview of work at one moment."""

    #: How many are in each of the lists, also where those name only the first of them.
    counts: dict[str, int]
    #: Whether all streams that may be due were planned; otherwise ``counts`` counts the others as due. Those of which
    #: something is being erased are planned later.
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
    leases = [(lease, work.units(lease.id, NAMED)) for lease in work.active_leases(now_us, NAMED)]
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
        counts=work.counts(now_us)
        | {"due": len(due) + unseen, "workers": sum(worker.alive for worker in workers)}
        | {"pipelines": worker_list.count_pipelines(now_us)},
        complete=plan.is_complete and not unseen,
        due=list(due.values()),
        streams=[StreamProgress(names[stream], *planner.progress(stream)) for stream in active[:NAMED]],
        leases=leases,
        resting=resting,
        parked=parked,
        workers=workers[:NAMED],
        names=names,
    )


class WorkerFacts(NamedTuple):
    """What a worker tells people about where it runs."""

    host: str | None = None
    #: The Spark master or Spark Connect server that it uses.
    master: str | None = None
    #: Where the UI and the event log of its Spark are.
    ui: str | None = None
    event_log: str | None = None


NO_FACTS = WorkerFacts()


class WorkerStatus(NamedTuple):
    """One worker at one moment."""

    worker: str
    #: Whether it is the server itself.
    local: bool
    alive: bool
    facts: WorkerFacts
    since_us: int
    seen_us: int
    done: int
    failed: int
    lost: int
    released: int
    #: How many units of each job it has done.
    jobs: dict[str, int]


class _Activity(msgspec.Struct):
    since_us: int
    seen_us: int
    facts: WorkerFacts = NO_FACTS
    done: int = 0
    failed: int = 0
    lost: int = 0
    released: int = 0
    jobs: dict[str, int] = {}


class WorkerList:
    """The workers of a server, in memory: first and last contact, and what they did. For the event loop.

    After a restart it begins with the leases that are stored.
    """

    def __init__(self, ttl_us: int) -> None:
        self._ttl_us = ttl_us
        self._workers: dict[str, _Activity] = {}
        #: When each pipeline was last heard of, whether it has a worker now or not.
        self._pipelines: dict[str, int] = {}
        #: How many units were done of each job, by the server itself or by a pipeline, and of each stream.
        self.done_by_job = Counter[tuple[str, str]]()
        self._done_by_stream: dict[int, Counter[tuple[str, str]]] = {}

    def start(self, rows: Iterable[WorkerRow], now_us: int) -> None:
        """Restore the stored workers, and add the server itself."""
        for row in rows:
            self._workers[row.worker] = _Activity(
                row.since_us, row.seen_us, done=row.done, failed=row.failed, lost=row.lost, released=row.released
            )
        server = self._workers.setdefault(LOCAL_WORKER, _Activity(now_us, now_us))
        server.since_us = server.seen_us = now_us

    def note_contact(self, worker: str, now_us: int, facts: WorkerFacts = NO_FACTS) -> None:
        """Note that a request of a worker came; facts that it does not tell any more stay as they were."""
        activity = self._workers.get(worker)
        if activity is None:
            self._make_room(now_us)
            activity = self._workers[worker] = _Activity(now_us, now_us)
        activity.seen_us = max(activity.seen_us, now_us)
        activity.facts = WorkerFacts(*(new or old for new, old in zip(facts, activity.facts, strict=True)))

    def count(self, worker: str, outcomes: Collection[str]) -> None:
        """Note how units of a worker have ended."""
        activity = self._workers.get(worker)
        if activity is None:
            return  # so many others came since that it was forgotten
        for outcome in outcomes:
            activity.done += outcome == "committed"
            activity.failed += outcome in ("failed", "parked")
            activity.lost += outcome == "lost"
            activity.released += outcome == "released"

    def count_done(self, row: DoneRow) -> None:
        """Count units that a worker has done."""
        activity = self._workers.get(row.worker)
        if activity is not None:
            activity.jobs[row.job] = activity.jobs.get(row.job, 0) + row.units
        self.done_by_job[LOCAL_WORKER if row.worker == LOCAL_WORKER else "pipeline", row.job] += row.units
        by_worker = self._done_by_stream.pop(row.stream, Counter())
        by_worker[row.worker, row.job] += row.units
        self._done_by_stream[row.stream] = by_worker  # behind all others
        if len(self._done_by_stream) > MAX_STREAMS:
            del self._done_by_stream[next(iter(self._done_by_stream))]

    def done_of(self, stream: int) -> list[DoneRow]:
        """Who has done what of a stream."""
        by_worker = self._done_by_stream.get(stream, Counter[tuple[str, str]]())
        return [DoneRow(worker, stream, job, units) for (worker, job), units in sorted(by_worker.items())]

    def attach(self, pipeline: str, now_us: int, *, attached: bool) -> None:
        """Note that a pipeline looks for work, or that it does so no more."""
        alive = {name: seen_us for name, seen_us in self._pipelines.items() if now_us < seen_us + self._ttl_us}
        alive.pop(pipeline, None)
        if attached and len(alive) < MAX_WORKERS:
            alive[pipeline] = now_us
        self._pipelines = alive

    def count_pipelines(self, now_us: int) -> int:
        """How many pipelines look for work, with or without a worker."""
        return sum(now_us < seen_us + self._ttl_us for seen_us in self._pipelines.values())

    def statuses(self, now_us: int) -> list[WorkerStatus]:
        """All workers: live ones first, then the others by their last contact."""
        # Copied at once: this is called in a thread.
        statuses = [self._status(worker, activity, now_us) for worker, activity in list(self._workers.items())]
        return sorted(statuses, key=lambda status: (not status.local, not status.alive, -status.seen_us, status.worker))

    def _status(self, worker: str, activity: _Activity, now_us: int) -> WorkerStatus:
        is_local = worker == LOCAL_WORKER
        return WorkerStatus(
            worker=worker,
            local=is_local,
            alive=is_local or now_us < activity.seen_us + self._ttl_us,
            facts=activity.facts,
            since_us=activity.since_us,
            seen_us=now_us if is_local else activity.seen_us,
            done=activity.done,
            failed=activity.failed,
            lost=activity.lost,
            released=activity.released,
            jobs=dict(sorted(activity.jobs.items())),
        )

    def _make_room(self, now_us: int) -> None:
        """Remove workers without contact for long, then those with the oldest contact beyond the limit."""
        by_silence = sorted(self._workers, key=lambda worker: self._workers[worker].seen_us)
        for worker in by_silence:
            is_old = self._workers[worker].seen_us < now_us - _REMEMBERED_US
            if worker != LOCAL_WORKER and (is_old or len(self._workers) >= MAX_WORKERS):
                del self._workers[worker]
