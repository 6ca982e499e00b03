"""Folds committed events of a stream into the tails over it; each event is decoded once for all tails.

The event loop follows in small steps, from rows of the log. A thread does what takes longer: many events, or those that
lie in segments already. Where rows can be folded by key, many events are only kept, until answering without them in the
tails has cost a share of what folding them costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from time import monotonic, sleep, thread_time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from headrace.engine.derive.column_slices import (
    MIN_COLUMN_EVENTS,
    ColumnsOf,
    NewRows,
    TailMark,
    fold_runs,
    prepare_rows,
    slices,
)
from headrace.engine.derive.generation import Generation
from headrace.engine.history.stored_events import Events
from headrace.engine.log.stream import Head, Stream
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.format.decoded_columns import LruCache
from headrace.reduce.states.definition import Definition, EventRun, Shapes
from headrace.reduce.states.pending_events import Block, PendingEvents
from headrace.schema.entries import entries_of
from headrace.storage.database import Connection
from headrace.storage.wal import Entries, Wal

if TYPE_CHECKING:
    from headrace.storage.segments import Segments


#: Events that the event loop folds at once, where folding one takes little time.
STEP_ROWS = 256
#: How long the event loop folds at once, at most; and what an event is taken to cost before any was folded.
_STEP_S, _EVENT_S = 0.005, 20e-6
#: Events whose rows of the log are read together.
_GATHERED_ROWS = 2 * STEP_ROWS
#: The share of the newest step in what an event is taken to cost.
_NEWEST = 0.2
#: Payload that a thread decodes together.
_SLICE_BYTES = 256 * 1024
#: Events that a thread folds between two looks whether it is to stop, and how long it folds kept ones at once: while
#: somebody waits for it, and so long that new events are kept before they leave the log.
_AT_ONCE, _AWAITED_TURN_S, _TURN_S = 16, 0.02, 0.2
#: The pause between two looks whether holds were released.
_HOLD_PAUSE_S = 0.01
#: Events that wait are folded once answers by key have taken this share of the time that folding takes.
_WORTH = 0.25


#: Makes what decodes the events of a definition, by the registry of their stream.
MakeShapes = Callable[[StreamRegistry | None, Any], Shapes]


class Follower:
    """The generations of one source over one stream, and how far their tails are folded."""

    def __init__(
        self,
        defined: Definition,
        wal: Wal,
        shapes_of: MakeShapes,
        step_rows: int = STEP_ROWS,
        columns_of: ColumnsOf | None = None,
    ) -> None:
        """With ``columns_of``, many events are folded as columns."""
        #: The stream.
        self.name = defined.stream
        #: Any of the definitions: events are decoded alike for all of them.
        self.defined = defined
        #: The life of the stream that is followed.
        self.incarnation = ""
        self.generations: dict[str, Generation] = {}
        #: The version of the registry whose definitions its tails fold by.
        self.version = -1
        #: Whether a thread folds right now; then nobody else does.
        self.busy = False
        #: Whether a thread makes rows of the next events; then nobody folds, and tails can be read.
        self.is_preparing = False
        #: How many look up rows while the tails stand still.
        self.holds = 0
        #: Whether somebody waits for that thread, who can be answered from events that are kept.
        self.is_awaited = False
        #: The CPU time that answers by key have taken since the tails last had all events, in seconds.
        self.spent_s = 0.0
        #: Events that tails lack, where those are too many to be folded at once and are found by key.
        self.pending: PendingEvents | None = None
        #: Whether not all of them can be kept: they are too many, or lie in segments already.
        self.overflows = False
        self.columns_of = columns_of
        self._wal, self._shapes_of, self._step_rows = wal, shapes_of, step_rows
        #: What folding an event costs, one by one and as one of many in columns.
        self._event_s = self._column_event_s = _EVENT_S
        self._shapes_cache: tuple[StreamRegistry | None, Definition, Shapes] | None = None

    def lag(self, head: Head) -> int:
        """How many events the tail that is furthest behind lacks."""
        return head.next_seq - min(
            (generation.position for generation in self.generations.values()), default=head.next_seq
        )

    @property
    def may_fold(self) -> bool:
        """Whether the event loop may fold."""
        return not (self.busy or self.holds or self.is_preparing)

    async def wait_for_holds(self) -> None:
        """Wait until nobody looks up rows while the tails stand still."""
        while self.holds:
            await asyncio.sleep(_HOLD_PAUSE_S)

    def affordable(self, seconds: float) -> int:
        """About how many events are folded in this time, at least a few."""
        return max(8, int(seconds / self._event_s))

    def gather(self, stream: Stream, head: Head, room_bytes: int, ends: float) -> bool:
        """Buffer the events that tails lack, unfolded; False where the deadline is over before all are buffered."""
        start = head.next_seq - self.lag(head)
        pending = self.pending
        if pending is None or pending.start > start:
            pending = self.pending = PendingEvents(start)
        pending.drop_before(start)
        while pending.end < head.next_seq:
            self.overflows = pending.memory >= room_bytes
            if self.overflows:
                return False
            end = min(head.next_seq, pending.end + _GATHERED_ROWS)
            rows = list(self._wal.scan(stream.id, pending.end, end))
            if not _contain_event(rows, pending.end):
                self.pending, self.overflows = None, True
                return False
            pending.append(of_rows(rows, pending.end))
            if pending.end < head.next_seq and monotonic() > ends:
                return False
        return True

    def drop_pending(self) -> None:
        """Drop the buffered events."""
        self.pending, self.overflows, self.spent_s = None, False, 0.0

    def is_worth_folding(self, head: Head, room_bytes: int) -> bool:
        """Whether buffered events should be folded, since they take much time in reads, or much memory."""
        if self.pending is not None and 2 * self.pending.memory > room_bytes:
            return True
        lag = self.lag(head)
        as_columns = self.columns_of is not None and lag >= MIN_COLUMN_EVENTS
        return self.spent_s > _WORTH * lag * (self._column_event_s if as_columns else self._event_s)

    def has_pending_from(self, start: int) -> bool:
        """Whether a position lies within the buffered events, or at their end."""
        return self.pending is not None and self.pending.start <= start <= self.pending.end

    def pending_blocks(self) -> list[Block]:
        """The buffered events from the first that any tail lacks; none where that one is not buffered."""
        start = min((generation.position for generation in self.generations.values()), default=0)
        return [] if self.pending is None or not self.pending.holds(start, start + 1) else self.pending.since(start)

    def prepare_rows(
        self, shapes: Shapes, tails: Sequence[TailMark], blocks: Iterable[Block], should_continue: Callable[[], bool]
    ) -> list[NewRows]:
        """Make rows of buffered events for tails, in a thread; none where it is stopped. May raise NotColumnar."""
        assert self.columns_of is not None
        cpu_s = thread_time()
        made = prepare_rows((block.run() for block in blocks), shapes, tails, self.columns_of, should_continue)
        if made:
            count = made[0].end - min(rows.before.position for rows in made)
            self._column_event_s += _NEWEST * ((thread_time() - cpu_s) / count - self._column_event_s)
        return made

    def add_new_rows(self, made: Iterable[NewRows]) -> None:
        """Add rows to the tails that are still in use, and as they were."""
        for rows in made:
            if self.generations.get(rows.before.defined.name) is rows.before.tail:
                rows.add_to_tail()

    @property
    def is_full(self) -> bool:
        """Whether a tail should merge rows before it is given more."""
        return any(tail.fold.is_full for tail in self.generations.values())

    def merge_rows(self, should_continue: Callable[[], bool]) -> None:
        """Merge rows of tails that are full, in a thread, until its time slice is over or it is stopped."""
        begun = monotonic()
        for tail in self.generations.values():
            tail.fold.merge_rows(lambda: self._is_slice_over(begun) or not should_continue())

    def fold_buffered(
        self, shapes: Shapes, tails: Sequence[Generation], blocks: Iterable[Block], should_continue: Callable[[], bool]
    ) -> None:
        """Fold buffered events into tails, in a thread, until its time slice is over or it is stopped."""
        begun, cpu_s, count = monotonic(), thread_time(), 0
        for run in (block.run() for block in blocks):
            for seq, at, event in shapes.decode_run(run):
                for tail in tails:
                    tail.add(seq, at, event)
                count += 1
                if not count % _AT_ONCE and (self._is_slice_over(begun) or not should_continue()):
                    self._update_event_cost(thread_time() - cpu_s, count)
                    return
        self._update_event_cost(thread_time() - cpu_s, count)

    def _is_slice_over(self, begun: float) -> bool:
        return monotonic() - begun > (_AWAITED_TURN_S if self.is_awaited else _TURN_S)

    def step(self, stream: Stream, head: Head) -> bool:
        """Fold the next events, one step; False where a thread has to do it."""
        lag = self.lag(head)
        start = head.next_seq - lag
        pending, limit = self.pending, min(self._step_rows, self.affordable(_STEP_S))
        if pending is not None and pending.holds(start, start + 1):
            self.fold(self.shapes(head), [pending.next(start, min(lag, limit))])
            return True
        rows = list(self._wal.scan(stream.id, start, min(head.next_seq, start + limit)))
        if not _contain_event(rows, start) or max(row.count for row in rows) > 2 * self._step_rows:
            return False
        self.fold(self.shapes(head), of_rows(rows, start))
        return True

    def steps(self, stream: Stream, head: Head) -> bool:
        """Fold events for one time slice of the event loop; False where a thread has to do it."""
        ends = monotonic() + _STEP_S
        while self.step(stream, head):
            if not self.lag(head) or monotonic() > ends:
                return True
        return False

    def catch_up(self, stream: Stream, head: Head, limit: int) -> bool:
        """Fold up to the head; False where these are too many events, or a thread has to do it."""
        while lag := self.lag(head):
            if not self.may_fold or lag > limit or not self.step(stream, head):
                return False
        self.drop_pending()
        return True

    def fold(self, shapes: Shapes, runs: Iterable[EventRun]) -> None:
        """Fold events into every tail that lacks them."""
        tails = list(self.generations.values())
        begun, count = thread_time(), 0
        for run in runs:
            count += len(run.times_us)
            for seq, at, event in shapes.decode_run(run):
                for tail in tails:
                    tail.add(seq, at, event)
        self._update_event_cost(thread_time() - begun, count)

    def _update_event_cost(self, seconds: float, events: int) -> None:
        """Update the estimate of what folding an event costs."""
        self._event_s += _NEWEST * (seconds / max(1, events) - self._event_s)

    def shapes(self, head: Head) -> Shapes:
        """The decoder of stored events for the schema at a head."""
        registry, defined, cached = head.registry, self.defined, self._shapes_cache
        if cached is None or cached[0] is not registry or cached[1] is not defined:
            cached = self._shapes_cache = registry, defined, self._shapes_of(registry, defined)
        return cached[2]


def _contain_event(rows: Sequence[Entries], seq: int) -> bool:
    """Whether rows that were read from the log contain an event."""
    return bool(rows) and rows[0].seq <= seq < rows[-1].seq + rows[-1].count


def fold_through(
    connection: Connection,
    segments: Callable[[], Segments],
    stream: Stream,
    head: Head,
    shapes: Shapes,
    tails: Iterable[Generation],
    *,
    columns_of: ColumnsOf | None,
    should_continue: Callable[[], bool],
    pauses: bool,
) -> bool:
    """Fold all events up to a head, from the log or from segments, in a thread; False where it was stopped."""
    tails = list(tails)
    for tail in tails:
        tail.go_on_from(head.first_seq)
    events = Events(connection, segments, LruCache(0), stream, head)
    start = min((tail.position for tail in tails), default=head.next_seq)
    runs = events.runs(start, head.next_seq, _SLICE_BYTES)
    as_columns = columns_of is not None and head.next_seq - start >= MIN_COLUMN_EVENTS
    for together in slices(runs) if as_columns else ([run] for run in runs):
        begun = monotonic()
        fold_runs(together, shapes, tails, columns_of if as_columns else None, should_continue)
        if not should_continue():
            return False
        if pauses:
            sleep(monotonic() - begun)
    for tail in tails:
        tail.position = max(tail.position, head.next_seq)  # what is not retained any more is not waited for
    return True


def of_rows(rows: Iterable[Entries], start: int) -> Iterator[EventRun]:
    """Rows of the log from an event on."""
    for row in rows:
        if row.seq >= start:
            yield EventRun(row.seq, row.version, [row.append_us] * row.count, row.body)
            continue
        left = entries_of(row.body)[start - row.seq :]
        yield EventRun(start, row.version, [row.append_us] * len(left), b",".join(left))


class Followers(dict[tuple[str, str], Follower]):
    """The followers of a reader, by stream and source."""

    def __init__(self) -> None:
        super().__init__()
        #: The streams that are followed.
        self.streams: set[str] = set()

    @staticmethod
    def key_of(defined: Definition) -> tuple[str, str]:
        """Where the follower of a definition is."""
        return defined.stream, defined.source

    def of(self, defined: Definition) -> Follower | None:
        """The follower of a definition."""
        return self.get(self.key_of(defined))

    def add(self, follower: Follower) -> Follower:
        """Follow a stream from now on."""
        self[self.key_of(follower.defined)] = follower
        self.streams.add(follower.name)
        return follower

    def drop(self, key: tuple[str, str]) -> None:
        """Follow a source no more."""
        del self[key]
        self.streams = {stream for stream, _ in self}


class Hold:
    """Keeps the tails of some streams from being folded until it is released; reads fold rows ahead of them."""

    def __init__(self, followers: Iterable[Follower], names: Iterable[str]) -> None:
        self._followers, self._names = list(dict.fromkeys(followers)), frozenset(names)
        self._marks = self._generation_marks()

    def __enter__(self) -> Hold:
        for follower in self._followers:
            follower.holds += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for follower in self._followers:
            follower.holds -= 1

    @property
    def is_intact(self) -> bool:
        """Whether the generations and their events are the same as when the hold began."""
        return self._generation_marks() == self._marks

    def _generation_marks(self) -> list[Any]:
        """A value that changes when the rows would no longer be consistent with each other."""
        return [
            (follower.name, name, generation.number, generation.position, follower.overflows)
            for follower in self._followers
            for name, generation in follower.generations.items()
            if name in self._names
        ]


def list_tails(followers: Collection[Follower]) -> list[Generation]:
    """Return the current generations."""
    return [generation for follower in followers for generation in follower.generations.values()]


def tail_bytes(followers: Collection[Follower]) -> int:
    """Estimate the memory of tails in bytes, including their buffered events."""
    pending = [follower.pending for follower in followers if follower.pending is not None]
    return sum(tail.fold.memory for tail in list_tails(followers)) + sum(events.memory for events in pending)


def balance(followers: Collection[Follower], hot_bytes: int) -> None:
    """Give every tail an equal part of the memory for unpacked rows."""
    generations = list_tails(followers)
    for tail in generations:
        tail.fold.hot_bytes = hot_bytes // len(generations)


def shrink(followers: Collection[Follower]) -> None:
    """Pack some rows of tails that no thread is folding."""
    for follower in followers:
        if not follower.busy:
            for generation in follower.generations.values():
                generation.fold.cool()
