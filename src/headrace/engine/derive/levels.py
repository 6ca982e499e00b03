"""Which companions to merge: a fixed number of neighbours of one level make one of the next.

So there are few of each level, and of levels there are as many as the logarithm of the stream's length. A companion
that stands before one of a higher level will never get more neighbours of its own: it counts as of that level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from headrace.engine.search.companion_cover import span
from headrace.format.companion.layout import Companion
from headrace.format.ranges import Range

#: What is merged into one companion at most: entries, and bytes of its objects.
MOST_ROWS = 1 << 26
MOST_BYTES = 1 << 32


class Leveled(Protocol):
    """Something that was merged so often."""

    @property
    def level(self) -> int:
        """How often."""


def windows(companions: list[Companion], taken: list[Range], fan_out: int) -> Iterator[tuple[list[Companion], int]]:
    """Neighbours to merge, and the level of what comes of them; they are given in order, and do not overlap."""
    fan_out = max(fan_out, 2)
    for stretch in _stretches(companions, taken):
        levels = counted_levels(stretch)
        at = 0
        while at + fan_out <= len(stretch):
            window, level = stretch[at : at + fan_out], levels[at]
            if levels[at + fan_out - 1] == level and _fits(window):
                yield window, level + 1
                at += fan_out
            else:
                at += 1


def _stretches(companions: list[Companion], taken: list[Range]) -> Iterator[list[Companion]]:
    """Companions that follow each other without gaps, and that nobody works on."""
    stretch: list[Companion] = []
    for companion in companions:
        is_free = not any(span(companion).overlaps(other) for other in taken)
        if stretch and not (is_free and stretch[-1].end_seq == companion.first_seq):
            yield stretch
            stretch = []
        if is_free:
            stretch.append(companion)
    yield stretch


def counted_levels(stretch: Sequence[Leveled]) -> list[int]:
    """What each counts as: no less than any that comes after it."""
    levels, highest = list[int](), 0
    for one in reversed(stretch):
        highest = max(highest, one.level)
        levels.append(highest)
    return levels[::-1]


def _fits(window: list[Companion]) -> bool:
    size = sum(part.bytes for one in window for part in one.parts.values())
    return sum(one.count for one in window) <= MOST_ROWS and size <= MOST_BYTES
