"""The entries of a unit, from the segments that hold them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from headrace.format.segment.decoded import Decoded
from headrace.format.segment.reader import Reader
from headrace.pipeline.kernels.units import Place
from headrace.reduce.work_units import Unit


def batches(unit: Unit, here: Place) -> Iterator[pa.RecordBatch]:
    """Row group by row group, in order."""
    for number, source in enumerate(unit.segments):
        with here.borrowed(source.key, source.bytes, f"{number}.parquet") as path:
            reader = Reader(path, name=source.key, decoded=Decoded(0), sha256=source.sha256)
            yield from reader.batches(*_wanted(unit, number))


def _wanted(unit: Unit, number: int) -> tuple[int, int]:
    """The entries of a segment up to where the next one begins: a fork leaves its source within a segment."""
    source, following = unit.segments[number], unit.segments[number + 1 : number + 2]
    ends = unit.end_seq, source.first_seq + source.count, *(one.first_seq for one in following)
    return max(unit.first_seq, source.first_seq), min(ends)
