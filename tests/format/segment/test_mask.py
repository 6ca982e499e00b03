"""Rows that a mask hides are read as tombstones of the same length without a key, whichever way they are asked for."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.format.decoded_columns import LruCache
from headrace.format.segment import layout
from headrace.format.segment.reader import SegmentReader
from support.segment_files import START_US, Cell, seal

ALL = 1 << 30
CELLS = [Cell(f'{{"n":{n}}}'.encode(), "ab"[n % 2], START_US + n, 1, n) for n in range(8)]


class Hiding:
    """Hides the rows of a key before a sequence number."""

    number = 1

    def __init__(self, key: str, before_seq: int) -> None:
        self.keys, self.before_seq = (key,), before_seq

    def rows(self, batch: Any) -> list[int]:
        rows = zip(batch.column(layout.SEQ).to_pylist(), batch.column(layout.KEY).to_pylist(), strict=True)
        return [at for at, (seq, key) in enumerate(rows) if key in self.keys and seq < self.before_seq]

    def tombstone(self, size: int) -> bytes:
        return b'"' + b"x" * (size - 2) + b'"'


@pytest.fixture(params=[1, 3, 100], ids=["one row a group", "three", "one group"])
def readers(request: pytest.FixtureRequest) -> tuple[SegmentReader, SegmentReader]:
    """The same segment without a mask and with one, which share what is decoded."""
    data, _ = seal(CELLS, first_seq=10, group_rows=request.param)
    decoded = LruCache(1 << 20)
    plain = SegmentReader(data, name="segment", decoded=decoded)
    plain.read(10, ALL, ALL)  # everything is decoded
    return plain, SegmentReader(data, name="segment", decoded=decoded, mask=Hiding("a", 15))


def test_hidden_rows_are_tombstones_in_every_answer(readers: tuple[SegmentReader, SegmentReader]) -> None:
    plain, masked = readers
    gone, left = [10, 12, 14], [16]
    whole = b",".join(bytes(part.body) for part in masked.read(10, ALL, ALL).parts).split(b",")
    assert [body for body in whole] == [b'"xxxxx"' if 10 + n in gone else cell.payload for n, cell in enumerate(CELLS)]
    assert masked.read(10, ALL, ALL).position == plain.read(10, ALL, ALL).position
    assert b",".join(bytes(part.body) for part in masked.read(10, ALL, ALL, "a").parts) == b'{"n":6}'
    batches = list(masked.batches(10, ALL))
    keys = [key for batch in batches for key in batch.column(layout.KEY).to_pylist()]
    assert [10 + at for at, key in enumerate(keys) if key is None] == gone
    assert [seq for batch in masked.keyed(10, ALL, "a") for seq in batch.column(layout.SEQ).to_pylist()] == left
    for _ in range(20):  # an index of keys is made on the way
        assert [one.seq for one in masked.having(10, ALL, "a")] == left
        assert [one.seq for one in masked.having(10, ALL, "b")] == [11, 13, 15, 17]
    assert masked.keys(10, 15).to_pylist() == ["b"] and masked.keys(10, ALL).to_pylist() == ["a", "b"]
    assert masked.cell(12) == (START_US + 2, None, b'"xxxxx"') and masked.cell(16)[1:] == ("a", b'{"n":6}')
    masked.load(12)
    assert masked.is_loaded(12) and b'"xxxxx"' in bytes(masked.read(12, 13, ALL).parts[0].body)


def test_what_counts_bytes_and_times_is_the_same(readers: tuple[SegmentReader, SegmentReader]) -> None:
    plain, masked = readers
    masked.verify()
    for seq in range(10, 18):
        assert masked.bytes_before(seq) == plain.bytes_before(seq) and masked.time_at(seq) == plain.time_at(seq)
        assert masked.request_at(seq) == plain.request_at(seq)
    assert plain.read(10, 11, ALL).parts[0].body == CELLS[0].payload
