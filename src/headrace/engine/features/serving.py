"""Answering for tables: history from states, the tail from memory, always one generation of both.

Everything here runs on the event loop. A question that would take long raises ``Behind``: whoever asks waits for
`Serving.ready`, and asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.engine.features.building import Workbench
from headrace.engine.features.coverage import Base, base
from headrace.engine.features.defined import Defined
from headrace.engine.features.defining import defined_in
from headrace.engine.features.explaining import explained
from headrace.engine.features.generation import Generation, can_inherit
from headrace.engine.features.registry import EVENTS, Current
from headrace.engine.features.tails import STEP_ROWS, Follower
from headrace.engine.log import Log
from headrace.engine.stream import Head, Stream
from headrace.errors import FeatureNotInTable, HeadraceError, NotFound
from headrace.format.state.layout import State
from headrace.storage.derived import Stamp
from headrace.storage.states import States
from headrace.storage.wal import Wal
from headrace.types import Clock

log = logging.getLogger("headrace.features")

#: Events that a question may wait for on the event loop.
INLINE_ROWS = 4 * STEP_ROWS
#: Tails that lag are folded on, a step at a time, with pauses so long that others come to their turn.
_PAUSE_S = 0.01
_TRIES = 3


class Behind(Exception):
    """The answer is not at hand: wait for `Serving.ready`, then ask again."""


class Moment(NamedTuple):
    """What questions are answered for together: a time, and how far each source has come."""

    now_ms: int
    heads: Mapping[str, Head]


class Answer(NamedTuple):
    """The row of a key, whether every feature in it speaks of all events since its birth, and why so."""

    row: dict[str, Any]
    complete: bool
    explain: dict[str, Any] | None = None


class Serving:
    """Every table of this node."""

    def __init__(
        self,
        log: Log,
        wal: Wal,
        states: States,
        current: Callable[[], Current],
        bench: Workbench,
        clock: Clock,
        fold_rows: int,
    ) -> None:
        self._log, self._wal, self._states = log, wal, states
        #: The registry that holds now.
        self.current = current
        self.bench = bench
        self._clock = clock
        self._fold_rows = fold_rows
        self._followers: dict[str, Follower] = {}
        self._defined: dict[str, Defined] = {}
        self._version = -1
        self._known: dict[int, tuple[Stamp, list[State]]] = {}
        self._building: dict[str, asyncio.Task[None]] = {}
        self._folding: dict[str, asyncio.Task[None]] = {}
        self._ticking: asyncio.TimerHandle | None = None

    async def stop(self) -> None:
        """Let go of everything; nothing that is in memory has to be kept."""
        if self._ticking is not None:
            self._ticking.cancel()
        tasks = [*self._building.values(), *self._folding.values()]
        await self.bench.stop()
        await asyncio.gather(*tasks, return_exceptions=True)

    def get(
        self,
        table: str,
        key: Any,
        features: Sequence[str] | None = None,
        moment: Moment | None = None,
        *,
        explain: bool = False,
    ) -> Answer:
        """The features of a key at a moment: now, where none is given."""
        defined = self.defined(table)
        wanted = self.wanted(defined, features)
        packed_key = defined.reducer.key(key)
        now_ms, heads = self.moment([table]) if moment is None else moment
        generation, stream = self._at_hand(defined, heads[defined.stream])
        folded = [name for name in wanted if generation.is_folded(name, defined.lives[name].id)]
        state = generation.row(packed_key)
        row = generation.fold.reducer.finish(state, now_ms, folded)
        if len(folded) < len(wanted) and (state is not None or not generation.knows_everyone(defined.born)):
            row = {name: row.get(name) for name in wanted}
        told = None
        if explain:
            told = explained(defined, generation, stream, self.listed(defined, stream), wanted)
            told["registry_version"] = self._version
        return Answer(row, len(folded) == len(wanted), told)

    async def ready(self, table: str) -> None:
        """Wait until a table can be asked."""
        defined = self.defined(table)
        stream = self._log.find(defined.stream)
        follower = self._follower(defined)
        if table not in follower.generations:
            await asyncio.shield(self._build(defined))
        elif follower.busy or follower.lag(stream.head) > INLINE_ROWS or not self._steps(follower, stream):
            await asyncio.shield(self._fold(follower, stream))

    def moment(self, tables: Iterable[str]) -> Moment:
        """Now, for questions about these tables: none of their events comes after it."""
        names = dict.fromkeys(self.defined(table).stream for table in tables)
        heads = {name: self._log.find(name).head for name in names}
        return Moment(max([self._clock.now_us(), *(head.last_us for head in heads.values())]) // 1000, heads)

    def defined(self, table: str) -> Defined:
        """A table as it is defined now."""
        current = self._renewed()
        found = self._defined.get(table)
        if found is None:
            found = self._defined[table] = defined_in(current, table)
        return found

    def tables_of(self, stream: Stream) -> list[Defined]:
        """The tables over a stream."""
        tables = self.current().tables_of(stream.name.removeprefix(EVENTS))
        return [self.defined(table) for table in tables]

    def appended(self, stream: Stream, _: int) -> None:
        """Events have come; tails that are asked for are folded on soon."""
        if self._ticking is None and stream.name in self._followers:
            self._ticking = asyncio.get_running_loop().call_later(_PAUSE_S, self._tick)

    def states_changed(self, streams: Iterable[int]) -> None:
        """States of these streams have come or gone: answer from those that are listed now."""
        self._renewed()
        changed = set(streams)
        for follower in list(self._followers.values()):
            stream = self._log.catalog.find(follower.name)
            if stream is not None and stream.id in changed:
                for table in list(follower.generations):
                    self._build(self.defined(table))

    def tail_of(self, table: str) -> Generation | None:
        """What answers for a table now, if anything does."""
        for follower in self._followers.values():
            if table in follower.generations:
                return follower.generations[table]
        return None

    def based(self, defined: Defined, stream: Stream) -> Base:
        """What there is to answer from now."""
        head = stream.head
        return base(defined, self.listed(defined, stream), head.first_seq, head.published_seq, 2 * self._fold_rows)

    def listed(self, defined: Defined, stream: Stream) -> list[State]:
        """The states of a table; read again only where those of its stream have changed."""
        stamp, known = self._states.stamp(stream.id), self._known.get(stream.id)
        if known is None or known[0] != stamp:
            known = self._known[stream.id] = stamp, self._states.listed(stream.id)
        return [state for state in known[1] if state.table == defined.table]

    def wanted(self, defined: Defined, features: Sequence[str] | None) -> Sequence[str]:
        """The features that are asked for; refuses those that a table does not have."""
        if features is None:
            return defined.reducer.features
        for name in features:
            if name not in defined.lives:
                raise FeatureNotInTable(f"{defined.table} has no feature {name!r}", table=defined.table, feature=name)
        return features

    def _renewed(self) -> Current:
        """The registry as it is now; where it has changed, what was known of tables may not hold any more."""
        current = self.current()
        if current.version != self._version:
            self._renew(current)
        return current

    def _renew(self, current: Current) -> None:
        self._version = current.version
        before, self._defined = self._defined, {}
        for table, known in before.items():
            if table in current.lives and defined_in(current, table) == known:
                self._defined[table] = known
        for name, follower in list(self._followers.items()):
            for table in list(follower.generations):
                if table not in current.lives or EVENTS + current.root_of(table) != name:
                    self.bench.release(follower.generations.pop(table).files.values())
            if not follower.generations:
                del self._followers[name]
        self._known.clear()

    def _follower(self, defined: Defined) -> Follower:
        found = self._followers.get(defined.stream)
        if found is None:
            found = self._followers[defined.stream] = Follower(defined.stream, self._wal)
        return found

    def _carry_on(self, follower: Follower) -> None:
        """Let tails go on as their tables are defined now: what comes after a change is not folded as before it."""
        version = self._renewed().version
        if follower.version == version or follower.busy:
            return
        follower.version = version
        for table, generation in follower.generations.items():
            generation.carry_on(self.defined(table))

    def _begin(self, follower: Follower, stream: Stream) -> None:
        """Follow another life of a source: what was known of the last one is of no use."""
        for generation in follower.generations.values():
            self.bench.release(generation.files.values())
        follower.generations, follower.incarnation = {}, stream.incarnation

    def _at_hand(self, defined: Defined, head: Head) -> tuple[Generation, Stream]:
        """What answers for a table, with everything up to a head; raises Behind where that takes longer."""
        stream, follower = self._log.find(defined.stream), self._follower(defined)
        if follower.incarnation != stream.incarnation:
            self._begin(follower, stream)
        self._carry_on(follower)
        generation = follower.generations.get(defined.table)
        if generation is None or generation.defined is not defined:
            generation = self._succeeding(defined, follower, stream, generation)
        if follower.lag(head) > 0 and not follower.catch_up(stream, head, INLINE_ROWS):
            raise Behind
        return generation, stream

    def _succeeding(self, defined: Defined, follower: Follower, stream: Stream, old: Generation | None) -> Generation:
        """The generation of a new definition; the old one answers until it is built, where that takes longer."""
        found = self.based(defined, stream)
        if old is not None and old.answers_more_than(defined, found):
            return old  # until there are states of what it does not know
        if old is not None and found == old.base and can_inherit(old, defined, found) and not follower.busy:
            follower.generations[defined.table] = heir = old.heir(defined, found, old.files)
            return heir
        if not found.states and stream.head.next_seq - found.start <= INLINE_ROWS and not follower.busy:
            made = Generation(defined, found, {}, self.bench.rows)
            follower.generations[defined.table] = made
            if old is not None:
                self.bench.release(old.files.values())
            return made
        self._build(defined)
        if old is None:
            raise Behind
        return old

    def _build(self, defined: Defined) -> asyncio.Task[None]:
        """Let a generation of what is defined and listed now take over soon."""
        task = self._building.get(defined.table)
        if task is None:
            task = self._building[defined.table] = asyncio.create_task(self._rebuild(defined.table))
            task.add_done_callback(lambda done: self._built(defined.table, done))
        return task

    def _built(self, table: str, task: asyncio.Task[None]) -> None:
        self._building.pop(table, None)
        if not task.cancelled():
            task.exception()  # whoever waited for it has got it; the next question tries again

    async def _rebuild(self, table: str) -> None:
        failures = 0
        while self.bench.goes_on():
            try:
                defined = self.defined(table)
                if await self._replaced(defined, self._log.find(defined.stream)):
                    return
            except NotFound:
                return  # the table is gone
            except HeadraceError as reason:
                # An object that is gone was replaced: the list tells by what.
                log.warning("%s is not answered for anew yet: %s", table, reason.message)
                failures += 1
                if failures == _TRIES:
                    raise

    async def _replaced(self, defined: Defined, stream: Stream) -> bool:
        """Build a generation and let it answer; False where something has changed meanwhile that it does not know."""
        follower, found = self._follower(defined), self.based(defined, stream)
        old = follower.generations.get(defined.table)
        if old is not None and (old.answers_more_than(defined, found) or (old.defined, old.base) == (defined, found)):
            return True  # it goes on, and more states will come
        if old is not None and can_inherit(old, defined, found):
            files = await self.bench.held(stream, found)
            is_same = follower.generations.get(defined.table) is old and not follower.busy
            if not is_same or not can_inherit(old, defined, found):  # events may have come that a new life lacks
                self.bench.release(files.values())
                return False
            made = old.heir(defined, found, files)
        else:
            head = stream.head
            made = await self.bench.built(stream, head, follower.shapes(head), defined, found, rests=old is not None)
            while follower.busy:
                await asyncio.sleep(_PAUSE_S)
        if defined.table not in self.current().lives:
            self.bench.release(made.files.values())
            return True
        follower = self._follower(defined)
        if follower.incarnation != stream.incarnation:
            self._begin(follower, stream)
        before = follower.generations.get(defined.table)
        if self.defined(defined.table) is not defined:
            made.carry_on(self.defined(defined.table))
        follower.generations[defined.table] = made
        if before is not None:
            self.bench.release(before.files.values())
        return self.defined(defined.table) == defined and self.based(defined, stream) == found

    def _steps(self, follower: Follower, stream: Stream) -> bool:
        self._carry_on(follower)
        return follower.catch_up(stream, stream.head, INLINE_ROWS)

    def _fold(self, follower: Follower, stream: Stream) -> asyncio.Task[None]:
        """Let a thread bring the tails of a source up to now."""
        task = self._folding.get(follower.name)
        if task is None:
            task = self._folding[follower.name] = asyncio.create_task(self._fold_aside(follower, stream))
            task.add_done_callback(lambda _: self._folding.pop(follower.name, None))
        return task

    async def _fold_aside(self, follower: Follower, stream: Stream) -> None:
        self._carry_on(follower)
        follower.busy = True
        try:
            head, tails = stream.head, list(follower.generations.values())
            await self.bench.fold(stream, head, follower.shapes(head), tails)
        finally:
            follower.busy = False

    def _tick(self) -> None:
        """Fold the tails that lag on by a step."""
        self._ticking = None
        behind = False
        self._renewed()
        for follower in self._followers.values():
            stream = self._log.catalog.find(follower.name)
            if stream is None or follower.busy or not follower.lag(stream.head):
                continue
            self._carry_on(follower)
            if follower.step(stream, stream.head):
                behind = behind or bool(follower.lag(stream.head))
            else:
                self._fold(follower, stream)
        if behind:
            self._ticking = asyncio.get_running_loop().call_later(_PAUSE_S, self._tick)
