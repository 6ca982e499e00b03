"""Kernels of history: cut states and events into pieces for the requested moments, and merge them into rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
import pyarrow as pa

from headrace import decoding
from headrace.format.object_names import state_key
from headrace.format.state_file import StateReader
from headrace.pipeline.kernels.units import Kernel, failure, open_workspace
from headrace.pipeline.kernels.units import batches as events
from headrace.reduce.features.moments import Question
from headrace.reduce.features.replay import BEFORE, Piece, StartPoint, answer_moments, fold_pieces, result_row
from headrace.reduce.states.fold import runs_of_batch
from headrace.reduce.work_units import Unit
from headrace.schema.registry import Registry

#: A slice of a unit: one of its states, or one of its segments.
Slice = tuple[str, str, int]

PIECES = "unit string, key binary, part int, number bigint, slot int, packed binary, failure string"
ROWS = "unit string, place int, row string, failure string"
SORTED = ("unit", "key", "part", "number", "slot")
_PIECES = pa.schema(
    [
        ("unit", pa.string()),
        ("key", pa.binary()),
        ("part", pa.int32()),
        ("number", pa.int64()),
        ("slot", pa.int32()),
        ("packed", pa.binary()),
        ("failure", pa.string()),
    ]
)
_ROWS = pa.schema([("unit", pa.string()), ("place", pa.int32()), ("row", pa.string()), ("failure", pa.string())])
_SLICE_BYTES = 1024 * 1024
_PACK = msgspec.msgpack.Encoder().encode
_PACKED = msgspec.msgpack.Decoder(dict[str, bytes])


def slices(unit: Unit) -> list[Slice]:
    """The states and segments of a unit, each read as a slice of its own."""
    states = [(unit.unit, "state", number) for number in range(len(unit.states))]
    return states + [(unit.unit, "segment", number) for number in range(len(unit.segments))]


def pieces(packs: Sequence[Sequence[Slice]], units: Mapping[str, bytes], store: str) -> Kernel:
    """A kernel whose rows are numbers of packs, and which yields the pieces of all their slices."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for piece_slice in packs[number]:
                    yield _read(_unit(units[piece_slice[0]]), piece_slice, store)

    return run


def rows(units: Mapping[str, bytes]) -> Kernel:
    """A kernel that takes sorted pieces, all of a key together, and yields the rows of keys."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches_of_rows(batches, units)

    return run


def batches_of_rows(batches: Iterator[pa.RecordBatch], units: Mapping[str, bytes]) -> Iterator[pa.RecordBatch]:
    """The rows of the keys whose pieces are given; what could not be read comes without a key."""
    flat = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
    for (name, key), own in groupby(flat, key=itemgetter(0, 1)):
        if key is None:
            rows = [{"unit": name, "failure": failed} for *_, failed in own]
        else:
            rows = _rows_of_key(_unit(units[name]), key, own)
        yield pa.RecordBatch.from_pylist(rows, schema=_ROWS)


def _rows_of_key(unit: Unit, key: bytes, pieces: Iterator[tuple[Any, ...]]) -> list[dict[str, Any]]:
    try:
        decoded = [Piece._make((key, *where, _PACKED.decode(packed))) for _, _, *where, packed, _ in pieces]
        rows = list(answer_moments(*_decode_question(unit), key, decoded))
    except Exception as reason:  # that of one unit must not be that of the others
        return [{"unit": unit.unit, "failure": msgspec.json.encode(failure(reason)).decode()}]
    encoded = ((position, msgspec.json.encode(result_row(row)).decode()) for position, row in rows)
    return [{"unit": unit.unit, "place": position, "row": row} for position, row in encoded]


def _read(unit: Unit, piece_slice: Slice, store: str) -> pa.RecordBatch:
    try:
        pieces = list(
            _of_state(unit, piece_slice[2], store)
            if piece_slice[1] == "state"
            else _of_segment(unit, piece_slice[2], store)
        )
    except Exception as reason:  # that of one unit must not be that of the others
        failure_document = msgspec.json.encode(failure(reason)).decode()
        return pa.RecordBatch.from_pylist([{"unit": unit.unit, "failure": failure_document}], schema=_PIECES)
    packed = [{"unit": unit.unit, **piece._asdict(), "packed": _PACK(piece.packed)} for piece in pieces]
    return pa.RecordBatch.from_pylist(packed, schema=_PIECES)


def _of_state(unit: Unit, number: int, store: str) -> Iterator[Piece]:
    question, start_point = _decode_question(unit)
    state, keys = unit.states[number], question.moments
    object_key = state_key(unit.stream, unit.incarnation, state.name)
    with open_workspace(store) as here, here.borrowed(object_key, state.bytes, "state.parquet") as path:
        for key, packed in StateReader(path, object_key, sha256=state.sha256).rows():
            if key not in keys:
                continue
            for at, part in enumerate(start_point.parts):
                if state.name in part.states:
                    version_ids = {"", *(question.defined.lives[name].id for name in part.features)}
                    own = {version_id: held for version_id, held in packed.items() if version_id in version_ids}
                    yield Piece(key, at, BEFORE + part.states.index(state.name), 0, own)


def _of_segment(unit: Unit, number: int, store: str) -> Iterator[Piece]:
    question, start_point = _decode_question(unit)
    source, following = unit.segments[number], unit.segments[number + 1 : number + 2]
    first = max(unit.first_seq, source.first_seq)
    end = min(unit.end_seq, source.first_seq + source.count, *(successor.first_seq for successor in following))
    if end <= first:
        return
    slice_ = msgspec.structs.replace(unit, segments=(source,), first_seq=first, count=end - first)
    shapes = question.defined.shapes(Registry.load(unit.registry))
    with open_workspace(store) as here:
        runs = (run for batch in events(slice_, here) for run in runs_of_batch(batch, _SLICE_BYTES))
        yield from fold_pieces(question, start_point, shapes, runs)


def _decode_question(unit: Unit) -> tuple[Question, StartPoint]:
    return _question(msgspec.json.encode(unit.question)), decoding.convert(unit.start_point, StartPoint)


@lru_cache(maxsize=8)
def _question(encoded: bytes) -> Question:
    return decoding.decode(encoded, Question)


@lru_cache(maxsize=8)
def _unit(encoded: bytes) -> Unit:
    return decoding.decode(encoded, Unit)
