"""The tables as they are folded: the feature registry together with the streams that its sources are bound to."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import NamedTuple

import msgspec

from headrace.engine.features.registry import Current
from headrace.engine.log.catalog import Catalog
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.reduce.features.definition import TableDefinition
from headrace.schema.registry import Registry
from headrace.storage.database import Connection
from headrace.storage.registries import Registries
from headrace.storage.streams import LIVE, StreamRow, Streams

_KEPT = 256


class SourceStream(NamedTuple):
    """A stream that sources may be bound to: its life and its schema versions."""

    incarnation: str
    registry: Registry


#: Returns the stream of a name; None where there is none.
FindSourceStream = Callable[[str], SourceStream | None]


class FeatureDefinitions:
    """The definitions of all tables at one time.

    A table whose source is bound to a stream that is gone has a definition, and is over no stream.
    """

    def __init__(
        self, current: Current, find: FindSourceStream, version: int, is_own: Callable[[str], bool] = lambda _: True
    ) -> None:
        """``is_own`` says whether the stream of a name belongs to the feature registry."""
        self.current, self._find, self.version, self._is_own = current, find, version, is_own

    @property
    def streams(self) -> Collection[str]:
        """Every stream that has tables."""
        return self.current.streams

    def names_over(self, stream: str) -> tuple[str, ...]:
        """The tables over a stream."""
        return tuple(name for name in self.current.names_over(stream) if self.is_alive(name))

    def stream_of(self, name: str) -> str | None:
        """The stream that a table is made from; None where there is no such table, or the stream is gone."""
        if name not in self.current.feature_versions or not self.is_alive(name):
            return None
        return self.current.source_stream(self.current.root_of(name))

    def is_alive(self, name: str) -> bool:
        """Whether the stream of a table is the one that its source is bound to."""
        root = self.current.root_of(name)
        binding = self.current.document.sources.get(root)
        if binding is None:
            return self._is_own(self.current.source_stream(root))
        stream = self._find(self.current.source_stream(root))
        return stream is not None and stream.incarnation == binding.incarnation

    def defined(self, name: str) -> TableDefinition:
        """A table with everything that folding it takes; raises UnknownTable where there is none of this name."""
        return self.current.defined(name)


def definitions_of_rows(current: Current, connection: Connection) -> FeatureDefinitions:
    """The definitions by the rows of streams that a connection reads."""
    streams, registries = Streams(connection), Registries(connection)

    def find(name: str) -> SourceStream | None:
        row = streams.by_name(name)
        if row is None or row.state != LIVE:
            return None
        return SourceStream(row.incarnation, registry_of_row(registries, row))

    def is_own(name: str) -> bool:
        row = streams.by_name(name)
        return row is not None and bool(row.managed)

    return FeatureDefinitions(current, find, current.version, is_own)


def registry_of_row(registries: Registries, row: StreamRow) -> Registry:
    """The registry of a stream, an empty one where it has none."""
    return _load(registries.document(row.id, row.revision)) if row.revision else Registry.empty(row.name)


@lru_cache(maxsize=_KEPT)
def _load(document: str) -> Registry:
    return Registry.load(msgspec.json.decode(document))


class LiveDefinitions:
    """The definitions that hold now, on the event loop; others once the feature registry or a stream has changed."""

    def __init__(self, current: Callable[[], Current], catalog: Catalog) -> None:
        self._current, self._catalog = current, catalog
        self._seen: tuple[tuple[str, StreamRegistry | None] | None, ...] = ()
        self._made = FeatureDefinitions(Current.of(None), self.find, 0)

    def __call__(self) -> FeatureDefinitions:
        """The definitions of now."""
        current = self._current()
        seen = tuple(map(self._read_stream, current.bound_streams))
        if current is not self._made.current or seen != self._seen:
            self._seen = seen
            self._made = FeatureDefinitions(current, self.find, self._made.version + 1)
        return self._made

    def find(self, name: str) -> SourceStream | None:
        """A stream that is there."""
        state = self._read_stream(name)
        if state is None:
            return None
        incarnation, registry = state
        return SourceStream(incarnation, Registry.empty(name) if registry is None else registry.registry)

    def _read_stream(self, name: str) -> tuple[str, StreamRegistry | None] | None:
        stream = self._catalog.find(name)
        if stream is None or stream.head.state != LIVE:
            return None
        return stream.incarnation, stream.head.registry
