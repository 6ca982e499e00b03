"""Ranges are divided among tasks by bytes, without gaps and without overlaps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.snapshot import MAX_BYTES, MIN_BYTES, RangeToRead, StoredObject, pack_ranges

MiB = 1024 * 1024


def segments(*sizes: tuple[int, int]) -> list[RangeToRead]:
    """Segments of so many events and bytes, one after the other."""
    ranges, first = [], 0
    for count, size in sizes:
        ranges.append(RangeToRead(first, count, size, StoredObject(f"segments/{first}", size, "", first, count)))
        first += count
    return ranges


def test_small_segments_are_read_together_and_large_ones_apart() -> None:
    assert len(pack_ranges(segments(*[(10, 1000)] * 20), None, None)) == 1
    packs = pack_ranges(segments(*[(1000, 16 * MiB)] * 100), None, None)
    assert 25 <= len(packs) <= 27
    assert max(sum(each.bytes for each in pack) for pack in packs) <= MAX_BYTES + 16 * MiB
    assert pack_ranges([], None, None) == []
    assert MIN_BYTES < MAX_BYTES


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 40 * MiB)), max_size=12),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 20),
)
def test_every_event_is_in_one_task(
    sizes: list[tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> None:
    packs = pack_ranges(segments(*sizes), min_partitions, max_records)
    pieces = [piece for pack in packs for piece in pack]
    seqs = [seq for piece in pieces for seq in range(piece.first_seq, piece.end_seq)]
    assert seqs == list(range(sum(count for count, _ in sizes)))
    assert all(pack for pack in packs)
    if max_records is not None:
        assert all(sum(piece.count for piece in pack) <= max_records for pack in packs)
    for piece in pieces:
        assert piece.object is not None
        assert piece.object.first_seq <= piece.first_seq
        assert piece.end_seq <= piece.object.first_seq + piece.object.count


def test_as_many_partitions_as_are_asked_for() -> None:
    assert len(pack_ranges(segments((100, 1000)), 4, None)) >= 4
