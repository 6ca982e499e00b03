"""Counts, sums, means, extremes and shares. Every state is a few numbers; all are commutative.

Sums of integers are exact up to 64 bits when packed and turn into doubles beyond; sums of doubles are as exact as
doubles added one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.reduce.features.operator import OfValues, Operator, finite
from headrace.schema.descriptor.nodes import Type


class Count(Operator):
    """How many events match; 0 where there are none."""

    commutative = True

    def fold(self, state: Any, at_ms: int, seq: int, row: Mapping[str, Any], matched: bool) -> Any:
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

    def finish(self, state: int | None, now_ms: int) -> int:
        """The count."""
        return state or 0


class Sum(OfValues):
    """The sum of the values as a double; null where there are none."""

    commutative = True

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """The sum with one more value."""
        return value if state is None else state + value

    def merge_both(self, left: float, right: float) -> float:
        """The sum of both."""
        return left + right

    def merge_all(self, states: Sequence[float]) -> float | None:
        """The sum of all."""
        return sum(states) if states else None

    def finish(self, state: float | None, now_ms: int) -> float | None:
        """The sum."""
        return finite(state)


class Mean(OfValues):
    """The mean of the values; null where there are none. The state is their sum and number."""

    commutative = True

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more value."""
        if state is None:
            return [value, 1]
        state[0] += value
        state[1] += 1
        return state

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """Sums and numbers of both."""
        return [left[0] + right[0], left[1] + right[1]]

    def finish(self, state: list[Any] | None, now_ms: int) -> float | None:
        """The mean."""
        return None if state is None else finite(state[0] / state[1])


class Extreme(OfValues):
    """The least or the greatest value, in the type of the field; null where there are none."""

    commutative = True

    def __init__(self, field: str, kind: Type, choose: Callable[[Any, Any], Any]) -> None:
        super().__init__(field, kind)
        self.choose = choose

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """The better of the two."""
        return value if state is None else self.choose(state, value)

    def merge_both(self, left: Any, right: Any) -> Any:
        """The better of the two."""
        return self.choose(left, right)

    def finish(self, state: Any, now_ms: int) -> Any:
        """The value."""
        return self.render(state)


class Ratio(Operator):
    """How many of all events match, as a share; null where there are none. The state is both counts."""

    commutative = True
    takes_all = True

    def fold(self, state: Any, at_ms: int, seq: int, row: Mapping[str, Any], matched: bool) -> Any:
        """One more event, matching or not."""
        if state is None:
            return [int(matched), 1]
        state[0] += matched
        state[1] += 1
        return state

    def merge_both(self, left: list[int], right: list[int]) -> list[int]:
        """The counts of both."""
        return [left[0] + right[0], left[1] + right[1]]

    def finish(self, state: list[int] | None, now_ms: int) -> float | None:
        """The share."""
        return None if state is None else state[0] / state[1]
