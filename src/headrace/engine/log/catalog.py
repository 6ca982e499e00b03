"""The catalog of streams: a bounded cache over the rows of the database, and the table of append hooks.

Event sources, entity types and profiles have hooks on the appends to their streams. A plain stream has none, and pays
nothing for those that do. The hook of a stream is looked up once, when the stream is loaded.

Only the event loop uses the catalog. A stream that the writer or a watcher still holds is pinned and never evicted, so
there is one object per living stream, and memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy
from itertools import islice
from typing import NamedTuple

import msgspec

from headrace import decoding
from headrace.engine.log.batch import WalNameFilter
from headrace.engine.log.stream import Stream
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.errors import CorruptData, HeadraceError
from headrace.profiles import table as profiles
from headrace.profiles.hook import AppendHook
from headrace.schema.registry import Registry
from headrace.storage.database import SQLiteError
from headrace.storage.registries import Registries
from headrace.storage.streams import DELETED, LIVE, StreamRow, Streams
from headrace.types import RESERVED, Clock

_EVICT_STEP = 64
# What one request looks up must not push out what it looked up before.
_LEAST = 2 * _EVICT_STEP


class StreamManager(NamedTuple):
    """How the streams of one registry are loaded and retained."""

    #: Makes the hook of a stream out of its row.
    load_hook: Callable[[StreamRow], AppendHook]
    #: Whether retention rules apply to its streams.
    is_retained: bool = True


class _Managed(msgspec.Struct):
    """What the stored rules of every managed stream begin with: the registry that it belongs to."""

    kind: str


_MANAGED = decoding.make_decoder(_Managed)


class AppendHooks:
    """The table of append hooks, by the registry that manages a stream or by its profile."""

    def __init__(self, managers: Mapping[str, StreamManager]) -> None:
        """``managers`` are named as in the stored rules of their streams."""
        self._managers = managers

    def load(self, row: StreamRow) -> AppendHook | None:
        """The hook of a stream; None for a plain one."""
        if row.managed:
            return self._manager(row).load_hook(row)
        hook = profiles.load(row.profile).hook
        if hook is not None and hook.suggests_keys and row.name.startswith(RESERVED):
            # Streams of the server have the routing keys that their registries name, and no others.
            hook = copy(hook)
            hook.suggests_keys = False
        return hook

    def is_retained(self, row: StreamRow) -> bool:
        """Whether retention rules apply to a stream."""
        return not row.managed or self._manager(row).is_retained

    def _manager(self, row: StreamRow) -> StreamManager:
        kind = _MANAGED.decode(row.managed).kind
        manager = self._managers.get(kind)
        if manager is None:
            raise CorruptData(
                f"the stream {row.name!r} belongs to a registry of unknown kind {kind!r}", stream=row.name
            )
        return manager


class Catalog:
    """The streams of this node, as the loop sees them."""

    def __init__(
        self,
        streams: Streams,
        registries: Registries,
        hooks: AppendHooks,
        clock: Clock,
        wal_names: WalNameFilter,
        *,
        capacity: int,
    ) -> None:
        self._streams = streams
        self._wal_names = wal_names
        self._registries = registries
        self._clock = clock
        self._capacity = max(capacity, _LEAST)
        # A dict finds its first entries slowly where many before them were removed, so they go by the hundred.
        self._step = max(_EVICT_STEP, self._capacity // 512)
        self._hooks = hooks
        #: The streams in memory by name; only the catalog changes it.
        self.held: dict[str, Stream] = {}
        self._started_us = clock.now_us()
        self.accessed: dict[Stream, None] = {}

    def __len__(self) -> int:
        return len(self.held)

    def find(self, name: str) -> Stream | None:
        """The stream of this name, soft-deleted ones included; None where it is gone or never was."""
        stream = self.held.get(name)
        if stream is not None and stream.head.state != DELETED:
            stream.used = stream.used is not None  # the first who asks is the one it was brought into memory for
            return stream
        row = self._streams.by_name(name, logged=name in self._wal_names)
        stream = None if row is None else self._keep(row)
        if stream is not None:
            stream.used = False
        return stream

    def fetch(self, names: Collection[str]) -> None:
        """Load streams into memory that are needed next, those of them that exist."""
        logged: list[str] = []
        unlogged: list[str] = []
        for name in names:
            (logged if name in self._wal_names else unlogged).append(name)
        for wanted in (logged, unlogged):
            if wanted:
                try:
                    for row in self._streams.by_names(wanted, logged=wanted is logged):
                        self._keep(row)
                except (HeadraceError, SQLiteError):
                    pass  # whoever asks for the stream that cannot be read is told

    def _keep(self, row: StreamRow) -> Stream | None:
        if row.state == DELETED:
            return None
        stream = self.held[row.name] = self.load(row)
        if len(self.held) > self._capacity:
            self._evict()
        return stream

    def load(self, row: StreamRow) -> Stream:
        """The stream of a row: the one in memory, or a new one that is not kept."""
        cached = self.held.get(row.name)
        if cached is not None and cached.id == row.id:
            return cached
        lineage = () if row.parent is None else self._lineage(row.parent, row.fork_seq)
        stream = Stream(row, lineage, self._registry(row))
        if stream.ttl_s is not None and row.state == LIVE:
            # A restart counts as an access.
            stream.deadline_us = max(stream.deadline_us or 0, self._started_us + stream.ttl_s * 1_000_000)
        return stream

    def _registry(self, row: StreamRow) -> StreamRegistry | None:
        hook = self._hooks.load(row)
        if not row.revision:
            return None if hook is None else StreamRegistry(Registry.empty(row.name), 0, hook)
        document = msgspec.json.decode(self._registries.document(row.id, row.revision))
        return StreamRegistry(Registry.load(document), row.revision, hook)

    def recent(self) -> Iterator[Stream]:
        """The streams in memory, those that came last first."""
        return reversed(self.held.values())

    def expired(self, stream: Stream) -> bool:
        """Whether the stream's lifetime is over."""
        return stream.deadline_us is not None and stream.deadline_us <= self._clock.now_us()

    def note_access(self, stream: Stream) -> None:
        """Restart the sliding window of a stream that is accessed, in memory."""
        if stream.ttl_s is not None:
            stream.deadline_us = self._clock.now_us() + stream.ttl_s * 1_000_000
            self.accessed[stream] = None

    def forget(self, name: str, stream_id: int) -> None:
        """Drop a deleted stream from the cache; a new one that took its name stays."""
        stream = self.held.get(name)
        if stream is not None and stream.id == stream_id:
            del self.held[name]
            self.accessed.pop(stream, None)

    def _lineage(self, parent: int | None, fork_seq: int | None) -> tuple[tuple[int, int], ...]:
        """The ancestors a fork reads from, oldest first, each with the end of its part."""
        parts: list[tuple[int, int]] = []
        while parent is not None and fork_seq is not None:
            row = self._streams.by_id(parent)
            if row is None:
                raise CorruptData(f"stream {parent} is missing, and a fork needs it", stream_id=parent)
            parts.append((parent, fork_seq))
            parent, fork_seq = row.parent, None if row.fork_seq is None else min(fork_seq, row.fork_seq)
        return tuple(reversed(parts))

    def _evict(self) -> None:
        """Drop some of the longest cached streams that are not pinned, and were not used since the last eviction."""
        for name in list(islice(self.held, self._step)):
            stream = self.held.pop(name)
            if stream.used or stream.pins or stream in self.accessed:
                stream.used = False
                self.held[name] = stream
