"""Erasures: one commit makes an entity unreadable, and later steps remove its data everywhere.

Rows of the log are rewritten first, and segments as streams are published; companions and states are retired and
derived again. Objects that no manifest lists are removed from the object store and from local caches, and free pages of
the database are overwritten. All steps are idempotent, so an erasure continues after a restart. It has ended once
nothing holds the data. Until then segments are read through masks, so that nobody can read it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headrace import decoding
from headrace.engine.derive.state_reader import StateReader
from headrace.engine.entities.entity_type import ENTITIES
from headrace.engine.entities.erasure import commits
from headrace.engine.entities.erasure.erasure_plan import ErasurePlan, PlannedErasure, find_targets, plan_erasure
from headrace.engine.entities.erasure.segment_erasure import ErasePlanner
from headrace.engine.entities.read.snapshots import Snapshots
from headrace.engine.history.sealer import Sealer
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import run_change
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Stream
from headrace.engine.log.writer import Writer
from headrace.engine.runtime.background import BackgroundLoop, RepeatedWarning
from headrace.errors import HeadraceError, NotFound
from headrace.extract.erasure import ErasureMask, Masks, Targets, load
from headrace.storage import database
from headrace.storage.background_requests import OFFERED, RUNNING, ErasureRow, Erasures
from headrace.storage.database import Connection
from headrace.storage.derived import Companions, States
from headrace.storage.entities import Aliases
from headrace.storage.published import Published
from headrace.storage.streams import Streams
from headrace.storage.work import Work
from headrace.types import Clock, NonNegativeInt

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

log = logging.getLogger("headrace.erasing")

Returned = TypeVar("Returned")

#: How long replaced objects are left to their readers.
GRACE_S = 1.0
#: Segments of so many bytes together are left to workers, while any of these works on them.
OFFER_BYTES = 32 * 1024 * 1024
WORKERS_FIRST_S = 2.0
_PAUSE_S, _POLL_S = 1.0, 0.1
_MAX_ATTEMPTS = 5


class _Stopped(Exception):
    """The server is shutting down."""


class ErasureReport(msgspec.Struct):
    """The progress of an erasure."""

    log_rows: NonNegativeInt = 0
    #: The new names of rewritten segments.
    rewritten: dict[str, str] = {}
    #: Objects that were removed from the store.
    removed: list[str] = []


class EntityErasure:
    """Plans and performs erasures on the event loop; reads in threads, and writes in commits of the log."""

    def __init__(
        self,
        *,
        writer: Writer,
        log: Log,
        sealer: Sealer,
        snapshots: Snapshots,
        state_readers: Sequence[StateReader[Any]],
        reader: Connection,
        connect: Callable[[], Connection],
        segments: Callable[[], Segments],
        prune: Callable[[], int],
        apply: Callable[[Callable[[Batch], Any]], Awaitable[Any]],
        database: Path,
        clock: Clock,
        masks: Masks,
        forget_events: Callable[[], None],
    ) -> None:
        """``state_readers`` are other readers of states of entities; ``prune`` removes files of objects that are not
        listed any more, and answers how many are still in use; ``masks`` hide entries from readers of segments;
        ``forget_events`` drops answers and events that are cached in memory.
        """
        self._writer, self._log, self._sealer, self._snapshots = writer, log, sealer, snapshots
        self._state_readers, self._reader, self._connect, self._segments = state_readers, reader, connect, segments
        self._prune, self._apply, self._database, self._clock = prune, apply, database, clock
        self._masks, self._forget_events = masks, forget_events
        self._rows = Erasures(reader)
        self._warning = RepeatedWarning("headrace.erasing", "an erasure waits")
        self._loop = BackgroundLoop("headrace.erasing", self._run_round, failed="an erasure waits", retry_s=_PAUSE_S)
        #: Held while rows of the log are rewritten, so that each is counted once.
        self._rewrite_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    def prepare(self, before_start: Callable[[Callable[[Batch], Any]], Any], *, recovered: bool) -> None:
        """Hide running erasures before the server answers; ``recovered`` if objects were taken over from the store."""
        for row in self._rows.running():
            stream = self._stream(row)
            if stream is None:
                continue
            before_start(partial(_rewrite_all, stream=stream, row=row))
            # Earlier versions retired companions and states only after they had rewritten the log.
            if recovered or row.step == "log":
                before_start(partial(_retire, row=row))
            self._hide(stream)

    def start(self) -> None:
        """Continue running erasures."""
        self._loop.start()

    async def stop(self) -> None:
        """Stop, and leave the rest to the next start."""
        # Not cancelled: it waits for the operations that it has queued.
        await self._loop.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def plan(self, entity_id: str, user_id: str) -> ErasurePlan:
        """The plan of an erasure."""
        return (await self._plan(entity_id, user_id))[1].plan

    async def begin(self, entity_id: str, user_id: str) -> ErasureRow:
        """Erase an entity: it is unreadable when this returns, and its data is removed some time later."""
        # An erasure that has begun continues, even if the caller is cancelled.
        return await asyncio.shield(self._keep(self._begin(entity_id, user_id)))

    async def _begin(self, entity_id: str, user_id: str) -> ErasureRow:
        for attempt in range(_MAX_ATTEMPTS):
            stream, planned = await self._plan(entity_id, user_id)
            id = f"erasure_{secrets.token_hex(12)}"
            try:
                await run_change(self._writer, commits.BeginErasure, id, stream, user_id, planned)
                break
            except commits.EntityOutdated:
                if attempt == _MAX_ATTEMPTS - 1:
                    raise
        self._hide(stream)
        try:
            await self._rewrite_log(self.find(id, user_id), stream)
        finally:
            self._drop_caches(stream)
            self._loop.wake()
        return self.find(id, user_id)

    def _keep(self, work: Coroutine[Any, Any, Returned]) -> asyncio.Task[Returned]:
        """A task that is awaited when the server stops."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has got it

    def _hide(self, stream: Stream) -> None:
        """Mask what is being erased for the readers of a stream's segments."""
        running = [load(row.targets) for row in self._rows.running(stream.id)]
        if running:
            self._masks[stream.incarnation] = ErasureMask(running)
        else:
            self._masks.pop(stream.incarnation, None)

    def _drop_caches(self, stream: Stream) -> None:
        """Drop everything cached that was read before observations of a stream were hidden."""
        self._forget_events()
        self._snapshots.clear_folded()
        for reader in self._state_readers:
            self._keep(reader.forget(stream))

    def _stream(self, row: ErasureRow) -> Stream | None:
        """The stream of an erasure; None where it was deleted."""
        stored = Streams(self._reader).by_id(row.stream)
        stream = None if stored is None else self._log.catalog.find(stored.name)
        return stream if stream is not None and stream.id == row.stream else None

    def find(self, id: str, user_id: str) -> ErasureRow:
        """An erasure of a user; raises NotFound, for those of other users too."""
        row = self._rows.get(id)
        if row is None or row.user_id != user_id:
            raise NotFound("there is no such erasure", erasure=id)
        return row

    def page(self, user_id: str, after: str, limit: int) -> list[ErasureRow]:
        """The erasures of a user that were begun before one of them, the newest first."""
        if after:
            self.find(after, user_id)
        return self._rows.page(user_id, after, limit)

    async def _plan(self, entity_id: str, user_id: str) -> tuple[Stream, PlannedErasure]:
        row = self._snapshots.groups.row(entity_id, user_id)
        stream = self._snapshots.stream(row.stream)
        entity_type, head, now_us = stream.name.removeprefix(ENTITIES), stream.head, self._clock.now_us()

        def read() -> PlannedErasure:
            connection = self._connect()
            try:
                targets = find_targets(connection, entity_id, entity_type)
                return plan_erasure(connection, self._segments, stream, head, user_id, targets, now_us)
            finally:
                connection.close()

        return stream, await asyncio.to_thread(read)

    async def _run_round(self) -> float | None:
        """Perform the running erasures; returns how long to wait for a retry, None where none is needed."""
        pause = None
        for row in self._rows.running():
            try:
                await self._perform(row)
            except _Stopped:
                return None
            except HeadraceError as reason:
                self._warning.warn(reason)
                pause = _PAUSE_S
            except Exception:
                log.exception("an erasure waits; the next round tries again")
                pause = _PAUSE_S
        return pause

    async def _perform(self, row: ErasureRow) -> None:
        targets, stream = load(row.targets), self._stream(row)
        report = decoding.decode(row.report, ErasureReport)
        if stream is not None:
            report = await self._rewrite_log(row, stream)
            await self._wait_for_workers(row, report)
            await self._save_step(row, report, "objects")
            await self._rewrite_objects(row, stream, report)
            await self._save_step(row, report, "rows")
            await self._remove_splits(targets)
            await self._save_step(row, report, "files")
            await self._remove_files(row, stream, report)
        await self._save_step(row, report, "pages")
        await self._overwrite()
        await self._apply(lambda batch: _end(batch, row, stream, report))
        if stream is not None:
            self._hide(stream)
        self._snapshots.clear_folded()

    async def _pause(self, seconds: float) -> None:
        """Wait; raises _Stopped where the server shuts down."""
        if not await self._loop.rest(seconds):
            raise _Stopped

    async def _save_step(self, row: ErasureRow, report: ErasureReport, step: str) -> None:
        if self._loop.stopping.is_set():
            raise _Stopped
        document = msgspec.json.encode(report).decode()
        await self._apply(lambda batch: Erasures(batch.connection).update(row.id, step=step, report=document))

    async def _rewrite_log(self, row: ErasureRow, stream: Stream) -> ErasureReport:
        """Replace the observations in the log by tombstones; returns the progress."""
        async with self._rewrite_lock:
            stored_row = self._rows.get(row.id)
            report, rows = decoding.decode((stored_row or row).report, ErasureReport), 0
            targets = load(row.targets)
            for key in targets.keys:
                start: int | None = 0
                while start is not None:
                    done = await run_change(self._writer, commits.RewriteRows, stream, targets, key, start)
                    rows, start = rows + done.rows, done.next
            if rows:
                report.log_rows += rows
                document = msgspec.json.encode(report).decode()
                await self._apply(lambda batch: Erasures(batch.connection).update(row.id, report=document))
            return report

    async def _wait_for_workers(self, row: ErasureRow, report: ErasureReport) -> None:
        """Leave large segments to workers, until they are rewritten or no worker has any of them."""
        plan = decoding.decode(row.plan, ErasurePlan)
        if sum(segment.bytes for segment in plan.segments) < OFFER_BYTES:
            return
        await self._save_step(row, report, OFFERED)
        planner, streams, idle_since_s = ErasePlanner(self._reader), Streams(self._reader), monotonic()
        while (stored := streams.by_id(row.stream)) is not None and planner.remaining(row, stored):
            if self._is_worked_on(row.stream):
                idle_since_s = monotonic()
            if monotonic() - idle_since_s >= WORKERS_FIRST_S:
                return
            await self._pause(_POLL_S)

    def _is_worked_on(self, stream: int) -> bool:
        work = Work(self._reader)
        held = {lease.id for lease in work.active_leases(self._clock.now_us())}
        return any(unit.job == "erase" and unit.lease in held for unit in work.open_units(stream))

    async def _rewrite_objects(self, row: ErasureRow, stream: Stream, report: ErasureReport) -> None:
        """Publish the stream until neither its segments nor its derived objects hold erased data."""
        while True:
            publication = await self._sealer.publish(stream.id)
            if publication is None:
                return  # it was deleted
            report.rewritten |= {old.segment.name: new.name for old, new in publication.swaps.made}
            await self._save_step(row, report, "objects")
            derived = [*States(self._reader).retired(stream.id), *Companions(self._reader).retired(stream.id)]
            if not publication.swaps.made and not publication.swaps.left and not derived:
                return

    async def _remove_splits(self, targets: Targets) -> None:
        """Remove the rows of splits into the entity."""

        def perform(batch: Batch) -> None:
            with commits.secure(batch.connection):
                Aliases(batch.connection).drop_moved(targets.ids)

        await self._apply(perform)

    async def _remove_files(self, row: ErasureRow, stream: Stream, report: ErasureReport) -> None:
        """Drop folded states, and remove unlisted objects from the store and from local caches."""
        for reader in (self._snapshots.state_reader, *self._state_readers):
            await reader.forget(stream)
        self._snapshots.clear_folded()
        await self._pause(GRACE_S)
        report.removed += await self._sealer.purge(stream.id)
        await self._save_step(row, report, "files")
        while await asyncio.to_thread(self._prune):
            await self._pause(GRACE_S)  # a file is still being read

    async def _overwrite(self) -> None:
        """Overwrite the free pages of the database, and its write-ahead log."""
        writer = self._writer
        while (await run_change(writer, commits.FillFreePages)).left:
            await self._pause(0)
        while (await run_change(writer, commits.ReleaseFilledPages)).removed:
            await self._pause(0)
        while not await asyncio.to_thread(database.truncate, self._database):
            await self._pause(_POLL_S)


def _rewrite_all(batch: Batch, stream: Stream, row: ErasureRow) -> None:
    """Replace the observations in the log by tombstones, as a server stopped before it did so."""
    targets, report = load(row.targets), decoding.decode(row.report, ErasureReport)
    for key in targets.keys:
        start: int | None = 0
        while start is not None:
            change = commits.RewriteRows(stream, targets, key, start, lambda _: None)
            change.perform(batch)
            report.log_rows, start = report.log_rows + change.rows, change.next
    Erasures(batch.connection).update(row.id, report=msgspec.json.encode(report).decode())


def _retire(batch: Batch, row: ErasureRow) -> None:
    """Retire the companions and states of a stream; they are derived again after the erasure."""
    States(batch.connection).retire_all(row.stream)
    Companions(batch.connection).retire_all(row.stream)
    batch.published.mark(row.stream, batch.now_us)


def _end(batch: Batch, row: ErasureRow, stream: Stream | None, report: ErasureReport) -> None:
    erasures = Erasures(batch.connection)
    erasures.end(row.id, batch.now_us, msgspec.json.encode(report).decode())
    ended = erasures.get(row.id)
    if stream is not None and ended is not None:
        commits.append_to_journal(batch, stream, "erased", ended)
    Work(batch.connection).mark(row.stream, batch.now_us)


def is_over(row: ErasureRow) -> bool:
    """Whether an erasure has ended."""
    return row.state != RUNNING


def listed_files(connection: Connection) -> tuple[set[str], set[str], set[str]]:
    """The checksums of every listed segment, companion part and state."""
    parts = {part.sha256 for companion in Companions(connection).every() for part in companion.parts.values()}
    return Published(connection).every_checksum(), parts, {state.sha256 for state in States(connection).every()}
