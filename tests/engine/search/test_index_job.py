from __future__ import annotations

import pytest

from headrace.engine.search import index_job as compaction
from headrace.engine.search.index_job import windows
from headrace.format.companion.layout import Companion, PartFile
from headrace.format.ranges import Range


def row(*levels: int, first: int = 0, count: int = 10, size: int = 1) -> list[Companion]:
    """Companions of these levels, one after the other."""
    return [
        Companion(
            name=str(first + number * count), first_seq=first + number * count, count=count, level=level,
            through_version=1, fields={}, rollups={}, keys=True, columns=PartFile(size, ""), postings=None, panes=None,
            times=None, segments=1, words={},
        )
        for number, level in enumerate(levels)
    ]  # fmt: skip


def found(
    companions: list[Companion], taken: list[Range] | None = None, fan_out: int = 4
) -> list[tuple[int, int, int]]:
    """Where what is to be merged begins and ends, and the level of what comes of it."""
    return [
        (window[0].first_seq, window[-1].end_seq, level) for window, level in windows(companions, taken or [], fan_out)
    ]


def test_so_many_neighbours_of_a_level_become_one_of_the_next() -> None:
    assert found(row(0, 0, 0)) == []
    assert found(row(0, 0, 0, 0)) == [(0, 40, 1)]
    assert found(row(*[0] * 9)) == [(0, 40, 1), (40, 80, 1)]
    assert found(row(2, 1, 1, 1, 1, 0, 0)) == [(10, 50, 2)]


def test_what_stands_before_a_higher_level_counts_as_that() -> None:
    assert found(row(0, 0, 0, 1)) == [(0, 40, 2)]
    assert found(row(2, 0, 1, 2, 0, 0)) == [(0, 40, 3)]


def test_a_gap_or_a_range_that_someone_works_on_parts_neighbours() -> None:
    assert found([*row(0, 0), *row(0, 0, first=30)]) == []
    assert found(row(0, 0, 0, 0, 0), [Range(15, 16)]) == []
    assert found(row(0, 0, 0, 0, 0, 0), [Range(5, 20)]) == [(20, 60, 1)]


@pytest.mark.parametrize("large", [row(*[0] * 4, count=compaction.MAX_ROWS), row(*[0] * 4, size=compaction.MAX_BYTES)])
def test_nothing_is_merged_beyond_measure(large: list[Companion]) -> None:
    assert found(large) == []


def test_a_fan_out_below_two_is_two() -> None:
    assert found(row(0, 0), fan_out=0) == [(0, 20, 1)]


def test_the_number_of_companions_grows_with_the_logarithm_of_the_stream() -> None:
    companions: list[Companion] = []
    most = 0
    for number in range(1000):
        companions += row(0, first=number * 10)
        while merged := list(windows(companions, [], 4)):
            window, level = merged[0]
            at = companions.index(window[0])
            (one,) = row(level, first=window[0].first_seq, count=sum(input.count for input in window))
            companions[at : at + len(window)] = [one]
        most = max(most, len(companions))
    assert most <= 3 * 6
