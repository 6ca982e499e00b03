"""Features: the events of a unit become a state; states become rows, which Spark sorts by key, and one state again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
import pyarrow as pa

from headrace.engine.features import making
from headrace.engine.work.units import Unit
from headrace.format.state.names import state_key
from headrace.format.state.reader import Reader
from headrace.format.state.writer import Packed
from headrace.pipeline.kernels.reading import batches as events
from headrace.pipeline.kernels.units import Kernel, Place, failure, place

#: The rows of all inputs of a unit; a first one without a key, so that a unit without any is not forgotten.
SCHEMA = "unit string, key binary, number int, packed binary, failure string"
SORTED = ("unit", "key", "number")
_ROWS = pa.schema(
    [
        ("unit", pa.string()),
        ("key", pa.binary()),
        ("number", pa.int32()),
        ("packed", pa.binary()),
        ("failure", pa.string()),
    ]
)
_BATCH = 4096
_PACK = msgspec.msgpack.Encoder().encode
_PACKED = msgspec.msgpack.Decoder(dict[str, bytes])

Row = tuple[str, bytes | None, int | None, bytes | None, str | None]


def perform(unit: Unit, here: Place) -> dict[str, Any]:
    """Fold the events of a unit."""
    return _uploaded(unit, here, making.folded(unit, events(unit, here)))


def rows(packs: Sequence[Sequence[bytes]], store: str) -> Kernel:
    """A kernel whose rows are numbers of packs, and which yields the rows of all states of their units."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for encoded in packs[number]:
                    yield from _batches(_rows(msgspec.json.decode(encoded, type=Unit), store))

    return run


def combined(units: Mapping[str, bytes], store: str) -> Kernel:
    """A kernel that takes sorted rows, all of a unit together, and yields the result of every unit."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for name, own in groupby(_flat(batches), key=itemgetter(0)):
            result = _combined(msgspec.json.decode(units[name], type=Unit), own, store)
            encoded = msgspec.json.encode({"unit": name, **result}).decode()
            yield pa.RecordBatch.from_pydict({"result": pa.array([encoded], pa.string())})

    return run


def _combined(unit: Unit, rows: Iterator[Row], store: str) -> dict[str, Any]:
    try:
        _, _, _, _, failed = next(rows)
        if failed is not None:
            result: dict[str, Any] = msgspec.json.decode(failed)
            return result
        held = ((key, number, _PACKED.decode(packed)) for _, key, number, packed, _ in rows if key and packed)
        with place(store) as here:
            return _uploaded(unit, here, making.combined(unit, held))  # type: ignore[arg-type]
    except Exception as reason:  # that of one unit must not be that of the others
        return failure(reason)


def _uploaded(unit: Unit, here: Place, rows: Iterator[Packed]) -> dict[str, Any]:
    path, state = making.written(unit, rows, here.directory)
    here.objects.upload(state_key(unit.stream, unit.incarnation, state.name), path)
    return {"state": state}


def _rows(unit: Unit, store: str) -> Iterator[Row]:
    try:
        with ExitStack() as stack:
            here = stack.enter_context(place(store))
            readers = [_opened(unit, number, here, stack) for number in range(len(unit.states))]
            yield unit.unit, None, 0, None, None
            lives = set((unit.lives or {}).values())
            for number, reader in enumerate(readers):
                for key, packed in reader.rows(lives):
                    yield unit.unit, key, number, _PACK(packed), None
    except Exception as reason:  # comes before the row that says there is none
        yield unit.unit, None, -1, None, msgspec.json.encode(failure(reason)).decode()


def _opened(unit: Unit, number: int, here: Place, stack: ExitStack) -> Reader:
    state = unit.states[number]
    key = state_key(unit.stream, unit.incarnation, state.name)
    return Reader(stack.enter_context(here.borrowed(key, state.bytes, f"{number}.parquet")), key)


def _batches(rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
    gathered: list[Row] = []
    for row in rows:
        gathered.append(row)
        if len(gathered) >= _BATCH:
            yield _batch(gathered)
            gathered = []
    if gathered:
        yield _batch(gathered)


def _batch(rows: list[Row]) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _ROWS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ROWS)


def _flat(batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
