"""The published entries of a stream as segments: how many of them some ranges cover, and up to when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.engine.derive.readable import OwnedRange
from headrace.format.ranges import Range, merge_ranges
from headrace.storage.published import SegmentCounts, SegmentSpan


class Covered(NamedTuple):
    """Segments that ranges cover: all, those from the first on without a gap, and when the last of these ends."""

    segments: int = 0
    contiguous: int = 0
    last_us: int | None = None


class Ground:
    """What a stream reads from segments, those of its ancestors included; a segment counts from its first such entry.

    A fork may read a part of a segment, and retention may cut into one: such a segment is covered if that part is.
    """

    def __init__(self, counts: SegmentCounts, parts: Sequence[OwnedRange]) -> None:
        self._counts = counts
        self._stretches = [(part, counts.touched(*part)) for part in parts]
        self.segments = sum(touched.segments for _, touched in self._stretches)

    def covered(self, ranges: Iterable[Range]) -> Covered:
        """How much of it some ranges cover."""
        found = merge_ranges(ranges)
        if not found or not self._stretches:
            return Covered()
        start = self._stretches[0][0].first
        first = next((one for one in found if one.first <= start < one.end), None)
        contiguous = Covered() if first is None else self._within(first)
        return contiguous._replace(segments=sum(self._within(one).segments for one in found))

    def _within(self, wanted: Range) -> Covered:
        segments, last_us = 0, None
        for part, touched in self._stretches:
            if wanted.overlaps(Range(part.first, part.end)):
                found = self._counts.within(part.owner, *_edges(wanted, part, touched))
                segments += found.segments
                last_us = found.last_us if found.segments else last_us
        return Covered(segments, segments, last_us)


def _edges(wanted: Range, part: OwnedRange, touched: SegmentSpan) -> tuple[int, int]:
    """A range, widened to whole segments where it reaches the ends of a part."""
    return (
        touched.first if wanted.first <= part.first else wanted.first,
        touched.end if wanted.end >= part.end else wanted.end,
    )
