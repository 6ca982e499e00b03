"""The registry of feature pipelines: event sources, derivations and tables, as of one version."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

import msgspec

from headrace import decoding
from headrace.errors import CorruptData, UnknownTable
from headrace.reduce.features.definition import TableDefinition
from headrace.reduce.features.events import DerivedEvents
from headrace.schema.descriptor.bound_fields import StreamBinding
from headrace.schema.descriptor.nodes import Derivation, Event, FeatureVersion, Node, Table
from headrace.storage.journals import FeatureRegistryRow
from headrace.types import Steps

#: What the names of the streams of event sources begin with.
EVENTS = "events/"
#: The app of a payload that names none.
DEFAULT_APP = "default"


class AppliedChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """The effects of a change, as they were answered."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[dict[str, Any], ...] = ()
    action: str = "register"
    force: bool = False
    #: The effects on features of tables, and on streams of event sources.
    features: tuple[dict[str, Any], ...] = ()
    streams: tuple[dict[str, Any], ...] = ()


class FeatureDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """The whole registry as it is stored."""

    nodes: dict[str, Node] = {}
    apps: dict[str, str] = {}
    #: The versions of the features of each table.
    feature_versions: dict[str, dict[str, FeatureVersion]] = msgspec.field(name="lives", default_factory=dict)
    #: ``cold_after`` of each event source, by the event from which on it holds.
    cold: dict[str, Steps] = {}
    #: How sources are bound to streams that are not their own.
    sources: dict[str, StreamBinding] = {}
    plan: AppliedChange = AppliedChange()

    def root_of(self, name: str) -> str:
        """The event source that a node leads back to."""
        return root_of(self.nodes, name)

    def stream_of(self, event: str) -> str:
        """The stream that has the events of a source."""
        return stream_of(self.nodes, event)


def stream_of(nodes: Mapping[str, Node], event: str) -> str:
    """The stream that has the events of a source."""
    node = nodes.get(event)
    return EVENTS + event if not isinstance(node, Event) or node.stream is None else node.stream


def root_of(nodes: Mapping[str, Node], name: str) -> str:
    """The event source that a node leads back to."""
    node = nodes[name]
    while not isinstance(node, Event):
        node = nodes[node.upstream]
    return node.name


def load(row: FeatureRegistryRow) -> FeatureDocument:
    """The document of a row."""
    try:
        return decoding.decode(row.document, FeatureDocument)
    except msgspec.DecodeError as reason:
        raise CorruptData(f"version {row.version} of the feature registry cannot be read: {reason}") from reason


class Current:
    """The registry that holds now. It is never changed: the next version is another object."""

    def __init__(self, version: int, document: FeatureDocument) -> None:
        self.version = version
        self.document = document
        self.nodes: Mapping[str, Node] = MappingProxyType(document.nodes)
        self.apps: Mapping[str, str] = MappingProxyType(document.apps)
        self.feature_versions: Mapping[str, Mapping[str, FeatureVersion]] = MappingProxyType(document.feature_versions)
        self._derived: dict[str, DerivedEvents] = {}

    @classmethod
    def of(cls, row: FeatureRegistryRow | None) -> Current:
        """The registry of the newest row; an empty one of version 0 where there is none."""
        return cls(0, FeatureDocument()) if row is None else cls(row.version, load(row))

    @cached_property
    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """The tables over each event source, by its name."""
        tables: dict[str, list[str]] = {}
        for name, node in self.nodes.items():
            if isinstance(node, Table):
                tables.setdefault(self.root_of(name), []).append(name)
        return {event: tuple(sorted(names)) for event, names in tables.items()}

    def tables_of(self, event: str) -> tuple[str, ...]:
        """The tables over an event source, through any number of derivations."""
        return self.tables.get(event, ())

    @cached_property
    def _names_over(self) -> Mapping[str, tuple[str, ...]]:
        names: dict[str, tuple[str, ...]] = {}
        for event, tables in self.tables.items():
            stream = self.source_stream(event)
            names[stream] = tuple(sorted((*names.get(stream, ()), *tables)))
        return names

    @property
    def streams(self) -> Collection[str]:
        """Every stream that has tables."""
        return self._names_over.keys()

    def names_over(self, stream: str) -> tuple[str, ...]:
        """The tables over a stream."""
        return self._names_over.get(stream, ())

    @cached_property
    def bound_streams(self) -> tuple[str, ...]:
        """The streams that sources are bound to."""
        return tuple(sorted({self.source_stream(event) for event in self.document.sources}))

    def source_stream(self, event: str) -> str:
        """The stream that has the events of a source."""
        return self.document.stream_of(event)

    def stream_behind(self, name: str) -> str:
        """The stream that has the events behind a node."""
        return self.source_stream(self.root_of(name))

    def defined(self, name: str) -> TableDefinition:
        """A table with everything that folding it takes; raises UnknownTable where there is none of this name."""
        self.table(name)
        nodes = {node.name: node for node in _upstreams(self.nodes, name)}
        root = self.root_of(name)
        return TableDefinition(
            name,
            root,
            self.source_stream(root),
            nodes,
            dict(self.feature_versions[name]),
            self.cold(root),
            self.document.sources.get(root),
        )

    def root_of(self, name: str) -> str:
        """The event source that a node leads back to."""
        return self.document.root_of(name)

    def table(self, name: str) -> Table:
        """The table of this name."""
        node = self.nodes.get(name)
        if not isinstance(node, Table):
            raise UnknownTable("there is no table of this name", table=name)
        return node

    def derived(self, stream: str) -> DerivedEvents | None:
        """The derived event that has this stream, if there is one; those of a bound source have none."""
        name = stream.removeprefix(EVENTS)
        if name == stream or not isinstance(self.nodes.get(name), Derivation):
            return None
        if self.root_of(name) in self.document.sources:
            return None
        derived = self._derived.get(name)
        if derived is None:
            derived = self._derived[name] = DerivedEvents(self.nodes, name, self.version)
        return derived

    def cold(self, event: str) -> Steps:
        """When entities of an event source are cold, by the event from which on that holds."""
        return self.document.cold.get(event, ((0, None),))


def _upstreams(nodes: Mapping[str, Node], name: str) -> Iterator[Node]:
    node = nodes[name]
    yield node
    if not isinstance(node, Event):
        yield from _upstreams(nodes, node.upstream)
