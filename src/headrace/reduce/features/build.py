"""Folding the events of a unit of the job ``features``, as make_rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import msgspec

from headrace.errors import CorruptData
from headrace.format.state_file import Packed
from headrace.reduce.features.columns import make_rows, reduce_rows
from headrace.reduce.features.definition import TableDefinition
from headrace.reduce.features.events import EventShapes
from headrace.reduce.states.fold import runs_of_batch
from headrace.reduce.work_units import Unit
from headrace.schema.registry import Registry

#: Payload that is decoded together.
_SLICE_BYTES = 1024 * 1024
_KEPT = 64


def fold_events(unit: Unit, batches: Iterable[Any], rest: Callable[[], None]) -> Iterator[Packed]:
    """The rows of a unit's events, in the make_rows of segments; ``rest`` is called between slices of them."""
    import pyarrow as pa

    shapes, reducer = _shapes(unit), defined_by(unit).reducer
    tables, count = [], 0
    for batch in batches:
        for run in runs_of_batch(batch, _SLICE_BYTES):
            seqs = range(run.first_seq, run.first_seq + len(run.times_us))
            times_ms = [at_us // 1000 for at_us in run.times_us]
            tables.append(make_rows(reducer, seqs, times_ms, shapes.events(run.body, run.version)))
            count += len(seqs)
            rest()
    if count != unit.count:
        raise CorruptData(f"the segments of {unit.unit} hold {count} entries, not {unit.count}")
    rows = reduce_rows(reducer, pa.concat_tables(tables)) if tables else iter(())
    return ((key, reducer.pack(row)) for key, row in rows)


def defined_by(unit: Unit) -> TableDefinition:
    """The table of a unit, with the features that it asks for."""
    return _load_definition(msgspec.json.encode(unit.defined, order="sorted"), tuple(sorted(unit.lives or {})))


def _shapes(unit: Unit) -> EventShapes:
    return EventShapes(_registry(msgspec.json.encode(unit.registry, order="sorted")), defined_by(unit).event)


@lru_cache(maxsize=_KEPT)
def _registry(document: bytes) -> Registry:
    return Registry.load(msgspec.json.decode(document))


@lru_cache(maxsize=_KEPT)
def _load_definition(document: bytes, features: tuple[str, ...]) -> TableDefinition:
    return TableDefinition.load(msgspec.json.decode(document)).restricted(features)
