"""How numbers are distributed: exact up to 256, then a KLL sketch whose ranks are within 1.33 % 99 times in 100.

The state is ``[numbers, sketch or None]``: numbers are gathered, and 257 of them go into the sketch together. So it
holds at most 256 numbers and one sketch of a few KB, per pane where there is a window.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import datasketches
import numpy as np

from headrace.reduce import sketches
from headrace.reduce.features.moments import HOUR_MS
from headrace.reduce.features.operator import OfValues, Operator, finite
from headrace.schema.descriptor.nodes import Type

EXACT = 256


def add_number(state: Any, value: float) -> Any:
    """The state with one more number; the one given may be changed."""
    if state is None:
        return [[value], None]
    state[0].append(value)
    return [[], _make_sketch(state[0], [state[1]])] if len(state[0]) > EXACT else state


def merge_states(states: Sequence[list[Any]]) -> list[Any]:
    """One state of several."""
    numbers = [number for state in states for number in state[0]]
    parts = [state[1] for state in states if state[1] is not None]
    if len(numbers) > EXACT or (parts and numbers):
        return [[], _make_sketch(numbers, parts)]
    return [numbers, sketches.union(parts) if parts else None]


def quantile(state: list[Any], fraction: float) -> float:
    """The number that this share of all lies below, between two numbers where they are few."""
    numbers, sketch = merge_states([state])
    if sketch is not None:
        estimate: float = datasketches.kll_doubles_sketch.deserialize(sketch).get_quantile(fraction)
        return estimate
    ordered = sorted(numbers)
    position = fraction * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (ordered[high] - ordered[low]) * (position - low))


def outside(state: list[Any], low: float, high: float) -> int:
    """How many numbers lie below the one or above the other."""
    numbers, sketch = merge_states([state])
    if sketch is None:
        return sum(1 for number in numbers if number < low or number > high)
    kll = datasketches.kll_doubles_sketch.deserialize(sketch)
    many: float = kll.n * (kll.get_rank(low, False) + 1 - kll.get_rank(high, True))
    return round(many)


def _make_sketch(numbers: list[float], parts: Sequence[bytes | None]) -> bytes:
    mine = sketches.quantiles(np.array(numbers, dtype=np.float64))
    return sketches.union([*(part for part in parts if part is not None), mine])


class Quantile(OfValues):
    """A quantile of the values; null where there are none."""

    commutative = True

    def __init__(self, field: str, kind: Type, fraction: float) -> None:
        super().__init__(field, kind)
        self._share = fraction

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more number."""
        return add_number(state, value)

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The numbers of both."""
        return merge_states([left, right])

    def merge_all(self, states: Sequence[list[Any]]) -> list[Any] | None:
        """The numbers of all."""
        return merge_states(states) if states else None

    def finish(self, state: list[Any] | None, now_ms: int) -> float | None:
        """The quantile."""
        return None if state is None else finite(quantile(state, self._share))


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_WEEK = [f"{day}-{hour:02}" for day in _DAYS for hour in range(24)]


class Cells(Operator):
    """A count per cell; the state is the list of counts, one per cell."""

    commutative = True

    def __init__(
        self,
        cells: int,
        cell: Callable[[int, Mapping[str, Any]], int | None],
        answer: Callable[[list[int]], Any],
        fields: tuple[str, ...] = (),
    ) -> None:
        self.fields = fields
        self._cells = cells
        self._cell = cell
        self._answer = answer

    def fold(self, state: Any, at_ms: int, seq: int, row: Mapping[str, Any], matched: bool) -> Any:
        """One more in the event's cell."""
        cell = self._cell(at_ms, row) if matched else None
        if cell is None:
            return state
        counts = [0] * self._cells if state is None else state
        counts[cell] += 1
        return counts

    def merge_both(self, left: list[int], right: list[int]) -> list[int]:
        """The counts of both, cell by cell."""
        return [left_count + right_count for left_count, right_count in zip(left, right, strict=True)]

    def finish(self, state: list[int] | None, now_ms: int) -> Any:
        """All cells, zero where nothing fell."""
        return self._answer([0] * self._cells if state is None else list(state))


def histogram(field: str, edges: Sequence[float]) -> Cells:
    """Values between edges: ``{"<10": n, "10-20": n, ">=20": n}``, a cell including its lower edge."""
    shown = [str(int(edge)) if float(edge).is_integer() else repr(edge) for edge in edges]
    labels = [f"<{shown[0]}", *(f"{low}-{high}" for low, high in pairwise(shown)), f">={shown[-1]}"]

    def cell(at_ms: int, row: Mapping[str, Any]) -> int | None:
        value = row.get(field)
        return None if value is None else bisect_right(edges, value)

    return Cells(len(labels), cell, lambda counts: dict(zip(labels, counts, strict=True)), (field,))


def hour_of_day() -> Cells:
    """A list of 24 counts."""
    return Cells(24, lambda at_ms, row: at_ms // HOUR_MS % 24, lambda counts: counts)


def hour_of_week() -> Cells:
    """Counts from ``Mon-00`` to ``Sun-23``."""
    # 1970 began on a Thursday.
    return Cells(
        168, lambda at_ms, row: (at_ms // HOUR_MS + 72) % 168, lambda counts: dict(zip(_WEEK, counts, strict=True))
    )
