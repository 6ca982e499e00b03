"""Gates: semaphores with a queue, which limit how many requests work at once, and computations in threads behind them.

Long computations hold the interpreter's lock most of the time: more of them at once would not be done sooner, and each
would take the lock from the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from headrace.config import LimitsConfig
from headrace.deadline import Deadline, OutOfTime
from headrace.errors import Overloaded, TimedOut, Unavailable

Params = ParamSpec("Params")
Computed = TypeVar("Computed")

#: Shorter bodies are read on the event loop: the way to a thread and back would take longer.
LONG_BYTES = 64 * 1024
MAX_QUEUED = 1_000
#: Batches of rows that wait; each may take some tenths of a second.
_MAX_BATCHES = 64


class Shortage:
    """Whether memory is so short that work which takes much of it is refused."""

    def __init__(self) -> None:
        self.is_on = False
        #: How often something was refused.
        self.refused = 0

    def check(self) -> None:
        """Raise Unavailable while memory is short."""
        if self.is_on:
            self.refused += 1
            raise Unavailable("the server is short of memory; try again soon", reason="memory", retry_after=2)


class Gate:
    """Lets ``current_limit`` in at once, the others in the order they came; used on the event loop.

    ::

        async with gate:
            await work()
    """

    def __init__(self, limit: int, *, max_queued: int = MAX_QUEUED, shortage: Shortage | None = None) -> None:
        """With ``shortage`` none are admitted while memory is short."""
        self.configured_limit = limit
        self.current_limit = limit
        self.active = 0
        self._max_queued = max_queued
        self._shortage = shortage
        # A dict keeps the order and lets a cancelled waiter leave from the middle.
        self._waiting: dict[asyncio.Future[None], None] = {}

    @property
    def queued(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def set_limit(self, limit: int) -> None:
        """Set the limit; those already admitted continue."""
        self.current_limit = max(1, limit)
        self._admit()

    def open(self) -> None:
        """Admit all from now on: the server stops, and no request may wait any more."""
        self.set_limit(MAX_QUEUED * 2)

    async def __aenter__(self) -> Gate:
        if self._shortage is not None:
            self._shortage.check()
        if self.active < self.current_limit and not self._waiting:
            self.active += 1
            return self
        if len(self._waiting) >= self._max_queued:
            raise Overloaded("too many requests wait for their turn", retry_after=1)
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = None
        try:
            await turn
        except BaseException:
            self._give_up(turn)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _give_up(self, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled():
            self._leave()  # admitted in the same moment, so the place goes to the next
        else:
            self._waiting.pop(turn, None)

    def _leave(self) -> None:
        self.active -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.active < self.current_limit:
            turn = next(iter(self._waiting))
            del self._waiting[turn]
            # A waiter cancelled a moment ago still stands in the queue.
            if not turn.done():
                self.active += 1
                turn.set_result(None)


class Gates:
    """The gates of one server."""

    def __init__(self, limits: LimitsConfig) -> None:
        self.shortage = Shortage()
        self.read = Gate(limits.concurrent_reads, shortage=self.shortage)
        self.search = Gate(limits.concurrent_searches, shortage=self.shortage)
        self.index = Gate(limits.concurrent_index_work)
        #: Bodies that are read in a thread, registrations that are planned in one, and batches of rows that are looked
        #: up in slices: one at a time, as each of them takes the interpreter's lock from the event loop.
        self.compute, self.plan, self.rows = Gate(1), Gate(1), Gate(1, max_queued=_MAX_BATCHES)

    def named(self) -> dict[str, Gate]:
        """Every gate by its name."""
        named = {"read": self.read, "search": self.search, "index": self.index}
        return {**named, "compute": self.compute, "plan": self.plan, "rows": self.rows}

    def relieve(self) -> None:
        """Halve the limits of the gates whose work uses most memory, but not below one."""
        for gate in (self.search, self.index):
            gate.set_limit(gate.configured_limit // 2)

    def restore(self) -> None:
        """Go back to the configured limits."""
        for gate in (self.search, self.index):
            gate.set_limit(gate.configured_limit)


class ComputeThreads:
    """Runs computations through gates; those that wait are bounded in the bytes that they hold."""

    def __init__(self, gates: Gates, max_bytes: int) -> None:
        self._gates = gates
        self._max_bytes = max_bytes
        self.held_bytes = 0

    async def run(
        self, size: int, work: Callable[Params, Computed], *args: Params.args, **kwargs: Params.kwargs
    ) -> Computed:
        """What the work computes, which holds so many bytes until it is done."""
        if self.held_bytes and self.held_bytes + size > self._max_bytes:
            raise Overloaded("too many long requests wait to be read", retry_after=1)
        self.held_bytes += size
        try:
            async with self._gates.compute:
                return await asyncio.to_thread(work, *args, **kwargs)
        finally:
            self.held_bytes -= size

    async def plan(self, timeout_s: float, work: Callable[[], Computed]) -> Computed:
        """What the work computes in so many seconds, or TimedOut; the work calls ``check_deadline`` in its loops."""
        async with self._gates.plan:
            return await run_with_deadline(timeout_s, work)


async def run_with_deadline(timeout_s: float, work: Callable[[], Computed]) -> Computed:
    """What the work computes in a thread, or TimedOut; it is cancelled with the task that waits for it."""
    deadline = Deadline(timeout_s)

    def compute() -> Computed:
        with deadline.applied():
            return work()

    try:
        return await asyncio.to_thread(compute)
    except OutOfTime:
        raise TimedOut("request timed out") from None
    finally:
        deadline.cancel()
