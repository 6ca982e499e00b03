"""Folding the events of units of the job ``features``: the events of a range are decoded once for all their tables."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from headrace.errors import CorruptData
from headrace.format.state_file import PackedColumns
from headrace.reduce.features.columns import fold_rows
from headrace.reduce.features.definition import TableDefinition
from headrace.reduce.features.event_columns import BoundColumns, gather_columns
from headrace.reduce.states.fold import runs_of_batch
from headrace.reduce.work_units import Unit
from headrace.schema.registry import Registry

#: Payload that is decoded together.
_SLICE_BYTES = 1024 * 1024
_KEPT = 64


def fold_events(unit: Unit, batches: Iterable[Any], rest: Callable[[], None]) -> PackedColumns:
    """The states of a unit's events, in the columns of segments; ``rest`` is called between slices of them."""
    return fold_table(unit, decode_events([unit], batches, rest))


class DecodedEvents(NamedTuple):
    """The columns of events, and of those that do not fit a source that is bound to a stream."""

    rows: Any
    unfit: Any = None


def decode_events(
    units: Sequence[Unit], batches: Iterable[Any], rest: Callable[[], None] = lambda: None
) -> DecodedEvents:
    """The columns of events that units of one source and range need."""
    first = units[0]
    tables = [defined for defined in map(defined_by, units) if not defined.counts_unfit]
    fields = {name for defined in tables for name in defined.reducer.source_types}
    defined = defined_by(first)
    shapes = defined.shapes(_registry(msgspec.json.encode(first.registry, order="sorted")))
    columns = gather_columns(shapes, defined.event, sorted(fields))
    for batch in batches:
        for run in runs_of_batch(batch, _SLICE_BYTES):
            columns.add(run)
            rest()
    if columns.count != first.count:
        raise CorruptData(f"the segments of {first.unit} hold {columns.count} entries, not {first.count}")
    if isinstance(columns, BoundColumns):
        return DecodedEvents(columns.table(), columns.unfit())
    return DecodedEvents(columns.table())


def fold_table(unit: Unit, events: DecodedEvents) -> PackedColumns:
    """The states of a unit's table, given the columns of its events."""
    defined = defined_by(unit)
    return fold_rows(defined.reducer, events.unfit if defined.counts_unfit else events.rows)


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
