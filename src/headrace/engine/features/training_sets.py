"""Training sets: rows of the past for many keys and moments. Few events are folded at once, many by workers.

What no worker takes up the server answers itself, in one thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Sequence
from time import monotonic
from typing import Any

import msgspec

from headrace import decoding
from headrace.engine.derive.lease_scheduler import Apply
from headrace.engine.features.histories import (
    HistoryAnswer,
    HistoryJob,
    begin_question,
    fail_question,
    has_worker,
    store_answer,
)
from headrace.engine.features.past import Past, Pasts
from headrace.engine.history.sealer import Sealer
from headrace.engine.log.log import Log
from headrace.errors import HeadraceError, NotFound, Overloaded
from headrace.reduce.features.replay import Question
from headrace.storage.database import Connection
from headrace.storage.histories import RUNNING, Histories, HistoryRow
from headrace.storage.work import Work

log = logging.getLogger("headrace.features")

#: Questions that may wait for their answers.
MOST_RUNNING = 16
#: A question is left to workers for as long.
WORKERS_FIRST_S = 2.0
_PAUSE_S = 0.25
_FOREVER = float("inf")


class TrainingSets:
    """Runs on the event loop."""

    def __init__(
        self,
        *,
        apply: Apply,
        log: Log,
        sealer: Sealer,
        job: HistoryJob,
        pasts: Pasts,
        reader: Connection,
        fold_rows: int,
    ) -> None:
        self._apply, self._log, self._sealer, self._job, self._pasts = apply, log, sealer, job, pasts
        self._rows, self._work = Histories(reader), Work(reader)
        self._fold_rows = fold_rows
        self._awake, self._stopping = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Go on with what is asked."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """What is asked is answered after the next start."""
        self._stopping.set()
        self._awake.set()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def ask(
        self, table: str, moments: Sequence[tuple[Any, int]], features: Sequence[str] | None = None
    ) -> Past | HistoryRow:
        """The rows of keys as of moments in microseconds, or the question that they are the answer of later."""
        question = await self._pasts.question(table, moments, features)
        stream = self._log.find(question.defined.stream)
        begun = await self._pasts.begun(question, stream)
        if stream.head.next_seq - begun.start <= self._fold_rows:
            return await self._pasts.rows(table, moments, features)
        if len(self._rows.running()) >= MOST_RUNNING:
            raise Overloaded(f"{MOST_RUNNING} questions about the past are being answered already", retry_after=5)
        target = stream.head.next_seq
        if stream.head.published_seq < target:
            await self._sealer.publish(stream.id)
        row = HistoryRow(
            id=secrets.token_hex(8), stream=stream.id, table=table, state=RUNNING, begun_us=0, ended_us=None,
            target=target, question=msgspec.json.encode(question).decode(), answer=None, reason=None,
        )  # fmt: skip
        await self._apply(lambda batch: begin_question(batch, row))
        self._awake.set()
        return self.find(table, row.id)

    def find(self, table: str, id: str) -> HistoryRow:
        """A question, for a day after it was answered."""
        row = self._rows.get(id)
        if row is None or row.table != table:
            raise NotFound("there is no such question", table=table, history=id)
        return row

    async def _run(self) -> None:
        since: dict[str, float] = {}
        while not self._stopping.is_set():
            self._awake.clear()
            running = {row.id: row for row in self._rows.running()}
            since = {id: since.get(id, monotonic()) for id in running}
            for id, row in running.items():
                if monotonic() - since[id] >= WORKERS_FIRST_S and not has_worker(self._work, row):
                    await self._answer(row)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_S if running else None):
                    await self._awake.wait()

    async def _answer(self, row: HistoryRow) -> None:
        """Answer a question, while no worker is given it."""
        self._job.claims.add(row.id)
        try:
            question = decoding.decode(row.question, Question)
            past = await self._pasts.answer(question, _FOREVER)
            answer = HistoryAnswer(past.rows, past.complete, past.since_seq)
            await self._apply(lambda batch: store_answer(batch, row.id, answer))
        except HeadraceError as reason:
            message = reason.message
            await self._apply(lambda batch: fail_question(batch, row.id, message))
        except Exception:
            log.exception("a question about the past was not answered")
            await self._apply(lambda batch: fail_question(batch, row.id, "the server failed; the log has the details"))
        finally:
            self._job.claims.discard(row.id)
