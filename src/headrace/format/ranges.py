"""Ranges of sequence numbers, each from a first to an end that is not in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class Range(NamedTuple):
    """The entries from ``first`` to before ``end``."""

    first: int
    end: int

    def overlaps(self, other: Range) -> bool:
        """Whether they have an entry in common."""
        return self.first < other.end and other.first < self.end


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """The same entries in as few ranges as possible, in order."""
    merged: list[Range] = []
    for first, end in sorted(ranges):
        if merged and first <= merged[-1].end:
            merged[-1] = Range(merged[-1].first, max(end, merged[-1].end))
        else:
            merged.append(Range(first, end))
    return merged


def without(ranges: Iterable[Range], taken: Iterable[Range]) -> list[Range]:
    """What is left of ranges once others are taken out of them."""
    cuts, left = merge_ranges(taken), list[Range]()
    for first, end in ranges:
        at = first
        for cut in cuts[max(0, bisect_right(cuts, at, key=lambda cut: cut.first) - 1) :]:
            if cut.first >= end:
                break
            if at < cut.first:
                left.append(Range(at, cut.first))
            at = max(at, cut.end)
        if at < end:
            left.append(Range(at, end))
    return left


def size(ranges: Iterable[Range]) -> int:
    """How many entries they have together."""
    return sum(end - first for first, end in ranges)
