"""Delivery handles of a producer's events, and the ledger of all that are pending or have failed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from typing import Any

from headrace.client.outbox import Settled
from headrace.errors import HeadraceError

#: The most failures that are told apart; those of further batches are counted with the last of them.
_MOST_FAILURES = 1000


class Failure:
    """Why some events could not be appended, the first of them, and how many of their handles nobody looked at."""

    def __init__(self, error: HeadraceError, number: int) -> None:
        self.error = error
        self.number = number
        self.unseen = 0
        self._lock = threading.Lock()

    def enter(self, handle: Delivery | AsyncDelivery) -> None:
        """The event of this handle is one of them."""
        handle.failure = self
        self.number = min(self.number, handle.number)
        with self._lock:
            self.unseen += 1

    def look(self, handle: Delivery | AsyncDelivery) -> None:
        """Somebody knows by now."""
        with self._lock:
            if handle.failure is self:
                handle.failure = None
                self.unseen -= 1


class _Signal:
    """What a future needs of a condition, at a tenth of the cost until somebody waits."""

    __slots__ = ("_condition", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._condition: threading.Condition | None = None

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def acquire(self) -> None:
        """Take the lock."""
        self._lock.acquire()

    def release(self) -> None:
        """Let go of the lock."""
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified; False where that takes longer than so many seconds."""
        if self._condition is None:
            self._condition = threading.Condition(self._lock)
        return self._condition.wait(timeout)

    def notify_all(self) -> None:
        """Wake whoever waits."""
        if self._condition is not None:
            self._condition.notify_all()


class Delivery(Future[str]):
    """What becomes of one event, for a caller that blocks."""

    #: What one costs besides the bytes of its event, as measured.
    overhead_bytes = 700
    number = 0
    failure: Failure | None = None

    def __init__(self) -> None:
        super().__init__()
        # There may be many thousands, and the condition would be three quarters of each.
        self._condition = _Signal()  # type: ignore[assignment]

    def result(self, timeout: float | None = None) -> str:
        """The offset after the event's batch; raises if it could not be appended."""
        self.exception(timeout)
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why the event could not be appended, or None."""
        error = super().exception(timeout)
        _look(self)
        return error

    def fail(self, error: HeadraceError) -> None:
        """The event could not be appended."""
        self.set_exception(error)


class AsyncDelivery(asyncio.Future[str]):
    """What becomes of one event, for a caller that awaits."""

    #: What one costs besides the bytes of its event, as measured with Python 3.11 to 3.13.
    overhead_bytes = 600
    number = 0
    failure: Failure | None = None

    def __await__(self) -> Generator[Any, None, str]:
        try:
            return (yield from super().__await__())
        finally:
            if self.done() and not self.cancelled():
                _look(self)

    def result(self) -> str:
        """The offset after the event's batch; raises if it could not be appended."""
        self.exception()
        return super().result()

    def exception(self) -> BaseException | None:
        """Why the event could not be appended, or None."""
        error = super().exception()
        _look(self)
        return error

    def fail(self, error: HeadraceError) -> None:
        """The event could not be appended."""
        self.set_exception(error)
        # Looked at here so that asyncio logs nothing: flush and close report what the caller does not ask for.
        super().exception()


def _look(handle: Delivery | AsyncDelivery) -> None:
    failure = handle.failure
    if failure is not None:
        failure.look(handle)


class Ledger:
    """What a producer holds: how much is pending, and which failures nobody has looked at."""

    def __init__(self, max_pending_bytes: int, overhead_bytes: int) -> None:
        self._max_pending_bytes = max_pending_bytes
        self._overhead_bytes = overhead_bytes
        self._pending_bytes = 0
        self._entered = 0
        self._failures: list[Failure] = []

    def has_room(self, event: bytes) -> bool:
        """Whether the event fits; one always does."""
        size = len(event) + self._overhead_bytes
        return not self._pending_bytes or self._pending_bytes + size <= self._max_pending_bytes

    def enter(self, event: bytes, handle: Delivery | AsyncDelivery) -> None:
        """The event is pending now."""
        handle.number = self._entered
        self._entered += 1
        self._pending_bytes += len(event) + self._overhead_bytes

    def leave(self, settled: Sequence[Settled]) -> None:
        """These are pending no more; to be called before their handles know."""
        self._pending_bytes -= sum(event.event_bytes for event in settled) + self._overhead_bytes * len(settled)
        for handle, _, error, _ in settled:
            if error is not None:
                self._failure(error, handle.number).enter(handle)

    def complain(self) -> None:
        """Raise the first failure, in the order of sending, whose handle nobody has looked at; say each only once."""
        unseen = [failure for failure in self._failures if failure.unseen]
        self._failures = []
        if unseen:
            raise min(unseen, key=lambda failure: failure.number).error

    def _failure(self, error: HeadraceError, number: int) -> Failure:
        if not self._failures or self._failures[-1].error is not error:
            self._failures = [failure for failure in self._failures if failure.unseen]
            if len(self._failures) < _MOST_FAILURES:
                self._failures.append(Failure(error, number))
        return self._failures[-1]


def tell(settled: Sequence[Settled]) -> None:
    """Let the handles know; one that was cancelled does not care any more."""
    for handle, offset, error, _ in settled:
        if handle.done():
            continue
        if error is None:
            handle.set_result(offset)
        else:
            handle.fail(error)
