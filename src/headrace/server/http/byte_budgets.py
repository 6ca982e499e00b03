"""Bytes that the server holds for its clients, all connections together: arriving bodies, and unsent answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from starlette.types import Message, Receive

from headrace.engine.runtime.gates import Shortage
from headrace.errors import Overloaded


class BodyBudget:
    """A budget of bytes; what does not fit is refused, and everything while memory is short."""

    def __init__(self, limit: int, shortage: Shortage) -> None:
        self._limit = limit
        self._shortage = shortage
        self.held = 0

    def take(self, size: int) -> None:
        """Hold so many bytes more."""
        self._shortage.check()
        if self.held + size > self._limit:
            raise Overloaded("too many bodies arrive at once", retry_after=1)
        self.held += size

    def give(self, size: int) -> None:
        """Release bytes."""
        self.held -= size


class BodyReceiver:
    """One body on its way in: its bytes are counted, and the time it takes to arrive is not working time."""

    def __init__(self, arrivals: BodyBudget, receive: Receive) -> None:
        self._arrivals = arrivals
        self._receive = receive
        #: Bytes of the body that have come.
        self.held = 0
        self.waited_s = 0.0
        #: The end of the working time, which waits while the body arrives.
        self.deadline: asyncio.Timeout | None = None

    async def receive(self) -> Message:
        """The next part of the body."""
        begun_s = monotonic()
        until = None if self.deadline is None else self.deadline.when()
        if self.deadline is not None:
            self.deadline.reschedule(None)
        message = await self._receive()
        waited_s = monotonic() - begun_s
        self.waited_s += waited_s
        if self.deadline is not None and until is not None:
            self.deadline.reschedule(until + waited_s)
        size = len(message.get("body", b""))
        self._arrivals.take(size)
        self.held += size
        return message

    def release(self) -> None:
        """Hold nothing more of the body."""
        self._arrivals.give(self.held)
        self.held = 0


class UnsentBudget:
    """A budget for answers that clients have not received yet; over the limit, no more is read for them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class UnsentAnswers:
    """What one client has not taken of its answers, and since when it has taken nothing."""

    def __init__(self, budget: UnsentBudget) -> None:
        self._budget = budget
        self._size = 0
        self._stalled_s = 0.0

    def pause(self, size: int) -> None:
        """The client takes its answers slower than they are written; so many bytes wait for it."""
        self._stalled_s = monotonic()
        self._count(size)

    def resume(self) -> None:
        """The client has taken everything, or is gone."""
        self._stalled_s = 0.0
        self._count(0)

    def is_stalled(self, now_s: float, timeout_s: float, waiting: Callable[[], int]) -> bool:
        """Whether the client has taken nothing for too long; ``waiting`` counts what it has not taken."""
        if not self._stalled_s:
            return False
        size = waiting()
        if size < self._size:
            self._stalled_s = now_s
        self._count(size)
        return now_s - self._stalled_s > timeout_s

    def _count(self, size: int) -> None:
        self._budget.held += size - self._size
        self._size = size
