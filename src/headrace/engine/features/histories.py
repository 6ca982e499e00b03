"""The job that answers questions about the past: each becomes a unit, whose result is the answer."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import msgspec

from headrace import decoding
from headrace.engine.derive.job import Job, JobCommitter, JobPlanner
from headrace.engine.derive.unit_cutter import PlannedUnit, owned_ranges, segment_parts
from headrace.engine.log.batch import Batch
from headrace.format.ranges import Range
from headrace.reduce.features.replay import Question, ReplayStart, StartPart, StartPoint, find_start
from headrace.reduce.work_units import Source, Unit
from headrace.storage.database import Connection
from headrace.storage.derived import States
from headrace.storage.histories import DONE, FAILED, RUNNING, Histories, HistoryRow
from headrace.storage.published import Published
from headrace.storage.registries import Registries
from headrace.storage.streams import LIVE, StreamRow, Streams
from headrace.storage.work import UnitRow, Work

#: How many are kept once they have ended, and for how long.
KEPT = 100
KEPT_US = 86_400_000_000


class HistoryAnswer(msgspec.Struct, frozen=True):
    """Rows in the order of the question, and what they know."""

    rows: list[dict[str, Any]]
    complete: bool
    since: int


class HistoryJob(Job[list[dict[str, Any]]]):
    """Answers questions about the past, but for those in ``claims``, which the server answers itself."""

    names = ("history",)
    output = "rows"
    writes_objects = False
    fails_whole = True

    def __init__(self) -> None:
        self.claims: set[str] = set()

    def planner(self, connection: Connection) -> HistoryPlanner:
        """What finds questions that nobody works on."""
        return HistoryPlanner(connection, self.claims)

    def committer(self, batch: Batch) -> _HistoryCommitter:
        """What writes answers down."""
        return _HistoryCommitter(batch)

    def refusal(self, unit: Unit, output: list[dict[str, Any]]) -> str | None:
        """Why rows do not belong to a unit: it is no question."""
        return f"{unit.unit!r} asks for no rows" if unit.history is None else None

    def parked(self, batch: Batch, unit: Unit, reason: str) -> None:
        """The question cannot be answered."""
        assert unit.history is not None
        fail_question(batch, unit.history, reason)


class _HistoryCommitter(JobCommitter[list[dict[str, Any]]]):
    def accept(self, row: UnitRow, unit: Unit, output: list[dict[str, Any]]) -> str | None:
        assert unit.history is not None
        ranges = decoding.convert(unit.known, StartPoint)
        Work(self._batch.connection).succeeded(row.stream, unit.concern, 0, unit.end_seq)
        return store_answer(self._batch, unit.history, HistoryAnswer(output, ranges.complete, ranges.since))


class HistoryPlanner(JobPlanner):
    """Plans questions; ``claims`` are those that the server answers itself."""

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
        """The unit of a question, unless someone works on it or it rests."""
        stream = self._streams.by_id(row.stream)
        if stream is None or stream.state != LIVE or row.id in self._claims or self._is_taken(row, now_us):
            return
        question = decoding.decode(row.question, Question)
        states = [state for state in self._states.listed(row.stream) if state.table == row.table]
        moments = [at_us for _, at_us in question.asked]
        until = self._known_until(stream, min(moments))
        begun = find_start(question.defined, question.features, states, stream.first_seq, until)
        where = Range(begun.start, max(begun.start + 1, row.target))
        yield self._planned(row, stream, question, begun, where, max(moments))

    def _planned(
        self, row: HistoryRow, stream: StreamRow, question: Question, begun: ReplayStart, where: Range, last_us: int
    ) -> PlannedUnit:
        document = msgspec.json.decode(self._registries.document(stream.id, stream.revision))
        unit = Unit(
            unit=f"history-{row.id}-{secrets.token_hex(6)}",
            job="history",
            stream=stream.name,
            incarnation=stream.incarnation,
            first_seq=where.first,
            count=where.end - where.first,
            level=0,
            out="",
            segments=tuple(self._sources(stream, where, last_us)),
            table=row.table,
            states=tuple(begun.states),
            history=row.id,
            known=known_ranges(begun),
            registry=document,
            question=msgspec.json.decode(row.question),
        )
        return PlannedUnit(unit, stream.id, False)

    def _sources(self, stream: StreamRow, where: Range, last_us: int) -> Iterator[Source]:
        """The segments that hold events of a range up to a moment."""
        owned = owned_ranges(self._streams, stream, stream.first_seq)
        for piece in segment_parts(self._published, owned, where):
            placed = self._published.holding(stream.id, piece.range.first)
            if placed is not None and placed.segment.min_us > last_us:
                return
            yield piece.source

    def _known_until(self, stream: StreamRow, at_us: int) -> int:
        """An event before which all came up to a moment; 0 where that may be one that is not retained any more."""
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
    """Whether a worker has a question."""
    return any(unit.id.startswith(f"history-{row.id}-") for unit in work.working_on(row.stream))


def known_ranges(begun: ReplayStart) -> StartPoint:
    """Where to begin, as a document."""
    ranges = [
        StartPart(tuple(part.chain.names), part.start, tuple(state.name for state in part.chain.states))
        for part in begun.parts
    ]
    return StartPoint(tuple(ranges), begun.complete, begun.since)


def store_answer(batch: Batch, id: str, answer: HistoryAnswer) -> str | None:
    """Write an answer down; or say why it does not count."""
    text = msgspec.json.encode(answer).decode()
    return None if Histories(batch.connection).end(id, DONE, batch.now_us, answer=text) else "the question is over"


def fail_question(batch: Batch, id: str, reason: str) -> None:
    """End a question that cannot be answered."""
    Histories(batch.connection).end(id, FAILED, batch.now_us, reason=reason)


def begin_question(batch: Batch, row: HistoryRow) -> None:
    """Write a question down, and forget old ones."""
    rows = Histories(batch.connection)
    rows.forget(batch.now_us - KEPT_US, KEPT)
    rows.add(msgspec.structs.replace(row, state=RUNNING, begun_us=batch.now_us))
