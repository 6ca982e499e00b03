"""How wide the units of a job are.

Of entities there are many, and each comes seldom: the wider a unit is, the fewer rows it leaves of them. Workers do
units side by side and are done when the last one is, so they are cut evenly, as many as are done at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from math import ceil

from headrace.config import PipelineConfig
from headrace.engine.derive.readable import SegmentPart

#: The payload of a unit, by that of a usual one: where there is little to do, and where there is much.
LEAST, MOST = 4, 20
#: Units at once on a cluster, whose size is not known.
_ELSEWHERE = 16
#: So often as many units as are done at once are cut evenly; of more it does not matter.
_ROUNDS = 4
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\d+)?\])?")


def side_by_side(config: PipelineConfig) -> int:
    """How many units workers do at once, as far as is known here."""
    local = None if config.remote else _LOCAL.fullmatch(config.master)
    if local is None:
        return _ELSEWHERE
    return os.cpu_count() or 1 if local[1] == "*" else max(1, int(local[1] or 1))


def even(found: Iterable[SegmentPart], unit_bytes: int, at_once: int) -> int:
    """The payload of a unit, at most, where the segments found are to be folded."""
    least, most = LEAST * unit_bytes, MOST * unit_bytes
    total = largest = 0
    for piece in found:
        total, largest = total + piece.payload_bytes, max(largest, piece.payload_bytes)
        if total > _ROUNDS * at_once * most:
            return most
    number = min(at_once * ceil(total / (at_once * most)), ceil(total / least))
    return total // max(1, number) + largest - 1  # so that what is left over makes no unit of its own
