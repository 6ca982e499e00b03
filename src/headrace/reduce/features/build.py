"""Folding the events of units of the job ``features``: the events of a range are decoded once for all their tables."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import pyarrow.compute as pc

from headrace.errors import CorruptData
from headrace.format.state_file import PackedColumns
from headrace.reduce.features.bound_events import BoundShapes
from headrace.reduce.features.columns import fold_rows
from headrace.reduce.features.definition import TableDefinition
from headrace.reduce.features.event_columns import SEQ, BoundColumns, SourceColumns, gather_columns
from headrace.reduce.features.events import EventShapes
from headrace.reduce.states.definition import EventRun, NotColumnar
from headrace.reduce.states.fold import runs_of_batch
from headrace.reduce.work_units import Unit
from headrace.schema.registry import Registry

#: Payload that is decoded together.
_SLICE_BYTES = 1024 * 1024
_KEPT = 64


class TableColumns:
    """The columns of a run of stored events, which are folded for every table over them."""

    def __init__(self, shapes: EventShapes | BoundShapes, tables: Sequence[TableDefinition]) -> None:
        self._columns = gather_columns(shapes, tables[0].event, _fields(tables))
        self._decoded: DecodedEvents | None = None

    def add(self, run: EventRun) -> None:
        """Take the next events; raises NotColumnar."""
        with _raising_not_columnar():
            self._columns.add(run)

    def fold(self, defined: TableDefinition, start_seq: int) -> PackedColumns:
        """The rows of a table over the events from one on; raises NotColumnar."""
        with _raising_not_columnar():
            if self._decoded is None:
                self._decoded = DecodedEvents.of(self._columns)
            events = self._decoded.of_table(defined)
            if events.num_rows and events.column(SEQ)[0].as_py() < start_seq:
                events = events.filter(pc.greater_equal(events.column(SEQ), start_seq))
            return fold_rows(defined.reducer, events)


@contextmanager
def _raising_not_columnar() -> Iterator[None]:
    """Events from before a break of the schema may have values of other types than their fields have now."""
    try:
        yield
    except (ValueError, TypeError) as reason:
        raise NotColumnar(str(reason)) from reason


def fold_events(unit: Unit, batches: Iterable[Any], rest: Callable[[], None]) -> PackedColumns:
    """The states of a unit's events, in the columns of segments; ``rest`` is called between slices of them."""
    return fold_table(unit, decode_events([unit], batches, rest))


class DecodedEvents(NamedTuple):
    """The columns of events, and of those that do not fit a source that is bound to a stream."""

    rows: Any
    unfit: Any = None

    @classmethod
    def of(cls, columns: SourceColumns | BoundColumns) -> DecodedEvents:
        """All that was gathered."""
        return cls(columns.table(), columns.unfit() if isinstance(columns, BoundColumns) else None)

    def of_table(self, defined: TableDefinition) -> Any:
        """Those that a table folds."""
        return self.unfit if defined.counts_unfit else self.rows


def _fields(tables: Iterable[TableDefinition]) -> list[str]:
    """The fields of a source that tables over it see."""
    return sorted({name for each in tables if not each.counts_unfit for name in each.reducer.source_types})


def decode_events(
    units: Sequence[Unit], batches: Iterable[Any], rest: Callable[[], None] = lambda: None
) -> DecodedEvents:
    """The columns of events that units of one source and range need."""
    first = units[0]
    defined = defined_by(first)
    shapes = defined.shapes(_registry(msgspec.json.encode(first.registry, order="sorted")))
    columns = gather_columns(shapes, defined.event, _fields(map(defined_by, units)))
    for batch in batches:
        for run in runs_of_batch(batch, _SLICE_BYTES):
            columns.add(run)
            rest()
    if columns.count != first.count:
        raise CorruptData(f"the segments of {first.unit} hold {columns.count} entries, not {first.count}")
    return DecodedEvents.of(columns)


def fold_table(unit: Unit, events: DecodedEvents) -> PackedColumns:
    """The states of a unit's table, given the columns of its events."""
    defined = defined_by(unit)
    return fold_rows(defined.reducer, events.of_table(defined))


def source_and_range(unit: Unit) -> Hashable:
    """What is the same for units whose events can be decoded together."""
    defined = defined_by(unit)
    source = msgspec.json.encode([defined.event, defined.binding])
    return unit.stream, unit.incarnation, unit.first_seq, unit.count, unit.segments, source


def defined_by(unit: Unit) -> TableDefinition:
    """The table of a unit, with the features that it asks for."""
    return _load_definition(msgspec.json.encode(unit.defined, order="sorted"), tuple(sorted(unit.lives or {})))


@lru_cache(maxsize=_KEPT)
def _registry(document: bytes) -> Registry:
    return Registry.load(msgspec.json.decode(document))


@lru_cache(maxsize=_KEPT)
def _load_definition(document: bytes, features: tuple[str, ...]) -> TableDefinition:
    return TableDefinition.load(msgspec.json.decode(document)).restricted(features)
