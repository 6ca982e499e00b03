"""Number, mean and spread of values as ``[n, mean, sum of squared deviations]``: well conditioned, in any order.

All measures are those of the population. A z-score is null where there are fewer than two values or all are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.operators.declaration import CHANGE, COUNTS, NUMBER, REQUIRED_WHERE, REQUIRED_WINDOW, declare
from headrace.operators.entries import time_and_seq
from headrace.operators.operator import FieldOperator, OneFieldOperator, Operator, Row, finite
from headrace.operators.parts import Alone, Parts, plain, pooled
from headrace.operators.runs import Longs, RowRuns, counts_by_run
from headrace.operators.state_columns import Maps, Numbers, Records, StateColumn

Moments: TypeAlias = list[Any]

HOUR_MS = 3_600_000


def add_value(moments: Moments | None, value: float) -> Moments:
    """The moments with one more value; those given may be changed."""
    if moments is None:
        return [1, value, 0.0]
    moments[0] += 1
    away = value - moments[1]
    moments[1] += away / moments[0]
    moments[2] += away * (value - moments[1])
    return moments


def merge_moments(left: Moments | None, right: Moments) -> Moments:
    """The moments of two sets of values."""
    if left is None:
        return right
    n = left[0] + right[0]
    away = right[1] - left[1]
    mean = left[1] + away * (right[0] / n)
    return [n, mean, left[2] + right[2] + away * away * (left[0] * right[0] / n)]


def moments_of_field(field: str, runs: RowRuns) -> StateColumn:
    """The moments of the values that a field has in each run, in two passes."""
    return runs.shared(("moments", field), lambda: _moments(runs.doubles(field), runs.starts))


def _moments(numbers: NDArray[np.float64], starts: Longs) -> StateColumn:
    """The means first, then the squared deviations from them."""
    counts = np.diff(starts, append=len(numbers))
    means = np.add.reduceat(numbers, starts) / counts
    away = numbers - np.repeat(means, counts)
    return Records(Numbers(counts), Numbers(means), Numbers(np.add.reduceat(away * away, starts)))


def variance(moments: Moments) -> float:
    """The variance of the population."""
    squares: float = moments[2] / moments[0]
    return squares


def deviation(moments: Moments) -> float:
    """The standard deviation of the population."""
    return math.sqrt(variance(moments))


def score(value: float, moments: Moments) -> float | None:
    """How many standard deviations a value lies above the mean."""
    spread = deviation(moments)
    return finite((value - moments[1]) / spread) if spread > 0 else None


class Variance(FieldOperator):
    """The variance of the values; null where there are none, 0 of one."""

    declaration = declare(
        "var",
        COUNTS,
        "the variance of the population",
        "f64",
        window="optional",
        aliases=("variance",),
        field=NUMBER,
    )
    order = "any"

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more value."""
        return add_value(state, value)

    def merge_both(self, left: Moments, right: Moments) -> Moments:
        """The moments of both."""
        return merge_moments(left, right)

    def finish(self, state: Moments | None, now: int = 0) -> float | None:
        """The variance."""
        return None if state is None else finite(variance(state))

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The moments of each run."""
        return moments_of_field(self._field, runs)

    def catalyst_parts(self) -> Parts:
        """Moments."""
        return Alone(pooled("moments"))


class Deviation(Variance):
    """The standard deviation of the values; null where there are none, 0 of one."""

    declaration = declare(
        "std",
        COUNTS,
        "the standard deviation of the population",
        "f64",
        window="optional",
        aliases=("stddev",),
        field=NUMBER,
    )

    def finish(self, state: Moments | None, now: int = 0) -> float | None:
        """The deviation."""
        return None if state is None else finite(deviation(state))


class Ratio(Operator):
    """How many of all events match, as a share; null where there are none. The state is both counts."""

    declaration = declare(
        "ratio",
        COUNTS,
        "the share of all events for which `where` is true",
        "f64",
        window="optional",
        where=REQUIRED_WHERE,
    )
    order = "any"
    takes_all = True

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
        """One more event, matching or not."""
        if state is None:
            return [int(matched), 1]
        state[0] += matched
        state[1] += 1
        return state

    def merge_both(self, left: list[int], right: list[int]) -> list[int]:
        """The counts of both."""
        return [left[0] + right[0], left[1] + right[1]]

    def finish(self, state: list[int] | None, now: int = 0) -> float | None:
        """The share."""
        return None if state is None else state[0] / state[1]

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The counts of each run."""
        matched = np.add.reduceat(runs.matched.astype(np.int64), runs.starts)
        return Records(Numbers(matched), Numbers(runs.counts()))

    def catalyst_parts(self) -> Parts:
        """Two counts."""
        return Parts(plain("m"), plain("n"))


class ZScore(OneFieldOperator):
    """How many standard deviations the last value lies above the mean of all of the window, itself among them.

    The state is ``[last time, its number, last value, moments]``.
    """

    declaration = declare(
        "z_score",
        CHANGE,
        "how many standard deviations of the population the newest value lies above the mean of the window; "
        "null where all values are equal",
        "f64",
        field=NUMBER,
        baseline_window=REQUIRED_WINDOW._replace(aliases=("window",), example='"24h"'),
    )
    order = "time"

    @property
    def window_ms(self) -> int | None:
        """The window of the baseline."""
        return self.params.get("baseline_window")

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
        """One more value, the last one unless it comes late."""
        if not matched or (value := row.get(self._field)) is None:
            return state
        if state is None:
            return [at, seq, value, add_value(None, value)]
        add_value(state[3], value)
        if at > state[0] or (at == state[0] and seq > state[1]):
            state[0], state[1], state[2] = at, seq, value
        return state

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The later of the last values, the moments of both."""
        last = left if time_and_seq(left) > time_and_seq(right) else right
        return [*last[:3], merge_moments(left[3], right[3])]

    def finish(self, state: list[Any] | None, now: int = 0) -> float | None:
        """The score."""
        return None if state is None else score(state[2], state[3])

    def from_version_1(self, state: Any, at: int, seq: int) -> Any:
        """The last value at this time and number."""
        return [at, seq, *state]

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The last value and the moments of each run."""
        return Records(*runs.last_rows(self._field), moments_of_field(self._field, runs))


class SeasonalDeviation(OneFieldOperator):
    """How many standard deviations the last value lies above the mean of its hour of the day (UTC), itself among them.

    The state is ``[last time, its number, last value, its hour, {hour: moments}]``, of at most 24 hours.
    """

    declaration = declare(
        "seasonal_deviation",
        CHANGE,
        "how many standard deviations the newest value lies above the mean of its hour of the day (UTC)",
        "f64",
        memory="72 numbers",
        field=NUMBER,
    )
    order = "time"

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
        """One more value, the last one unless it comes late."""
        if not matched or (value := row.get(self._field)) is None:
            return state
        hour = at // HOUR_MS % 24
        if state is None:
            return [at, seq, value, hour, {hour: add_value(None, value)}]
        hours = state[4]
        hours[hour] = add_value(hours.get(hour), value)
        if at > state[0] or (at == state[0] and seq > state[1]):
            return [at, seq, value, hour, hours]
        return state

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The later of the last values, the moments of both by hour."""
        hours = dict(left[4])
        for hour, moments in right[4].items():
            hours[hour] = merge_moments(hours.get(hour), moments)
        last = left if time_and_seq(left) > time_and_seq(right) else right
        return [*last[:4], hours]

    def finish(self, state: list[Any] | None, now: int = 0) -> float | None:
        """The score."""
        return None if state is None else score(state[2], state[4][state[3]])

    def from_version_1(self, state: Any, at: int, seq: int) -> Any:
        """The last value at this time and number, in the hour that it had."""
        return [at, seq, *state]

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The last value of each run, its hour, and the moments of each hour."""
        hours = runs.times // HOUR_MS % 24
        by_hour, owners, split_hours = runs.split(hours)
        moments = moments_of_field(self._field, by_hour)
        by_run = Maps(counts_by_run(owners, len(runs.starts)), Numbers(split_hours), moments)
        return Records(*runs.last_rows(self._field), Numbers(hours[runs.ends() - 1]), by_run)
