"""Segments for tests: entries as plain tuples, and the file that holds them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from itertools import count, groupby
from typing import Any, NamedTuple

from headrace.format.decoded_columns import LruCache
from headrace.format.manifest import Segment, segment_entry
from headrace.format.object_names import segment_name
from headrace.format.segment.layout import SealedSegment
from headrace.format.segment.reader import SegmentReader
from headrace.format.segment.row_group import AppendRun
from headrace.format.segment.writer import SegmentWriter
from headrace.schema.entries import entries_of

NAMES = count()
START_US = 1_700_000_000_000_000


class Cell(NamedTuple):
    """One entry; entries of one append request share its number."""

    payload: bytes
    key: str | None = None
    at_us: int = START_US
    version: int = 0
    request: int = 0


def runs_of(cells: Sequence[Cell], first_seq: int) -> Iterable[AppendRun]:
    """The cells as append requests."""
    for _, request in groupby(enumerate(cells, first_seq), key=lambda item: item[1].request):
        numbered = list(request)
        (seq, head), members = numbered[0], [cell for _, cell in numbered]
        keys = [cell.key for cell in members]
        yield AppendRun(
            seq,
            head.at_us,
            head.version,
            keys[0] if len(set(keys)) == 1 else keys,
            [cell.payload for cell in members],
        )


def seal(
    cells: Sequence[Cell], *, is_json: bool = True, first_seq: int = 0, **sizes: int
) -> tuple[bytes, SealedSegment]:
    """A segment of these entries."""
    file = io.BytesIO()
    writer = SegmentWriter(
        file, stream="tests", incarnation="1", is_json=is_json, split=entries_of, first_seq=first_seq, **sizes
    )
    for run in runs_of(cells, first_seq):
        writer.add(run)
    sealed = writer.finish()
    return file.getvalue(), sealed


def reader_of(data: bytes, **facts: Any) -> SegmentReader:
    """A reader that shares nothing with any other."""
    facts = {"name": f"segment-{next(NAMES)}", "decoded": LruCache(1 << 20)} | facts
    return SegmentReader(data, **facts)


def opened(cells: Sequence[Cell], **facts: Any) -> SegmentReader:
    """A segment of these entries, ready to be read."""
    return reader_of(seal(cells, **facts)[0])


def published(cells: Sequence[Cell], **facts: Any) -> tuple[bytes, Segment]:
    """A segment's bytes, and how a manifest lists it."""
    data, sealed = seal(cells, **facts)
    name = segment_name(sealed.info.first_seq, sealed.info.count, f"{next(NAMES):08}")
    return data, segment_entry(sealed, name, before_bytes=0, total_bytes=sealed.info.payload_bytes)
