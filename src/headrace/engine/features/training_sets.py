"""Training sets: rows of a table for many keys, each as of its own moment in the past.

Where few events are folded, the answer comes at once. Otherwise the question is stored, and becomes a unit of work.
What no worker takes up, the server answers itself in one thread.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any

import msgspec

from headrace import decoding
from headrace.engine.derive.job import Job, JobCommitter, JobPlanner
from headrace.engine.derive.lease_scheduler import Apply
from headrace.engine.derive.unit_cutter import PlannedUnit, owned_ranges, segment_parts
from headrace.engine.features.definitions import registry_of_row
from headrace.engine.features.past_reader import PastReader, PastRows, RowMoment
from headrace.engine.history.sealer import Sealer
from headrace.engine.log.batch import Batch
from headrace.engine.runtime.background import BackgroundLoop
from headrace.errors import HeadraceError, NotFound, Overloaded
from headrace.format.ranges import Range
from headrace.reduce.features.moments import Question
from headrace.reduce.features.replay import ReplayStart, StartPart, StartPoint, find_start, read_result_row, split_rows
from headrace.reduce.work_units import Source, Unit
from headrace.storage.background_requests import DONE, FAILED, RUNNING, Histories, HistoryRow
from headrace.storage.database import Connection
from headrace.storage.derived import States
from headrace.storage.published import Published
from headrace.storage.registries import Registries
from headrace.storage.streams import LIVE, StreamRow, Streams
from headrace.storage.work import UnitRow, Work

#: How many questions are kept once they have ended, and for how long.
MAX_KEPT = 100
KEPT_US = 86_400_000_000


class HistoryAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows in the order of the question, the event from which on they count everything, and their late events."""

    rows: list[dict[str, Any]]
    complete: bool
    since: int
    late_events: Sequence[int] = ()


class HistoryJob(Job[list[dict[str, Any]]]):
    """The job that answers questions about the past, except those in ``claims``, which the server answers itself."""

    names = ("history",)
    output = "rows"
    writes_objects = False
    is_indivisible = True

    def __init__(self) -> None:
        self.claims: set[str] = set()

    def planner(self, connection: Connection) -> HistoryPlanner:
        """The planner of questions without a worker."""
        return HistoryPlanner(connection, self.claims)

    def committer(self, batch: Batch) -> _HistoryCommitter:
        """The committer of answers."""
        return _HistoryCommitter(batch)

    def refusal(self, unit: Unit, output: list[dict[str, Any]]) -> str | None:
        """Why rows do not belong to a unit; None where it is a question."""
        return f"{unit.unit!r} asks for no rows" if unit.history is None else None

    def parked(self, batch: Batch, unit: Unit, reason: str) -> None:
        """End a question whose unit has failed too often."""
        assert unit.history is not None
        fail_question(batch, unit.history, reason)


class _HistoryCommitter(JobCommitter[list[dict[str, Any]]]):
    def accept(self, row: UnitRow, unit: Unit, output: list[dict[str, Any]]) -> str | None:
        assert unit.history is not None
        start = decoding.convert(unit.start_point, StartPoint)
        Work(self._batch.connection).forget_failures_on(row.stream, unit.concern, 0, unit.end_seq)
        rows, late_events = split_rows([read_result_row(row) for row in output])
        return store_answer(self._batch, unit.history, HistoryAnswer(rows, start.complete, start.since, late_events))


class HistoryPlanner(JobPlanner):
    """Plans units for questions, except those in ``claims``."""

    def __init__(self, connection: Connection, claims: set[str]) -> None:
        self._streams, self._published, self._work = Streams(connection), Published(connection), Work(connection)
        self._states, self._registries = States(connection), Registries(connection)
        self._rows = Histories(connection)
        self._claims = claims

    def queued_units(self, now_us: int, each: int) -> Iterator[PlannedUnit]:
        """A unit for every question without an answer."""
        for row in self._rows.running():
            yield from self._units(row, now_us)

    def _units(self, row: HistoryRow, now_us: int) -> Iterator[PlannedUnit]:
        """The unit of a question, unless a worker has it or it waits for a retry."""
        stream = self._streams.by_id(row.stream)
        if stream is None or stream.state != LIVE or row.id in self._claims or self._is_taken(row, now_us):
            return
        question = decoding.decode(row.question, Question)
        states = [state for state in self._states.listed(row.stream) if state.table == row.table]
        until = self._seek_after(stream, question.first_limit_us())
        start = find_start(question.defined, question.features, states, stream.first_seq, until)
        where = Range(start.start, max(start.start + 1, row.target))
        yield self._planned(row, stream, question, start, where)

    def _planned(
        self, row: HistoryRow, stream: StreamRow, question: Question, start: ReplayStart, where: Range
    ) -> PlannedUnit:
        document = registry_of_row(self._registries, stream).dump()
        unit = Unit(
            unit=f"history-{row.id}-{secrets.token_hex(6)}",
            job="history",
            stream=stream.name,
            incarnation=stream.incarnation,
            first_seq=where.first,
            count=where.end - where.first,
            level=0,
            out="",
            segments=tuple(self._sources(stream, where, question.last_limit_us())),
            table=row.table,
            states=tuple(start.states),
            history=row.id,
            start_point=start_point(start),
            registry=document,
            question=msgspec.json.decode(row.question),
        )
        return PlannedUnit(unit, stream.id, False)

    def _sources(self, stream: StreamRow, where: Range, last_us: int) -> Iterator[Source]:
        """The segments that hold events of a range that were appended up to a moment."""
        owned = owned_ranges(self._streams, stream, stream.first_seq)
        for piece in segment_parts(self._published, owned, where):
            placed = self._published.holding(stream.id, piece.range.first)
            if placed is not None and placed.segment.min_us > last_us:
                return
            yield piece.source

    def _seek_after(self, stream: StreamRow, at_us: int) -> int:
        """The first event after a moment, or one before it; 0 where that may not be retained any more."""
        if at_us >= stream.last_us:
            return stream.next_seq
        for placed in self._published.following(stream.id, stream.first_seq, stream.next_seq):
            if placed.segment.max_us > at_us:
                return placed.segment.first_seq if placed.segment.first_seq > stream.first_seq else 0
        return stream.published_seq

    def _is_taken(self, row: HistoryRow, now_us: int) -> bool:
        if has_worker(self._work, row):
            return True
        name = f"history {row.id}"
        return any(failure.job == name and failure.retry_us > now_us for failure in self._work.failures(row.stream))


def has_worker(work: Work, row: HistoryRow) -> bool:
    """Whether a worker has the unit of a question."""
    return any(unit.id.startswith(f"history-{row.id}-") for unit in work.open_units(row.stream))


def start_point(start: ReplayStart) -> StartPoint:
    """The start of a replay, as a document."""
    parts = [
        StartPart(tuple(part.chain.names), part.start, tuple(state.name for state in part.chain.states))
        for part in start.parts
    ]
    return StartPoint(tuple(parts), start.complete, start.since)


def store_answer(batch: Batch, id: str, answer: HistoryAnswer) -> str | None:
    """Store an answer; returns why it is refused, or None."""
    text = msgspec.json.encode(answer).decode()
    return None if Histories(batch.connection).end(id, DONE, batch.now_us, answer=text) else "the question is over"


def fail_question(batch: Batch, id: str, reason: str) -> None:
    """End a question with the reason why it cannot be answered."""
    Histories(batch.connection).end(id, FAILED, batch.now_us, reason=reason)


def begin_question(batch: Batch, row: HistoryRow) -> None:
    """Store a question, and remove old ones."""
    rows = Histories(batch.connection)
    rows.forget(batch.now_us - KEPT_US, MAX_KEPT)
    rows.add(msgspec.structs.replace(row, state=RUNNING, begun_us=batch.now_us))


log = logging.getLogger("headrace.features")

#: Questions that may be unanswered at the same time.
MAX_RUNNING = 16
#: How long a question is left to workers.
WORKERS_FIRST_S = 2.0
_PAUSE_S = 0.25
_FOREVER = float("inf")


class TrainingSets:
    """Answers or stores questions about the past; runs on the event loop."""

    def __init__(
        self,
        *,
        apply: Apply,
        sealer: Sealer,
        job: HistoryJob,
        past_reader: PastReader,
        reader: Connection,
        fold_rows: int,
        workers_first_s: Callable[[float], float],
    ) -> None:
        """``workers_first_s`` returns for how long questions are left to workers, from the usual time."""
        self._apply, self._sealer, self._job, self._past_reader = apply, sealer, job, past_reader
        self._rows, self._work = Histories(reader), Work(reader)
        self._fold_rows, self._workers_first_s = fold_rows, workers_first_s
        #: When questions that are running were first seen.
        self._seen_s: dict[str, float] = {}
        self._loop = BackgroundLoop(
            "headrace.features", self._answer_running, failed="questions about the past wait", retry_s=_PAUSE_S
        )

    def start(self) -> None:
        """Start answering stored questions."""
        self._loop.start()

    async def stop(self) -> None:
        """Stop; unanswered questions are answered after the next start."""
        await self._loop.stop(timeout_s=0)

    async def request(
        self, table: str, moments: Sequence[RowMoment], features: Sequence[str] | None = None
    ) -> PastRows | HistoryRow:
        """The rows of keys as of moments, or the stored question where that takes longer."""
        question = await self._past_reader.question(table, moments, features)
        stream = self._past_reader.feature_reader.find_stream(question.defined)
        start = await self._past_reader.find_start(question, stream)
        if stream.head.next_seq - start.start <= self._fold_rows:
            return await self._past_reader.rows(table, moments, features)
        if len(self._rows.running()) >= MAX_RUNNING:
            raise Overloaded(f"{MAX_RUNNING} questions about the past are being answered already", retry_after=5)
        target = stream.head.next_seq
        if stream.head.published_seq < target:
            await self._sealer.publish(stream.id)
        row = HistoryRow(
            id=secrets.token_hex(8), stream=stream.id, table=table, state=RUNNING, begun_us=0, ended_us=None,
            target=target, question=msgspec.json.encode(question).decode(), answer=None, reason=None,
        )  # fmt: skip
        await self._apply(lambda batch: begin_question(batch, row))
        self._loop.wake()
        return self.find(table, row.id)

    def find(self, table: str, id: str) -> HistoryRow:
        """A stored question; it is kept for a day after it was answered."""
        row = self._rows.get(id)
        if row is None or row.table != table:
            raise NotFound("there is no such question", table=table, history=id)
        return row

    async def _answer_running(self) -> float | None:
        """Answer the questions that no worker answers; returns how long to pause, None where none is left."""
        running = self._rows.running()
        self._seen_s = {row.id: self._seen_s.get(row.id, monotonic()) for row in running}
        delay_s = self._workers_first_s(WORKERS_FIRST_S)
        for row in running:
            if monotonic() - self._seen_s[row.id] >= delay_s and not has_worker(self._work, row):
                await self._answer(row)
        return _PAUSE_S if running else None

    async def _answer(self, row: HistoryRow) -> None:
        """Answer a question, which no worker is given meanwhile."""
        self._job.claims.add(row.id)
        try:
            question = decoding.decode(row.question, Question)
            past = await self._past_reader.answer(question, _FOREVER, row.target)
            answer = HistoryAnswer(past.rows, past.complete, past.since_seq, past.late_events)
            await self._apply(lambda batch: store_answer(batch, row.id, answer))
        except HeadraceError as reason:
            message = reason.message
            await self._apply(lambda batch: fail_question(batch, row.id, message))
        except Exception:
            log.exception("a question about the past was not answered")
            await self._apply(lambda batch: fail_question(batch, row.id, "the server failed; the log has the details"))
        finally:
            self._job.claims.discard(row.id)
