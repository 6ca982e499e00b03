"""Folding: the events of units become states, of tables and entity types.

Units of the tables of one source, over the same events, read and decode them once.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import pyarrow as pa

from headrace import decoding
from headrace.format.object_names import state_key
from headrace.format.state_file import Packed, PackedColumns
from headrace.pipeline.kernels.units import Kernel, Workspace, failure, open_workspace
from headrace.pipeline.kernels.units import batches as events
from headrace.reduce import build_states
from headrace.reduce.features.build import decode_events, fold_table, source_and_range
from headrace.reduce.work_units import Unit


def kernel(packs: Sequence[Sequence[bytes]], store: str) -> Kernel:
    """A kernel whose rows are numbers of packs, and which yields the result of every unit in them as JSON."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                results = [msgspec.json.encode(unit_result).decode() for unit_result in perform(packs[number], store)]
                yield pa.RecordBatch.from_pydict({"result": pa.array(results, pa.string())})

    return run


def perform(pack: Sequence[bytes], store: str) -> list[dict[str, Any]]:
    """Fold the events of units, and return a result for each."""
    groups = group_units([decoding.decode(encoded, Unit) for encoded in pack])
    return [unit_result for units in groups for unit_result in _perform_together(units, store)]


def uploaded(unit: Unit, here: Workspace, rows: Iterator[Packed] | PackedColumns) -> dict[str, Any]:
    """Make the state of a unit durable."""
    path, state = build_states.write_state(unit, rows, here.directory)
    here.objects.upload(state_key(unit.stream, unit.incarnation, state.name), path)
    return {"state": state}


def group_units(units: Sequence[Unit]) -> list[list[Unit]]:
    """Units that are performed together."""
    groups: dict[object, list[Unit]] = {}
    for unit in units:
        groups.setdefault(_group_of(unit), []).append(unit)
    return list(groups.values())


def _group_of(unit: Unit) -> object:
    if unit.job == "features":
        with suppress(Exception):  # a definition that cannot be read is its unit's own failure
            return source_and_range(unit)
    return unit.unit


def _perform_together(units: Sequence[Unit], store: str) -> list[dict[str, Any]]:
    """The results of units of one source and range, or of a unit."""
    try:
        with _uncollected(), open_workspace(store) as here:
            if units[0].job != "features":
                (unit,) = units
                return [{"unit": unit.unit, **uploaded(unit, here, build_states.fold_events(unit, events(unit, here)))}]
            columns = decode_events(units, events(units[0], here))
            return [_fold_table(unit, columns, here) for unit in units]
    except Exception as reason:  # that of one unit must not be that of the others
        if len(units) > 1:
            return [unit_result for unit in units for unit_result in _perform_together([unit], store)]
        return [{"unit": units[0].unit, **failure(reason)}]


def _fold_table(unit: Unit, columns: pa.Table, here: Workspace) -> dict[str, Any]:
    try:
        return {"unit": unit.unit, **uploaded(unit, here, fold_table(unit, columns))}
    except Exception as reason:  # as above
        return {"unit": unit.unit, **failure(reason)}


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause the garbage collector: folding makes no cycles, but so many objects that it would run often."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
