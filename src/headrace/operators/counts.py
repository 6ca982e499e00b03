"""Counts, sums, means, extremes and shares. Every state is a few numbers.

Sums of integers are exact up to 64 bits when packed and turn into doubles beyond; sums of doubles are as exact as
doubles added one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from headrace.operators.declaration import COUNTS, NUMBER, declare
from headrace.operators.operator import FieldOperator, Operator, Row, finite
from headrace.operators.parts import INTEGERS, Alone, Parts, StatePart, double, plain
from headrace.operators.runs import RowRuns, exact_sums
from headrace.operators.state_columns import Numbers, Records


class Count(Operator):
    """How many events match; 0 where there are none."""

    declaration = declare("count", COUNTS, "how many events", "i64", window="optional")
    order = "any"

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
        """One more if it matches."""
        if not matched:
            return state
        return 1 if state is None else state + 1

    def merge_both(self, left: int, right: int) -> int:
        """The sum of both counts."""
        return left + right

    def merge_all(self, states: Sequence[int]) -> int | None:
        """The sum of all counts."""
        return sum(states) if states else None

    def finish(self, state: int | None, now: int = 0) -> int:
        """The count."""
        return state or 0

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The number of rows."""
        return Numbers(runs.counts())

    def catalyst_parts(self) -> Parts:
        """A count."""
        return Alone(plain("n"))


class Sum(FieldOperator):
    """The sum of the values as a double; null where there are none."""

    declaration = declare("sum", COUNTS, "the sum of the values, as a float", "f64", window="optional", field=NUMBER)
    order = "any"

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """The sum with one more value."""
        return value if state is None else state + value

    def merge_both(self, left: float, right: float) -> float:
        """The sum of both."""
        return left + right

    def merge_all(self, states: Sequence[float]) -> float | None:
        """The sum of all."""
        return sum(states) if states else None

    def finish(self, state: float | None, now: int = 0) -> float | None:
        """The sum."""
        return finite(state)

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The sums, of integers exactly."""
        return exact_sums(runs.numbers(self._field), runs.starts)

    def catalyst_parts(self) -> Parts:
        """A sum."""
        return Alone(self.sum_part())

    def sum_part(self) -> StatePart:
        """A sum of the type of the field."""
        return double("total") if self.kind == "f64" else INTEGERS


class Mean(Sum):
    """The mean of the values; null where there are none. The state is their sum and number."""

    declaration = declare(
        "mean", COUNTS, "the mean of the values", "f64", window="optional", aliases=("avg",), field=NUMBER
    )

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more value."""
        if state is None:
            return [value, 1]
        state[0] += value
        state[1] += 1
        return state

    def merge_both(self, left: Any, right: Any) -> Any:
        """Sums and numbers of both."""
        return [left[0] + right[0], left[1] + right[1]]

    def merge_all(self, states: Sequence[Any]) -> Any:
        """Sums and numbers of all."""
        return [sum(column) for column in zip(*states, strict=True)] if states else None

    def finish(self, state: Any, now: int = 0) -> float | None:
        """The mean."""
        return None if state is None else finite(state[0] / state[1])

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """Sums and numbers."""
        return Records(super().fold_runs(runs), Numbers(runs.counts()))

    def catalyst_parts(self) -> Parts:
        """A sum and a count."""
        return Parts(self.sum_part(), plain("n"))


class SumOfSquares(FieldOperator):
    """The sum of the squares of the values as a double; null where there are none."""

    declaration = declare(
        "sum_squares", COUNTS, "the sum of the squares of the values", "f64", window="optional", field=NUMBER
    )
    order = "any"

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """The sum with one more square."""
        return float(value) * value if state is None else state + float(value) * value

    def merge_both(self, left: float, right: float) -> float:
        """The sum of both."""
        return left + right

    def finish(self, state: float | None, now: int = 0) -> float | None:
        """The sum."""
        return finite(state)

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The sums."""
        with np.errstate(over="ignore"):  # a sum may leave the range of doubles
            return Numbers(np.add.reduceat(runs.doubles(self._field) ** 2, runs.starts))

    def catalyst_parts(self) -> Parts:
        """A sum."""
        return Alone(double("total"))


class Extreme(FieldOperator):
    """The least or the greatest value, in the type of the field; null where there are none."""

    order = "any"
    choose: ClassVar[Callable[..., Any]]
    choose_array: ClassVar[np.ufunc]
    #: The columns of its doubles and of its integers.
    columns: ClassVar[tuple[str, str]]

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """The better of the two."""
        return value if state is None else self.choose(state, value)

    def merge_both(self, left: Any, right: Any) -> Any:
        """The better of the two."""
        return self.choose(left, right)

    def finish(self, state: Any, now: int = 0) -> Any:
        """The value."""
        return self.render(state)

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The best of each run."""
        return Numbers(self.choose_array.reduceat(runs.numbers(self._field), runs.starts))

    def catalyst_parts(self) -> Parts:
        """An extreme."""
        of_doubles, of_integers = self.columns
        return Alone(double(of_doubles) if self.kind == "f64" else plain(of_integers))


class Minimum(Extreme):
    """The least value."""

    declaration = declare(
        "min", COUNTS, "the least value, in the type of its field", "field", window="optional", field=NUMBER
    )
    choose = staticmethod(min)
    choose_array = np.minimum
    columns = ("lower", "least")


class Maximum(Extreme):
    """The greatest value."""

    declaration = declare(
        "max", COUNTS, "the greatest value, in the type of its field", "field", window="optional", field=NUMBER
    )
    choose = staticmethod(max)
    choose_array = np.maximum
    columns = ("upper", "greatest")
