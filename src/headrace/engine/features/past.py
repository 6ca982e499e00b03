"""The past of tables: one row as of a moment, or many for training, within the time of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.engine.features.feature_reader import FeatureReader, shapes_of
from headrace.engine.history.stored_events import Events, EventsMoved, MissingObjects
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Head, Stream
from headrace.engine.log.tiers import NeedsFetch
from headrace.engine.runtime.gates import Gate
from headrace.errors import CorruptData, TimedOut
from headrace.format.decoded_columns import DecodedCache
from headrace.reduce.features.definition import TableDefinition
from headrace.reduce.features.replay import KeyMoment, Question, Replay, ReplayStart, find_start
from headrace.reduce.states.fold import runs_of_batch
from headrace.storage.database import Connection
from headrace.storage.objects import ObjectMissing
from headrace.storage.state_files import StateFile

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

#: Replays at once; the others wait for their turn.
AT_ONCE = 2
_SLICE_BYTES = 256 * 1024


class Past(NamedTuple):
    """Rows in the order in which they were asked for, and from which event on they know everything."""

    rows: list[dict[str, Any]]
    #: Whether nothing is missing since the births of the features.
    complete: bool
    #: The first event that is known of, its offset, and when the first one that is retained was appended.
    since_seq: int
    since: str
    reaches_us: int | None


class Pasts:
    """Runs on the event loop; replays in threads."""

    def __init__(
        self,
        *,
        log: Log,
        serving: FeatureReader,
        connect: Callable[[], Connection],
        segments: Callable[[], Segments],
        timeout_s: float,
    ) -> None:
        self._log, self.serving = log, serving
        self.connect, self.segments = connect, segments
        self._timeout_s = timeout_s
        self._gate = Gate(AT_ONCE)

    async def rows(self, table: str, moments: Sequence[tuple[Any, int]], features: Sequence[str] | None = None) -> Past:
        """The rows of keys, each as of its moment in microseconds; raises TimedOut where there is too much to fold."""
        question = await self.question(table, moments, features)
        async with self._gate:
            return await self.answer(question, monotonic() + self._timeout_s)

    async def question(
        self, table: str, moments: Sequence[tuple[Any, int]], features: Sequence[str] | None
    ) -> Question:
        """What is asked of a table as it is defined now."""
        defined = self.serving.defined(table)
        wanted = tuple(self.serving.wanted(defined, features))
        return await asyncio.to_thread(_question, defined, wanted, moments)

    async def answer(self, question: Question, ends: float) -> Past:
        """The rows, if they are found by then."""
        missing = MissingObjects()
        while True:
            stream = self._log.find(question.defined.stream)
            work = _Work(self, stream, stream.head, await self.begun(question, stream), ends)
            try:
                past = await asyncio.to_thread(work.run, question)
            except ObjectMissing as reason:
                missing.note(reason)
                continue
            if past is not None:
                return past

    async def begun(self, question: Question, stream: Stream) -> ReplayStart:
        """Where to begin."""
        defined, head = question.defined, stream.head
        until = await self._known_until(stream, head, min((at_us for _, at_us in question.asked), default=0))
        return find_start(defined, question.features, self.serving.listed(defined, stream), head.first_seq, until)

    async def _known_until(self, stream: Stream, head: Head, at_us: int) -> int:
        """The first event after a moment; 0 where that may be one that is not retained any more."""
        while True:
            try:
                position = self._log.seek(stream, at_us + 1)
                return position if position > head.first_seq or at_us >= head.last_us else 0
            except NeedsFetch as cold:
                await asyncio.to_thread(cold.work)


def _question(defined: TableDefinition, features: tuple[str, ...], moments: Sequence[tuple[Any, int]]) -> Question:
    return Question(features, tuple((defined.reducer.key(key), at_us) for key, at_us in moments), defined)


class _Work(NamedTuple):
    """One replay, in a thread."""

    pasts: Pasts
    stream: Stream
    head: Head
    begun: ReplayStart
    ends: float

    def run(self, question: Question) -> Past | None:
        """The answer; None where something has moved meanwhile, and it is to be looked for again."""
        try:
            return self._run([KeyMoment(*key_moment) for key_moment in question.asked], question.features)
        except EventsMoved:
            self._check_time()
            return None

    def _run(self, moments: Sequence[KeyMoment], features: Sequence[str]) -> Past:
        files = self.pasts.serving.bench.files
        with ExitStack() as stack:
            connection = self.pasts.connect()
            stack.callback(connection.close)
            held = {}
            for state in self.begun.states:
                held[state.name] = files.hold(self.stream.name, self.stream.incarnation, state)
                stack.callback(files.release, held[state.name])
            replay = Replay(self.begun, moments, features, lambda state, key: self._looked_up(held[state.name], key))
            reaches_us = self._replay(replay, connection)
            since = self.begun.since
            return Past(replay.finish(), self.begun.complete, since, self.stream.offset_at(since), reaches_us)

    def _looked_up(self, file: StateFile, key: bytes) -> dict[str, bytes] | None:
        """What a state has of a key; a damaged file is made anew for the next try."""
        try:
            return file.get(key)
        except CorruptData as reason:
            self.pasts.serving.bench.files.drop(file)
            raise EventsMoved("a cached state is damaged") from reason

    def _replay(self, replay: Replay, connection: Connection) -> int | None:
        """Fold the events; answers when the first one that is retained was appended."""
        head, registry = self.head, self.head.registry
        assert registry is not None
        shapes = shapes_of(registry)
        events, at = Events(connection, self.pasts.segments, DecodedCache(0), self.stream, head), self.begun.start
        reaches_us = events.appended_us(head.first_seq) if head.first_seq < head.next_seq else None
        while at < head.next_seq:
            chunk = events.first_chunk(at, head.next_seq)
            for batch in events.batches(chunk):
                for run in runs_of_batch(batch, _SLICE_BYTES):
                    if not replay.fold(shapes, run):
                        return reaches_us
                    self._check_time()
            at = chunk.stop
        return reaches_us

    def _check_time(self) -> None:
        if monotonic() > self.ends:
            events = self.head.next_seq - self.begun.start
            raise TimedOut(f"{events} events are too many to fold within the time of a request", events=events)
