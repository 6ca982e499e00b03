"""Reads folded rows: history from states and the tail from memory, both of one generation.

Everything here runs on the event loop. A read that would take long raises ``NotReady``: the caller waits for
`StateReader.ready`, and retries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from time import monotonic
from typing import Any, Generic, NamedTuple

from headrace.engine.derive.column_slices import ColumnsOf
from headrace.engine.derive.generation import HOT_ROWS, Generation, NotReady, can_inherit
from headrace.engine.derive.row_lookahead import RowLookahead
from headrace.engine.derive.state_builder import StateBuilder
from headrace.engine.derive.tails import STEP_ROWS, Follower, Followers, Hold, MakeShapes, list_tails
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Head, Stream
from headrace.errors import Gone, HeadraceError, NotFound
from headrace.format.state import State
from headrace.reduce.states.coverage import Base, base
from headrace.reduce.states.definition import Defined, Definitions, Keying
from headrace.storage.derived import Stamp, States
from headrace.storage.wal import Wal

log = logging.getLogger("headrace.states")

#: The most events that a read folds on the event loop.
INLINE_ROWS = 4 * STEP_ROWS
#: The pause between two steps of folding tails that lag, in which other tasks run.
_PAUSE_S = 0.01
#: The same while no events come.
_IDLE_PAUSE_S = 0.001
#: Events that take longer to be folded than this are kept unfolded, where rows can be folded by key.
_MANY_S = 0.05
#: The longest time that a read may block the event loop.
SLICE_S = 0.01
_TRIES = 3


class FoldPace(NamedTuple):
    """Events per step on the event loop, of which a waiting read may take four, and rows that are kept unpacked."""

    step_rows: int = STEP_ROWS
    hot_rows: int = HOT_ROWS


USUAL_PACE = FoldPace()


class StateReader(Generic[Defined]):
    """Reads the rows of every definition of one kind of state."""

    def __init__(
        self,
        log: Log,
        wal: Wal,
        states: States,
        current: Callable[[], Definitions[Defined]],
        shapes_of: MakeShapes,
        builder: StateBuilder,
        fold_rows: int,
        pace: FoldPace = USUAL_PACE,
        keying_of: Callable[[Any], Keying] | None = None,
        pending_bytes: int = 0,
        columns_of: ColumnsOf | None = None,
    ) -> None:
        """With ``keying_of``, rows are folded by key ahead of tails that lag; ``pending_bytes`` limits their events.
        With ``columns_of``, many events are folded as columns.
        """
        self._log, self._wal, self._states = log, wal, states
        #: Returns the current definitions.
        self.current = current
        self.builder = builder
        self._shapes_of, self._columns_of = shapes_of, columns_of
        self._fold_rows, self._pace = fold_rows, pace
        self._inline_rows = pace.step_rows * INLINE_ROWS // STEP_ROWS
        self._followers = Followers()
        self._defined: dict[str, Defined] = {}
        self._version = -1
        self._listed_states: dict[int, tuple[Stamp, list[State]]] = {}
        #: How often the rows of a stream were invalidated; a build that began before is discarded.
        self._invalidations: dict[str, int] = {}
        self._building: dict[str, asyncio.Task[None]] = {}
        self._folding: dict[Follower, asyncio.Task[None]] = {}
        self._tick_timer: asyncio.TimerHandle | None = None
        self._has_new_events = False
        self._lookahead = RowLookahead(self._followers, builder.rows, keying_of, pending_bytes)

    async def stop(self) -> None:
        """Stop all tasks and the thread; nothing in memory has to be saved."""
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        tasks = [*self._building.values(), *self._folding.values()]
        await self.builder.stop()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def followers(self) -> Collection[Follower]:
        """The followers of all streams over which something is folded."""
        return self._followers.values()

    async def ready(self, name: str) -> None:
        """Wait until the rows of a definition can be read."""
        defined = self.defined(name)
        stream = self.find_stream(defined)
        follower = self._follower(defined)
        self._drop_damaged(follower, name)
        if name not in follower.generations:
            await asyncio.shield(self._build(defined))
            return
        if not follower.busy and self._lookahead.may_gather(follower):
            self._gather(follower, stream, stream.head)
            if not follower.overflows:
                await asyncio.sleep(0)  # the read continues after other tasks have run
                return
        if follower.busy or follower.lag(stream.head) > self._inline_rows or not self._catch_up(follower, stream):
            await asyncio.shield(self._fold(follower, stream))

    def defined(self, name: str) -> Defined:
        """The current definition of a name."""
        current = self._current_definitions()
        definition = self._defined.get(name)
        if definition is None:
            definition = self._defined[name] = current.defined(name)
        return definition

    def over(self, stream: Stream) -> list[Defined]:
        """The definitions over a stream."""
        return [self.defined(name) for name in self.current().names_over(stream.name)]

    def find_stream(self, defined: Defined) -> Stream:
        """The stream of a definition; raises NotFound or Gone where there is none."""
        return self._log.find(defined.stream)

    def appended(self, stream: Stream, _: int) -> None:
        """Schedule folding of the tails of a stream to which events were appended."""
        self._has_new_events = True
        if stream.name in self._followers.streams:
            self._tick_soon()

    def states_changed(self, streams: Iterable[int]) -> None:
        """Rebuild the generations of streams whose list of states has changed."""
        self._current_definitions()
        changed = set(streams)
        for follower in list(self._followers.values()):
            stream = self._log.catalog.find(follower.name)
            if stream is not None and stream.id in changed:
                for name in list(follower.generations):
                    self._build(self.defined(name))

    async def forget(self, stream: Stream) -> None:
        """Invalidate all folded rows of a stream, since its events were changed.

        Returns when no task uses the old rows any more.
        """
        names = self.current().names_over(stream.name)
        followers = [follower for follower in self._followers.values() if follower.name == stream.name]
        begun = [self._building.get(name) for name in names], [self._folding.get(each) for each in followers]
        for follower in followers:
            self._followers.drop(self._followers.key_of(follower.defined))
        self._listed_states.pop(stream.id, None)
        self._invalidations[stream.name] = self._invalidations.get(stream.name, 0) + 1
        await asyncio.gather(*(task for tasks in begun for task in tasks if task is not None), return_exceptions=True)
        for generation in list_tails(followers):
            self.builder.release(generation.files.values())

    def tail_of(self, name: str) -> Generation | None:
        """The current generation of a definition, if there is one."""
        for follower in self._followers.values():
            if name in follower.generations:
                return follower.generations[name]
        return None

    def current_base(self, defined: Defined, stream: Stream) -> Base:
        """The base of the states that are listed now."""
        head = stream.head
        return base(defined, self.listed(defined, stream), head.first_seq, head.published_seq, 2 * self._fold_rows)

    def listed(self, defined: Defined, stream: Stream) -> list[State]:
        """The states of a definition, cached until those of its stream change."""
        stamp, cached = self._states.stamp(stream.id), self._listed_states.get(stream.id)
        if cached is None or cached[0] != stamp:
            cached = self._listed_states[stream.id] = stamp, self._states.listed(stream.id)
        return [state for state in cached[1] if state.table == defined.name]

    def _current_definitions(self) -> Definitions[Defined]:
        """The current definitions; where they have changed, cached rows and lists that are out of date are dropped."""
        current = self.current()
        if current.version != self._version:
            self._drop_changed(current)
        return current

    def _drop_changed(self, current: Definitions[Defined]) -> None:
        self._version = current.version
        before, self._defined = self._defined, {}
        for name, definition in before.items():
            if current.stream_of(name) is not None and current.defined(name) == definition:
                self._defined[name] = definition
        for key, follower in list(self._followers.items()):
            for name in list(follower.generations):
                if current.stream_of(name) is None or self._followers.key_of(current.defined(name)) != key:
                    self.builder.release(follower.generations.pop(name).files.values())
            if not follower.generations:
                self._followers.drop(key)
        self._listed_states.clear()

    def _follower(self, defined: Defined) -> Follower:
        follower = self._followers.of(defined)
        if follower is None:
            follower = self._followers.add(
                Follower(defined, self._wal, self._shapes_of, self._pace.step_rows, self._columns_of)
            )
        return follower

    def _redefine(self, follower: Follower) -> None:
        """Apply the current definitions to the tails of a stream, so that later events are folded by them.

        Read the head to fold to before the call: a change of definitions is published before the events after it.
        """
        version = self._current_definitions().version
        if follower.version == version or follower.busy:
            return
        follower.version = version
        for name, generation in follower.generations.items():
            follower.defined = self.defined(name)
            generation.redefine(follower.defined)

    def _follow_new_stream(self, follower: Follower, stream: Stream) -> None:
        """Start over for a stream that was deleted and created again."""
        for generation in follower.generations.values():
            self.builder.release(generation.files.values())
        follower.generations, follower.incarnation = {}, stream.incarnation
        follower.drop_pending()

    def _drop_damaged(self, follower: Follower, name: str) -> None:
        """Drop a generation with a damaged file, which is fetched again for the next generation."""
        generation = follower.generations.get(name)
        if generation is not None and generation.damaged is not None:
            self.builder.files.drop(generation.damaged)
            del follower.generations[name]
            self.builder.release(generation.files.values())

    def current_generation(self, defined: Defined, head: Head, *, by_key: bool = False) -> tuple[Generation, Stream]:
        """The generation of a definition, folded up to a head, and its stream; raises NotReady where that takes long.

        With ``by_key`` the tail may lag: `row` folds the missing events of a key.
        """
        stream, follower = self.find_stream(defined), self._follower(defined)
        if follower.incarnation != stream.incarnation:
            self._follow_new_stream(follower, stream)
        self._redefine(follower)
        if follower.busy or self._defined.get(defined.name) is not defined:
            follower.is_awaited = True
            raise NotReady
        generation = follower.generations.get(defined.name)
        if generation is not None and generation.damaged is not None:
            self._drop_damaged(follower, defined.name)
            generation = None
        if generation is None or generation.defined is not defined:
            generation = self._successor(defined, follower, stream, generation)
        if lag := follower.lag(head):
            inline_limit = min(self._inline_rows, follower.affordable(SLICE_S)) if follower.may_fold else 0
            if by_key and lag > inline_limit and self._lookahead.may_gather(follower):
                if self._gather(follower, stream, head):
                    return generation, stream
                if not follower.overflows:
                    raise NotReady
            if not follower.catch_up(stream, head, self._inline_rows):
                raise NotReady
        return generation, stream

    async def fold_tail(self, name: str, limit: int) -> None:
        """Fold the tail of a definition in steps, unless it lags by more than ``limit`` events; may raise NotReady."""
        defined = self.defined(name)
        stream, follower = self.find_stream(defined), self._follower(defined)
        head = stream.head
        self.current_generation(defined, head, by_key=True)
        while 0 < follower.lag(head) <= limit and follower.may_fold:
            if not follower.step(stream, head):
                break
            await asyncio.sleep(0)
            self._redefine(follower)

    def hold(self, names: Iterable[str], heads: Mapping[str, Head]) -> Hold:
        """Keep the rows of definitions unchanged up to these heads; raises NotReady where they are not in memory."""
        definitions = [self.defined(name) for name in names]
        for defined in definitions:
            follower = self._follower(defined)
            if follower in self._folding and not follower.is_preparing:
                raise NotReady
            self.current_generation(defined, heads[defined.stream], by_key=True)
        return Hold([self._follower(defined) for defined in definitions], [defined.name for defined in definitions])

    def row(self, generation: Generation, head: Head, key: bytes, ends: float | None = None) -> Any:
        """The row of a key up to a head, from a current generation; raises NotReady at the deadline ``ends``."""
        if generation.position >= head.next_seq:
            return generation.row(key)
        follower = self._followers[self._followers.key_of(generation.defined)]
        ends = monotonic() + SLICE_S if ends is None else ends
        try:
            return generation.with_tail(key, self._lookahead.row(follower, generation, head, key, ends))
        finally:
            if self._lookahead.is_worth_folding(follower, head):
                self._tick_soon()

    def lag(self, name: str) -> tuple[int, str]:
        """The greatest lag of the rows of a definition in events, and the offset up to which all are complete."""
        defined = self.defined(name)
        stream, generation = self.find_stream(defined), self.tail_of(name)
        position = self.current_base(defined, stream).start if generation is None else generation.position
        return stream.head.next_seq - position, stream.offset_at(position)

    def row_lag(self, name: str, key: bytes) -> tuple[int, str]:
        """The greatest lag of the row of a key in events, and the offset up to which it is complete."""
        defined = self.defined(name)
        stream, generation = self.find_stream(defined), self.tail_of(name)
        head = stream.head
        if generation is None:
            return self.lag(name)
        events, through = self._lookahead.row_lag(self._follower(defined), generation, head, key)
        return events, stream.offset_at(through)

    def _gather(self, follower: Follower, stream: Stream, head: Head) -> bool:
        return self._lookahead.gather(follower, stream, head, monotonic() + SLICE_S)

    def _successor(self, defined: Defined, follower: Follower, stream: Stream, old: Generation | None) -> Generation:
        """The generation of a new definition, or the old one while the new one is built in the background."""
        new_base = self.current_base(defined, stream)
        if old is not None and old.answers_more_than(defined, new_base):
            return old  # until there are states of the new versions
        if old is not None and new_base == old.base and can_inherit(old, defined, new_base) and not follower.busy:
            follower.generations[defined.name] = successor = old.successor(defined, new_base, old.files)
            return successor
        is_small = stream.head.next_seq - new_base.start <= self._inline_rows
        kept = new_base.start >= stream.head.published_seq and self._lookahead.may_gather(follower)
        if not new_base.states and (is_small or kept) and not follower.busy:
            generation = Generation(defined, new_base, {}, self.builder.rows, hot_rows=self._pace.hot_rows)
            follower.generations[defined.name] = generation
            if old is not None:
                self.builder.release(old.files.values())
            return generation
        self._build(defined)
        if old is None:
            raise NotReady
        return old

    def _build(self, defined: Defined) -> asyncio.Task[None]:
        """Start a task that builds a generation of the current definition and states, unless one runs."""
        task = self._building.get(defined.name)
        if task is None:
            task = self._building[defined.name] = asyncio.create_task(self._rebuild(defined.name))
            task.add_done_callback(_retrieve_exception)
        return task

    async def _rebuild(self, name: str) -> None:
        try:
            await self._rebuild_until_current(name)
        finally:
            # Not in a done callback, which runs later: a second caller would then wait for a finished task.
            del self._building[name]

    async def _rebuild_until_current(self, name: str) -> None:
        failures = 0
        while self.builder.should_continue():
            try:
                defined = self.defined(name)
                if await self._replace_generation(defined, self.find_stream(defined)):
                    return
            except (NotFound, Gone):
                return
            except HeadraceError as reason:
                # A missing object was replaced: the list of states has the new one.
                log.warning("%s is not answered for anew yet: %s", name, reason.message)
                failures += 1
                if failures == _TRIES:
                    raise

    async def _replace_generation(self, defined: Defined, stream: Stream) -> bool:
        """Build a generation and use it for reads; False where definitions or states have changed meanwhile."""
        follower, new_base = self._follower(defined), self.current_base(defined, stream)
        invalidations = self._invalidations.get(stream.name, 0)
        old = follower.generations.get(defined.name)
        if old is not None and (
            old.answers_more_than(defined, new_base) or (old.defined, old.base) == (defined, new_base)
        ):
            return True  # it stays in use until there are more states
        if old is not None and can_inherit(old, defined, new_base):
            files = await self.builder.hold_files(stream, new_base)
            is_same = follower.generations.get(defined.name) is old and not follower.busy
            # Events may have been appended meanwhile that a new version lacks.
            if not is_same or not can_inherit(old, defined, new_base):
                self.builder.release(files.values())
                return False
            generation = old.successor(defined, new_base, files)
        else:
            head = stream.head
            if self.defined(defined.name) is not defined:
                return False
            if follower.has_pending_from(new_base.start):
                files = await self.builder.hold_files(stream, new_base)
                generation = Generation(defined, new_base, files, self.builder.rows, hot_rows=self._pace.hot_rows)
            else:
                generation = await self.builder.build(
                    follower, stream, head, defined, new_base, hot_rows=self._pace.hot_rows, pauses=old is not None
                )
            while follower.busy:
                await asyncio.sleep(_PAUSE_S)
        if self._invalidations.get(stream.name, 0) != invalidations:
            self.builder.release(generation.files.values())
            return True  # the next read builds it again
        # Before a follower is looked for: one that answers for nothing yet goes when definitions are renewed.
        if self._current_definitions().stream_of(defined.name) is None:
            self.builder.release(generation.files.values())
            return True
        follower = self._follower(defined)
        if follower.incarnation != stream.incarnation:
            self._follow_new_stream(follower, stream)
        before = follower.generations.get(defined.name)
        if self.defined(defined.name) is not defined:
            generation.redefine(self.defined(defined.name))
        follower.generations[defined.name] = generation
        if before is not None:
            self.builder.release(before.files.values())
        return self.defined(defined.name) == defined and self.current_base(defined, stream) == new_base

    def _catch_up(self, follower: Follower, stream: Stream) -> bool:
        head = stream.head
        self._redefine(follower)
        return follower.catch_up(stream, head, self._inline_rows)

    def _fold(self, follower: Follower, stream: Stream) -> asyncio.Task[None]:
        """Start a task that folds the tails of a stream to the present in a thread, unless one runs."""
        task = self._folding.get(follower)
        if task is None:
            task = self._folding[follower] = asyncio.create_task(self._fold_in_thread(follower, stream))
        return task

    async def _fold_in_thread(self, follower: Follower, stream: Stream) -> None:
        try:
            await follower.wait_for_holds()
            head = stream.head
            self._redefine(follower)
            await self.builder.fold(follower, stream, head)
        finally:
            follower.busy = follower.is_awaited = follower.overflows = False
            del self._folding[follower]
            self._tick_soon()

    def _tick_soon(self, pause_s: float = _PAUSE_S) -> None:
        """Schedule a tick for tails that lag, unless one is scheduled."""
        if self._tick_timer is None and self.builder.should_continue():
            self._tick_timer = asyncio.get_running_loop().call_later(pause_s, self._tick)

    def _tick(self) -> None:
        """Fold a step of each tail that lags, or buffer the events it lacks."""
        self._tick_timer = None
        behind = False
        self._current_definitions()
        for follower in self._followers.values():
            stream = self._log.catalog.find(follower.name)
            if stream is None or follower.busy:
                continue
            if follower.is_preparing and self._lookahead.may_gather(follower):
                behind = not self._gather(follower, stream, stream.head) or behind
                continue
            if not follower.may_fold:
                behind = True
                continue
            self._redefine(follower)
            behind = self._advance(follower, stream) or behind
        if behind:
            pause_s, self._has_new_events = _PAUSE_S if self._has_new_events else _IDLE_PAUSE_S, False
            self._tick_soon(pause_s)

    def _advance(self, follower: Follower, stream: Stream) -> bool:
        """Fold or buffer some of the events that tails lack; returns whether more remain."""
        head = stream.head
        lag = follower.lag(head)
        if lag > follower.affordable(_MANY_S) and self._lookahead.may_gather(follower):
            is_kept = self._gather(follower, stream, head)
            if not follower.overflows and not (is_kept and self._lookahead.is_worth_folding(follower, head)):
                return not is_kept
            self._fold(follower, stream)
        elif lag and not follower.steps(stream, head):
            self._fold(follower, stream)
        elif not follower.lag(head):
            follower.drop_pending()
        return not follower.busy and bool(follower.lag(stream.head))


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Retrieve the exception of a task, which was raised to all who waited, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
