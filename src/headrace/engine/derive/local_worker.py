"""The local worker: the server makes states itself where they are needed and no other worker is active.

States are needed before tails are too long, and before retention removes events. The local worker leases a unit at a
time like any worker, and folds in one thread that rests as long as it works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from headrace.config import FeaturesConfig
from headrace.engine.derive.lease_scheduler import Grant, LeaseScheduler
from headrace.engine.derive.leases import LeaseLost
from headrace.engine.derive.state_builder import StateBuilder
from headrace.engine.derive.state_reader import StateReader
from headrace.engine.derive.tails import list_tails
from headrace.engine.derive.work_overview import LOCAL_WORKER
from headrace.engine.history.stored_events import Events, EventsMoved
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Head, Stream
from headrace.engine.runtime.background import BackgroundLoop, BackgroundThread, RepeatedWarning
from headrace.engine.runtime.gates import Gate
from headrace.format.decoded_columns import LruCache
from headrace.format.object_names import state_key
from headrace.format.ranges import Range
from headrace.format.state_file import Packed, PackedColumns
from headrace.reduce import build_states
from headrace.reduce.states.coverage import history
from headrace.reduce.states.definition import Definition
from headrace.reduce.work_units import STATE_JOBS, Result, Unit
from headrace.storage.database import Connection
from headrace.storage.objects import ObjectMissing, Objects
from headrace.storage.published import Published
from headrace.storage.streams import LIVE
from headrace.storage.work import Work
from headrace.types import Clock

if TYPE_CHECKING:
    from headrace.storage.segments import Segments


#: Work is left to workers for as long, since one was last seen to have any; longer where a pipeline is attached.
WORKERS_FIRST_S = 2.0
_PAUSE_S = 1.0
_REASON_LENGTH = 2_000


class StateDemand:
    """Decides whether streams need states; on the event loop."""

    def __init__(self, serving: StateReader[Any], published: Published, clock: Clock, config: FeaturesConfig) -> None:
        self._serving = serving
        self._published = published
        self._clock = clock
        self._fold_rows, self._tail_bytes = config.fold_rows, config.tail_bytes

    @property
    def streams(self) -> Collection[str]:
        """Every stream that something is folded over."""
        return self._serving.current().streams

    def retain_from(self, stream: Stream) -> int | None:
        """The first event that is not in states of every version; retention must keep it and all later events."""
        positions = [
            self._folded_to(defined, stream) for defined in self._serving.over(stream) if defined.delays_retention
        ]
        return min(positions, default=None)

    def wants_states(self, stream: Stream) -> bool:
        """Whether states are needed: tails are too long, or versions of features are backfilled, or retention waits."""
        head, count = stream.head, len(list_tails(self._serving.followers))
        for defined in self._serving.over(stream):
            base = self._serving.current_base(defined, stream)
            tail = self._serving.tail_of(defined.name)
            if base.backfilling or head.published_seq - base.start > self._fold_rows:
                return True
            is_long = tail is not None and tail.fold.packed_bytes * count > self._tail_bytes
            if is_long and head.published_seq > base.start:
                return True
        return self.retention_waits(stream)

    def waits_for_history(self, stream: Stream) -> bool:
        """Whether answers lack events until states of them are made."""
        return any(self._serving.current_base(defined, stream).backfilling for defined in self._serving.over(stream))

    def retention_waits(self, stream: Stream) -> bool:
        """Whether retention is overdue because events are not folded yet."""
        retain_from = self.retain_from(stream)
        if stream.retention_age_us is None or retain_from is None or retain_from >= stream.head.published_seq:
            return False
        placed = self._published.holding(stream.id, retain_from)
        return placed is not None and placed.segment.min_us < self._clock.now_us() - stream.retention_age_us

    def _folded_to(self, defined: Definition, stream: Stream) -> int:
        listed = self._serving.listed(defined, stream)
        versions = defined.lives.values()
        return min(history(version, listed, stream.head.first_seq)[1] for version in versions)


class Stopped(Exception):
    """The server is shutting down."""


class LocalWorker:
    """Runs on the event loop; folds in a thread, and commits like a worker."""

    def __init__(
        self,
        *,
        work: LeaseScheduler,
        demands: Sequence[StateDemand],
        builder: StateBuilder,
        log: Log,
        reader: Connection,
        connect: Callable[[], Connection],
        segments: Callable[[], Segments],
        objects: Objects,
        clock: Clock,
        gate: Gate,
    ) -> None:
        self._work, self._demands, self._log = work, demands, log
        self._rows = Work(reader)
        self._loop = BackgroundLoop(
            "headrace.states",
            self._run_round,
            failed="no state was made",
            retry_s=_PAUSE_S,
            warning=RepeatedWarning("headrace.states", "no state was made"),
        )
        self._clock = clock
        self._gate = gate
        self._thread = FoldThread(connect, segments, objects, builder)
        self._quiet_since = monotonic()

    def start(self) -> None:
        """Start to make states that no other worker makes."""
        self._loop.start()

    async def stop(self) -> None:
        """Release the lease of an unfinished unit and stop the thread."""
        self._thread.stopping.set()
        await self._loop.stop()
        await self._thread.stop()

    async def _run_round(self) -> float:
        """Perform one unit, if there is any; returns how long to pause."""
        try:
            return 0.0 if await self._perform_next() else _PAUSE_S
        except LeaseLost:
            return _PAUSE_S

    async def _perform_next(self) -> bool:
        """Perform one unit if states are needed and no worker makes them; returns whether there was one."""
        now = monotonic()
        delay_s = await self._delay_s()
        if delay_s is None or any(
            lease.worker != LOCAL_WORKER for lease in self._rows.active_leases(self._clock.now_us())
        ):
            self._quiet_since = now
        if delay_s is None or now - self._quiet_since < delay_s:
            return False
        granted = await self._work.lease(LOCAL_WORKER, 1, STATE_JOBS)
        if granted is None:
            self._quiet_since = now
            return False
        await self._perform(granted)
        return True

    async def _delay_s(self) -> float | None:
        """For how long workers may leave alone what is needed; None where no states are."""
        is_needed = is_awaited = False
        for demand, name in [(each, name) for each in self._demands for name in each.streams]:
            stream = self._log.catalog.find(name)
            if stream is not None and stream.head.state == LIVE and demand.wants_states(stream):
                is_needed, is_awaited = True, is_awaited or demand.waits_for_history(stream)
                if demand.retention_waits(stream):
                    await self._work.notice(stream)
            await asyncio.sleep(0)  # there may be many
        return self._work.workers_first_s(WORKERS_FIRST_S, is_awaited=is_awaited) if is_needed else None

    async def _perform(self, granted: Grant) -> None:
        lease, unit = granted.lease, granted.units[0]
        stream = self._log.catalog.find(unit.stream)
        if stream is None or stream.incarnation != unit.incarnation:
            await self._work.release(lease.id, lease.token)
            return
        task = asyncio.create_task(self._perform_in_gate(unit, stream))
        while not (await asyncio.wait({task}, timeout=self._work.ttl_us / 3e6))[0]:
            await self._work.heartbeat(lease.id, lease.token, 0, 1)
        try:
            unit_result = task.result()
        except Stopped:
            await self._work.release(lease.id, lease.token)
            return
        await self._work.commit(lease.id, lease.token, [unit_result])

    async def _perform_in_gate(self, unit: Unit, stream: Stream) -> Result:
        async with self._gate:
            return await self._thread.perform(unit, stream, stream.head)


class FoldThread(BackgroundThread):
    """Performs units in one thread."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        segments: Callable[[], Segments],
        objects: Objects,
        builder: StateBuilder,
    ) -> None:
        super().__init__("fold", connect)
        self._segments, self._objects, self._builder = segments, objects, builder
        self._since = monotonic()

    async def perform(self, unit: Unit, stream: Stream, head: Head) -> Result:
        """Perform a unit and return its result."""
        return await self.run(self._perform_unit, unit, stream, head)

    def _perform_unit(self, unit: Unit, stream: Stream, head: Head) -> Result:
        self._since = monotonic()
        try:
            with self._builder.files.scratch() as directory, ExitStack() as stack:
                rows = self._merge_states(unit, stack) if unit.states else self._fold_events(unit, stream, head)
                path, state = build_states.write_state(unit, rows, directory)
                self._objects.upload(state_key(unit.stream, unit.incarnation, state.name), path)
                return Result(unit.unit, state=state)
        except (ObjectMissing, LookupError):
            return Result(unit.unit, gone=True)
        except Stopped:
            raise
        except Exception as reason:  # it is the unit's own, which is tried again later or parked
            return Result(unit.unit, error=f"{type(reason).__name__}: {reason}"[:_REASON_LENGTH])

    def _fold_events(self, unit: Unit, stream: Stream, head: Head) -> Iterator[Packed] | PackedColumns:
        return build_states.fold_events(
            unit, self._batches(stream, head, Range(unit.first_seq, unit.end_seq)), self._rest
        )

    def _merge_states(self, unit: Unit, stack: ExitStack) -> Iterator[Any]:
        files, version_ids = self._builder.files, set((unit.lives or {}).values())
        readers = [stack.enter_context(files.fetched(unit.stream, unit.incarnation, state)) for state in unit.states]
        return build_states.merge_states(
            unit, self._paced(build_states.merge_inputs([reader.rows(version_ids) for reader in readers]))
        )

    def _batches(self, stream: Stream, head: Head, where: Range) -> Iterator[Any]:

        events, at = Events(self.connection, self._segments, LruCache(0), stream, head), where.first
        while at < where.end:
            try:
                chunk = events.first_chunk(at, where.end)
                yield from events.batches(chunk)
            except EventsMoved as reason:
                raise LookupError from reason
            at = chunk.stop

    def _paced(self, rows: Iterator[build_states.InputRow]) -> Iterator[build_states.InputRow]:
        for number, row in enumerate(rows):
            if number % 1024 == 0:
                self._rest()
            yield row

    def _rest(self) -> None:
        """Rest for as long as was worked since the last time."""
        if self.stopping.is_set():
            raise Stopped
        sleep(monotonic() - self._since)
        self._since = monotonic()
