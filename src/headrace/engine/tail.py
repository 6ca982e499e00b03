"""Who waits for a stream to move."""

from __future__ import annotations

from typing import Protocol

from headrace.engine.stream import Stream
from headrace.errors import Overloaded


class Watcher(Protocol):
    """Someone at the tail of a stream; ``wake`` is called on the loop after each commit that moved it."""

    def wake(self) -> None:
        """The stream has a new head, or is gone."""

    def end(self) -> None:
        """The server stops: answer and leave."""


class Tail:
    """The watchers of all streams, bounded in number."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._watchers: dict[Watcher, None] = {}

    @property
    def watchers(self) -> int:
        """How many wait."""
        return len(self._watchers)

    def watch(self, stream: Stream, watcher: Watcher) -> None:
        """Wake this watcher from now on; pins the stream."""
        if len(self._watchers) >= self._limit:
            raise Overloaded("too many readers are waiting", retry_after=1)
        if stream.watchers is None:
            stream.watchers = {}
        stream.watchers[watcher] = None
        stream.pins += 1
        self._watchers[watcher] = None

    def leave(self, stream: Stream, watcher: Watcher) -> None:
        """Stop waking this watcher."""
        if stream.watchers is not None and watcher in stream.watchers:
            del stream.watchers[watcher]
            stream.pins -= 1
            del self._watchers[watcher]
            if not stream.watchers:
                stream.watchers = None

    def park(self, watcher: Watcher) -> None:
        """Count one who waits for something else than the tail of a stream, and whom only :meth:`end` reaches."""
        if len(self._watchers) >= self._limit:
            raise Overloaded("too many readers are waiting", retry_after=1)
        self._watchers[watcher] = None

    def unpark(self, watcher: Watcher) -> None:
        """Count this one no more."""
        self._watchers.pop(watcher, None)

    def wake(self, stream: Stream) -> None:
        """Wake everyone who watches a stream."""
        for watcher in tuple(stream.watchers or ()):
            watcher.wake()

    def end(self) -> None:
        """Let everyone go, for the server stops."""
        for watcher in tuple(self._watchers):
            watcher.end()
