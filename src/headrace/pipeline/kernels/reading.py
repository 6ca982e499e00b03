"""The entries of a unit, from the segments that hold them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from headrace.engine.work.units import Source, Unit
from headrace.format.segment.decoded import Decoded
from headrace.format.segment.reader import Reader
from headrace.pipeline.kernels.units import Place


def batches(unit: Unit, here: Place) -> Iterator[pa.RecordBatch]:
    """Row group by row group, in order."""
    for number, source in enumerate(unit.segments):
        with here.borrowed(source.key, source.bytes, f"{number}.parquet") as path:
            reader = Reader(path, name=source.key, decoded=Decoded(0), sha256=source.sha256)
            yield from reader.batches(*_wanted(unit, source))


def _wanted(unit: Unit, source: Source) -> tuple[int, int]:
    return max(unit.first_seq, source.first_seq), min(unit.end_seq, source.first_seq + source.count)
