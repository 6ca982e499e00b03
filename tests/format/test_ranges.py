from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.format.ranges import Range, merge_ranges, size, without

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)).map(lambda pair: Range(pair[0], sum(pair))))


def entries(ranges: list[Range]) -> set[int]:
    return {entry for first, end in ranges for entry in range(first, end)}


@given(RANGES)
def test_joined_ranges_have_the_same_entries_and_gaps_between_them(ranges: list[Range]) -> None:
    found = merge_ranges(ranges)
    assert entries(found) == entries(ranges)
    assert all(before.end < after.first for before, after in pairwise(found))


@given(RANGES, RANGES)
def test_what_is_left_is_what_was_not_taken(ranges: list[Range], taken: list[Range]) -> None:
    left = without(merge_ranges(ranges), taken)
    assert entries(left) == entries(ranges) - entries(taken)
    assert left == merge_ranges(left)
    assert size(left) == len(entries(left))


def test_ranges_overlap_where_they_have_an_entry_in_common() -> None:
    assert Range(0, 5).overlaps(Range(4, 9))
    assert not Range(0, 5).overlaps(Range(5, 9))
