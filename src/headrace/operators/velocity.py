"""How values and arrivals change in time. Rates and slopes are per second, gaps in ms; states are a few numbers."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.operators.declaration import CHANGE, NUMBER, VALUE, declare
from headrace.operators.entries import time_and_seq
from headrace.operators.operator import EventOperator, FieldOperator, OneFieldOperator, Row, canonical, finite
from headrace.operators.parts import Parts, plain
from headrace.operators.runs import RowRuns
from headrace.operators.state_columns import Coded, Numbers, Records

_SECOND_MS = 1000


class RateOfChange(OneFieldOperator):
    """The last value minus the first of the window, per second between them; null where no time lies between.

    The state is ``[first time, its number, first value, last time, its number, last value]``.
    """

    declaration = declare(
        "rate_of_change",
        CHANGE,
        "the newest value minus the first of the window, per second",
        "f64",
        window="required",
        field=NUMBER,
    )
    order = "time"

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
        """A new last value, or a new first one where it comes late."""
        if not matched or (value := row.get(self._field)) is None:
            return state
        if state is None:
            return [at, seq, value, at, seq, value]
        if at > state[3] or (at == state[3] and seq > state[4]):
            state[3], state[4], state[5] = at, seq, value
        elif at < state[0] or (at == state[0] and seq < state[1]):
            state[0], state[1], state[2] = at, seq, value
        return state

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The earlier of the first values, the later of the last ones."""
        first = right if time_and_seq(right) < time_and_seq(left) else left
        last = left if time_and_seq(left[3:]) > time_and_seq(right[3:]) else right
        return first[:3] + last[3:]

    def finish(self, state: list[Any] | None, now: int = 0) -> float | None:
        """The rate."""
        if state is None or state[3] == state[0]:
            return None
        return finite((state[5] - state[2]) / (state[3] - state[0]) * _SECOND_MS)

    def from_version_1(self, state: Any, at: int, seq: int) -> Any:
        """Both values with this number, at the times that they had."""
        first_ms, first, last_ms, last = state
        return [first_ms, seq, first, last_ms, seq, last]

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The first and the last value of each run, with their times and numbers."""
        return Records(*runs.first_rows(self._field), *runs.last_rows(self._field))


class InterArrival(EventOperator):
    """The mean gap between one event and the next, in ms; null until there are two.

    The state is ``[first, last, number]``.
    """

    declaration = declare("inter_arrival_stats", CHANGE, "the mean gap between events, in ms", "f64", window="required")
    order = "any"

    def add(self, state: Any, at_ms: int) -> Any:
        """One more event."""
        if state is None:
            return [at_ms, at_ms, 1]
        first, last, n = state
        return [first if first <= at_ms else at_ms, last if last >= at_ms else at_ms, n + 1]

    def merge_both(self, left: list[int], right: list[int]) -> list[int]:
        """From the first to the last of both."""
        return [min(left[0], right[0]), max(left[1], right[1]), left[2] + right[2]]

    def finish(self, state: list[int] | None, now: int = 0) -> float | None:
        """The mean gap."""
        return None if state is None or state[2] == 1 else (state[1] - state[0]) / (state[2] - 1)

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The times of each run, and how many."""
        return Records(runs.first_times(), runs.last_times(), Numbers(runs.counts()))

    def catalyst_parts(self) -> Parts:
        """Two times and a count."""
        return Parts(plain("earliest"), plain("latest"), plain("n"))


class ValueChanges(FieldOperator):
    """How often a value differs from the one before it; the first of the window has none before it.

    The state is ``[first value, last value, changes]``.
    """

    declaration = declare(
        "value_change_count",
        CHANGE,
        "how often a value was another than the one before",
        "i64",
        window="required",
        needs_log="a value that comes late lies between two others, and most values are not kept",
        field=VALUE,
    )

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more change if it differs."""
        key = canonical(value, self.kind)
        if state is None:
            return [key, key, 0]
        state[2] += state[1] != key
        state[1] = key
        return state

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The changes of both, and that across."""
        return [left[0], right[1], left[2] + right[2] + (left[1] != right[0])]

    def finish(self, state: list[Any] | None, now: int = 0) -> int:
        """How often."""
        return 0 if state is None else state[2]

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The first and the last value of each run, and its changes."""
        codes, forms = runs.coded(self._field, self.kind, lambda value: canonical(value, self.kind))
        differs = np.append(False, codes[1:] != codes[:-1]) & ~runs.is_first()
        changes = Numbers(np.add.reduceat(differs.astype(np.int64), runs.starts))
        first, last = Coded(codes[runs.starts], forms), Coded(codes[runs.ends() - 1], forms)
        return Records(first, last, changes)


class Trend(FieldOperator):
    """The straight line with the least squared distance to values in time, of which an answer is made.

    Null until values lie at two different times. The state is ``[a time, n, mean time since that one, mean value,
    squared deviations of time, of both, of value]``: all relative, so that nothing is lost to the size of a clock's
    numbers.
    """

    order = "any"

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more point."""
        if state is None:
            return [at_ms, 1, 0.0, value, 0.0, 0.0, 0.0]
        n = state[1] + 1
        late = at_ms - state[0] - state[2]
        away = value - state[3]
        state[1] = n
        state[2] += late / n
        state[3] += away / n
        rest = value - state[3]
        state[4] += late * (at_ms - state[0] - state[2])
        state[5] += late * rest
        state[6] += away * rest
        return state

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The points of both."""
        n = left[1] + right[1]
        late = right[0] - left[0] + right[2] - left[2]
        away = right[3] - left[3]
        right_weight, common = right[1] / n, left[1] * right[1] / n
        return [
            left[0],
            n,
            left[2] + late * right_weight,
            left[3] + away * right_weight,
            left[4] + right[4] + late * late * common,
            left[5] + right[5] + late * away * common,
            left[6] + right[6] + away * away * common,
        ]

    def finish(self, state: list[Any] | None, now: int = 0) -> float | None:
        """The answer made of the line."""
        if state is None or state[4] <= 0:
            return None
        _, n, _, _, times, together, values = state
        return finite(self.answer(n, times, together, values))

    @abstractmethod
    def answer(self, n: int, times: float, together: float, values: float) -> float:
        """What is answered of the number of points and the squared deviations of time, of both, and of value."""

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The line of each run, in two passes: the means first, then the deviations from them."""
        return runs.shared(("line", self._field), lambda: self._lines(runs))

    def _lines(self, runs: RowRuns) -> Sequence[Any]:
        counts, starts = runs.counts(), runs.starts
        numbers, late = runs.doubles(self._field), runs.times - np.repeat(runs.times[starts], counts)
        means, middles = np.add.reduceat(numbers, starts) / counts, np.add.reduceat(late, starts) / counts
        away, apart = numbers - np.repeat(means, counts), late - np.repeat(middles, counts)
        sums = (np.add.reduceat(products, starts) for products in (apart * apart, apart * away, away * away))
        return Records(*map(Numbers, (runs.times[starts], counts, middles, means, *sums)))


class Slope(Trend):
    """How much the line rises, per second."""

    declaration = declare(
        "trend",
        CHANGE,
        "the slope of the line that fits the values best, per second",
        "f64",
        window="required",
        field=NUMBER,
    )

    def answer(self, n: int, times: float, together: float, values: float) -> float:
        """The slope."""
        return together / times * _SECOND_MS


class Residual(Trend):
    """The root of the mean squared distance to the line, in units of the value."""

    declaration = declare(
        "trend_residual",
        CHANGE,
        "how far values lie from the line that fits them best: the root of the mean square",
        "f64",
        window="required",
        field=NUMBER,
    )

    def answer(self, n: int, times: float, together: float, values: float) -> float:
        """The distance."""
        return math.sqrt(max(0.0, values - together / times * together) / n)
