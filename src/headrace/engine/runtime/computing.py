"""Long computations of requests in threads, one after the other.

They hold the interpreter's lock most of the time: more of them at once would not be done sooner, and each would take
the lock from the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from headrace.engine.runtime.deadline import within
from headrace.engine.runtime.gates import Gates
from headrace.errors import Overloaded

#: Shorter bodies are read on the event loop: the way to a thread and back would take longer.
LONG_BYTES = 64 * 1024

Asked = ParamSpec("Asked")
Found = TypeVar("Found")


class Computing:
    """Runs computations through gates; those that wait are bounded in the bytes that they hold."""

    def __init__(self, gates: Gates, most_bytes: int) -> None:
        self._gates = gates
        self._most_bytes = most_bytes
        self.held_bytes = 0

    async def run(self, size: int, work: Callable[Asked, Found], *args: Asked.args, **kwargs: Asked.kwargs) -> Found:
        """What the work finds, which holds so many bytes until it is done."""
        if self.held_bytes and self.held_bytes + size > self._most_bytes:
            raise Overloaded("too many long requests wait to be read", retry_after=1)
        self.held_bytes += size
        try:
            async with self._gates.compute:
                return await asyncio.to_thread(work, *args, **kwargs)
        finally:
            self.held_bytes -= size

    async def plan(self, seconds: float, work: Callable[[], Found]) -> Found:
        """What the work finds in so many seconds, or TimedOut; it must hold nothing that has to be let go of."""
        async with self._gates.plan:
            return await within(seconds, work)
