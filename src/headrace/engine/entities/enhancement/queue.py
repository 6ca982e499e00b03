"""The queue of enhancements and migrations, which are performed one after the other.

A run is stored before it begins. One that a crash interrupts begins again at the next start, and one that fails is
retried a few times with growing pauses. All steps are idempotent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from secrets import token_hex
from time import monotonic
from typing import Any

import msgspec

from headrace.engine.entities.enhancement.migrations import Migrations
from headrace.engine.entities.enhancement.promotions import ITSELF, Promotions
from headrace.engine.entities.enhancement.settings import read
from headrace.engine.entities.entity_type import ENTITIES
from headrace.engine.entities.types.entity_types import EntityTypes
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Stream
from headrace.engine.runtime.background import BackgroundLoop, RepeatedWarning
from headrace.errors import HeadraceError
from headrace.storage.database import Connection
from headrace.storage.enhancements import EnhancementRuns, Enhancements, Run
from headrace.types import Clock

log = logging.getLogger("headrace.entities")

MAX_ATTEMPTS = 5
#: How long an answer waits for a migration to end.
WAIT_S = 5.0
_PAUSE_S = 0.5
#: Pauses are so many times longer than the analyses before them.
_PAUSE_RATIO = 9.0
_REST_S = 30.0
#: The pause after a round that failed.
_RETRY_S = 5.0
_RETRY_US = 2_000_000
_KEPT_US = 7 * 24 * 3600 * 1_000_000
_REASON_LENGTH = 2_000
#: How long the stop of the server waits for a step.
_STOP_S = 5.0

Apply = Callable[[Callable[[Any], Any]], Awaitable[Any]]


class _Stopped(Exception):
    """The server is shutting down."""


class EnhancementQueue:
    """Performs runs on the event loop."""

    def __init__(
        self,
        *,
        types: EntityTypes,
        promotions: Promotions,
        migrations: Migrations,
        log: Log,
        reader: Connection,
        apply: Apply,
        clock: Clock,
    ) -> None:
        self._types, self._promotions, self._migrations = types, promotions, migrations
        self._runs, self._enhancements = EnhancementRuns(reader), Enhancements(reader)
        self._apply, self._clock = apply, clock
        failed = "types do not grow right now"
        self._loop = BackgroundLoop(
            "headrace.entities",
            self._run_round,
            failed=failed,
            retry_s=_RETRY_S,
            warning=RepeatedWarning("headrace.entities", failed),
            least_pause_s=lambda: min(_REST_S, max(_PAUSE_S, _PAUSE_RATIO * self._analysis_s)),
        )
        self._has_reclaimed = False
        #: Up to which observation fragments were analysed, by type and owner.
        self._analysed: dict[tuple[str, str], int] = {}
        #: How long the last analysis took.
        self._analysis_s = 0.0
        self._waiting: dict[str, list[asyncio.Future[Run]]] = {}
        log.on_append.append(self._appended)
        migrations.on_begin = self.wake

    def start(self) -> None:
        """Start, with runs that were not finished."""
        self._loop.start()

    async def stop(self) -> None:
        """Stop, and leave unfinished runs to the next start."""
        await self._loop.stop(timeout_s=_STOP_S)

    def wake(self) -> None:
        """Look for runs now."""
        self._loop.wake()

    def analyse_again(self, entity_type: str, owner: str) -> None:
        """Analyse a type again though it has no new observations, as its settings have changed."""
        self._analysed.pop((entity_type, owner), None)
        self._loop.wake()

    async def wait(self, run: Run, timeout_s: float) -> Run:
        """A run once it has ended, or as it is after the timeout."""
        current = self._runs.find(run.id) or run
        if current.ended_us is not None:
            return current
        waiting: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run.id, []).append(waiting)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                return await waiting
        return self._runs.find(run.id) or run

    def runs(self, entity_type: str, owner: str, limit: int) -> list[Run]:
        """The enhancement runs of a type, the newest first."""
        return self._runs.of_type(entity_type, "enhance", [owner], limit)

    def _appended(self, stream: Stream, _: int) -> None:
        if stream.name.startswith(ENTITIES):
            self._loop.wake()

    async def _run_round(self) -> float | None:
        if not self._has_reclaimed:
            await self._reclaim()
            self._has_reclaimed = True
        try:
            await self._queue_enhancements()
            await self._perform_due()
            await self._purge()
        except _Stopped:
            return None
        return self._rest_s()

    def _rest_s(self) -> float:
        """How long until the next retry, at most some seconds."""
        due = min((run.retry_us for run in self._runs.open()), default=None)
        return _REST_S if due is None else min(_REST_S, max(0.0, (due - self._clock.now_us()) / 1e6))

    async def _reclaim(self) -> None:
        """Queue runs again that a crash has interrupted."""
        for run in self._runs.open():
            if run.state == "processing":
                failed = self._failed(run, "the server stopped in the middle")
                await self._save(msgspec.structs.replace(failed, retry_us=0))

    async def _queue_enhancements(self) -> None:
        """Queue an enhancement of every type that has it enabled and has new observations."""
        busy = {(run.entity_type, run.user_id) for run in self._runs.open() if run.job == "enhance"}
        for entity_type, owner, document in self._enhancements.every_setting():
            stream = self._types.stream(entity_type)
            if stream is None or not read(document).enabled or (entity_type, owner) in busy:
                continue
            key = entity_type, owner
            if self._analysed.get(key) != stream.head.next_seq:
                self._analysed[key] = stream.head.next_seq
                await self._save(self._enhancement_run(entity_type, owner))

    def _enhancement_run(self, entity_type: str, owner: str) -> Run:
        return Run(
            id=f"enh_{token_hex(12)}",
            entity_type=entity_type,
            user_id=owner,
            state="pending",
            begun_us=self._clock.now_us(),
            job="enhance",
            who=ITSELF,
        )

    async def _perform_due(self) -> None:
        now_us = self._clock.now_us()
        for run in self._runs.open():
            if run.state == "pending" and run.retry_us <= now_us and not self._loop.stopping.is_set():
                await self._perform(run)

    async def _perform(self, run: Run) -> None:
        run = msgspec.structs.replace(run, state="processing", attempts=run.attempts + 1)
        await self._save(run)
        try:
            done = await (
                self._enhance(run) if run.job == "enhance" else self._migrations.perform(run, self._save_progress)
            )
        except _Stopped:
            raise
        except HeadraceError as reason:
            done = self._failed(self._runs.find(run.id) or run, reason.message)
        except Exception as reason:
            log.exception("%s of %s failed", run.job, run.entity_type)
            done = self._failed(self._runs.find(run.id) or run, f"{type(reason).__name__}: {reason}")
        await self._save(done)
        if done.ended_us is not None:
            for waiting in self._waiting.pop(done.id, ()):
                if not waiting.done():
                    waiting.set_result(done)

    async def _enhance(self, run: Run) -> Run:
        """Enhance a type by its settings."""
        settings = self._promotions.settings(run.entity_type, run.user_id)
        if not settings.own.enabled:
            return self._ended(run, "skipped", {})
        begun_s = monotonic()
        enhanced = await self._promotions.enhance_automatically(run.entity_type, run.user_id)
        self._analysis_s = monotonic() - begun_s
        if enhanced is None or enhanced.outcome.number is None:
            return self._ended(run, "completed", {})
        outcome: dict[str, Any] = {
            "fields": list(enhanced.fields),
            "schema_version": enhanced.outcome.plan.registry.schema_version,
        }
        if enhanced.run is not None:
            outcome["run_id"] = enhanced.run.id
            self.wake()
        return self._ended(run, "completed", outcome)

    def _ended(self, run: Run, state: Any, outcome: dict[str, Any]) -> Run:
        ended = self._clock.now_us()
        return msgspec.structs.replace(run, state=state, ended_us=ended, outcome=outcome, reason=None)

    def _failed(self, run: Run, reason: str) -> Run:
        """A failed run, which is retried later, or ended after too many attempts."""
        now_us, message = self._clock.now_us(), reason[:_REASON_LENGTH]
        if run.attempts >= MAX_ATTEMPTS:
            return msgspec.structs.replace(run, state="failed", ended_us=now_us, reason=message)
        retry_us = now_us + _RETRY_US * 2 ** max(0, run.attempts - 1)
        return msgspec.structs.replace(run, state="pending", retry_us=retry_us, reason=message)

    async def _save_progress(self, run: Run) -> None:
        """Store the progress of a run; raises _Stopped where the server shuts down."""
        await self._save(msgspec.structs.replace(run, attempts=0))
        if self._loop.stopping.is_set():
            raise _Stopped

    async def _save(self, run: Run) -> None:
        await self._apply(lambda batch: EnhancementRuns(batch.connection).save(run))

    async def _purge(self) -> None:
        before_us = self._clock.now_us() - _KEPT_US
        if self._runs.has_ended_before(before_us):
            await self._apply(lambda batch: EnhancementRuns(batch.connection).purge(before_us))
