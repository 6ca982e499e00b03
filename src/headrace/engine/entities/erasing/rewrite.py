"""A segment without what was erased: written anew, with a tombstone in the place of each observation that goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.entities.erasing.targets import Targets
from headrace.format.segment import layout
from headrace.format.segment.layout import Sealed
from headrace.format.segment.reader import Reader
from headrace.format.segment.writer import Writer
from headrace.schema.entity.observation import decode
from headrace.schema.entity.tombstone import tombstone
from headrace.schema.entries import entries_of


def holds(reader: Reader, targets: Sequence[Targets]) -> bool:
    """Whether a segment has an observation that goes."""
    return any(
        _gone(batch, [one])
        for one in targets
        for key in one.keys
        for batch in reader.keyed(reader.first_seq, one.before_seq, key)
    )


def rewrite(reader: Reader, targets: Sequence[Targets], sink: BinaryIO) -> Sealed:
    """Write a segment anew without the observations that go; everything else of it stays as it is."""
    info = reader.info
    writer = Writer(
        sink,
        stream=info.stream,
        incarnation=info.incarnation,
        is_json=info.json,
        first_seq=info.first_seq,
        split=entries_of,
    )
    writer.copy(_cleaned(reader, targets))
    return writer.finish()


def _cleaned(reader: Reader, targets: Sequence[Targets]) -> Iterator[Any]:
    for batch in reader.batches(reader.first_seq, reader.end_seq):
        gone = _gone(batch, targets)
        yield _without(batch, gone) if gone else batch


def _gone(batch: Any, targets: Sequence[Targets]) -> dict[int, bytes]:
    """The rows of a batch that go, with what takes their place."""
    keys = pa.array(sorted({key for one in targets for key in one.keys}), pa.string())
    rows = pc.indices_nonzero(pc.is_in(batch.column(layout.KEY), value_set=keys)).to_pylist()
    seqs, payloads = batch.column(layout.SEQ), batch.column(layout.PAYLOAD)
    found: dict[int, bytes] = {}
    for row in rows:
        body = payloads[row].as_py().encode()
        seq, observation = seqs[row].as_py(), decode(body)
        if any(one.take(seq, observation) for one in targets):
            found[row] = tombstone(observation.entity_type, len(body))
    return found


def _without(batch: Any, gone: dict[int, bytes]) -> Any:
    mask = np.zeros(batch.num_rows, np.bool_)
    mask[list(gone)] = True
    at = pa.array(mask)
    columns = list(batch.columns)
    columns[layout.KEY] = pc.if_else(at, pa.scalar(None, pa.string()), columns[layout.KEY])
    bodies = pa.array([gone[row].decode() for row in sorted(gone)], columns[layout.PAYLOAD].type)
    columns[layout.PAYLOAD] = pc.replace_with_mask(columns[layout.PAYLOAD], at, bodies)
    return pa.record_batch(columns, schema=batch.schema)
