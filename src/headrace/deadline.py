"""Deadlines: how long work on an answer may take, and whether it was cancelled.

Work checks its deadline between two steps. When the time is over, it answers with what it has. When the client has
gone, it is cancelled: it raises ``Cancelled`` at the next step, and native calls that can be interrupted are.

A deadline is handed to most functions as an argument. The proofs of schemas and registrations, whose many small
functions recurse, find it in a context variable: their caller sets it with ``Deadline.applied``, and they call
``check_deadline`` in their loops. Without a deadline that costs some tens of nanoseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from time import monotonic


class OutOfTime(Exception):
    """The deadline passed before the work was done."""


class Cancelled(Exception):
    """The work was cancelled: its answer is not needed any more."""


class _Cancellation:
    """Set once, by any thread; what can be interrupted is called when that happens."""

    def __init__(self) -> None:
        self.is_set = False
        self._lock = threading.Lock()
        self._interrupts: list[Callable[[], None]] = []

    def set(self) -> None:
        with self._lock:
            self.is_set = True
            for interrupt in self._interrupts:
                interrupt()

    @contextmanager
    def interrupting(self, interrupt: Callable[[], None]) -> Iterator[None]:
        with self._lock:
            if self.is_set:
                raise Cancelled
            self._interrupts.append(interrupt)
        try:
            yield
        finally:
            with self._lock:
                self._interrupts.remove(interrupt)


class Deadline:
    """When work has to end; it may be cancelled from another thread."""

    def __init__(self, seconds: float) -> None:
        self._at = monotonic() + seconds
        self._cancellation = _Cancellation()

    def with_timeout(self, seconds: float) -> Deadline:
        """A deadline so many seconds from now that is cancelled together with this one."""
        deadline = Deadline(seconds)
        deadline._cancellation = self._cancellation
        return deadline

    def with_share(self, fraction: float) -> Deadline:
        """The end of a share of the time that is left."""
        return self.with_timeout(self.left_s * fraction)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Make this the deadline of ``check_deadline``, in the block and in this thread or task."""
        token = _APPLIED.set(self)
        try:
            yield
        finally:
            _APPLIED.reset(token)

    def cancel(self) -> None:
        """Cancel the work, which ends at its next step with ``Cancelled``."""
        self._cancellation.set()

    @property
    def is_cancelled(self) -> bool:
        """Whether the work was cancelled."""
        return self._cancellation.is_set

    def interrupting(self, interrupt: Callable[[], None]) -> AbstractContextManager[None]:
        """Call this, from another thread, if the work is cancelled within the block; raises Cancelled if it was."""
        return self._cancellation.interrupting(interrupt)

    @property
    def left_s(self) -> float:
        """The time that is left; negative once it is over."""
        return self._at - monotonic()

    @property
    def passed(self) -> bool:
        """Whether the time is over; raises Cancelled if the work was cancelled."""
        if self._cancellation.is_set:
            raise Cancelled
        return monotonic() >= self._at

    def require(self) -> None:
        """Raise Cancelled if the work was cancelled."""
        if self._cancellation.is_set:
            raise Cancelled

    def check(self) -> None:
        """Raise OutOfTime if the time is over, Cancelled if the work was cancelled."""
        if self.passed:
            raise OutOfTime


_APPLIED: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


def check_deadline() -> None:
    """Raise OutOfTime or Cancelled where the deadline that is applied says so; nothing where none is."""
    deadline = _APPLIED.get()
    if deadline is not None:
        deadline.check()
