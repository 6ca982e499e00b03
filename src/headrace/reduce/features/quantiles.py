"""How numbers are distributed: exact up to 256, then a KLL sketch whose ranks are within 1.33 % 99 times in 100.

The state is ``[numbers, sketch or None]``: numbers are gathered, and 257 of them go into the sketch together. So it
holds at most 256 numbers and one sketch of a few KB, per pane where there is a window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import datasketches
import numpy as np

from headrace.reduce import sketches
from headrace.reduce.features.operator import OfValues, finite
from headrace.schema.descriptor.nodes import Type

EXACT = 256


def gathered(state: Any, value: float) -> Any:
    """The state with one more number; the one given may be changed."""
    if state is None:
        return [[value], None]
    state[0].append(value)
    return [[], _sketched(state[0], [state[1]])] if len(state[0]) > EXACT else state


def united(states: Sequence[list[Any]]) -> list[Any]:
    """One state of several."""
    numbers = [number for state in states for number in state[0]]
    parts = [state[1] for state in states if state[1] is not None]
    if len(numbers) > EXACT or (parts and numbers):
        return [[], _sketched(numbers, parts)]
    return [numbers, sketches.union(parts) if parts else None]


def quantile(state: list[Any], share: float) -> float:
    """The number that this share of all lies below, between two numbers where they are few."""
    numbers, sketch = united([state])
    if sketch is not None:
        found: float = datasketches.kll_doubles_sketch.deserialize(sketch).get_quantile(share)
        return found
    ordered = sorted(numbers)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (ordered[high] - ordered[low]) * (place - low))


def outside(state: list[Any], low: float, high: float) -> int:
    """How many numbers lie below the one or above the other."""
    numbers, sketch = united([state])
    if sketch is None:
        return sum(1 for number in numbers if number < low or number > high)
    found = datasketches.kll_doubles_sketch.deserialize(sketch)
    many: float = found.n * (found.get_rank(low, False) + 1 - found.get_rank(high, True))
    return round(many)


def _sketched(numbers: list[float], parts: Sequence[bytes | None]) -> bytes:
    mine = sketches.quantiles(np.array(numbers, dtype=np.float64))
    return sketches.union([*(part for part in parts if part is not None), mine])


class Quantile(OfValues):
    """A quantile of the values; null where there are none."""

    commutative = True

    def __init__(self, field: str, kind: Type, share: float) -> None:
        super().__init__(field, kind)
        self._share = share

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more number."""
        return gathered(state, value)

    def joined(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The numbers of both."""
        return united([left, right])

    def merge_all(self, states: Sequence[list[Any]]) -> list[Any] | None:
        """The numbers of all."""
        return united(states) if states else None

    def finish(self, state: list[Any] | None, now_ms: int) -> float | None:
        """The quantile."""
        return None if state is None else finite(quantile(state, self._share))
