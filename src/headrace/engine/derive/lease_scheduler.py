"""The foreman: gives work to whoever asks, hears of them, and takes what they have made."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import msgspec

from headrace.config import PipelineConfig
from headrace.engine.derive import commit as committing
from headrace.engine.derive import leases
from headrace.engine.derive.branch import Branch
from headrace.engine.derive.commit import Committed, Leased
from headrace.engine.derive.leases import LeaseLost
from headrace.engine.derive.overview import NAMED, Overview, overview
from headrace.engine.derive.planner import Plan, Planner
from headrace.engine.derive.stall_limit import StallLimit
from headrace.engine.derive.workers import Roster
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import SERVER
from headrace.engine.log.stream import Stream
from headrace.engine.search.definitions import Definitions
from headrace.errors import HeadraceError, NotFound
from headrace.format.object_names import companion_key, segment_key, state_key
from headrace.format.ranges import Range
from headrace.reduce.work_units import JOBS, Job, Result, Unit
from headrace.storage.database import Connection
from headrace.storage.objects import ObjectMissing, Objects
from headrace.storage.streams import LIVE, Streams
from headrace.storage.work import LeaseRow, Work
from headrace.types import Clock

Found = TypeVar("Found")
Apply = Callable[[Callable[[Batch], Any]], Coroutine[Any, Any, Any]]

log = logging.getLogger("headrace.work")

#: Units in one lease.
MOST_UNITS = 256
_PAUSED, _MIN_ROWS = "work_paused", "work_min_rows"
_THREADS = 4
#: Looking for work ends after this; what was found out so far is kept.
_LOOK_S = 1.0
_EXPIRE_AGAIN_S = 1.0
_LEAST_DELAY_S = 0.01


class Grant(NamedTuple):
    """A lease, and what it is for."""

    lease: LeaseRow
    units: list[Unit]


class Foreman:
    """Runs on the event loop; plans in a thread, and writes in the log's own commits."""

    def __init__(
        self,
        apply: Apply,
        reader: Connection,
        connect: Callable[[], Connection],
        objects: Objects,
        clock: Clock,
        config: PipelineConfig,
        definitions: Definitions,
        branches: Sequence[Branch],
    ) -> None:
        self._apply = apply
        self._reader = reader
        self._rows, self._streams = Work(reader), Streams(reader)
        self._connect = connect
        self._objects = objects
        self._clock = clock
        self.config = config
        self._definitions = definitions
        self._branches = branches
        #: Told of streams that have new states.
        self.on_states: list[Callable[[set[int]], None]] = []
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-work")
        self._connection: Connection | None = None
        self._planning = asyncio.Lock()
        #: By verification, the entries that the server looks at itself.
        self.claims: dict[str, Range] = {}
        #: Questions about the past that the server answers itself.
        self.answering: set[str] = set()
        self.roster = Roster(self.ttl_us)
        self._stall = StallLimit(round(config.stall_s * 1e6), self.ttl_us)
        self._granted = asyncio.Event()
        self._timer: asyncio.Task[None] | None = None

    def prepare(self, commit: Callable[[Callable[[Batch], None]], None]) -> None:
        """Let every stream be looked at again where another number of entries is worth the work now."""
        least = self.config.min_rows

        def perform(batch: Batch) -> None:
            if batch.streams.meta(_MIN_ROWS, -1) != least:
                batch.streams.set_meta(_MIN_ROWS, least)
                Work(batch.connection).mark_all(batch.now_us)

        if self._streams.meta(_MIN_ROWS, -1) != least:
            commit(perform)

    def restore_workers(self) -> None:
        """Know the workers of the leases that an earlier run has given."""
        self.roster.start(self._rows.done_by_worker(self.ttl_us), self._clock.now_us())

    def start(self) -> None:
        """End leases by time from now on."""
        self._timer = asyncio.create_task(self._expire_forever())

    async def stop(self) -> None:
        """Let go of threads and files."""
        if self._timer is not None:
            self._timer.cancel()
            with suppress(asyncio.CancelledError):
                await self._timer
        async with self._planning:
            await asyncio.to_thread(self._threads.shutdown)
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @property
    def paused(self) -> bool:
        """Whether no work is given out."""
        return bool(self._streams.meta(_PAUSED))

    async def pause(self, paused: bool, who: str = SERVER) -> None:
        """Give out no work from now on, or again; what was given out goes on."""

        def perform(batch: Batch) -> None:
            batch.streams.set_meta(_PAUSED, int(paused))
            batch.note("work_paused" if paused else "work_resumed", who)

        await self._apply(perform)

    async def run(self, stream: Stream, who: str = SERVER) -> None:
        """Let a stream be due, however little there is to do, and try again what was parked."""

        def perform(batch: Batch) -> None:
            if batch.draft(stream).state != LIVE:
                raise NotFound("the stream was deleted", stream=stream.name)
            work = Work(batch.connection)
            work.forgive(stream.id)
            work.mark(stream.id, batch.now_us, run=True)
            batch.note("work_asked_for", who, stream=stream.name)

        await self._apply(perform)

    async def notice(self, stream: Stream) -> None:
        """Let a stream be looked at, if it is not going to be."""
        if not self._rows.is_due(stream.id):
            await self._apply(lambda batch: Work(batch.connection).mark(stream.id, batch.now_us))

    def is_answering(self, stream: int, history: str) -> bool:
        """Whether a worker has a question about the past."""
        units = (unit for unit in self._rows.working_on(stream) if unit.job == "history")
        return any(unit.id.startswith(f"history-{history}-") for unit in units)

    async def _expire_forever(self) -> None:
        while True:
            self._granted.clear()
            expires_us = self._rows.next_expiry()
            delay_s = None
            if expires_us is not None:
                # No longer than a lease lasts, since the clock may be set.
                delay_s = max(_LEAST_DELAY_S, min((expires_us - self._clock.now_us()) / 1e6, self.config.lease_s))
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._granted.wait()
            try:
                await self._expire(self._clock.now_us())
            except Exception as reason:
                log.warning("leases that have expired were not ended, which is tried again: %s", reason)
                await asyncio.sleep(_EXPIRE_AGAIN_S)

    async def _expire(self, now_us: int) -> None:
        """End the leases that have expired at a moment."""
        if not self._rows.expired(now_us):
            return
        lost: list[tuple[str, int]] = await self._apply(lambda batch: leases.end_expired(batch, self._stall))
        for worker, units in lost:
            self.roster.count(worker, ["lost"] * units)

    async def lease(
        self,
        worker: str,
        limit: int = MOST_UNITS,
        jobs: Collection[Job] = JOBS,
        *,
        host: str | None = None,
        master: str | None = None,
    ) -> Grant | None:
        """Work for a worker, or None where there is none."""
        self.roster.hear(worker, self._clock.now_us(), host, master)
        ends = monotonic() + _LOOK_S
        async with self.still():
            await self._follow()
            while not self.paused:
                plan = await self._plan(limit, limit, jobs, lambda: monotonic() < ends)
                granted = await self._grant(plan, worker)
                if granted is not None or plan.is_complete or monotonic() >= ends:
                    return granted
        return None

    async def _follow(self) -> None:
        """Let streams be looked at again where what is folded over them has changed since the last time."""
        for branch in self._branches:
            await self._follow_branch(branch)

    async def _follow_branch(self, branch: Branch) -> None:
        current, meta = branch.current(self._reader), f"work_{branch.job}"
        if self._streams.meta(meta, 0) == current.version:
            return
        names = tuple(current.streams)  # read here: a commit may be made in another thread

        def perform(batch: Batch) -> None:
            for name in names:
                row = batch.streams.by_name(name)
                if row is not None and row.state == LIVE:
                    Work(batch.connection).mark(row.id, batch.now_us)
            batch.streams.set_meta(meta, current.version)

        await self._apply(perform)

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """Nobody else is given work meanwhile, and who was not heard of has none."""
        async with self._planning:
            await self._expire(self._clock.now_us())
            yield

    async def _plan(self, limit: int, each: int, jobs: Collection[Job], goes_on: Callable[[], bool]) -> Plan:
        limit, now_us = min(limit, MOST_UNITS), self._clock.now_us()

        def plan() -> Plan:
            planner = self._planner()
            with planner.snapshot():
                return planner.plan(limit, each, jobs, now_us, goes_on)

        return await self._aside(plan)

    async def _grant(self, plan: Plan, worker: str) -> Grant | None:
        if not (plan.units or plan.idle or plan.useless or plan.lifeless):
            return None
        granted = await self._apply(
            partial(leases.grant, plan=plan, worker=worker, ttl_us=self.ttl_us, stall=self._stall)
        )
        if granted is None:
            return None
        self._granted.set()
        return Grant(*granted)

    async def heartbeat(self, id: str, token: int, done: int, total: int) -> tuple[int, list[str]]:
        """Hear of a worker; answers until when the lease is his, and which of its units are in vain."""
        found: tuple[int, list[str]] = await self._apply(
            lambda batch: leases.heartbeat(batch, id, token, (done, total), self._stall)
        )
        self._hear(id)
        return found

    async def commit(self, id: str, token: int, results: Sequence[Result]) -> Committed:
        """Take results, all in one commit; repeated, they change nothing and get the same answer."""
        leased, checked = await self._checked(id, token, results)
        applied: tuple[Committed, list[str]] = await self._apply(
            lambda batch: committing.commit(batch, leased, checked, self._definitions, self._stall)
        )
        found, outcomes = applied
        self._hear(id, outcomes)
        rows = {row.id: row.stream for row in self._rows.units(id)}
        folded = {one.unit for one in checked if one.state is not None}
        if changed := {rows[one.unit] for one in found.settled if one.unit in folded and one.outcome == "committed"}:
            for tell in self.on_states:
                tell(changed)
        return found

    async def release(self, id: str, token: int) -> None:
        """Take back what was not done; that is no failure of the units."""
        units: int = await self._apply(lambda batch: leases.release(batch, id, token))
        self._hear(id, ["released"] * units)

    def _hear(self, id: str, outcomes: Collection[str] = ()) -> None:
        """Note that the worker of a lease was heard of, and how units of it have ended."""
        lease = self._rows.lease(id)
        if lease is not None:
            self.roster.hear(lease.worker, self._clock.now_us())
            self.roster.count(lease.worker, outcomes)

    async def overview(self) -> Overview:
        """How things stand, at one moment."""
        async with self._planning:
            ends, now_us = monotonic() + _LOOK_S, self._clock.now_us()
            has_ended = await self._prepare_look(now_us)

            def look() -> tuple[Plan, Overview]:
                planner = self._planner()
                with planner.snapshot():
                    plan = planner.plan(NAMED, 1, JOBS, now_us, lambda: monotonic() < ends)
                    return plan, overview(self._opened(), planner, plan, self.roster, now_us)

            plan, found = await self._aside(look)
            await self._tidy(plan)
            return found._replace(complete=found.complete and has_ended)

    async def has_work(self) -> bool:
        """Whether there is work to be had now; False too where a short look at the streams that are due found none."""
        ends = monotonic() + _LOOK_S
        async with self._planning:
            await self._prepare_look(self._clock.now_us())
            plan = await self._plan(1, 1, JOBS, lambda: monotonic() < ends)
            await self._tidy(plan)
        return bool(plan.units)

    async def _prepare_look(self, now_us: int) -> bool:
        """End leases and let streams be looked at again; False where the log takes nothing, which can be looked at."""
        try:
            await self._expire(now_us)
            await self._follow()
        except HeadraceError:
            return False
        return True

    async def _tidy(self, plan: Plan) -> None:
        """Streams that turned out to need nothing are due no more."""
        if plan.idle or plan.useless or plan.lifeless:
            with suppress(HeadraceError):
                await self._apply(lambda batch: leases.tidy(batch, plan))

    def counts(self) -> dict[str, int]:
        """How many streams may be due, leases held, units being done, and ranges resting after a failure or parked."""
        return self._rows.counts(self._clock.now_us())

    @property
    def ttl_us(self) -> int:
        """How long a worker may be silent."""
        return round(self.config.lease_s * 1e6)

    async def _checked(self, id: str, token: int, results: Sequence[Result]) -> tuple[Leased, list[Result]]:
        """The lease and the results, where one whose objects are not in our store is an error."""
        lease = self._rows.lease(id)
        if lease is None or lease.token != token:
            raise LeaseLost("there is no such lease any more", lease=id)
        rows = {row.id: row for row in self._rows.units(id)}
        units = {row.id: leases.unit_of(row) for row in rows.values()}
        committing.check(results, units)

        async def checked(result: Result) -> Result:
            made = result.companion, result.state, result.segment
            if not any(one is not None for one in made) or rows[result.unit].outcome is not None:
                return result
            return await self._aside(lambda: self._looked_at(result, units[result.unit]))

        return Leased(id, token, units), await asyncio.gather(*map(checked, results))

    def _looked_at(self, result: Result, unit: Unit) -> Result:
        for key, expected in _written(result, unit).items():
            try:
                size = self._objects.head(key).bytes
            except ObjectMissing:
                return _error(result, f"the object {key} is not in the store of the server")
            if size != expected:
                return _error(result, f"the object {key} has {size} bytes, not {expected}")
        return result

    def _opened(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _planner(self) -> Planner:
        return Planner(self._opened(), self.config, self._definitions, self.claims, self._branches, self.answering)

    async def _aside(self, work: Callable[[], Found]) -> Found:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _written(result: Result, unit: Unit) -> dict[str, int]:
    """The objects of a result, and how large they are."""
    if result.state is not None:
        return {state_key(unit.stream, unit.incarnation, result.state.name): result.state.bytes}
    if result.segment is not None:
        return {segment_key(unit.stream, unit.incarnation, result.segment.name): result.segment.bytes}
    assert result.companion is not None
    name, parts = result.companion.name, result.companion.parts
    return {companion_key(unit.stream, unit.incarnation, name, part): facts.bytes for part, facts in parts.items()}


def _error(result: Result, reason: str) -> Result:
    return msgspec.structs.replace(result, companion=None, state=None, segment=None, error=reason)
