"""A segment without what was erased: written anew, with a tombstone in the place of each observation that goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa

from headrace.extract.erasure_mask import ErasureMask, Targets, erased_rows
from headrace.format.segment import layout
from headrace.format.segment.columns import with_tombstones, without_keys
from headrace.format.segment.layout import Sealed
from headrace.format.segment.reader import SegmentReader
from headrace.format.segment.writer import SegmentWriter
from headrace.schema.entries import entries_of


def holds(reader: SegmentReader, targets: Sequence[Targets]) -> bool:
    """Whether a segment has an observation that goes."""
    return any(
        erased_rows(batch, [target])
        for target in targets
        for key in target.keys
        for batch in reader.keyed(reader.first_seq, target.before_seq, key)
    )


def rewrite(reader: SegmentReader, targets: Sequence[Targets], sink: BinaryIO) -> Sealed:
    """Write a segment anew without the observations that go; everything else of it stays as it is."""
    info = reader.info
    writer = SegmentWriter(
        sink,
        stream=info.stream,
        incarnation=info.incarnation,
        is_json=info.json,
        first_seq=info.first_seq,
        split=entries_of,
    )
    writer.copy(_erase_rows(reader, ErasureMask(targets)))
    return writer.finish()


def _erase_rows(reader: SegmentReader, mask: ErasureMask) -> Iterator[Any]:
    for batch in reader.batches(reader.first_seq, reader.end_seq):
        rows = mask.rows(batch)
        yield _without(batch, rows, mask) if rows else batch


def _without(batch: Any, rows: list[int], mask: ErasureMask) -> Any:
    columns = list(batch.columns)
    columns[layout.KEY] = without_keys(columns[layout.KEY], rows)
    columns[layout.PAYLOAD] = with_tombstones(columns[layout.PAYLOAD], rows, mask)
    return pa.record_batch(columns, schema=batch.schema)
