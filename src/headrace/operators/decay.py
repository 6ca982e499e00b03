"""Weights that halve with every half-life, and the time-weighted average.

``ewma``, ``ewvar`` and ``ew_zscore``: an event that comes ``d`` ms after the one before takes the share 1 - 2^(-d /
half-life) of the weight, half of it where ``d`` is 0; the first takes all. No weight changes between events, so these
are the same at every moment. ``decayed_sum`` and ``decayed_count`` fade with every millisecond until they are read.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.operators.declaration import DECAY, HALF_LIFE, NUMBER, declare
from headrace.operators.operator import FieldOperator, Operator, Row, finite
from headrace.operators.runs import Longs, RowRuns, Values
from headrace.operators.state_columns import Numbers, Records

_LN2 = math.log(2)
#: Rows of so many runs are folded at once; of fewer, one by one.
_LEAST_RUNS = 16

Doubles = NDArray[np.float64]
_WEIGHTS = (
    "the weight of a value depends on the time of the one before, and most values are not kept to be weighed again"
)


class HalfLife(Operator):
    """An operator with a half-life."""

    @cached_property
    def _half_life_ms(self) -> int:
        """In how long weights halve."""
        half_life_ms: int = self.params["half_life"]
        return half_life_ms


class Weighted(FieldOperator, HalfLife):
    """Mean and spread of values whose weights fade with every further event.

    How much the first event of a range weighs depends on what came before. So the state keeps it apart: ``[first
    time, first value, last time, last value, weight of the first value, weight of the others, their mean less the last
    value, their weighted sum of squared deviations]``. Means are kept from the last value, the heaviest, so that the
    distance to it is never a small difference of large numbers.
    """

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """All weights fade, and the new value takes its share."""
        if state is None:
            return [at_ms, value, at_ms, value, 1.0, 0.0, 0.0, 0.0]
        kept, gained = self._weights(at_ms - state[2])
        before = (state[5] * kept, state[6] + state[3] - value, state[7] * kept)
        state[2:] = [at_ms, value, state[4] * kept, *_pool(before, (gained, 0.0, 0.0))]
        return state

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """What the right leaves of the left, its own first value with the share it takes there, and its others."""
        kept, gained = self._weights(right[0] - left[2])
        kept *= right[4]
        before = (left[5] * kept, left[6] + left[3] - right[3], left[7] * kept)
        first = (right[4] * gained, right[1] - right[3], 0.0)
        rest = _pool(_pool(before, first), (right[5], right[6], right[7]))
        return [left[0], left[1], right[2], right[3], left[4] * kept, *rest]

    def finish(self, state: list[Any] | None, now: int = 0) -> Any:
        """The answer made of the last value, the distance of the mean from it, and the variance."""
        if state is None:
            return None
        first = (state[4], state[1] - state[3], 0.0)
        weight, away, squares = _pool(first, (state[5], state[6], state[7]))
        return finite(self.answer(state[3], away, squares / weight))

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """What folding gives: the second rows of all runs are folded at once, then the third ones, and so on."""
        return runs.shared(("weighted", self._field, self._half_life_ms), lambda: self._fold_at_once(runs))

    def _fold_at_once(self, runs: RowRuns) -> Sequence[Any]:
        order = np.argsort(-runs.counts(), kind="stable")  # the longest first
        counts, starts = runs.counts()[order], runs.starts[order]
        values, (kept, gained) = runs.doubles(self._field), self._weights_of(np.diff(runs.times, prepend=0))
        made, position = np.zeros((4, len(order))), 1
        made[0] = 1.0
        while (left := int(np.searchsorted(-counts, -position))) >= _LEAST_RUNS:
            rows = starts[:left] + position
            made[:, :left] = _add_values(made[:, :left], values[rows - 1], values[rows], kept[rows], gained[rows])
            position += 1
        for number in range(left):
            self._fold_rest(runs, made[:, number], int(starts[number]), position, int(counts[number]))
        states = np.empty_like(made)
        states[:, order] = made
        first, last = runs.first_values(self._field), runs.last_values(self._field)
        times = (Numbers(runs.times[runs.starts]), Numbers(runs.times[runs.ends() - 1]))
        return Records(times[0], first, times[1], last, *map(Numbers, states))

    def _fold_rest(self, runs: RowRuns, made: Doubles, start: int, position: int, count: int) -> None:
        """Fold the rows of one run from a position on, one by one."""
        times = runs.times[start + position - 1 : start + count].tolist()
        values = runs.column(self._field).slice(start + position - 1, count - position + 1).to_pylist()
        state = [None, None, times[0], values[0], *made.tolist()]
        for at_ms, value in zip(times[1:], values[1:], strict=True):
            state = self.add(state, value, at_ms, 0)
        made[:] = state[4:]

    @abstractmethod
    def answer(self, last: float, away: float, spread: float) -> float | None:
        """What is answered of the last value, the distance of the mean from it, and the variance."""

    def _weights(self, gap_ms: int) -> tuple[float, float]:
        """Which share of the weight is left to what came before, and which one the new event takes."""
        if gap_ms <= 0:
            return 0.5, 0.5
        faded = -_LN2 * gap_ms / self._half_life_ms
        return math.exp(faded), -math.expm1(faded)

    def _weights_of(self, gaps_ms: Longs) -> tuple[Doubles, Doubles]:
        """The same of many gaps."""
        faded, passed = -_LN2 * np.maximum(gaps_ms, 0) / self._half_life_ms, gaps_ms > 0
        with np.errstate(under="ignore"):
            return np.where(passed, np.exp(faded), 0.5), np.where(passed, -np.expm1(faded), 0.5)


def _add_values(made: Doubles, before: Doubles, values: Doubles, kept: Doubles, gained: Doubles) -> Doubles:
    """What `Weighted` keeps besides times and values, with one more value each, in the order of its operations."""
    first, weight, away, squares = made[0] * kept, made[1] * kept, made[2] + before - values, made[3] * kept
    total = weight + gained
    mean = np.where(weight >= gained, away + -away * (gained / total), 0.0 - -away * (weight / total))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.stack([first, total, mean, squares + away * away * (weight * gained / total)])


def _pool(left: tuple[float, ...], right: tuple[float, ...]) -> tuple[float, float, float]:
    """Weight, mean and squared deviations of two weighted sets."""
    weight = left[0] + right[0]
    if weight == 0:
        return 0.0, 0.0, 0.0
    away = right[1] - left[1]
    # From the heavier side, so that a set without weight changes nothing.
    mean = left[1] + away * (right[0] / weight) if left[0] >= right[0] else right[1] - away * (left[0] / weight)
    return weight, mean, left[2] + right[2] + away * away * (left[0] * right[0] / weight)


class WeightedMean(Weighted):
    """The mean."""

    declaration = declare(
        "ewma",
        DECAY,
        "the mean, in which weights halve with each half-life between events; of events in the same millisecond each "
        "takes half of the weight",
        "f64",
        aliases=("ema",),
        needs_log=_WEIGHTS,
        field=NUMBER,
        half_life=HALF_LIFE,
    )

    def answer(self, last: float, away: float, spread: float) -> float:
        """The mean."""
        return last + away


class WeightedVariance(Weighted):
    """The variance."""

    declaration = declare(
        "ewvar",
        DECAY,
        "the variance with the weights of `ewma`",
        "f64",
        needs_log=_WEIGHTS,
        field=NUMBER,
        half_life=HALF_LIFE,
    )

    def answer(self, last: float, away: float, spread: float) -> float:
        """The variance."""
        return spread


class WeightedScore(Weighted):
    """How many standard deviations the last value lies above the mean; null where there is no spread."""

    declaration = declare(
        "ew_zscore",
        DECAY,
        "how many standard deviations, with the weights of `ewma`, the newest value lies above that mean",
        "f64",
        needs_log=_WEIGHTS,
        field=NUMBER,
        half_life=HALF_LIFE,
    )

    def answer(self, last: float, away: float, spread: float) -> float | None:
        """The score."""
        return -away / math.sqrt(spread) if spread > 0 else None


class Decayed(HalfLife):
    """A sum of which every part fades by half with every half-life until it is read.

    The state is ``[sum, the time it is faded to]``.
    """

    order = "any"
    reads_clock = True

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
        """The sum, faded to the event, with its value."""
        value = self.value(row) if matched else None
        if value is None:
            return state
        if state is None:
            return [value, at]
        if at < state[1]:
            return self.merge_both(state, [value, at])
        return [state[0] * 2.0 ** ((state[1] - at) / self._half_life_ms) + value, at]

    @abstractmethod
    def value(self, row: Row) -> float | None:
        """What an event adds."""

    @abstractmethod
    def values(self, runs: RowRuns) -> Values:
        """What each row adds."""

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """Both, faded to the later of their times."""
        at_ms = max(left[1], right[1])
        return [self._fade(left, at_ms) + self._fade(right, at_ms), at_ms]

    def finish(self, state: list[Any] | None, now: int = 0) -> float | None:
        """The sum, faded to the moment; where the newest event is ahead of that, to the event."""
        return None if state is None else finite(self._fade(state, max(now, state[1])))

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The sum of each run, faded to its last time."""
        last = np.maximum.reduceat(runs.times, runs.starts)
        gaps = runs.times - np.repeat(last, runs.counts())
        with np.errstate(under="ignore", over="ignore"):
            faded = self.values(runs) * np.exp2(gaps / self._half_life_ms)
            sums = np.add.reduceat(faded, runs.starts)
        return Records(Numbers(sums), Numbers(last))

    def _fade(self, state: list[Any], at_ms: int) -> float:
        faded: float = state[0] * 2.0 ** ((state[1] - at_ms) / self._half_life_ms)
        return faded


class DecayedSum(Decayed):
    """The sum of values; null where there are none."""

    declaration = declare(
        "decayed_sum",
        DECAY,
        "the sum of values, each halving with every half-life until it is read",
        "f64",
        field=NUMBER,
        half_life=HALF_LIFE,
    )

    def value(self, row: Row) -> float | None:
        """The value of the field."""
        value: float | None = row.get(self.params["field"])
        return value

    def values(self, runs: RowRuns) -> Values:
        """The values of the field."""
        return runs.doubles(self.params["field"])


class DecayedCount(Decayed):
    """The number of events; 0 where there are none."""

    declaration = declare(
        "decayed_count",
        DECAY,
        "the number of events, each halving with every half-life until it is read",
        "f64",
        half_life=HALF_LIFE,
    )

    def value(self, row: Row) -> float:
        """One."""
        return 1.0

    def values(self, runs: RowRuns) -> Values:
        """One for each row."""
        return np.ones(len(runs.times))

    def finish(self, state: list[Any] | None, now: int = 0) -> float | None:
        """The number, faded to the moment."""
        return 0.0 if state is None else super().finish(state, now)


class TimeWeighted(FieldOperator):
    """The mean of values by how long each held, the last one until it is read; with a window, from its first value on.

    The state is ``[first time, last time, last value, sum of value times ms]``.
    """

    declaration = declare(
        "twa",
        DECAY,
        "the mean by how long each value held, the newest until now",
        "f64",
        window="required",
        needs_log="a value that comes late ends the one before it sooner, and most values are not kept",
        field=NUMBER,
    )

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """The value before held until now."""
        if state is None:
            return [at_ms, at_ms, value, 0.0]
        state[3] += state[2] * (at_ms - state[1])
        state[1] = at_ms
        state[2] = value
        return state

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The last value of the left held until the first of the right."""
        across = left[2] * (right[0] - left[1])
        return [left[0], right[1], right[2], left[3] + across + right[3]]

    def finish(self, state: list[Any] | None, now: int = 0) -> float | None:
        """The mean."""
        if state is None:
            return None
        first_ms, last_ms, value, held = state
        if now == first_ms:
            return finite(value)
        return finite((held + value * (now - last_ms)) / (now - first_ms))

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The times of each run, its last value, and the sum."""
        until = np.append(runs.times[1:], runs.times[-1:])
        until[runs.ends() - 1] = runs.times[runs.ends() - 1]
        held = np.add.reduceat(runs.doubles(self._field) * (until - runs.times), runs.starts)
        return Records(runs.first_times(), runs.last_times(), runs.last_values(self._field), Numbers(held))
