"""Values by their place in the order of events: first, last, a few of either end, and a sample.

Every state holds at most as many values as asked for, n or samples, one more for ``lag``, two for ``delta_from_prev``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.reduce.features.operator import OfValues, Operator, finite
from headrace.schema.descriptor.nodes import Type

_MASK = 2**64 - 1


class First(OfValues):
    """The first value; null where there is none."""

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """The first value stays."""
        return value if state is None else state

    def merge_both(self, left: Any, right: Any) -> Any:
        """The earlier one."""
        return left

    def finish(self, state: Any, now_ms: int) -> Any:
        """The value."""
        return self.render(state)


class Last(OfValues):
    """The last value; null where there is none."""

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """The newest value."""
        return value

    def merge_both(self, left: Any, right: Any) -> Any:
        """The later one."""
        return right

    def finish(self, state: Any, now_ms: int) -> Any:
        """The value."""
        return self.render(state)


class FirstN(OfValues):
    """The first n values, oldest first."""

    def __init__(self, field: str, kind: Type, n: int) -> None:
        super().__init__(field, kind)
        self._n = n

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more while there is room."""
        if state is None:
            return [value]
        if len(state) < self._n:
            state.append(value)
        return state

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The first n of both."""
        return left + right[: self._n - len(left)]

    def finish(self, state: list[Any] | None, now_ms: int) -> list[Any]:
        """The values."""
        return [self.render(value) for value in state or ()]


class Recent(OfValues):
    """The last values, of which an answer is made."""

    def __init__(self, field: str, kind: Type, kept: int, answer: Callable[[list[Any], int], Any]) -> None:
        super().__init__(field, kind)
        self._kept = kept
        self._answer = answer

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """The newest value in place of the oldest."""
        if state is None:
            return [value]
        state.append(value)
        if len(state) > self._kept:
            del state[0]
        return state

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The last of both."""
        return (left + right)[-self._kept :]

    def finish(self, state: list[Any] | None, now_ms: int) -> Any:
        """The answer made of them."""
        return self._answer([self.render(value) for value in state or ()], self._kept)


def oldest_first(values: list[Any], kept: int) -> list[Any]:
    """The values as they came: ``last_n``."""
    return values


def newest_first(values: list[Any], kept: int) -> list[Any]:
    """The values, the newest one first: ``most_recent_n``."""
    return values[::-1]


def lagging(values: list[Any], kept: int) -> Any:
    """The value n events before the last one, null until there is one: ``lag``."""
    return values[0] if len(values) == kept else None


def delta(values: list[Any], kept: int) -> float | None:
    """The last value minus the one before: ``delta_from_prev``."""
    return finite(values[1] - values[0]) if len(values) == kept else None


class Sample(OfValues):
    """A sample of the values: those whose events' sequence numbers have the least hashes, in the order of events.

    The state is ``[hash, seq, value]`` of each. No two sequence numbers have one hash, so parts may come in any order.
    """

    commutative = True

    def __init__(self, field: str, kind: Type, samples: int) -> None:
        super().__init__(field, kind)
        self._samples = samples

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """The value in its place if its hash is among the least."""
        drawn = [scatter(seq), seq, value]
        if state is None:
            return [drawn]
        if len(state) < self._samples or drawn[0] < state[-1][0]:
            state.append(drawn)
            state.sort(key=_hash)
            del state[self._samples :]
        return state

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The least of both."""
        return sorted(left + right, key=_hash)[: self._samples]

    def finish(self, state: list[Any] | None, now_ms: int) -> list[Any]:
        """The values in the order of events."""
        return [self.render(value) for _, _, value in sorted(state or (), key=_seq)]


def scatter(seq: int) -> int:
    """A 64-bit permutation of sequence numbers that looks random (the finaliser of SplitMix64)."""
    mixed = (seq + 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def _hash(drawn: list[Any]) -> int:
    hash_: int = drawn[0]
    return hash_


def _seq(drawn: list[Any]) -> int:
    seq: int = drawn[1]
    return seq


class Streak(Operator):
    """How many of the last events match without a gap (or, turned round, do not match).

    The state is ``[length of the run at the end, number of events]``: where they are equal the run goes on to the left.
    """

    takes_all = True

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted

    def fold(self, state: Any, at_ms: int, seq: int, row: Mapping[str, Any], matched: bool) -> Any:
        """The run goes on or breaks off."""
        goes_on = matched is self._wanted
        if state is None:
            return [int(goes_on), 1]
        state[0] = state[0] + 1 if goes_on else 0
        state[1] += 1
        return state

    def merge_both(self, left: list[int], right: list[int]) -> list[int]:
        """The run of the right, with that of the left where it goes through."""
        through = right[0] == right[1]
        return [right[0] + left[0] if through else right[0], left[1] + right[1]]

    def finish(self, state: list[int] | None, now_ms: int) -> int:
        """The length."""
        return 0 if state is None else state[0]


class MaxStreak(Operator):
    """The longest run of events that match; the state is ``[run at the start, at the end, longest, events]``."""

    takes_all = True

    def fold(self, state: Any, at_ms: int, seq: int, row: Mapping[str, Any], matched: bool) -> Any:
        """The run at the end goes on or breaks off."""
        if state is None:
            return [int(matched), int(matched), int(matched), 1]
        if matched:
            state[1] += 1
            state[2] = max(state[2], state[1])
            if state[0] == state[3]:
                state[0] += 1
        else:
            state[1] = 0
        state[3] += 1
        return state

    def merge_both(self, left: list[int], right: list[int]) -> list[int]:
        """The longest of either, or across."""
        return [
            left[0] + right[0] if left[0] == left[3] else left[0],
            left[1] + right[1] if right[1] == right[3] else right[1],
            max(left[2], right[2], left[1] + right[0]),
            left[3] + right[3],
        ]

    def finish(self, state: list[int] | None, now_ms: int) -> int:
        """The length."""
        return 0 if state is None else state[2]
