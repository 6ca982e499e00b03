"""How numbers are distributed: exact up to 256, then a KLL sketch whose ranks are within 1.33 % 99 times in 100.

The state is ``[numbers, sketch or None]``: numbers are gathered, and 257 of them go into the sketch together. So it
holds at most 256 numbers and one sketch of a few KB, per pane where there is a window.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import datasketches
import numpy as np

from headrace.operators import sketches
from headrace.operators.declaration import DISTRIBUTIONS, NUMBER, Parameter, Params, declare
from headrace.operators.moments import HOUR_MS
from headrace.operators.operator import FieldOperator, Operator, Row, finite
from headrace.operators.parts import EXACT as EXACT_PART
from headrace.operators.parts import Parts, plain
from headrace.operators.runs import Longs, RowRuns
from headrace.operators.state_columns import Lists, Mixed, Numbers, Records, Same, Vectors
from headrace.types import FieldType

EXACT = 256
MEMORY = "256 numbers, then a sketch of a few KB"


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


def merge_parts(exact: list[list[float]], sketch: bytes | None) -> list[Any]:
    """The state of numbers that are kept as they are, and of a sketch."""
    return merge_states([[[], sketch], *([numbers, None] for numbers in exact)])


def states_of_runs(field: str, runs: RowRuns) -> Sequence[Any]:
    """The state of the numbers of each run."""

    def make() -> Sequence[Any]:
        numbers, counts = runs.numbers(field), runs.counts()
        states = Records(Lists(counts, Numbers(numbers)), Same(None, len(counts)))
        bounds = [(run, *runs.bounds()[run]) for run in np.flatnonzero(counts > EXACT).tolist()]
        sketched = [[[], sketches.quantiles(numbers[start:end])] for _, start, end in bounds]
        return Mixed(states, [run for run, _, _ in bounds], sketched)

    return runs.shared(("state of numbers", field), make)


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


class Quantile(FieldOperator):
    """A quantile of the values; null where there are none."""

    declaration = declare(
        "quantile",
        DISTRIBUTIONS,
        "the value below which the share `q` of all lies: exact up to 256 values, then within 1.33 % of rank",
        "f64",
        window="optional",
        memory=MEMORY,
        aliases=("percentile",),
        field=NUMBER,
        q=Parameter("number", above=0, below=1, code="invalid_percentile_q", example="0.95", note="between 0 and 1"),
    )
    order = "any"

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more number."""
        return add_number(state, value)

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The numbers of both."""
        return merge_states([left, right])

    def merge_all(self, states: Sequence[list[Any]]) -> list[Any] | None:
        """The numbers of all."""
        return merge_states(states) if states else None

    def finish(self, state: list[Any] | None, now: int = 0) -> float | None:
        """The quantile."""
        return None if state is None else finite(quantile(state, self.params["q"]))

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The numbers of each run."""
        return states_of_runs(self._field, runs)

    def catalyst_parts(self) -> Parts:
        """Numbers that are kept as they are, and a sketch."""
        return Parts(EXACT_PART, plain("numbers"), together=merge_parts)


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_WEEK = [f"{day}-{hour:02}" for day in _DAYS for hour in range(24)]
#: The counts of so many runs are made at once.
_RUNS_AT_ONCE = 4096


class Cells(Operator):
    """A count per cell; the state is the list of counts, one per cell, zero where nothing fell."""

    order = "any"
    #: How many cells there are.
    cells: int

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
        """One more in the event's cell."""
        cell = self.cell(at, row) if matched else None
        if cell is None:
            return state
        counts = [0] * self.cells if state is None else state
        counts[cell] += 1
        return counts

    @abstractmethod
    def cell(self, at_ms: int, row: Row) -> int | None:
        """The cell of an event; None where it has none."""

    @abstractmethod
    def cells_of(self, runs: RowRuns) -> Longs:
        """The cell of each row."""

    def merge_both(self, left: list[int], right: list[int]) -> list[int]:
        """The counts of both, cell by cell."""
        return [left_count + right_count for left_count, right_count in zip(left, right, strict=True)]

    def finish(self, state: list[int] | None, now: int = 0) -> Any:
        """All cells."""
        return [0] * self.cells if state is None else list(state)

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The counts of each run."""
        number_of_runs, counts = len(runs.starts), list[Longs]()
        flat = runs.run_of_row() * self.cells + self.cells_of(runs)
        bounds = [*runs.starts.tolist(), len(runs.times)]
        for first in range(0, number_of_runs, _RUNS_AT_ONCE):
            count = min(_RUNS_AT_ONCE, number_of_runs - first)
            chosen = flat[bounds[first] : bounds[first + count]] - first * self.cells
            counted = np.bincount(chosen, minlength=count * self.cells).reshape(count, self.cells)
            counts.append(counted.astype(np.min_scalar_type(counted.max())))  # there are many cells
        return Vectors(np.concatenate(counts))


class Histogram(Cells):
    """Values between edges: ``{"<10": n, "10-20": n, ">=20": n}``, a cell including its lower edge."""

    declaration = declare(
        "histogram",
        DISTRIBUTIONS,
        '`{"<10": n, "10-20": n, ">=20": n}`',
        "map<i64>",
        bound="buckets",
        memory="a number for each cell",
        field=NUMBER,
        buckets=Parameter("edges", example="[10, 20]", note="that increase"),
    )

    def __init__(self, params: Params, types: Mapping[str, FieldType]) -> None:
        super().__init__(params, types)
        self._edges: Sequence[float] = params["buckets"]
        shown = [str(int(edge)) if float(edge).is_integer() else repr(edge) for edge in self._edges]
        self._labels = [f"<{shown[0]}", *(f"{low}-{high}" for low, high in pairwise(shown)), f">={shown[-1]}"]
        self.cells = len(self._labels)

    def cell(self, at_ms: int, row: Row) -> int | None:
        """The cell of the event's value."""
        value = row.get(self.params["field"])
        return None if value is None else bisect_right(self._edges, value)

    def cells_of(self, runs: RowRuns) -> Longs:
        """The cells of the values; integers that no double is are compared one by one."""
        numbers = runs.numbers(self.params["field"])
        if numbers.dtype != np.float64 and bool(np.any(numbers.astype(np.float64).astype(numbers.dtype) != numbers)):
            return np.array([bisect_right(self._edges, number) for number in numbers.tolist()], np.int64)
        return np.searchsorted(np.array(self._edges), numbers, side="right")

    def finish(self, state: list[int] | None, now: int = 0) -> dict[str, int]:
        """The counts by the labels of their cells."""
        return dict(zip(self._labels, super().finish(state), strict=True))


class HourOfDay(Cells):
    """A list of 24 counts."""

    declaration = declare(
        "hour_of_day_histogram",
        DISTRIBUTIONS,
        "24 counts, one for each hour of the day in UTC",
        "list<i64>",
        memory="a number for each cell",
    )
    cells = 24

    def cell(self, at_ms: int, row: Row) -> int:
        """The hour of the event."""
        return at_ms // HOUR_MS % 24

    def cells_of(self, runs: RowRuns) -> Longs:
        """The hours of the rows."""
        return runs.times // HOUR_MS % 24


class HourOfWeek(Cells):
    """Counts from ``Mon-00`` to ``Sun-23``."""

    declaration = declare(
        "dow_hour_histogram",
        DISTRIBUTIONS,
        '`{"Mon-00": n, …}`, one for each hour of the week in UTC',
        "map<i64>",
        memory="a number for each cell",
    )
    cells = 168

    def cell(self, at_ms: int, row: Row) -> int:
        """The hour of the event; 1970 began on a Thursday."""
        return (at_ms // HOUR_MS + 72) % 168

    def cells_of(self, runs: RowRuns) -> Longs:
        """The hours of the rows."""
        return (runs.times // HOUR_MS + 72) % 168

    def finish(self, state: list[int] | None, now: int = 0) -> dict[str, int]:
        """The counts by hour."""
        return dict(zip(_WEEK, super().finish(state), strict=True))
