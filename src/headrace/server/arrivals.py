"""How much of half-arrived bodies the server holds, all connections together."""

from __future__ import annotations

from headrace.errors import Overloaded


class Arrivals:
    """A budget of bytes; what does not fit is refused."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def take(self, size: int) -> None:
        """Hold so many bytes more."""
        if self.held + size > self._limit:
            raise Overloaded("too many bodies arrive at once", retry_after=1)
        self.held += size

    def give(self, size: int) -> None:
        """Let go of so many bytes."""
        self.held -= size
