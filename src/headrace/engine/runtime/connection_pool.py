"""Read-only database connections that threads borrow, kept open between borrowers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """A connection, or an object with a connection of its own."""

    def close(self) -> None:
        """Close the connection."""


Pooled = TypeVar("Pooled", bound=Closable)


class ConnectionPool(Generic[Pooled]):
    """Opens connections as they are borrowed, and keeps at most ``max_idle`` that nobody uses; for any thread."""

    def __init__(self, connect: Callable[[], Pooled], *, max_idle: int) -> None:
        self._connect, self._max_idle = connect, max_idle
        self._lock = threading.Lock()
        self._idle: list[Pooled] = []

    @contextmanager
    def borrow(self) -> Iterator[Pooled]:
        """A connection that nobody else uses meanwhile."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._connect()
        try:
            yield connection
        finally:
            with self._lock:
                is_kept = len(self._idle) < self._max_idle
                if is_kept:
                    self._idle.append(connection)
            if not is_kept:
                connection.close()

    def close_idle(self) -> None:
        """Close the connections that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close the connections that nobody uses, and the others once they are given back."""
        self._max_idle = 0
        self.close_idle()
