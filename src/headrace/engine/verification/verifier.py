"""Verification of a proposed schema change on every stored event, where no proof without data exists.

Workers check what is published. A loop checks the rest, one range after the other, in one thread that rests as long as
it works.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.engine.derive.lease_scheduler import Apply, LeaseScheduler
from headrace.engine.history.stored_events import Events, EventsMoved
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import StreamChange, run_change
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Head, Stream
from headrace.engine.log.writer import Writer
from headrace.engine.runtime.background import BackgroundLoop, BackgroundThread, RepeatedWarning
from headrace.engine.runtime.gates import Gate
from headrace.engine.verification.verify_job import (
    Progress,
    VerifyJob,
    add_findings,
    advance_verification,
    begin_verification,
    fail_verification,
)
from headrace.errors import Conflict, CorruptData, HeadraceError, NotFound, Overloaded
from headrace.format.decoded_columns import LruCache
from headrace.format.ranges import Range
from headrace.format.segment import layout
from headrace.format.segment.columns import BodyRun, body_runs
from headrace.schema.registry import Registry
from headrace.schema.trial import Findings, Trial, checks_keys
from headrace.storage.background_requests import RUNNING, VerificationRow, Verifications
from headrace.storage.database import Connection
from headrace.storage.objects import ObjectMissing
from headrace.storage.streams import LIVE, StreamRow, Streams

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

log = logging.getLogger("headrace.verifications")

#: Verifications that may run at the same time.
MAX_RUNNING = 16
#: What is published is left to workers for so long, since one was last seen to check it.
WORKERS_FIRST_S = 2.0
#: Events that are checked between two commits, and payload between two rests.
CLAIM_ROWS = 65_536
SLICE_BYTES = 256 * 1024
_PAUSE_S, _LONG_PAUSE_S = 0.1, 1.0
_TRIES = 5


class BeginVerification(StreamChange):
    """A verification of a proposal, if that still leads on from the version that the stream has."""

    def __init__(
        self, stream: Stream, proposal: Registry, min_rows: int, done: Callable[[BeginVerification], None]
    ) -> None:
        super().__init__(done, pinned=(stream,), size=1000)
        self.stream, self.proposal, self.min_rows = stream, proposal, min_rows
        self.id = secrets.token_hex(8)

    def perform(self, batch: Batch) -> None:
        """Write it down, unless too many are running."""
        head, version = batch.draft(self.stream), self.proposal.current_version - 1
        if head.state != LIVE:
            raise NotFound("the stream was deleted", stream=self.stream.name)
        if version != (0 if head.registry is None else head.registry.version):
            raise Conflict("the registry has changed meanwhile; plan the change again", stream=self.stream.name)
        if Verifications(batch.connection).count() >= MAX_RUNNING:
            raise Overloaded(f"{MAX_RUNNING} verifications are running already", retry_after=5)
        batch.flush()
        row = VerificationRow(
            id=self.id, stream=self.stream.id, state=RUNNING, from_version=version, begun_us=batch.now_us,
            ended_us=None, start=self.proposal.readable_from, target=0, tail=0, looked="[]", findings="{}", reason=None,
            proposal=msgspec.json.encode(self.proposal.dump()).decode(),
        )  # fmt: skip
        # Workers know no keys.
        begin_verification(batch, row, self.min_rows, server_only=checks_keys(self.proposal))


class Verifier:
    """Runs on the event loop; looks in a thread, and writes in the log's own commits."""

    def __init__(
        self,
        *,
        apply: Apply,
        writer: Writer,
        log: Log,
        work: LeaseScheduler,
        job: VerifyJob,
        reader: Connection,
        connect: Callable[[], Connection],
        segments: Callable[[], Segments],
        gate: Gate,
    ) -> None:
        self._apply = apply
        self._writer = writer
        self._log = log
        self._work = work
        self._job = job
        self._rows, self._streams = Verifications(reader), Streams(reader)
        self._planner = job.planner(reader)
        self._thread = VerifyThread(connect, segments)
        self._gate = gate
        self._warning = RepeatedWarning("headrace.verifications", "a verification waits")
        self._loop = BackgroundLoop(
            "headrace.verifications", self._run_round, failed="verifications were not looked for", retry_s=_LONG_PAUSE_S
        )
        #: By verification, when a worker was last seen to look, and how often looking has failed.
        self._quiet_since: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    def start(self) -> None:
        """Resume the running verifications."""
        self._loop.start()

    async def stop(self) -> None:
        """Stop the thread; running verifications are resumed at the next start."""
        # Not cancelled: what it has handed to the writer is answered to it.
        self._thread.stopping.set()
        await self._loop.stop()
        await self._thread.stop()

    async def begin(self, stream: Stream, proposal: Registry) -> VerificationRow:
        """Start to check all events of a stream by a registry whose newest version is proposed."""
        begun = await run_change(self._writer, BeginVerification, stream, proposal, self._job.config.min_rows)
        self._loop.wake()
        return self.find(stream, begun.id)

    def find(self, stream: Stream, id: str) -> VerificationRow:
        """A verification of a stream, for a day after it has ended."""
        row = self._rows.get(id)
        if row is None or row.stream != stream.id:
            raise NotFound("there is no such verification", stream=stream.name, verification=id)
        return row

    async def check_events(self, row: VerificationRow, stream: Stream, where: Range) -> tuple[int, Findings]:
        """Check the first events of a range by the proposal of a row; returns where it ended, and findings."""
        async with self._gate:
            return await self._thread.check_events(row, stream, stream.head, where)

    async def compile_trial(self, row: VerificationRow) -> Trial:
        """What checks events by the proposal of a row."""
        return await self._thread.run(self._thread.trial, row)

    async def _run_round(self) -> float | None:
        """Run one step of each verification; returns the pause until the next round, None where none is running."""
        rows = self._rows.running()
        self._forget_all_but({row.id for row in rows})
        pause = _PAUSE_S if rows else None
        for row in rows:
            try:
                if await self._step(row):
                    pause = 0.0
            except HeadraceError as reason:
                self._warning.warn(reason)
                pause = _LONG_PAUSE_S
            except Exception:
                log.exception("a verification failed")
                await self._give_up(row, "the server failed; the log has the details")
        return pause

    async def _step(self, row: VerificationRow) -> bool:
        """Look at the next range, if that is for us to do; whether anything has moved."""
        stored = self._streams.by_id(row.stream)
        stream = None if stored is None else self._log.catalog.find(stored.name)
        if stored is None or stream is None or stream.id != row.stream or stream.head.state != LIVE:
            return False
        async with self._work.pause_grants():
            # In this order: what a worker commits meanwhile is seen as being looked at, or as looked at.
            working = self._planner.working_on(row)
            newest = self._rows.get(row.id)
            if newest is None or newest.state != RUNNING:
                return False
            progress = Progress(newest)
            if not progress.left(stored):
                await self._apply(lambda batch: advance_verification(batch, row.id))
                return True
            where = self._next_range(progress, stored, working)
            if where is None:
                return False
            self._job.claims[row.id] = where
        try:
            return await self._check_events(row, stream, where)
        finally:
            del self._job.claims[row.id]

    def _next_range(self, progress: Progress, stream: StreamRow, working: list[Range]) -> Range | None:
        """The first events that are left, once workers had their chance."""
        row, now = progress.row, monotonic()
        if working or row.id not in self._quiet_since:
            self._quiet_since[row.id] = now
        if not row.tail and now - self._quiet_since[row.id] < self._work.workers_first_s(
            WORKERS_FIRST_S, is_awaited=True
        ):
            return None
        left = progress.left(stream, working)
        return Range(left[0].first, min(left[0].end, left[0].first + CLAIM_ROWS)) if left else None

    async def _check_events(self, row: VerificationRow, stream: Stream, where: Range) -> bool:
        try:
            end, findings = await self.check_events(row, stream, where)
        except CorruptData as reason:
            self._failures[row.id] = self._failures.get(row.id, 0) + 1
            # A segment that is not there may just have been replaced.
            if not isinstance(reason, ObjectMissing) or self._failures[row.id] >= _TRIES:
                await self._give_up(row, reason.message)
            return False
        if end == where.first:
            return False
        self._failures.pop(row.id, None)
        await self._apply(lambda batch: add_findings(batch, row.id, Range(where.first, end), findings))
        return True

    async def _give_up(self, row: VerificationRow, reason: str) -> None:
        with contextlib.suppress(HeadraceError):
            await self._apply(lambda batch: fail_verification(batch, row.id, reason))

    def _forget_all_but(self, running: set[str]) -> None:
        for by_id in (self._quiet_since, self._failures):
            for id in by_id.keys() - running:
                del by_id[id]
        self._thread.forget_all_but(running)


class VerifyThread(BackgroundThread):
    """Tries proposed schemas on events."""

    def __init__(self, connect: Callable[[], Connection], segments: Callable[[], Segments]) -> None:
        super().__init__("verify", connect)
        self._segments = segments
        self._trials: dict[str, Trial] = {}

    def forget_all_but(self, running: set[str]) -> None:
        """Drop the compiled proposals of all other verifications."""
        for id in self._trials.keys() - running:
            self._trials.pop(id, None)

    async def check_events(
        self, row: VerificationRow, stream: Stream, head: Head, where: Range
    ) -> tuple[int, Findings]:
        """Check the first events of a range; returns where it ended, and findings; none if events moved."""
        return await self.run(self._check_events, row, stream, head, where)

    def _check_events(self, row: VerificationRow, stream: Stream, head: Head, where: Range) -> tuple[int, Findings]:
        if where.first < head.first_seq:
            return where.first, Findings()
        trial, findings, at = self.trial(row), Findings(), where.first
        events = Events(self.connection, self._segments, LruCache(0), stream, head)
        try:
            for batch in events.batches(events.first_chunk(*where)):
                for run in body_runs(batch, SLICE_BYTES):
                    begun = monotonic()
                    keys = _stored_keys(batch, run) if trial.checks_keys else ()
                    findings += trial.check(run.first_seq, run.version, run.body, run.entries, keys)
                    at = run.first_seq + run.entries
                    if self.stopping.is_set():
                        return at, findings
                    sleep(monotonic() - begun)
        except EventsMoved:
            pass
        return at, findings

    def trial(self, row: VerificationRow) -> Trial:
        """What checks events by the proposal of a row; for calls in the thread."""
        trial = self._trials.get(row.id)
        if trial is None:
            document: Any = msgspec.json.decode(row.proposal or "null")
            trial = self._trials[row.id] = Trial(Registry.load(document))
        return trial


def _stored_keys(batch: Any, run: BodyRun) -> list[str | None]:
    """The routing keys of a run of the entries of a batch."""
    start = run.first_seq - batch.column(layout.SEQ)[0].as_py()
    keys: list[str | None] = batch.column(layout.KEY).slice(start, run.entries).to_pylist()
    return keys
