"""The entries of a record batch, joined as the log joins them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow.compute as pc

from headrace.format.segment import layout
from headrace.format.segment.columns import Payloads


class BodyRun(NamedTuple):
    """Consecutive entries of one schema version: JSON joined by commas, bytes end to end."""

    first_seq: int
    version: int
    entries: int
    body: bytes


def body_runs(batch: Any, most_bytes: int) -> Iterator[BodyRun]:
    """All entries of a batch in the columns of a segment, in order, few enough at a time; an entry is never cut."""
    if not batch.num_rows:
        return
    payloads, first_seq = Payloads.of(batch.column(layout.PAYLOAD)), batch.column(layout.SEQ)[0].as_py()
    start = 0
    runs = pc.run_end_encode(batch.column(layout.VERSION_COLUMN))
    for end, version in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        while start < end:
            stop = max(start + 1, payloads.fitting(start, end, most_bytes))
            yield BodyRun(first_seq + start, version, stop - start, bytes(payloads.piece(start, stop)))
            start = stop
