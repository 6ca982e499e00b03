"""Who waits for a stream to move."""

from __future__ import annotations

from typing import Protocol

from headrace.engine.stream import Stream
from headrace.errors import Overloaded


class Watcher(Protocol):
    """Someone at the tail of a stream; ``wake`` is called on the loop after each commit that moved it."""

    def wake(self) -> None:
        """The stream has a new head, or is gone."""


class Tail:
    """The watchers of all streams, bounded in number."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.watchers = 0

    def watch(self, stream: Stream, watcher: Watcher) -> None:
        """Wake this watcher from now on; pins the stream."""
        if self.watchers >= self._limit:
            raise Overloaded("too many readers are waiting", retry_after=1)
        if stream.watchers is None:
            stream.watchers = {}
        stream.watchers[watcher] = None
        stream.pins += 1
        self.watchers += 1

    def leave(self, stream: Stream, watcher: Watcher) -> None:
        """Stop waking this watcher."""
        if stream.watchers is not None and watcher in stream.watchers:
            del stream.watchers[watcher]
            stream.pins -= 1
            self.watchers -= 1
            if not stream.watchers:
                stream.watchers = None

    def wake(self, stream: Stream) -> None:
        """Wake everyone who watches a stream."""
        for watcher in tuple(stream.watchers or ()):
            watcher.wake()
