"""Counts by cell: of a value's buckets, of the hour of the day, of the hour of the week (UTC). All are commutative."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from headrace.reduce.features.moments import HOUR_MS
from headrace.reduce.features.operator import Operator

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

    def joined(self, left: list[int], right: list[int]) -> list[int]:
        """The counts of both, cell by cell."""
        return [one + other for one, other in zip(left, right, strict=True)]

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
