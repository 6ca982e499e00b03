"""The tables as they are folded: the feature registry together with the streams that its sources are bound to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from operator import attrgetter
from typing import NamedTuple

import msgspec

from headrace.engine.features.registry import Current
from headrace.engine.log.catalog import Catalog
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.errors import UnknownEvent
from headrace.reduce.features.definition import UNFIT_TABLE, TableDefinition, unfit_table
from headrace.schema import pointer as pointers
from headrace.schema.descriptor.bound_fields import FieldPath, follow_fields
from headrace.schema.descriptor.diff import canonical, traces
from headrace.schema.descriptor.nodes import FeatureVersion, ReplacedVersion, Table
from headrace.schema.lens.carry import CarryEffect
from headrace.schema.plan import ValueImpact
from headrace.schema.registry import Registry
from headrace.storage.database import Connection
from headrace.storage.registries import Registries
from headrace.storage.streams import LIVE, StreamRow, Streams

_KEPT = 256
#: What the subjects of impact on features begin with.
IMPACT = ("features",)


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
        names = tuple(name for name in self.current.names_over(stream) if self.is_alive(name))
        roots = dict.fromkeys(map(self.current.root_of, names))
        return (*names, *(root + UNFIT_TABLE for root in roots if root in self.current.document.sources))

    def stream_of(self, name: str) -> str | None:
        """The stream that a table is made from; None where there is no such table, or the stream is gone."""
        table = self._table_of(name)
        if table not in self.current.feature_versions or not self.is_alive(table):
            return None
        return self.current.source_stream(self.current.root_of(table))

    def _table_of(self, name: str) -> str:
        """A table over the same source: that of this name, or any where it is the table of unfit events."""
        if not name.endswith(UNFIT_TABLE):
            return name
        tables = self.current.tables_of(name.removesuffix(UNFIT_TABLE))
        return tables[0] if tables else name

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
        if name.endswith(UNFIT_TABLE):
            return self._unfit_of(name.removesuffix(UNFIT_TABLE))
        defined = self.current.defined(name)
        stream = None if defined.binding is None else self._find(defined.stream)
        if stream is None or defined.binding is None or stream.incarnation != defined.binding.incarnation:
            return defined
        return followed_through(defined, stream.registry)

    def _unfit_of(self, source: str) -> TableDefinition:
        """The table of the events that do not fit a source, from the first on that counts for any of its tables."""
        definitions = [self.defined(name) for name in self.current.tables_of(source)]
        if not definitions or definitions[0].binding is None:
            raise UnknownEvent("there is no such source with tables over a stream", event=source)
        first = min(definitions, key=attrgetter("start_seq"))
        changes = sorted({version.id.partition("~")[2] for each in definitions for version in each.lives.values()})
        mark = sha256(canonical([first.event, first.binding, changes])).hexdigest()[:16]
        return unfit_table(first, mark)


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


def followed_through(defined: TableDefinition, registry: Registry) -> TableDefinition:
    """A table over a bound source, with what the lenses of the stream have made of its features since it was bound.

    A feature whose values a lens has made others begins anew, as a version that replaces the one before. One that has
    lost a field ends with the last event that has it.
    """
    assert defined.binding is not None
    paths = follow_fields(registry, defined.event, defined.binding.versions)
    if all(not path.changes and path.lost_in is None for path in paths.values()):
        return defined
    table = defined.nodes[defined.name]
    assert isinstance(table, Table)
    traced = traces(defined.nodes, table)
    versions = {
        name: _version_after(version, [paths[field] for field in sorted(traced[name].fields)], registry)
        for name, version in defined.lives.items()
    }
    return defined.with_versions(versions)


def _version_after(version: FeatureVersion, paths: Sequence[FieldPath], registry: Registry) -> FeatureVersion:
    lost_in = min((path.lost_in for path in paths if path.lost_in is not None), default=None)
    end = None if lost_in is None else start_of(registry, lost_in)
    changes = sorted({change for path in paths for change in path.changes if lost_in is None or change < lost_in})
    if not changes:
        return msgspec.structs.replace(version, end=end)
    ids = [version.id, *(f"{version.id}~{change}" for change in changes)]
    replaced = ReplacedVersion(ids[-2], start_of(registry, changes[-1]))
    return FeatureVersion(ids[-1], version.birth, end, replaced)


def impact_on_tables(
    current: Current, stream: str, incarnation: str, old: Registry, new: Registry
) -> Iterator[ValueImpact]:
    """What a change of the schema of a stream does to the features that are computed from it."""
    for name in current.names_over(stream):
        defined = current.defined(name)
        if defined.binding is None or defined.binding.incarnation != incarnation:
            continue
        before, after = followed_through(defined, old).lives, followed_through(defined, new).lives
        for feature, version in after.items():
            if version.end is not None and before[feature].end is None:
                effect, what = CarryEffect.LOST, "ends: no later event has a field that it is computed from"
            elif version.id != before[feature].id:
                effect, what = CarryEffect.CHANGED, "is rebuilt: a field that it is computed from has other values"
            else:
                continue
            subject = pointers.text((*IMPACT, name, feature))
            yield ValueImpact(subject, effect, new.current_version, f"{feature} of {name} {what}")


def start_of(registry: Registry, version: int) -> int:
    """The first event of a schema version."""
    return next(edge.offset for edge in registry.boundaries if edge.version == version)
