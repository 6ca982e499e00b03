"""Erasures: an entity is gone for everybody in one commit, and then its data from wherever it lies.

Rows of the log are rewritten, and then segments, as streams are published; what was derived from them is retired and
made again without it. What nothing lists any more is removed from the object store and from what is kept here, and
unused parts of the database are overwritten. Every step can be done again, so an erasure goes on where a server
stopped. It has ended once nothing holds the data. Until then nobody can read it: the log is rewritten first, segments
are read through masks, and nothing is answered from what was derived before.
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
from headrace.engine.entities.erasure.erasure_plan import ErasurePlan, PlannedErasure, planned, targets_of
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
from headrace.types import Clock

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

log = logging.getLogger("headrace.erasing")

Found = TypeVar("Found")

#: For how long objects are left to those who read them when they were replaced.
GRACE_S = 1.0
#: Segments of so many bytes are left to workers, for as long as any has some of them.
OFFER_BYTES = 32 * 1024 * 1024
WORKERS_FIRST_S = 2.0
_PAUSE_S, _LOOK_S = 1.0, 0.1
_TRIES = 5


class _Stopped(Exception):
    """The server is shutting down."""


class ErasureReport(msgspec.Struct):
    """What was done so far."""

    log_rows: int = 0
    #: Segments that were rewritten, by what took their place.
    rewritten: dict[str, str] = {}
    #: Objects that are gone from the store.
    removed: list[str] = []


class EntityErasure:
    """Runs on the event loop; reads in threads, and writes in the log's own commits."""

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
        """``state_readers`` are what else answers from folded entities; ``prune`` removes files of objects that are
        not listed any more, and answers how many are still in use; ``masks`` hide entries from readers of segments;
        ``forget_events`` lets go of answers and events that are kept in memory.
        """
        self._writer, self._log, self._sealer, self._snapshots = writer, log, sealer, snapshots
        self._state_readers, self._reader, self._connect, self._segments = state_readers, reader, connect, segments
        self._prune, self._apply, self._database, self._clock = prune, apply, database, clock
        self._masks, self._forget_events = masks, forget_events
        self._rows = Erasures(reader)
        self._warning = RepeatedWarning("headrace.erasing", "an erasure waits")
        self._loop = BackgroundLoop("headrace.erasing", self._go_round, failed="an erasure waits", retry_s=_PAUSE_S)
        #: Held while rows of the log are rewritten, so that each is counted once.
        self._rewriting = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    def prepare(self, before_start: Callable[[Callable[[Batch], Any]], Any], *, recovered: bool) -> None:
        """Hide what is being erased, before anybody reads; ``recovered`` if the object store has brought objects."""
        for row in self._rows.running():
            stream = self._stream(row)
            if stream is None:
                continue
            before_start(partial(_rewrite_all, stream=stream, row=row))
            # An earlier version retired what was derived only after the log was rewritten.
            if recovered or row.step == "log":
                before_start(partial(_retire, row=row))
            self._hide(stream)

    def start(self) -> None:
        """Go on with what is running."""
        self._loop.start()

    async def stop(self) -> None:
        """Leave what is not done for the next time."""
        # Not cancelled: what it has handed to the writer is answered to it.
        await self._loop.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def plan(self, entity_id: str, user_id: str) -> ErasurePlan:
        """What an erasure would concern."""
        return (await self._planned(entity_id, user_id))[1].plan

    async def begin(self, entity_id: str, user_id: str) -> ErasureRow:
        """Erase an entity: nobody can read anything of it when this returns, and its data is gone some time later."""
        # What has begun goes on, whether or not the caller waits for it.
        return await asyncio.shield(self._keep(self._begin(entity_id, user_id)))

    async def _begin(self, entity_id: str, user_id: str) -> ErasureRow:
        for attempt in range(_TRIES):
            stream, planned = await self._planned(entity_id, user_id)
            id = f"erasure_{secrets.token_hex(12)}"
            try:
                await run_change(self._writer, commits.Begin, id, stream, user_id, planned)
                break
            except commits.EntityOutdated:
                if attempt == _TRIES - 1:
                    raise
        self._hide(stream)
        try:
            await self._rewrite_log(self.find(id, user_id), stream)
        finally:
            self._forget(stream)
            self._loop.wake()
        return self.find(id, user_id)

    def _keep(self, work: Coroutine[Any, Any, Found]) -> asyncio.Task[Found]:
        """Do something that is waited for when the server stops."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits is told of it

    def _hide(self, stream: Stream) -> None:
        """Let readers of a stream's segments see what is being erased now as tombstones."""
        running = [load(row.targets) for row in self._rows.running(stream.id)]
        if running:
            self._masks[stream.incarnation] = ErasureMask(running)
        else:
            self._masks.pop(stream.incarnation, None)

    def _forget(self, stream: Stream) -> None:
        """Answer from nothing that was read or counted before observations of a stream were hidden."""
        self._forget_events()
        self._snapshots.forget()
        for serving in self._state_readers:
            self._keep(serving.forget(stream))

    def _stream(self, row: ErasureRow) -> Stream | None:
        """The stream of an erasure, while it is there."""
        stored = Streams(self._reader).by_id(row.stream)
        stream = None if stored is None else self._log.catalog.find(stored.name)
        return stream if stream is not None and stream.id == row.stream else None

    def find(self, id: str, user_id: str) -> ErasureRow:
        """An erasure of a user; those of others are not there."""
        row = self._rows.get(id)
        if row is None or row.user_id != user_id:
            raise NotFound("there is no such erasure", erasure=id)
        return row

    def page(self, user_id: str, after: str, limit: int) -> list[ErasureRow]:
        """The erasures of a user that were begun before one of them, the newest first."""
        if after:
            self.find(after, user_id)
        return self._rows.page(user_id, after, limit)

    async def _planned(self, entity_id: str, user_id: str) -> tuple[Stream, PlannedErasure]:
        row = self._snapshots.groups.row(entity_id, user_id)
        stream = self._snapshots.stream(row.stream)
        entity_type, head, now_us = stream.name.removeprefix(ENTITIES), stream.head, self._clock.now_us()

        def read() -> PlannedErasure:
            connection = self._connect()
            try:
                targets = targets_of(connection, entity_id, entity_type)
                return planned(connection, self._segments, stream, head, user_id, targets, now_us)
            finally:
                connection.close()

        return stream, await asyncio.to_thread(read)

    async def _go_round(self) -> float | None:
        """Perform what is running; answers after how long to try again, None where nothing is."""
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
            await self._offer(row, report)
            await self._note(row, report, "objects")
            await self._rewrite_objects(row, stream, report)
            await self._note(row, report, "rows")
            await self._forget_rows(targets)
            await self._note(row, report, "files")
            await self._remove_files(row, stream, report)
        await self._note(row, report, "pages")
        await self._overwrite()
        await self._apply(lambda batch: _end(batch, row, stream, report))
        if stream is not None:
            self._hide(stream)
        self._snapshots.forget()

    async def _pause(self, seconds: float) -> None:
        """Let others have their turn."""
        if not await self._loop.rest(seconds):
            raise _Stopped

    async def _note(self, row: ErasureRow, report: ErasureReport, step: str) -> None:
        if self._loop.stopping.is_set():
            raise _Stopped
        document = msgspec.json.encode(report).decode()
        await self._apply(lambda batch: Erasures(batch.connection).update(row.id, step=step, report=document))

    async def _rewrite_log(self, row: ErasureRow, stream: Stream) -> ErasureReport:
        """Put tombstones into the log; answers what was done so far."""
        async with self._rewriting:
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

    async def _offer(self, row: ErasureRow, report: ErasureReport) -> None:
        """Leave segments to workers where it is much, until they are rewritten or nobody works on them."""
        plan = decoding.decode(row.plan, ErasurePlan)
        if sum(held.bytes for held in plan.segments) < OFFER_BYTES:
            return
        await self._note(row, report, OFFERED)
        plans, streams, quiet_since = ErasePlanner(self._reader), Streams(self._reader), monotonic()
        while (stored := streams.by_id(row.stream)) is not None and plans.left(row, stored):
            if self._is_worked_on(row.stream):
                quiet_since = monotonic()
            if monotonic() - quiet_since >= WORKERS_FIRST_S:
                return
            await self._pause(_LOOK_S)

    def _is_worked_on(self, stream: int) -> bool:
        work = Work(self._reader)
        held = {lease.id for lease in work.active_leases(self._clock.now_us())}
        return any(unit.job == "erase" and unit.lease in held for unit in work.open_units(stream))

    async def _rewrite_objects(self, row: ErasureRow, stream: Stream, report: ErasureReport) -> None:
        """Publish the stream until neither it nor what is listed for it holds anything of what goes."""
        while True:
            publication = await self._sealer.publish(stream.id)
            if publication is None:
                return  # it was deleted
            report.rewritten |= {old.segment.name: new.name for old, new in publication.swaps.made}
            await self._note(row, report, "objects")
            derived = [*States(self._reader).retired(stream.id), *Companions(self._reader).retired(stream.id)]
            if not publication.swaps.made and not publication.swaps.left and not derived:
                return

    async def _forget_rows(self, targets: Targets) -> None:
        """Remove what was moved."""

        def perform(batch: Batch) -> None:
            with commits.secure(batch.connection):
                Aliases(batch.connection).drop_moved(targets.ids)

        await self._apply(perform)

    async def _remove_files(self, row: ErasureRow, stream: Stream, report: ErasureReport) -> None:
        """Let go of what was folded and of files, and remove what nothing lists from the store."""
        for serving in (self._snapshots.serving, *self._state_readers):
            await serving.forget(stream)
        self._snapshots.forget()
        await self._pause(GRACE_S)
        report.removed += await self._sealer.purge(stream.id)
        await self._note(row, report, "files")
        while await asyncio.to_thread(self._prune):
            await self._pause(GRACE_S)  # someone still reads

    async def _overwrite(self) -> None:
        """Overwrite pages that the database does not use, and what waits to be moved into it."""
        writer = self._writer
        while (await run_change(writer, commits.Fill)).left:
            await self._pause(0)
        while (await run_change(writer, commits.Unfill)).removed:
            await self._pause(0)
        while not await asyncio.to_thread(database.truncate, self._database):
            await self._pause(_LOOK_S)


def _rewrite_all(batch: Batch, stream: Stream, row: ErasureRow) -> None:
    """Put tombstones into the log where a server had stopped before it had done so."""
    targets, report = load(row.targets), decoding.decode(row.report, ErasureReport)
    for key in targets.keys:
        start: int | None = 0
        while start is not None:
            change = commits.RewriteRows(stream, targets, key, start, lambda _: None)
            change.perform(batch)
            report.log_rows, start = report.log_rows + change.rows, change.next
    Erasures(batch.connection).update(row.id, report=msgspec.json.encode(report).decode())


def _retire(batch: Batch, row: ErasureRow) -> None:
    """What was derived from a stream counts no more, and is made again when all is over."""
    States(batch.connection).retire_all(row.stream)
    Companions(batch.connection).retire_all(row.stream)
    batch.published.mark(row.stream, batch.now_us)


def _end(batch: Batch, row: ErasureRow, stream: Stream | None, report: ErasureReport) -> None:
    erasures = Erasures(batch.connection)
    erasures.end(row.id, batch.now_us, msgspec.json.encode(report).decode())
    ended = erasures.get(row.id)
    if stream is not None and ended is not None:
        commits.write_down(batch, stream, "erased", ended)
    Work(batch.connection).mark(row.stream, batch.now_us)


def is_over(row: ErasureRow) -> bool:
    """Whether nothing of it is left."""
    return row.state != RUNNING


def listed_files(connection: Connection) -> tuple[set[str], set[str], set[str]]:
    """The checksums of every segment, companion part and state that counts."""
    parts = {part.sha256 for companion in Companions(connection).every() for part in companion.parts.values()}
    return Published(connection).every_checksum(), parts, {state.sha256 for state in States(connection).every()}
