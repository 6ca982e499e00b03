"""Weights that halve with every half-life, and the time-weighted average.

``ewma``, ``ewvar`` and ``ew_zscore``: an event that comes ``d`` ms after the one before takes the share 1 - 2^(-d /
half-life) of the weight, half of it where ``d`` is 0; the first takes all. No weight changes between events, so these
are the same at every moment. ``decayed_sum`` and ``decayed_count`` fade with every millisecond until they are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from headrace.reduce.features.operator import OfValues, Operator, finite
from headrace.schema.descriptor.nodes import Type

_LN2 = math.log(2)


class Weighted(OfValues):
    """Mean and spread of values whose weights fade with every further event.

    How much the first event of a range weighs depends on what came before. So the state keeps it apart: ``[first
    time, first value, last time, last value, weight of the first value, weight of the others, their mean less the last
    value, their weighted sum of squared deviations]``. Means are kept from the last value, the heaviest, so that the
    distance to it is never a small difference of large numbers.
    """

    def __init__(self, field: str, kind: Type, half_life_ms: int, answer: Callable[[float, float, float], Any]) -> None:
        super().__init__(field, kind)
        self._half_life_ms = half_life_ms
        self._answer = answer

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

    def finish(self, state: list[Any] | None, now_ms: int) -> Any:
        """What is asked of the last value, the distance of the mean from it, and the variance."""
        if state is None:
            return None
        first = (state[4], state[1] - state[3], 0.0)
        weight, away, squares = _pool(first, (state[5], state[6], state[7]))
        return finite(self._answer(state[3], away, squares / weight))

    def _weights(self, gap_ms: int) -> tuple[float, float]:
        """Which share of the weight is left to what came before, and which one the new event takes."""
        if gap_ms <= 0:
            return 0.5, 0.5
        faded = -_LN2 * gap_ms / self._half_life_ms
        return math.exp(faded), -math.expm1(faded)


def _pool(left: tuple[float, ...], right: tuple[float, ...]) -> tuple[float, float, float]:
    """Weight, mean and squared deviations of two weighted sets."""
    weight = left[0] + right[0]
    if weight == 0:
        return 0.0, 0.0, 0.0
    away = right[1] - left[1]
    # From the heavier side, so that a set without weight changes nothing.
    mean = left[1] + away * (right[0] / weight) if left[0] >= right[0] else right[1] - away * (left[0] / weight)
    return weight, mean, left[2] + right[2] + away * away * (left[0] * right[0] / weight)


def mean(last: float, away: float, spread: float) -> float:
    """The mean: ``ewma``."""
    return last + away


def variance(last: float, away: float, spread: float) -> float:
    """The variance: ``ewvar``."""
    return spread


def score(last: float, away: float, spread: float) -> float | None:
    """How many standard deviations the last value lies above the mean, null where there is no spread: ``ew_zscore``."""
    return -away / math.sqrt(spread) if spread > 0 else None


class Decayed(Operator):
    """The sum of values, or the number of events, each fading by half with every half-life until it is read.

    The state is ``[sum, the time it is faded to]``. A sum of no values is null, a number of no events 0.
    """

    commutative = True

    def __init__(self, field: str | None, half_life_ms: int) -> None:
        self.fields = () if field is None else (field,)
        self._field = field
        self._half_life_ms = half_life_ms

    def fold(self, state: Any, at_ms: int, seq: int, row: Mapping[str, Any], matched: bool) -> Any:
        """The sum, faded to the event, with its value."""
        value = (1.0 if self._field is None else row.get(self._field)) if matched else None
        if value is None:
            return state
        return [value, at_ms] if state is None else self.merge_both(state, [value, at_ms])

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """Both, faded to the later of their times."""
        at_ms = max(left[1], right[1])
        return [self._fade(left, at_ms) + self._fade(right, at_ms), at_ms]

    def finish(self, state: list[Any] | None, now_ms: int) -> float | None:
        """The sum, faded to the moment."""
        if state is None:
            return 0.0 if self._field is None else None
        return finite(self._fade(state, now_ms))

    def _fade(self, state: list[Any], at_ms: int) -> float:
        faded: float = state[0] * 2.0 ** ((state[1] - at_ms) / self._half_life_ms)
        return faded


class TimeWeighted(OfValues):
    """The mean of values by how long each held, the last one until it is read; with a window, from its first value on.

    The state is ``[first time, last time, last value, sum of value times ms]``.
    """

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

    def finish(self, state: list[Any] | None, now_ms: int) -> float | None:
        """The mean."""
        if state is None:
            return None
        first_ms, last_ms, value, held = state
        if now_ms == first_ms:
            return finite(value)
        return finite((held + value * (now_ms - last_ms)) / (now_ms - first_ms))
