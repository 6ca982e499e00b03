"""The lease scheduler: leases units of work to workers, extends their leases, and commits what they have made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from headrace.config import PipelineConfig
from headrace.engine.derive import commit as committing
from headrace.engine.derive import leases
from headrace.engine.derive.commit import Committed, Leased
from headrace.engine.derive.job import Job, JobTable, Planner, WorkPlan
from headrace.engine.derive.leases import LeaseLost, StallLimit
from headrace.engine.derive.work_overview import NAMED, NO_FACTS, Overview, WorkerFacts, WorkerList, overview
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import SERVER
from headrace.engine.log.stream import Stream
from headrace.engine.runtime.background import BackgroundLoop, BackgroundThread
from headrace.errors import HeadraceError, NotFound
from headrace.reduce.work_units import JOBS, JobName, Result, Settled, Unit
from headrace.storage.database import Connection
from headrace.storage.objects import ObjectMissing, Objects
from headrace.storage.streams import LIVE, Streams
from headrace.storage.work import DoneRow, LeaseRow, UnitRow, Work
from headrace.types import Clock

Apply = Callable[[Callable[[Batch], Any]], Coroutine[Any, Any, Any]]

#: Units in one lease.
MAX_UNITS = 256
#: With a pipeline attached the server does work itself that no worker has taken for as long: Spark starts meanwhile.
#: Answers lack something until awaited work is done.
PIPELINE_FIRST_S, PIPELINE_FIRST_AWAITED_S = 60.0, 20.0
_PAUSED, _MIN_ROWS = "work_paused", "work_min_rows"
_THREADS = 4
#: Looking for work ends after this; what was found out so far is kept.
_PLAN_S = 1.0
_EXPIRE_AGAIN_S = 1.0
_LEAST_DELAY_S = 0.01


class Grant(NamedTuple):
    """A lease and its units."""

    lease: LeaseRow
    units: list[Unit]


class LeaseScheduler:
    """Runs on the event loop; plans in a thread, and writes in commits of the log."""

    def __init__(
        self,
        *,
        apply: Apply,
        reader: Connection,
        connect: Callable[[], Connection],
        objects: Objects,
        clock: Clock,
        config: PipelineConfig,
        jobs: JobTable,
    ) -> None:
        self._apply = apply
        self._reader = reader
        self._rows, self._streams = Work(reader), Streams(reader)
        self._objects = objects
        self._clock = clock
        self.config = config
        self.jobs = jobs
        self._threads = BackgroundThread("work", connect, threads=_THREADS)
        self._planning = asyncio.Lock()
        self.workers = WorkerList(self.ttl_us)
        self._stall = StallLimit(round(config.stall_s * 1e6), self.ttl_us)
        self._expiry = BackgroundLoop(
            "headrace.work",
            self._expire_due,
            failed="leases that have expired were not ended, which is tried again",
            retry_s=_EXPIRE_AGAIN_S,
        )

    def prepare(self, commit: Callable[[Callable[[Batch], None]], None]) -> None:
        """Mark every stream as due where the setting ``min_rows`` has changed."""
        least = self.config.min_rows

        def perform(batch: Batch) -> None:
            if batch.streams.meta(_MIN_ROWS, -1) != least:
                batch.streams.set_meta(_MIN_ROWS, least)
                Work(batch.connection).mark_all(batch.now_us)

        if self._streams.meta(_MIN_ROWS, -1) != least:
            commit(perform)

    def restore_workers(self) -> None:
        """Restore the workers of the leases that an earlier run has given."""
        self.workers.start(self._rows.worker_totals(self.ttl_us), self._clock.now_us())
        for row in self._rows.done_units():
            self.workers.count_done(row)

    def start(self) -> None:
        """End leases that expire from now on."""
        self._expiry.start()

    async def stop(self) -> None:
        """Stop the threads, and close their connections."""
        await self._expiry.stop()
        async with self._planning:
            await self._threads.stop()

    @property
    def paused(self) -> bool:
        """Whether no work is given out."""
        return bool(self._streams.meta(_PAUSED))

    async def pause(self, paused: bool, who: str = SERVER) -> None:
        """Pause or resume the leasing of units; leases that are held continue."""

        def perform(batch: Batch) -> None:
            batch.streams.set_meta(_PAUSED, int(paused))
            batch.note("work_paused" if paused else "work_resumed", who)

        await self._apply(perform)

    async def run(self, stream: Stream, who: str = SERVER) -> None:
        """Mark a stream as due, even with little to do, and retry its parked ranges."""

        def perform(batch: Batch) -> None:
            if batch.draft(stream).state != LIVE:
                raise NotFound("the stream was deleted", stream=stream.name)
            work = Work(batch.connection)
            work.forget_failures(stream.id)
            work.mark(stream.id, batch.now_us, run=True)
            batch.note("work_asked_for", who, stream=stream.name)

        await self._apply(perform)

    async def notice(self, stream: Stream) -> None:
        """Mark a stream as due, if it is not."""
        if not self._rows.is_due(stream.id):
            await self._apply(lambda batch: Work(batch.connection).mark(stream.id, batch.now_us))

    async def _expire_due(self) -> float | None:
        """End the leases that have expired; returns after how long the next one expires, if any is held."""
        await self._expire(self._clock.now_us())
        expires_us = self._rows.next_expiry()
        if expires_us is None:
            return None
        # No longer than a lease lasts, since the clock may be set.
        return max(_LEAST_DELAY_S, min((expires_us - self._clock.now_us()) / 1e6, self.config.lease_s))

    async def _expire(self, now_us: int) -> None:
        """End the leases that have expired at a moment."""
        if not self._rows.expired_leases(now_us):
            return
        lost: list[tuple[str, int]] = await self._apply(lambda batch: leases.end_expired(batch, self._stall, self.jobs))
        for worker, units in lost:
            self.workers.count(worker, ["lost"] * units)

    async def lease(
        self,
        worker: str,
        limit: int = MAX_UNITS,
        names: Collection[JobName] = JOBS,
        facts: WorkerFacts = NO_FACTS,
    ) -> Grant | None:
        """Lease units to a worker; None where there are none."""
        self.workers.note_contact(worker, self._clock.now_us(), facts)
        ends = monotonic() + _PLAN_S
        async with self.pause_grants():
            await self._mark_changed()
            while not self.paused:
                plan = await self._plan(limit, limit, names, lambda: monotonic() < ends)
                granted = await self._grant(plan, worker)
                if granted is not None or plan.is_complete or monotonic() >= ends:
                    return granted
        return None

    async def _mark_changed(self) -> None:
        """Mark streams as due whose definitions have changed since the last call."""
        for job in self.jobs:
            for mark in job.definition_changes(self._reader):
                await self._apply(mark)

    @asynccontextmanager
    async def pause_grants(self) -> AsyncIterator[None]:
        """Lease no units meanwhile; leases that have expired are ended first."""
        async with self._planning:
            await self._expire(self._clock.now_us())
            yield

    async def _plan(
        self, limit: int, each: int, names: Collection[JobName], may_continue: Callable[[], bool]
    ) -> WorkPlan:
        limit, now_us = min(limit, MAX_UNITS), self._clock.now_us()

        def plan() -> WorkPlan:
            planner = self._planner()
            with planner.snapshot():
                return planner.plan(limit, each, names, now_us, may_continue)

        return await self._threads.run(plan)

    async def _grant(self, plan: WorkPlan, worker: str) -> Grant | None:
        if plan.is_empty:
            return None
        granted = await self._apply(
            partial(leases.grant, plan=plan, worker=worker, ttl_us=self.ttl_us, stall=self._stall)
        )
        if granted is None:
            return None
        self._expiry.wake()
        return Grant(*granted)

    async def heartbeat(self, id: str, token: int, done: int, total: int) -> tuple[int, list[str]]:
        """Extend the lease of a worker; returns when it expires, and which of its units would be dropped."""
        lease_state: tuple[int, list[str]] = await self._apply(
            lambda batch: leases.heartbeat(batch, id, token, (done, total), self._stall)
        )
        self._note_contact(id)
        return lease_state

    async def commit(self, id: str, token: int, results: Sequence[Result]) -> Committed:
        """Commit results in one commit; idempotent, so a repeated request gets the same answer."""
        leased, checked = await self._check_results(id, token, results)
        applied: tuple[Committed, list[Settled]] = await self._apply(
            lambda batch: committing.commit(batch, leased, checked, self.jobs, self._stall)
        )
        committed, newly_settled = applied
        units = {row.id: row for row in self._rows.units(id)}
        done = [units[settled.unit] for settled in newly_settled if settled.outcome == "committed"]
        self._note_contact(id, [settled.outcome for settled in newly_settled], done)
        listed = {settled.unit for settled in committed.settled if settled.outcome == "committed"}
        changed: dict[Job[Any], set[int]] = {}
        for unit_result in checked:
            for job, _ in self.jobs.outputs(unit_result) if unit_result.unit in listed else ():
                changed.setdefault(job, set()).add(units[unit_result.unit].stream)
        for job, streams in changed.items():
            job.notify(streams)
        return committed

    async def release(self, id: str, token: int) -> None:
        """Release a lease with its unfinished units, without counting failures."""
        units: int = await self._apply(lambda batch: leases.release(batch, id, token, self.jobs))
        self._note_contact(id, ["released"] * units)

    def _note_contact(self, id: str, outcomes: Collection[str] = (), done: Iterable[UnitRow] = ()) -> None:
        """Record a contact with the worker of a lease, how units of it have ended, and which it has done."""
        lease = self._rows.lease(id)
        if lease is not None:
            self.workers.note_contact(lease.worker, self._clock.now_us())
            self.workers.count(lease.worker, outcomes)
            for unit in done:
                self.workers.count_done(DoneRow(lease.worker, unit.stream, unit.job, 1))

    def attach(self, pipeline: str, *, attached: bool) -> None:
        """Note that a pipeline looks for work, or does so no more; without a word it counts for as long as a lease."""
        self.workers.attach(pipeline, self._clock.now_us(), attached=attached)

    def workers_first_s(self, usual_s: float, *, is_awaited: bool) -> float:
        """For how long the server leaves work to workers; longer where a pipeline may have to start Spark."""
        if not self.workers.count_pipelines(self._clock.now_us()):
            return usual_s
        return max(usual_s, PIPELINE_FIRST_AWAITED_S if is_awaited else PIPELINE_FIRST_S)

    async def overview(self) -> Overview:
        """A consistent overview of due work, leases and failures."""
        async with self._planning:
            ends, now_us = monotonic() + _PLAN_S, self._clock.now_us()
            has_ended = await self._refresh(now_us)

            def read_overview() -> tuple[WorkPlan, Overview]:
                planner = self._planner()
                with planner.snapshot():
                    plan = planner.plan(NAMED, 1, JOBS, now_us, lambda: monotonic() < ends)
                    return plan, overview(self._threads.connection, planner, plan, self.workers, now_us)

            plan, overview_now = await self._threads.run(read_overview)
            await self._tidy(plan)
            return overview_now._replace(complete=overview_now.complete and has_ended)

    async def has_work(self) -> bool:
        """Whether there is work now; also False where the streams that could be checked within a second need none."""
        ends = monotonic() + _PLAN_S
        async with self._planning:
            await self._refresh(self._clock.now_us())
            plan = await self._plan(1, 1, JOBS, lambda: monotonic() < ends)
            await self._tidy(plan)
        return bool(plan.units)

    async def _refresh(self, now_us: int) -> bool:
        """End expired leases and mark changed streams as due; returns False where the log takes no commits."""
        try:
            await self._expire(now_us)
            await self._mark_changed()
        except HeadraceError:
            return False
        return True

    async def _tidy(self, plan: WorkPlan) -> None:
        """Unmark streams that turned out to need nothing."""
        if plan.idle or plan.retired:
            with suppress(HeadraceError):
                await self._apply(lambda batch: leases.tidy(batch, plan))

    def counts(self) -> dict[str, int]:
        """How many streams may be due, leases held, units being done, and ranges resting after a failure or parked."""
        return self._rows.counts(self._clock.now_us())

    @property
    def ttl_us(self) -> int:
        """For how long a lease lasts without a heartbeat."""
        return round(self.config.lease_s * 1e6)

    async def _check_results(self, id: str, token: int, results: Sequence[Result]) -> tuple[Leased, list[Result]]:
        """Return the lease and the results; a result whose objects are not in the store becomes an error."""
        lease = self._rows.lease(id)
        if lease is None or lease.token != token:
            raise LeaseLost("there is no such lease any more", lease=id)
        rows = {row.id: row for row in self._rows.units(id)}
        units = {row.id: leases.unit_of(row) for row in rows.values()}
        committing.check(self.jobs, results, units)

        async def checked(result: Result) -> Result:
            unit = units[result.unit]
            written = {
                key: size
                for job, output in self.jobs.outputs(result)
                for key, size in job.written(unit, output).items()
            }
            if not written or rows[result.unit].outcome is not None:
                return result
            error = await self._threads.run(lambda: self._missing(written))
            return result if error is None else Result(result.unit, error=error)

        return Leased(id, token, units), await asyncio.gather(*map(checked, results))

    def _missing(self, written: dict[str, int]) -> str | None:
        """Return why objects that a worker has reported are invalid; None where they are valid."""
        for key, expected in written.items():
            try:
                size = self._objects.head(key).bytes
            except ObjectMissing:
                return f"the object {key} is not in the store of the server"
            if size != expected:
                return f"the object {key} has {size} bytes, not {expected}"
        return None

    def _planner(self) -> Planner:
        return Planner(self._threads.connection, self.jobs)
