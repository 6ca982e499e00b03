"""A table as it is defined at one version of the registry, complete enough to be folded by any worker."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace import decoding
from headrace.reduce.features.bound_events import REASON, BoundShapes, UnfitShapes
from headrace.reduce.features.events import EventShapes
from headrace.reduce.features.table import TableReducer
from headrace.schema.descriptor.bound_fields import StreamBinding
from headrace.schema.descriptor.nodes import Event, EventField, Feature, FeatureVersion, Node, RowOp, Table
from headrace.schema.descriptor.validate import resolve_table
from headrace.schema.entries import integer_or_double
from headrace.schema.registry import Registry
from headrace.types import Steps

if TYPE_CHECKING:
    from headrace.reduce.states.definition import EventRun


_KEY = msgspec.msgpack.Decoder(list[Any])


class FieldKeying:
    """Keys that are fields of the event as it is pushed: no more of it is decoded."""

    def __init__(self, reducer: TableReducer, event: Event, fields: Sequence[str]) -> None:
        self.name: object = (event.name, *fields)
        self._rows = RowKeying(reducer)
        names = [f"f{number}" for number in range(len(fields))]
        made = [(name, Any, event.schema[field].default) for name, field in zip(names, fields, strict=True)]
        probe = msgspec.defstruct("Probe", made, rename=dict(zip(names, fields, strict=True)), gc=False)
        self._decode = decoding.make_decoder(list[probe], float_hook=integer_or_double).decode  # type: ignore[valid-type]
        self._values = attrgetter(*names) if names else None

    def of_events(self, shapes: EventShapes | BoundShapes, run: EventRun) -> NDArray[np.int64]:
        """The hashes of the keys of events."""
        if self._values is None:
            return np.zeros(len(run.times_us), np.int64)
        if not shapes.is_newest(run.version):
            events = shapes.events(run.body, run.version)
            return self._hashes([self._rows.key(event) for event in events])
        probes = self._decode(b"[" + run.body + b"]")
        return np.fromiter(map(hash, map(self._values, probes)), np.int64, len(probes))

    def of_key(self, key: bytes) -> int:
        """The hash of an encoded key."""
        values = _KEY.decode(key)
        if not values:
            return 0
        return hash(values[0] if len(values) == 1 else tuple(values))

    def _hashes(self, keys: Sequence[bytes | None]) -> NDArray[np.int64]:
        return np.array([0 if key is None else self.of_key(key) for key in keys], np.int64)


class RowKeying:
    """Keys that steps make: events are decoded, and go through the steps."""

    def __init__(self, reducer: TableReducer) -> None:
        self.name: object = reducer
        self._key_and_row = reducer.key_and_row

    def key(self, event: dict[str, Any] | None) -> bytes | None:
        """The key of an event; None where it has none."""
        placed = self._key_and_row(event)
        return None if placed is None else placed[0]

    def of_events(self, shapes: EventShapes | BoundShapes, run: EventRun) -> NDArray[np.int64]:
        """The hashes of the keys of events."""
        keys = map(self.key, shapes.events(run.body, run.version))
        return np.fromiter(map(hash, keys), np.int64, len(run.times_us))

    def of_key(self, key: bytes) -> int:
        """The hash of an encoded key."""
        return hash(key)


def keying(reducer: TableReducer, event: Event, ops: Sequence[RowOp]) -> FieldKeying | RowKeying:
    """How the keys of a table are hashed, given the steps from its source to it."""
    fields = _source_fields(reducer.keys.fields, ops)
    if fields is None or any(event.schema[field].type == "datetime" for field in fields):
        return RowKeying(reducer)
    return FieldKeying(reducer, event, fields)


def _source_fields(names: Sequence[str], ops: Sequence[RowOp]) -> list[str] | None:
    """The fields of the source that these of the rows are as they were; None where one is made by a step."""
    sources = list(names)
    for op in reversed(ops):
        if any(name in op.exprs or name in op.type_map or name in op.defaults for name in sources):
            return None
        before = {new: old for old, new in op.mapping.items()}
        sources = [before.get(name, name) for name in sources]
    return sources


_KEPT = 256


class TableDefinition(msgspec.Struct, frozen=True, dict=True):
    """A table, its source and the versions of its features; equal definitions fold alike."""

    table: str
    #: The event source, and the stream whose events are folded.
    root: str
    stream: str
    nodes: dict[str, Node]
    lives: dict[str, FeatureVersion]
    #: How long an entity may be idle, by the event from which on that holds.
    cold: Steps = ((0, None),)
    #: How the source is bound to a stream that is not its own.
    binding: StreamBinding | None = None
    #: Whether the events are folded that do not fit the source, and none of the others.
    counts_unfit: bool = False

    @classmethod
    def load(cls, document: object) -> TableDefinition:
        """Read back what was dumped."""
        return decoding.convert(document, cls)

    def dump(self) -> object:
        """The definition as a document."""
        return msgspec.to_builtins(self)

    @property
    def name(self) -> str:
        """The name of the table."""
        return self.table

    @property
    def event(self) -> Event:
        """The source whose events are folded."""
        root = self.nodes[self.root]
        assert isinstance(root, Event)
        return root

    @property
    def source(self) -> str:
        """The source, or the table of its unfit events; tables of one source over one stream share their events."""
        return self.table if self.counts_unfit else self.root

    @property
    def delays_retention(self) -> bool:
        """Whether events are retained until they are folded: only those of a stream of its own."""
        return self.binding is None

    def shapes(self, registry: Registry) -> EventShapes | BoundShapes:
        """How stored events become what is folded, by the registry of their stream."""
        if self.binding is None:
            return EventShapes(registry, self.event)
        return (UnfitShapes if self.counts_unfit else BoundShapes)(registry, self.event, self.binding)

    @property
    def start_seq(self) -> int:
        """The first event that any feature folds."""
        return min(version.birth for version in self.lives.values())

    @cached_property
    def ended(self) -> frozenset[str]:
        """The features that count no more events."""
        return frozenset(name for name, version in self.lives.items() if version.end is not None)

    @cached_property
    def reducer(self) -> TableReducer:
        """What folds it; equal ones share it."""
        return _reducer(msgspec.json.encode(self))

    @cached_property
    def keying(self) -> FieldKeying | RowKeying:
        """How the keys of its events are hashed."""

        if self.binding is not None:
            return RowKeying(self.reducer)
        return keying(self.reducer, self.event, resolve_table(self.nodes, self.table).ops)

    def with_versions(self, versions: Mapping[str, FeatureVersion]) -> TableDefinition:
        """The same with other versions of some of its features."""
        return msgspec.structs.replace(self, lives={**self.lives, **versions})

    def restricted(self, names: Collection[str]) -> TableDefinition:
        """The same with some of its features only."""
        table = self.nodes[self.table]
        assert isinstance(table, Table)
        kept = {name: feature for name, feature in table.features.items() if name in names}
        nodes = {**self.nodes, self.table: msgspec.structs.replace(table, features=kept)}
        return msgspec.structs.replace(self, nodes=nodes, lives={name: self.lives[name] for name in kept})


#: What the name of the table of a source's unfit events ends with; no node has a blank in its name.
UNFIT_TABLE = " unfit"
_LISTED = 10


def unfit_table(source: TableDefinition, version_id: str) -> TableDefinition:
    """The table that counts the events that do not fit a source, and lists the first, given a table over the source."""
    name = source.root + UNFIT_TABLE
    features = {"count": Feature("count"), "first": Feature("first_n", {"field": REASON, "n": _LISTED})}
    reasons = Event(REASON, {REASON: EventField("str")})
    nodes: dict[str, Node] = {source.root: source.event, REASON + " ": reasons}
    nodes[name] = Table(name, REASON + " ", (), features)
    versions = {feature: FeatureVersion(f"{feature}@{version_id}", source.start_seq) for feature in features}
    return TableDefinition(name, source.root, source.stream, nodes, versions, binding=source.binding, counts_unfit=True)


@lru_cache(maxsize=_KEPT)
def _reducer(encoded: bytes) -> TableReducer:
    defined = decoding.decode(encoded, TableDefinition)
    return TableReducer(resolve_table(defined.nodes, defined.table), defined.lives, defined.cold)
