"""What became of the events of a producer: a handle for each, and a ledger for all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from typing import Any

from headrace.client.outbox import Settled
from headrace.errors import HeadraceError

_EVENT_OVERHEAD_BYTES = 256


class Delivery(Future[str]):
    """What becomes of one event, for a caller that blocks."""

    seen = False

    def result(self, timeout: float | None = None) -> str:
        """The offset after the event's batch; raises if it could not be appended."""
        self.seen = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why the event could not be appended, or None."""
        self.seen = True
        return super().exception(timeout)

    def fail(self, error: HeadraceError) -> None:
        """The event could not be appended."""
        self.set_exception(error)


class AsyncDelivery(asyncio.Future[str]):
    """What becomes of one event, for a caller that awaits."""

    seen = False

    def __await__(self) -> Generator[Any, None, str]:
        self.seen = True
        return super().__await__()

    def result(self) -> str:
        """The offset after the event's batch; raises if it could not be appended."""
        self.seen = True
        return super().result()

    def exception(self) -> BaseException | None:
        """Why the event could not be appended, or None."""
        self.seen = True
        return super().exception()

    def fail(self, error: HeadraceError) -> None:
        """The event could not be appended."""
        self.set_exception(error)
        # Looked at here so that asyncio logs nothing: flush and close report what the caller does not ask for.
        super().exception()


class Ledger:
    """What a producer holds: how much is pending, and which failures nobody has looked at."""

    def __init__(self, max_pending_bytes: int) -> None:
        self._max_pending_bytes = max_pending_bytes
        self._pending_bytes = 0
        self._failures: deque[Settled] = deque(maxlen=1000)

    def has_room(self, event: bytes) -> bool:
        """Whether the event fits; one always does."""
        size = len(event) + _EVENT_OVERHEAD_BYTES
        return not self._pending_bytes or self._pending_bytes + size <= self._max_pending_bytes

    def enter(self, event: bytes) -> None:
        """The event is pending now."""
        self._pending_bytes += len(event) + _EVENT_OVERHEAD_BYTES

    def leave(self, freed_bytes: int, failures: Sequence[Settled]) -> None:
        """So much is pending no more, and these events could not be appended."""
        self._pending_bytes -= freed_bytes
        self._failures.extend(failures)

    def complain(self) -> None:
        """Raise the first failure whose handle nobody has looked at; say each only once."""
        unseen = [failure.error for failure in self._failures if not failure.handle.seen]
        self._failures.clear()
        if unseen and unseen[0] is not None:
            raise unseen[0]


def tally(settled: Sequence[Settled]) -> tuple[int, list[Settled]]:
    """How much the settled events held, and those that failed."""
    freed_bytes = sum(one.event_bytes for one in settled) + _EVENT_OVERHEAD_BYTES * len(settled)
    return freed_bytes, [one for one in settled if one.error is not None]


def tell(settled: Sequence[Settled]) -> None:
    """Let the handles know; one that was cancelled does not care any more."""
    for handle, offset, error, _ in settled:
        if handle.done():
            continue
        if error is None:
            handle.set_result(offset)
        else:
            handle.fail(error)
