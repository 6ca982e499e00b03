"""Number, mean and spread of values as ``[n, mean, sum of squared deviations]``: well conditioned, and commutative.

All measures are those of the population. A z-score is null where there are fewer than two values or all are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from headrace.reduce.features.operator import OfValues, finite
from headrace.schema.descriptor.nodes import Type

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


class Spread(OfValues):
    """A measure of the spread of values: ``var`` or ``std``; null where there are none, 0 of one."""

    commutative = True

    def __init__(self, field: str, kind: Type, measure: Callable[[Moments], float]) -> None:
        super().__init__(field, kind)
        self._measure = measure

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more value."""
        return add_value(state, value)

    def merge_both(self, left: Moments, right: Moments) -> Moments:
        """The moments of both."""
        return merge_moments(left, right)

    def finish(self, state: Moments | None, now_ms: int) -> float | None:
        """The measure."""
        return None if state is None else finite(self._measure(state))


class ZScore(OfValues):
    """How many standard deviations the last value lies above the mean of all of the window, itself among them.

    The state is ``[last value, moments]``.
    """

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more value, the last one."""
        return [value, add_value(None if state is None else state[1], value)]

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The last value of the right, the moments of both."""
        return [right[0], merge_moments(left[1], right[1])]

    def finish(self, state: list[Any] | None, now_ms: int) -> float | None:
        """The score."""
        return None if state is None else score(state[0], state[1])


class SeasonalDeviation(OfValues):
    """How many standard deviations the last value lies above the mean of its hour of the day (UTC), itself among them.

    The state is ``[last value, its hour, {hour: moments}]``, of at most 24 hours.
    """

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more value, the last one."""
        hour = at_ms // HOUR_MS % 24
        hours = {} if state is None else state[2]
        hours[hour] = add_value(hours.get(hour), value)
        return [value, hour, hours]

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The last value of the right, the moments of both by hour."""
        hours = dict(left[2])
        for hour, moments in right[2].items():
            hours[hour] = merge_moments(hours.get(hour), moments)
        return [right[0], right[1], hours]

    def finish(self, state: list[Any] | None, now_ms: int) -> float | None:
        """The score."""
        return None if state is None else score(state[0], state[2][state[1]])
