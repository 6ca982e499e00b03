"""Levels: how often something was merged.

A fixed number of neighbours of one level are merged into one of the next, so there are few of each level, and of levels
there are as many as the logarithm of the stream's length. What stands before a neighbour of a higher level will never
get more neighbours of its own: it counts as of that level.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Leveled(Protocol):
    """A file with its level: how often it was merged."""

    @property
    def level(self) -> int:
        """How often it was merged."""


def counted_levels(neighbours: Sequence[Leveled]) -> list[int]:
    """The level that each counts as: at least that of every later neighbour."""
    levels, highest = list[int](), 0
    for neighbour in reversed(neighbours):
        highest = max(highest, neighbour.level)
        levels.append(highest)
    return levels[::-1]
