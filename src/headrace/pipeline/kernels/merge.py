"""Merging states on Spark: states become rows, which are sorted and reduced by key and written as one state.

What Catalyst can reduce goes in lanes (`reduce.features.lanes`). The rest of a key goes as it is packed, a row for each
state that has it, and is merged in order once all rows of the key are there: feature versions that need it, all those
of a table whose keys may restart, and what belongs to no table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, groupby, islice, pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace import decoding
from headrace.format.object_names import state_key
from headrace.format.state_file import Packed, StateReader
from headrace.pipeline.kernels.features import uploaded
from headrace.pipeline.kernels.units import Kernel, Workspace, failure, open_workspace
from headrace.reduce import build_states
from headrace.reduce.features import lanes
from headrace.reduce.features.build import defined_by
from headrace.reduce.features.lanes import Lane
from headrace.reduce.work_units import Unit

#: The columns that identify a row. What is merged in order has the number of its state as a pane. A row without a key
#: is the first of a unit, and holds the failure if there is one.
KEYS = "unit int, key binary, lane int, pane bigint, packed binary"
_IN_ORDER = -1
_BATCH = 4096
_KEYS = pa.schema(
    [
        ("unit", pa.int32()),
        ("key", pa.binary()),
        ("lane", pa.int32()),
        ("pane", pa.int64()),
        ("packed", pa.binary()),
    ]
)
SORTED = tuple(_KEYS.names)
_PACK = msgspec.msgpack.Encoder().encode
_PACKED = msgspec.msgpack.Decoder(dict[str, bytes])


class Split(NamedTuple):
    """The lanes of a unit, and the ids of its other versions by feature."""

    lanes: list[Lane]
    in_order: dict[str, str]

    def alike(self, gathers: bool) -> list[Lane]:
        """The lanes whose aggregates hold more than a number, or the others."""
        return [lane for lane in self.lanes if lane.gathers is gathers]


class Input(NamedTuple):
    """One of the states of a unit, by its number."""

    number: int
    reader: StateReader
    #: Whether its late events count: those of other states of the same events do not.
    counts_late: bool


#: What is read of one of a unit's states.
Read = Callable[[Split, Input], Iterator[pa.RecordBatch]]


def split_unit(unit: Unit) -> Split:
    """Split the feature versions of a unit into those that Catalyst reduces and those that are merged in order."""
    version_ids = unit.lives or {}
    if unit.job != "features":
        return Split([], version_ids)
    reducer = defined_by(unit).reducer
    unit_lanes = [] if reducer.may_restart(unit.first_seq, unit.end_seq) else lanes.assign_lanes(reducer)
    reduced = {member.version_id for lane in unit_lanes for member in lane.members}
    return Split(
        unit_lanes if reduced else [],
        {name: version_id for name, version_id in version_ids.items() if version_id not in reduced},
    )


def in_lanes(gathers: bool) -> Read:
    """Read the lanes that Catalyst reduces: those whose aggregates hold more than a number, or the others."""

    def read(unit_split: Split, state: Input) -> Iterator[pa.RecordBatch]:
        chosen = unit_split.alike(gathers)
        for keys, states in state.reader.columns({member.version_id for lane in chosen for member in lane.members}):
            yield from lanes.explode_states(chosen, keys, states, counts_late=state.counts_late)

    return read


def in_order(unit_split: Split, state: Input) -> Iterator[pa.RecordBatch]:
    """Read the rows of feature versions that are merged in order."""
    rows = state.reader.rows(unit_split.in_order.values())
    while some := list(islice(rows, _BATCH)):
        keys, states = zip(*some, strict=True)
        same = {"lane": [_IN_ORDER] * len(keys), "pane": [state.number] * len(keys)}
        yield pa.RecordBatch.from_pydict({"key": list(keys), **same, "packed": [*map(_PACK, states)]})


def shape(names: Sequence[str]) -> pa.Schema:
    """Rows with these columns."""
    return pa.schema([*_KEYS, *map(lanes.arrow, names)])


def rows(read: Read, packs: Sequence[Sequence[int]], units: Sequence[bytes], shape: pa.Schema, store: str) -> Kernel:
    """A kernel whose rows are numbers of packs, and which yields what is read of the states of their units."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in (number for pack in batch.column(0).to_pylist() for number in packs[pack]):
                for made in _rows(read, decoding.decode(units[number], Unit), store):
                    yield _add_columns(made, number, shape)

    return run


def combined(units: Sequence[bytes], store: str) -> Kernel:
    """A kernel that takes reduced and sorted rows, all of a unit together, and yields the result of every unit."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, own in groupby(_chunks(batches), key=lambda chunk: chunk["unit"][0].as_py()):
            unit = decoding.decode(units[number], Unit)
            encoded = msgspec.json.encode({"unit": unit.unit, **_combine_unit(unit, own, store)}).decode()
            yield pa.RecordBatch.from_pydict({"result": pa.array([encoded], pa.string())})

    return run


def _rows(read: Read, unit: Unit, store: str) -> Iterator[pa.RecordBatch]:
    try:
        with ExitStack() as stack:
            here = stack.enter_context(open_workspace(store))
            readers = [_open_state(unit, number, here, stack) for number in range(len(unit.states))]
            yield _failure_row(None)
            unit_split, counted = split_unit(unit), build_states.longest_history(unit)
            for number, reader in enumerate(readers):
                yield from read(unit_split, Input(number, reader, unit.states[number].name in counted))
    except Exception as reason:  # that of one unit must not be that of the others
        yield _failure_row(msgspec.json.encode(failure(reason)))


def _failure_row(failed: bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"packed": pa.array([failed], pa.binary())})


def _open_state(unit: Unit, number: int, here: Workspace, stack: ExitStack) -> StateReader:
    state = unit.states[number]
    key = state_key(unit.stream, unit.incarnation, state.name)
    path = stack.enter_context(here.borrowed(key, state.bytes, f"{number}.parquet"))
    return StateReader(path, key, sha256=state.sha256)


def _add_columns(batch: pa.RecordBatch, unit: int, shape: pa.Schema) -> pa.RecordBatch:
    """Rows in all columns, null in those that they lack."""
    held = {name: batch.column(name) for name in batch.schema.names}
    held["unit"] = pa.repeat(pa.scalar(unit, pa.int32()), len(batch))
    arrays = [
        held[field.name].cast(field.type) if field.name in held else pa.nulls(len(batch), field.type) for field in shape
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=shape)


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Rows of one unit at a time, with all those of their keys."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        begun = _key_starts(held[-1].slice(len(held[-1]) - 1) if held else None, batch)
        if begun:
            yield from _by_unit([*held, batch.slice(0, begun[-1])])
            held = []
        held.append(batch.slice(begun[-1] if begun else 0))
    yield from _by_unit(held)


def _key_starts(last: pa.RecordBatch | None, batch: pa.RecordBatch) -> list[int]:
    """Where keys begin that are not those of the rows before."""
    table = pa.Table.from_batches([batch] if last is None else [last, batch]).select(["unit", "key"])
    units, keys = (pc.fill_null(table[name], none).combine_chunks() for name, none in (("unit", -1), ("key", b"")))
    skipped = 0 if last is None else 1
    return [at - skipped for at in np.union1d(lanes.changes(units), lanes.changes(keys)).tolist() if at >= skipped]


def _by_unit(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.Table]:
    if batches:
        table = pa.Table.from_batches(batches)
        starts = lanes.changes(table["unit"].combine_chunks()).tolist()
        yield from (table.slice(start, end - start) for start, end in pairwise([*starts, len(table)]))


def _combine_unit(unit: Unit, chunks: Iterator[pa.Table], store: str) -> dict[str, Any]:
    first = next(chunks)
    try:
        failure_rows = first["key"].null_count
        for failed in first["packed"][:failure_rows].drop_null():
            unit_result: dict[str, Any] = msgspec.json.decode(failed.as_py())
            return unit_result
        with open_workspace(store) as here:
            return uploaded(unit, here, _keys(unit, chain([first.slice(failure_rows)], chunks)))
    except Exception as reason:  # that of one unit must not be that of the others
        return failure(reason)


def _keys(unit: Unit, chunks: Iterator[pa.Table]) -> Iterator[Packed]:
    """The keys of a unit in order, with their packed states."""
    unit_split = split_unit(unit)
    rest = msgspec.structs.replace(unit, lives=unit_split.in_order)
    for chunk in chunks:
        ordered = build_states.merge_states(rest, _ordered_rows(chunk)) if unit_split.in_order else iter(())
        if not unit_split.lanes:
            yield from ordered
            continue
        states = dict(ordered)
        yield from (
            (key, {**states.get(key, {}), **packed}) for key, packed in lanes.implode_rows(unit_split.lanes, chunk)
        )


def _ordered_rows(chunk: pa.Table) -> Iterator[build_states.InputRow]:
    own = chunk.filter(pc.equal(chunk["lane"], _IN_ORDER))
    columns = (own[name].to_pylist() for name in ("key", "pane", "packed"))
    return ((key, number, _PACKED.decode(packed)) for key, number, packed in zip(*columns, strict=True))
