"""The operations of the log: find, create, append, read, delete, and wait at the tail. All run on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from headrace.engine.log import expiry
from headrace.engine.log import read as reading
from headrace.engine.log.append import PLAIN, Append, Terms
from headrace.engine.log.catalog import Catalog
from headrace.engine.log.forks import Fork, fork_at
from headrace.engine.log.lifecycle import SERVER, Create, Delete, SetRetention
from headrace.engine.log.read import ReadSlice
from headrace.engine.log.stream import Head, Stream, TailWatcher, deleted
from headrace.engine.log.tiers import NeedsFetch, Tiers
from headrace.engine.log.writer import Writer
from headrace.engine.runtime.event_loop import FEW, Slices
from headrace.errors import HeadraceError, NotFound, Overloaded
from headrace.format.body_compression import LEAST_BYTES
from headrace.storage.streams import LIVE, StreamRow, Streams
from headrace.storage.wal import pack_body
from headrace.types import RESERVED, Clock

#: Comes after every character that a name can have.
_LAST = "\U0010ffff"
#: Longer bodies are packed by the writer: the loop has others to serve.
_PACKED_HERE = 64 * 1024


class Log:
    """Every stream of this node."""

    def __init__(
        self,
        writer: Writer,
        catalog: Catalog,
        streams: Streams,
        tiers: Tiers,
        tail: Tail,
        counters: Counters,
        clock: Clock,
    ) -> None:
        self._writer = writer
        self.catalog = catalog
        self._streams = streams
        self._tiers = tiers
        self.tail = tail
        self.counters = counters
        self.clock = clock
        self.on_append: list[Callable[[Stream, int], None]] = []
        #: Streams that the commit which is being answered has moved, each with its first new entry.
        self._moved: dict[Stream, int] = {}
        writer.on_settled = self._announce_moved
        self.on_delete: list[Callable[[Stream], None]] = []

    def find(self, name: str) -> Stream:
        """The living stream of this name."""
        stream = self.catalog.find(name)
        if stream is None:
            raise NotFound("there is no such stream", stream=name)
        if stream.deadline_us is not None and self.catalog.expired(stream):
            raise NotFound("stream expired", stream=name)
        if stream.head.state != LIVE:
            raise deleted(stream, stream.head.state)
        return stream

    def create(
        self,
        row: StreamRow,
        done: Callable[[Create], None],
        *,
        body: bytes = b"",
        count: int = 0,
        terms: Terms = PLAIN,
        fork: Fork | None = None,
        replaces: Stream | None = None,
        who: str = SERVER,
    ) -> None:
        """Make a stream; ``done`` gets the settled operation."""

        def on_settled(create: Create) -> None:
            if create.settled and create.dropped and replaces is not None and replaces.head.state != LIVE:
                self._forget_names(create.dropped)
                self._announce_deletion(replaces)
            if create.settled and create.error is None and not create.exists:
                self.counters.created += 1
                if create.count:
                    self._announce_first(create)
            done(create)

        create = Create(row, on_settled, body=body, count=count, terms=terms, fork=fork, replaces=replaces)
        create.who = who
        create.submit(self._writer)

    def append(self, append: Append) -> None:
        """Queue entries; ``done`` is called when they are on disk or refused, or when time ran out."""
        registry = append.stream.head.registry
        if registry is not None and append.count and append.registry is not registry is not append.refused_by:
            try:
                registry.admit(append)
            except HeadraceError:
                if append.terms.producer is None:
                    raise  # what a producer repeats was admitted when the registry was another: the commit decides
        if LEAST_BYTES <= len(append.body) <= _PACKED_HERE:
            append.stored = pack_body(append.body)
        self._writer.submit(append)
        append.stream.pins += 1

    def settled(self, append: Append) -> None:
        """Count a settled append; watchers are woken when the whole commit is settled."""
        if append.error is not None:
            return
        counters = self.counters
        if append.deduplicated:
            counters.deduplicated_events += append.deduplicated
        if append.count and not append.duplicate:
            counters.appends += 1
            counters.appended_events += append.count
            counters.appended_bytes += len(append.body)
            if append.late:
                counters.late_events[append.stream.name] = counters.late_events.get(append.stream.name, 0) + append.late
            if append.stream not in self._moved:
                self._moved[append.stream] = append.position - append.count
        elif append.stream.watchers:
            self.tail.wake(append.stream)

    def _announce_moved(self) -> None:
        """Notify the watchers of each stream that a commit has changed, once per stream."""
        moved, self._moved = self._moved, {}
        for stream, first in moved.items():
            self.announce(stream, first)

    def announce(self, stream: Stream, first: int) -> None:
        """Notify the listeners and the watchers of a stream of new entries from a position on."""
        for hook in self.on_append:
            hook(stream, first)
        if stream.watchers:
            self.tail.wake(stream)

    def read(
        self,
        stream: Stream,
        head: Head,
        position: int,
        *,
        budget: int,
        key: str | None = None,
        version: int | None = None,
        waits: bool = False,
    ) -> ReadSlice:
        """Committed entries from a position on, all in one schema version: the current one if none is named."""
        view = None if head.registry is None else head.registry.view(version)
        entries = reading.read(self._tiers, stream, head, position, budget=budget, key=key, view=view, waits=waits)
        self.counters.reads += 1
        self.counters.read_bytes += sum(map(len, entries.parts))
        return entries

    def readable_head(self, stream: Stream) -> Head:
        """The newest head as readers may see it, without expired events; raises NeedsFetch like a read."""
        if stream.retention_age_us is None and not stream.managed:
            return stream.head
        return expiry.readable_head(self._tiers, stream, stream.head, self.clock.now_us())

    async def fetch_readable_head(self, stream: Stream) -> Head:
        """The same for who can wait."""
        while True:
            try:
                return self.readable_head(stream)
            except NeedsFetch as cold:
                await asyncio.to_thread(cold.work)

    def seek(self, stream: Stream, since_us: int) -> int:
        """The position before the first readable entry that was appended at or after a moment."""
        return reading.seek_time(self._tiers, stream, self.readable_head(stream), since_us)

    def fork(self, source: Stream, position: int, sub: int) -> Fork:
        """A fork point after so many entries of a stream, and so many messages or bytes of the next append."""
        return fork_at(self._tiers, source, self.readable_head(source), position, sub)

    def delete(
        self, stream: Stream, done: Callable[[Delete], None], *, deadline_us: int | None = None, who: str = SERVER
    ) -> None:
        """Delete a stream and wake who reads it."""

        def on_settled(delete: Delete) -> None:
            # The head is published only if the commit succeeded, and an access in time keeps the stream alive.
            if delete.settled and delete.error is None and stream.head.state != LIVE and not delete.repeated:
                if deadline_us is None:
                    stream.deadline_us = None  # it has not expired, and will not
                self._forget_names(delete.dropped)
                self._announce_deletion(stream)
            done(delete)

        delete = Delete(stream, on_settled, deadline_us=deadline_us)
        delete.who = who
        delete.submit(self._writer)

    def set_retention(
        self,
        stream: Stream,
        done: Callable[[SetRetention], None],
        *,
        age_us: int | None,
        size: int | None,
        who: str = SERVER,
    ) -> None:
        """Change a stream's retention rule."""

        def on_settled(change: SetRetention) -> None:
            if change.settled and change.error is None:
                stream.retention_age_us, stream.retention_bytes = age_us, size
            done(change)

        change = SetRetention(stream, on_settled, age_us=age_us, size=size)
        change.who = who
        change.submit(self._writer)

    def page(self, *, prefix: str, after: str, limit: int, without: str | None = None) -> list[Stream]:
        """Living streams in name order, strictly after a name; those of the server only where they are asked for.

        Names that begin like ``without`` are left out.
        """
        streams: list[Stream] = []
        while len(streams) < limit:
            want = limit - len(streams)
            rows = self._streams.page(prefix=prefix, after=after, now_us=self.clock.now_us(), limit=want)
            for row in rows:
                if without is not None and row.name.startswith(without):
                    after = without + _LAST  # there may be many
                    break
                after = row.name
                stream = self.catalog.load(row)
                hidden = stream.is_reserved and not prefix.startswith(RESERVED)
                if not hidden and not self.catalog.expired(stream) and stream.head.state == LIVE:
                    streams.append(stream)
            else:
                if len(rows) < want:
                    break
        return streams

    def note_deleted(self, dropped: list[tuple[str, int]], streams: Iterable[Stream]) -> None:
        """Drop streams from memory that were deleted together with what they belonged to."""
        self._forget_names(dropped)
        for stream in streams:
            self._announce_deletion(stream)

    def _forget_names(self, dropped: list[tuple[str, int]]) -> None:
        for name, stream_id in dropped:
            self.catalog.forget(name, stream_id)

    def _announce_deletion(self, stream: Stream) -> None:
        self.counters.deleted += 1
        self.tail.wake(stream)
        for hook in self.on_delete:
            hook(stream)

    def _announce_first(self, create: Create) -> None:
        stream = self.catalog.find(create.row.name)
        if stream is not None:
            self.announce(stream, create.row.next_seq - create.count)


class Counters:
    """What happened since the server started."""

    def __init__(self) -> None:
        self.appends = 0
        self.appended_events = 0
        self.appended_bytes = 0
        self.deduplicated_events = 0
        #: By stream, events that came too late by their event time.
        self.late_events: dict[str, int] = {}
        self.reads = 0
        self.read_bytes = 0
        self.created = 0
        self.deleted = 0
        self.expired = 0
        self.responses: dict[int, int] = {}
        self.slow_requests = 0


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
        """Stop counting this one."""
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
        """End all waits: the server stops."""
        for watcher in tuple(self._watchers):
            watcher.end()
