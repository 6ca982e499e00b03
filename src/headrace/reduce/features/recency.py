"""When events came: first, last, how long ago, and whether at all. Times and spans are in milliseconds.

Every state is one time, or n of them. All are commutative but ``time_since_last_n``, which keeps times in order.
"""

from __future__ import annotations

from typing import Any

from headrace.reduce.features.operator import OfEvents


class FirstSeen(OfEvents):
    """The time of the first event, in ms since 1970; null where there is none."""

    commutative = True

    def add(self, state: Any, at_ms: int) -> Any:
        """The first time stays."""
        return at_ms if state is None else state

    def merge_both(self, left: int, right: int) -> int:
        """The earlier one."""
        return min(left, right)

    def finish(self, state: int | None, now_ms: int) -> Any:
        """The time."""
        return state


class Age(FirstSeen):
    """How long ago the first event was, in ms."""

    def finish(self, state: int | None, now_ms: int) -> Any:
        """The span."""
        return None if state is None else now_ms - state


class LastSeen(OfEvents):
    """The time of the last event, in ms since 1970; null where there is none."""

    commutative = True

    def add(self, state: Any, at_ms: int) -> Any:
        """The newest time."""
        return at_ms

    def merge_both(self, left: int, right: int) -> int:
        """The later one."""
        return max(left, right)

    def finish(self, state: int | None, now_ms: int) -> Any:
        """The time."""
        return state


class TimeSince(LastSeen):
    """How long ago the last event was, in ms; null where there is none."""

    def finish(self, state: int | None, now_ms: int) -> Any:
        """The span."""
        return None if state is None else now_ms - state


class HasSeen(LastSeen):
    """Whether any event matched."""

    def finish(self, state: int | None, now_ms: int) -> Any:
        """Whether there is a time."""
        return state is not None


class SeenWithin(LastSeen):
    """Whether the last event is less than the window ago, to the millisecond: ``first_seen_in_window``."""

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms

    def finish(self, state: int | None, now_ms: int) -> Any:
        """Whether it is."""
        return state is not None and now_ms - state < self._window_ms


class TimeSinceLastN(OfEvents):
    """How long ago the n-th last event was, in ms; null until there are n."""

    def __init__(self, n: int) -> None:
        self._n = n

    def add(self, state: Any, at_ms: int) -> Any:
        """The newest time in place of the oldest."""
        if state is None:
            return [at_ms]
        state.append(at_ms)
        if len(state) > self._n:
            del state[0]
        return state

    def merge_both(self, left: list[int], right: list[int]) -> list[int]:
        """The last n of both."""
        return (left + right)[-self._n :]

    def finish(self, state: list[int] | None, now_ms: int) -> Any:
        """The span."""
        return now_ms - state[0] if state is not None and len(state) == self._n else None
