"""Long computations of requests in threads, one after the other.

They hold the interpreter's lock most of the time: more of them at once would not be done sooner, and each would take
the lock from the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from headrace.deadline import Deadline, OutOfTime
from headrace.engine.runtime.gates import Gates
from headrace.errors import Overloaded, TimedOut

#: Shorter bodies are read on the event loop: the way to a thread and back would take longer.
LONG_BYTES = 64 * 1024

Params = ParamSpec("Params")
Computed = TypeVar("Computed")


class ComputeThreads:
    """Runs computations through gates; those that wait are bounded in the bytes that they hold."""

    def __init__(self, gates: Gates, most_bytes: int) -> None:
        self._gates = gates
        self._most_bytes = most_bytes
        self.held_bytes = 0

    async def run(
        self, size: int, work: Callable[Params, Computed], *args: Params.args, **kwargs: Params.kwargs
    ) -> Computed:
        """What the work computes, which holds so many bytes until it is done."""
        if self.held_bytes and self.held_bytes + size > self._most_bytes:
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
