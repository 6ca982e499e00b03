"""Watchers that wait for new entries of a stream."""

from __future__ import annotations

from functools import partial

from headrace.engine.log.stream import Stream, TailWatcher
from headrace.engine.runtime.event_loop import FEW, Slices
from headrace.errors import Overloaded


class Tail:
    """The watchers of all streams, bounded in number."""

    def __init__(self, limit: int, slices: Slices | None = None) -> None:
        self._limit = limit
        self._watchers: dict[TailWatcher, None] = {}
        self._slices = slices or Slices()
        #: Who is about to be woken.
        self._waking: set[TailWatcher] = set()

    @property
    def watchers(self) -> int:
        """How many wait."""
        return len(self._watchers)

    def watch(self, stream: Stream, watcher: TailWatcher) -> None:
        """Wake this watcher from now on; pins the stream."""
        if len(self._watchers) >= self._limit:
            raise Overloaded("too many readers are waiting", retry_after=1)
        if stream.watchers is None:
            stream.watchers = {}
        stream.watchers[watcher] = None
        stream.pins += 1
        self._watchers[watcher] = None

    def leave(self, stream: Stream, watcher: TailWatcher) -> None:
        """Stop waking this watcher."""
        if stream.watchers is not None and watcher in stream.watchers:
            del stream.watchers[watcher]
            stream.pins -= 1
            del self._watchers[watcher]
            if not stream.watchers:
                stream.watchers = None

    def park(self, watcher: TailWatcher) -> None:
        """Count one who waits for something else than the tail of a stream, and whom only :meth:`end` reaches."""
        if len(self._watchers) >= self._limit:
            raise Overloaded("too many readers are waiting", retry_after=1)
        self._watchers[watcher] = None

    def unpark(self, watcher: TailWatcher) -> None:
        """Count this one no more."""
        self._watchers.pop(watcher, None)

    def wake(self, stream: Stream) -> None:
        """Wake everyone who watches a stream: few at once, many while the loop serves others."""
        watchers = tuple(stream.watchers or ())
        if len(watchers) <= FEW:
            for watcher in watchers:
                watcher.wake()
            return
        due = [watcher for watcher in watchers if watcher not in self._waking]
        self._waking.update(due)
        self._slices.run_all([partial(self._wake, stream, watcher) for watcher in due])

    def _wake(self, stream: Stream, watcher: TailWatcher) -> None:
        self._waking.discard(watcher)
        if stream.watchers is not None and watcher in stream.watchers:
            watcher.wake()

    def end(self) -> None:
        """Let everyone go, for the server stops."""
        for watcher in tuple(self._watchers):
            watcher.end()
