"""Reads rows of tables as of moments in the past, within the time of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.engine.features.feature_reader import FeatureReader, shapes_of
from headrace.engine.history.stored_events import Events, EventsMoved, MissingObjects
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Head, Stream
from headrace.engine.log.tiers import NeedsFetch
from headrace.engine.runtime.gates import Gate
from headrace.errors import CorruptData, KeyShapeMismatch, TimedOut
from headrace.format.decoded_columns import LruCache
from headrace.reduce.features.definition import TableDefinition
from headrace.reduce.features.moments import KeyMoment, Question
from headrace.reduce.features.replay import Replay, ReplayStart, find_start, split_rows
from headrace.storage.database import Connection
from headrace.storage.objects import ObjectMissing
from headrace.storage.state_files import StateFile

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

#: Replays that run at the same time; others wait.
MAX_CONCURRENT = 2
_SLICE_BYTES = 256 * 1024


class RowMoment(NamedTuple):
    """The key of a row as the caller gives it, and its moment by both clocks; without the second there is no limit."""

    key: Any
    at_us: int
    appended_us: int | None = None


class PastRows(NamedTuple):
    """Rows in the order of the request, and the event from which on they count everything."""

    rows: list[dict[str, Any]]
    #: Whether all events since the births of the features are counted.
    complete: bool
    #: The first event that is counted, its offset, and when the first retained event was appended.
    since_seq: int
    since: str
    reaches_us: int | None
    #: How many events of each row came too late to count; empty where none did.
    late_events: Sequence[int] = ()


class PastReader:
    """Reads past rows; runs on the event loop, and replays events in threads."""

    def __init__(
        self,
        *,
        log: Log,
        feature_reader: FeatureReader,
        connect: Callable[[], Connection],
        segments: Callable[[], Segments],
        timeout_s: float,
    ) -> None:
        self._log, self.feature_reader = log, feature_reader
        self.connect, self.segments = connect, segments
        self._timeout_s = timeout_s
        self._gate = Gate(MAX_CONCURRENT)

    async def rows(self, table: str, moments: Sequence[RowMoment], features: Sequence[str] | None = None) -> PastRows:
        """The rows of keys, each as of its moment; raises TimedOut where there is too much to fold."""
        question = await self.question(table, moments, features)
        async with self._gate:
            return await self.answer(question, monotonic() + self._timeout_s)

    async def question(self, table: str, moments: Sequence[RowMoment], features: Sequence[str] | None) -> Question:
        """The question about a table as it is defined now."""
        defined = self.feature_reader.defined(table)
        wanted = tuple(self.feature_reader.wanted(defined, features))
        return await asyncio.to_thread(_question, defined, wanted, moments)

    async def answer(self, question: Question, end_s: float, target: int | None = None) -> PastRows:
        """The rows from the events before ``target``, or all.

        Raises TimedOut where that takes longer than until ``end_s`` of the monotonic clock.
        """
        missing = MissingObjects()
        while True:
            stream = self.feature_reader.find_stream(question.defined)
            head = stream.head
            stop = head.next_seq if target is None else min(target, head.next_seq)
            replay = _ReplayTask(self, stream, head, await self.find_start(question, stream), stop, end_s)
            try:
                rows = await asyncio.to_thread(replay.run, question)
            except ObjectMissing as reason:
                missing.note(reason)
                continue
            if rows is not None:
                return rows

    async def find_start(self, question: Question, stream: Stream) -> ReplayStart:
        """Where the replay of a question starts: after the states that hold all earlier events."""
        defined, head = question.defined, stream.head
        until = await self._seek_after(stream, head, question.first_limit_us())
        return find_start(
            defined, question.features, self.feature_reader.listed(defined, stream), head.first_seq, until
        )

    async def _seek_after(self, stream: Stream, head: Head, at_us: int) -> int:
        """The first event after a moment; 0 where that may be one that is not retained any more."""
        while True:
            try:
                position = self._log.seek(stream, at_us + 1)
                return position if position > head.first_seq or at_us >= head.last_us else 0
            except NeedsFetch as needed:
                await asyncio.to_thread(needed.work)


def _question(defined: TableDefinition, features: tuple[str, ...], moments: Sequence[RowMoment]) -> Question:
    return Question(features, tuple(_packed_moments(defined, moments)), defined)


class _ReplayTask(NamedTuple):
    """One replay, in a thread."""

    reader: PastReader
    stream: Stream
    head: Head
    start: ReplayStart
    stop: int
    end_s: float

    def run(self, question: Question) -> PastRows | None:
        """The answer; None where events have moved meanwhile, and the replay has to start again."""
        try:
            return self._run(question)
        except EventsMoved:
            self._check_time()
            return None

    def _run(self, question: Question) -> PastRows:
        files = self.reader.feature_reader.builder.files
        with ExitStack() as stack:
            connection = self.reader.connect()
            stack.callback(connection.close)
            state_files = {}
            for state in self.start.states:
                state_files[state.name] = files.hold(self.stream.name, self.stream.incarnation, state)
                stack.callback(files.release, state_files[state.name])
            replay = Replay(self.start, question, lambda state, key: self._get_state(state_files[state.name], key))
            reaches_us = self._replay(replay, question.defined, connection)
            since = self.start.since
            rows, late_events = split_rows(replay.finish())
            return PastRows(rows, self.start.complete, since, self.stream.offset_at(since), reaches_us, late_events)

    def _get_state(self, file: StateFile, key: bytes) -> dict[str, bytes] | None:
        """The state of a key; a damaged file is dropped, and built again for the next try."""
        try:
            return file.get(key)
        except CorruptData as reason:
            self.reader.feature_reader.builder.files.drop(file)
            raise EventsMoved("a cached state is damaged") from reason

    def _replay(self, replay: Replay, defined: TableDefinition, connection: Connection) -> int | None:
        """Fold the events; returns when the first retained event was appended."""
        head = self.head
        shapes = shapes_of(head.registry, defined)
        events = Events(connection, self.reader.segments, LruCache(0), self.stream, head)
        reaches_us = events.appended_us(head.first_seq) if head.first_seq < head.next_seq else None
        for run in events.runs(self.start.start, self.stop, _SLICE_BYTES):
            if not replay.fold(shapes, run):
                break
            self._check_time()
        return reaches_us

    def _check_time(self) -> None:
        if monotonic() > self.end_s:
            events = self.stop - self.start.start
            raise TimedOut(f"{events} events are too many to fold within the time of a request", events=events)


def _packed_moments(defined: TableDefinition, moments: Sequence[RowMoment]) -> Iterator[KeyMoment]:
    """Each key as it is stored, and its moment; a refusal names the row."""
    for number, (key, at_us, appended_us) in enumerate(moments):
        try:
            yield KeyMoment(defined.reducer.key(key), at_us, appended_us)
        except KeyShapeMismatch as refused:
            path = f"rows[{number}].key"
            raise KeyShapeMismatch(f"{path}: {refused.message}", **refused.facts, path=path) from None
