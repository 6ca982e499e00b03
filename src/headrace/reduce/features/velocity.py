"""How values and arrivals change in time. Rates and slopes are per second, gaps in ms; states are a few numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from headrace.reduce.features.operator import OfEvents, OfValues, canonical, finite
from headrace.schema.descriptor.nodes import Type

_SECOND_MS = 1000


class RateOfChange(OfValues):
    """The last value minus the first of the window, per second between them; null where no time lies between.

    The state is ``[first time, first value, last time, last value]``.
    """

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """A new last value."""
        return [at_ms, value, at_ms, value] if state is None else [state[0], state[1], at_ms, value]

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The first of the left, the last of the right."""
        return [left[0], left[1], right[2], right[3]]

    def finish(self, state: list[Any] | None, now_ms: int) -> float | None:
        """The rate."""
        if state is None or state[2] == state[0]:
            return None
        return finite((state[3] - state[1]) / (state[2] - state[0]) * _SECOND_MS)


class InterArrival(OfEvents):
    """The mean gap between one event and the next, in ms; null until there are two.

    The state is ``[first, last, number]``.
    """

    commutative = True

    def add(self, state: Any, at_ms: int) -> Any:
        """One more event."""
        return [at_ms, at_ms, 1] if state is None else [state[0], at_ms, state[2] + 1]

    def merge_both(self, left: list[int], right: list[int]) -> list[int]:
        """From the first to the last of both."""
        return [min(left[0], right[0]), max(left[1], right[1]), left[2] + right[2]]

    def finish(self, state: list[int] | None, now_ms: int) -> float | None:
        """The mean gap."""
        return None if state is None or state[2] == 1 else (state[1] - state[0]) / (state[2] - 1)


class ValueChanges(OfValues):
    """How often a value differs from the one before it; the first of the window has none before it.

    The state is ``[first value, last value, changes]``.
    """

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

    def finish(self, state: list[Any] | None, now_ms: int) -> int:
        """How often."""
        return 0 if state is None else state[2]


class Trend(OfValues):
    """The straight line with the least squared distance to values in time, of which an answer is made.

    Null until values lie at two different times. The state is ``[first time, n, mean time since the first, mean
    value, squared deviations of time, of both, of value]``: all relative, so that nothing is lost to the size of a
    clock's numbers.
    """

    commutative = True

    def __init__(self, field: str, kind: Type, answer: Callable[[int, float, float, float], float]) -> None:
        super().__init__(field, kind)
        self._answer = answer

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

    def finish(self, state: list[Any] | None, now_ms: int) -> float | None:
        """The answer made of the line."""
        if state is None or state[4] <= 0:
            return None
        _, n, _, _, times, together, values = state
        return finite(self._answer(n, times, together, values))


def slope(n: int, times: float, together: float, values: float) -> float:
    """How much the line rises, per second: ``trend``."""
    return together / times * _SECOND_MS


def residual(n: int, times: float, together: float, values: float) -> float:
    """The root of the mean squared distance to the line, in units of the value: ``trend_residual``."""
    return math.sqrt(max(0.0, values - together / times * together) / n)
