"""Reading what is folded: history from states, the tail from memory, always one generation of both.

Everything here runs on the event loop. A question that would take long raises ``NotReady``: whoever asks waits for
`StateReader.ready`, and asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from time import monotonic
from typing import Any, Generic, NamedTuple

from headrace.engine.derive.generation import HOT_ROWS, Generation, NotReady, can_inherit
from headrace.engine.derive.row_lookahead import RowLookahead
from headrace.engine.derive.state_builder import StateBuilder
from headrace.engine.derive.tails import STEP_ROWS, Follower, Hold
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Head, Stream
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.errors import HeadraceError, NotFound
from headrace.format.state import State
from headrace.reduce.states.coverage import Base, base
from headrace.reduce.states.definition import Defined, Definitions, Keying, Shapes
from headrace.storage.derived import Stamp, States
from headrace.storage.wal import Wal

log = logging.getLogger("headrace.states")

#: Events that a question may wait for on the event loop.
INLINE_ROWS = 4 * STEP_ROWS
#: Tails that lag are folded on, a step at a time, with pauses so long that others come to their turn.
_PAUSE_S = 0.01
#: The same while no events come.
_IDLE_PAUSE_S = 0.001
#: Events that take longer to be folded than this are kept unfolded, where rows can be folded by key.
_MANY_S = 0.05
#: How long a question works on the event loop at once, at most.
SLICE_S = 0.01
_TRIES = 3


class FoldPace(NamedTuple):
    """Events that are folded at once on the event loop, four times as many while a question waits, and rows at hand."""

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
        shapes_of: Callable[[StreamRegistry], Shapes],
        bench: StateBuilder,
        fold_rows: int,
        pace: FoldPace = USUAL_PACE,
        keying_of: Callable[[Any], Keying] | None = None,
        pending_bytes: int = 0,
    ) -> None:
        """With ``keying_of``, the rows of keys are folded ahead of tails that lag, from so many bytes of events."""
        self._log, self._wal, self._states = log, wal, states
        #: The definitions that hold now.
        self.current = current
        self.bench = bench
        self._shapes_of, self._fold_rows, self._pace = shapes_of, fold_rows, pace
        self._inline_rows = pace.step_rows * INLINE_ROWS // STEP_ROWS
        self._followers: dict[str, Follower] = {}
        self._defined: dict[str, Defined] = {}
        self._version = -1
        self._known: dict[int, tuple[Stamp, list[State]]] = {}
        #: How often what was folded of a stream was forgotten; what was begun before is of no use then.
        self._forgotten: dict[str, int] = {}
        self._building: dict[str, asyncio.Task[None]] = {}
        self._folding: dict[str, asyncio.Task[None]] = {}
        self._ticking: asyncio.TimerHandle | None = None
        self._has_come = False
        self._keeping = RowLookahead(self._followers, bench.rows, keying_of, pending_bytes)

    async def stop(self) -> None:
        """Stop all tasks and the thread; nothing in memory has to be saved."""
        if self._ticking is not None:
            self._ticking.cancel()
        tasks = [*self._building.values(), *self._folding.values()]
        await self.bench.stop()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def followers(self) -> Collection[Follower]:
        """The followers of all streams over which something is folded."""
        return self._followers.values()

    async def ready(self, name: str) -> None:
        """Wait until the rows of a definition can be read."""
        defined = self.defined(name)
        stream = self._log.find(defined.stream)
        follower = self._follower(defined)
        self._drop_damaged(follower, name)
        if name not in follower.generations:
            await asyncio.shield(self._build(defined))
            return
        if not follower.busy and self._keeping.may_gather(follower):
            self._gather(follower, stream, stream.head)
            if not follower.overflows:
                await asyncio.sleep(0)  # it goes on where it was, once others had their turn
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

    def appended(self, stream: Stream, _: int) -> None:
        """Events have come; tails that are asked for are folded on soon."""
        self._has_come = True
        if stream.name in self._followers:
            self._tick_soon()

    def states_changed(self, streams: Iterable[int]) -> None:
        """States of these streams have come or gone: answer from those that are listed now."""
        self._current_definitions()
        changed = set(streams)
        for follower in list(self._followers.values()):
            stream = self._log.catalog.find(follower.name)
            if stream is not None and stream.id in changed:
                for name in list(follower.generations):
                    self._build(self.defined(name))

    async def forget(self, stream: Stream) -> None:
        """Answer from nothing that was folded of a stream, from now on: its events have changed.

        Returns when nobody uses what was folded any more.
        """
        names = self.current().names_over(stream.name)
        begun = [self._building.get(name) for name in names], [self._folding.get(stream.name)]
        follower = self._followers.pop(stream.name, None)
        self._known.pop(stream.id, None)
        self._forgotten[stream.name] = self._forgotten.get(stream.name, 0) + 1
        await asyncio.gather(*(task for tasks in begun for task in tasks if task is not None), return_exceptions=True)
        for generation in () if follower is None else follower.generations.values():
            self.bench.release(generation.files.values())

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
        """The states of a definition; read again only where those of its stream have changed."""
        stamp, cached = self._states.stamp(stream.id), self._known.get(stream.id)
        if cached is None or cached[0] != stamp:
            cached = self._known[stream.id] = stamp, self._states.listed(stream.id)
        return [state for state in cached[1] if state.table == defined.name]

    def _current_definitions(self) -> Definitions[Defined]:
        """The definitions as they are now; where they have changed, what was known may not hold any more."""
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
        for stream, follower in list(self._followers.items()):
            for name in list(follower.generations):
                if current.stream_of(name) != stream:
                    self.bench.release(follower.generations.pop(name).files.values())
            if not follower.generations:
                del self._followers[stream]
        self._known.clear()

    def _follower(self, defined: Defined) -> Follower:
        follower = self._followers.get(defined.stream)
        if follower is None:
            follower = self._followers[defined.stream] = Follower(
                defined.stream, self._wal, self._shapes_of, self._pace.step_rows
            )
        return follower

    def _carry_on(self, follower: Follower) -> None:
        """Let tails go on as they are defined now: what comes after a change is not folded as before it.

        Call it after the head was looked up to which they are folded: a change is announced before what follows it.
        """
        version = self._current_definitions().version
        if follower.version == version or follower.busy:
            return
        follower.version = version
        for name, generation in follower.generations.items():
            generation.carry_on(self.defined(name))

    def _follow_new_stream(self, follower: Follower, stream: Stream) -> None:
        """Start over for a stream that was deleted and created again."""
        for generation in follower.generations.values():
            self.bench.release(generation.files.values())
        follower.generations, follower.incarnation = {}, stream.incarnation
        follower.drop_pending()

    def _drop_damaged(self, follower: Follower, name: str) -> None:
        """Drop a generation with a damaged file, which is fetched again for the next generation."""
        generation = follower.generations.get(name)
        if generation is not None and generation.damaged is not None:
            self.bench.files.drop(generation.damaged)
            del follower.generations[name]
            self.bench.release(generation.files.values())

    def at_hand(self, defined: Defined, head: Head, *, by_key: bool = False) -> tuple[Generation, Stream]:
        """What answers for a definition, with everything up to a head; raises NotReady where that takes longer.

        Where it is asked by key, `row` has what the tail lacks.
        """
        stream, follower = self._log.find(defined.stream), self._follower(defined)
        if follower.incarnation != stream.incarnation:
            self._follow_new_stream(follower, stream)
        self._carry_on(follower)
        if follower.busy or self._defined.get(defined.name) is not defined:
            follower.is_awaited = True
            raise NotReady
        generation = follower.generations.get(defined.name)
        if generation is not None and generation.damaged is not None:
            self._drop_damaged(follower, defined.name)
            generation = None
        if generation is None or generation.defined is not defined:
            generation = self._succeed(defined, follower, stream, generation)
        if lag := follower.lag(head):
            few = 0 if follower.holds else min(self._inline_rows, follower.affordable(SLICE_S))
            if by_key and lag > few and self._keeping.may_gather(follower):
                if self._gather(follower, stream, head):
                    return generation, stream
                if not follower.overflows:
                    raise NotReady
            if not follower.catch_up(stream, head, self._inline_rows):
                raise NotReady
        return generation, stream

    async def approach(self, name: str, most: int) -> None:
        """Fold the tail of a definition up to now, in steps, if it lacks so many events at most; may raise NotReady."""
        defined = self.defined(name)
        stream, follower = self._log.find(defined.stream), self._follower(defined)
        head = stream.head
        self.at_hand(defined, head, by_key=True)
        while 0 < follower.lag(head) <= most and not (follower.busy or follower.holds):
            if not follower.step(stream, head):
                break
            await asyncio.sleep(0)
            self._carry_on(follower)

    def hold(self, names: Iterable[str], heads: Mapping[str, Head]) -> Hold:
        """Keep the rows of definitions as they are up to these heads; raises NotReady where they are not at hand."""
        definitions = [self.defined(name) for name in names]
        for defined in definitions:
            if defined.stream in self._folding:
                raise NotReady
            self.at_hand(defined, heads[defined.stream], by_key=True)
        return Hold([self._follower(defined) for defined in definitions], [defined.name for defined in definitions])

    def row(self, generation: Generation, head: Head, key: bytes, ends: float | None = None) -> Any:
        """Everything about a key up to a head, of a generation at hand; raises NotReady where time is up before."""
        if generation.position >= head.next_seq:
            return generation.row(key)
        follower, ends = self._followers[generation.defined.stream], monotonic() + SLICE_S if ends is None else ends
        try:
            return generation.with_tail(key, self._keeping.row(follower, generation, head, key, ends))
        finally:
            if self._keeping.is_worth_folding(follower, head):
                self._tick_soon()

    def lag(self, name: str) -> tuple[int, str]:
        """How many events any row of a definition lacks, at most, and the offset up to which all have all."""
        defined = self.defined(name)
        stream, generation = self._log.find(defined.stream), self.tail_of(name)
        position = self.current_base(defined, stream).start if generation is None else generation.position
        return stream.head.next_seq - position, stream.offset_at(position)

    def lacking(self, name: str, key: bytes) -> tuple[int, str]:
        """How many events the row of a key lacks, at most, and the offset up to which it has all."""
        defined = self.defined(name)
        stream, generation = self._log.find(defined.stream), self.tail_of(name)
        head = stream.head
        if generation is None:
            return self.lag(name)
        events, through = self._keeping.lacking(self._followers[defined.stream], generation, head, key)
        return events, stream.offset_at(through)

    def _gather(self, follower: Follower, stream: Stream, head: Head) -> bool:
        return self._keeping.gather(follower, stream, head, monotonic() + SLICE_S)

    def _succeed(self, defined: Defined, follower: Follower, stream: Stream, old: Generation | None) -> Generation:
        """The generation of a new definition; the old one answers until it is built, where that takes longer."""
        new_base = self.current_base(defined, stream)
        if old is not None and old.answers_more_than(defined, new_base):
            return old  # until there are states of what it does not know
        if old is not None and new_base == old.base and can_inherit(old, defined, new_base) and not follower.busy:
            follower.generations[defined.name] = successor = old.successor(defined, new_base, old.files)
            return successor
        few = stream.head.next_seq - new_base.start <= self._inline_rows
        kept = new_base.start >= stream.head.published_seq and self._keeping.may_gather(follower)
        if not new_base.states and (few or kept) and not follower.busy:
            generation = Generation(defined, new_base, {}, self.bench.rows, hot_rows=self._pace.hot_rows)
            follower.generations[defined.name] = generation
            if old is not None:
                self.bench.release(old.files.values())
            return generation
        self._build(defined)
        if old is None:
            raise NotReady
        return old

    def _build(self, defined: Defined) -> asyncio.Task[None]:
        """Let a generation of what is defined and listed now take over soon."""
        task = self._building.get(defined.name)
        if task is None:
            task = self._building[defined.name] = asyncio.create_task(self._rebuild(defined.name))
            task.add_done_callback(_retrieve_exception)
        return task

    async def _rebuild(self, name: str) -> None:
        try:
            await self._rebuild_until_current(name)
        finally:
            # Not when the task tells that it is done, which is later: who waits for it again would wait for nothing.
            del self._building[name]

    async def _rebuild_until_current(self, name: str) -> None:
        failures = 0
        while self.bench.goes_on():
            try:
                defined = self.defined(name)
                if await self._replace_generation(defined, self._log.find(defined.stream)):
                    return
            except NotFound:
                return  # it is gone
            except HeadraceError as reason:
                # An object that is gone was replaced: the list tells by what.
                log.warning("%s is not answered for anew yet: %s", name, reason.message)
                failures += 1
                if failures == _TRIES:
                    raise

    async def _replace_generation(self, defined: Defined, stream: Stream) -> bool:
        """Build a generation and let it answer; False where something has changed meanwhile that it does not know."""
        follower, new_base = self._follower(defined), self.current_base(defined, stream)
        forgotten = self._forgotten.get(stream.name, 0)
        old = follower.generations.get(defined.name)
        if old is not None and (
            old.answers_more_than(defined, new_base) or (old.defined, old.base) == (defined, new_base)
        ):
            return True  # it goes on, and more states will come
        if old is not None and can_inherit(old, defined, new_base):
            files = await self.bench.hold_files(stream, new_base)
            is_same = follower.generations.get(defined.name) is old and not follower.busy
            if not is_same or not can_inherit(old, defined, new_base):  # events may have come that a new life lacks
                self.bench.release(files.values())
                return False
            generation = old.successor(defined, new_base, files)
        else:
            head = stream.head
            if self.defined(defined.name) is not defined:
                return False
            shapes, hot_rows = follower.shapes(head), self._pace.hot_rows
            if follower.has_pending_from(new_base.start):
                files = await self.bench.hold_files(stream, new_base)
                generation = Generation(defined, new_base, files, self.bench.rows, hot_rows=hot_rows)
            else:
                generation = await self.bench.build(
                    stream, head, shapes, defined, new_base, hot_rows=hot_rows, rests=old is not None
                )
            while follower.busy:
                await asyncio.sleep(_PAUSE_S)
        if self._forgotten.get(stream.name, 0) != forgotten:
            self.bench.release(generation.files.values())
            return True  # the next question has it built anew
        # Before a follower is looked for: one that answers for nothing yet goes when definitions are renewed.
        if self._current_definitions().stream_of(defined.name) is None:
            self.bench.release(generation.files.values())
            return True
        follower = self._follower(defined)
        if follower.incarnation != stream.incarnation:
            self._follow_new_stream(follower, stream)
        before = follower.generations.get(defined.name)
        if self.defined(defined.name) is not defined:
            generation.carry_on(self.defined(defined.name))
        follower.generations[defined.name] = generation
        if before is not None:
            self.bench.release(before.files.values())
        return self.defined(defined.name) == defined and self.current_base(defined, stream) == new_base

    def _catch_up(self, follower: Follower, stream: Stream) -> bool:
        head = stream.head
        self._carry_on(follower)
        return follower.catch_up(stream, head, self._inline_rows)

    def _fold(self, follower: Follower, stream: Stream) -> asyncio.Task[None]:
        """Let a thread bring the tails over a stream up to now."""
        task = self._folding.get(follower.name)
        if task is None:
            task = self._folding[follower.name] = asyncio.create_task(self._fold_in_thread(follower, stream))
        return task

    async def _fold_in_thread(self, follower: Follower, stream: Stream) -> None:
        try:
            while follower.holds:
                await asyncio.sleep(_PAUSE_S)
            head = stream.head
            self._carry_on(follower)
            follower.busy, tails, blocks = True, list(follower.generations.values()), follower.pending_blocks()
            if blocks:
                await self.bench.fold_kept(follower, follower.shapes(head), tails, blocks)
            else:
                await self.bench.fold(stream, head, follower.shapes(head), tails)
                follower.drop_pending()
        finally:
            follower.busy = follower.is_awaited = follower.overflows = False
            del self._folding[follower.name]
            self._tick_soon()

    def _tick_soon(self, pause_s: float = _PAUSE_S) -> None:
        """Schedule a tick for tails that lag, unless one is scheduled."""
        if self._ticking is None and self.bench.goes_on():
            self._ticking = asyncio.get_running_loop().call_later(pause_s, self._tick)

    def _tick(self) -> None:
        """Fold the tails that lag on by a step, or keep what they lack."""
        self._ticking = None
        behind = False
        self._current_definitions()
        for follower in self._followers.values():
            stream = self._log.catalog.find(follower.name)
            if stream is None or follower.busy:
                continue
            if follower.holds:
                behind = True
                continue
            self._carry_on(follower)
            behind = self._advance(follower, stream) or behind
        if behind:
            pause_s, self._has_come = _PAUSE_S if self._has_come else _IDLE_PAUSE_S, False
            self._tick_soon(pause_s)

    def _advance(self, follower: Follower, stream: Stream) -> bool:
        """Fold or keep some of the events that tails lack; returns whether there is more to do soon."""
        head = stream.head
        lag = follower.lag(head)
        if lag > follower.affordable(_MANY_S) and self._keeping.may_gather(follower):
            is_kept = self._gather(follower, stream, head)
            if not follower.overflows and not (is_kept and self._keeping.is_worth_folding(follower, head)):
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
