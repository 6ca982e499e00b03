"""When events came: first, last, how long ago, and whether at all. Times and spans are in milliseconds.

Every state is one time, or n of them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from headrace.operators.declaration import COUNT, OPTIONAL_WHERE, RECENCY, declare
from headrace.operators.operator import EventOperator
from headrace.operators.parts import EARLIEST, LATEST, Parts
from headrace.operators.runs import RowRuns
from headrace.operators.state_columns import Lists, Numbers


def elapsed_ms(at_ms: int, now: int) -> int:
    """How long ago a time was; an event that is ahead of now is no time ago."""
    return max(0, now - at_ms)


class FirstSeen(EventOperator):
    """The time of the first event, in ms since 1970; null where there is none."""

    declaration = declare("first_seen", RECENCY, "when the first event came, since 1970", "i64")
    order = "any"

    def add(self, state: Any, at_ms: int) -> Any:
        """The earliest time stays."""
        return at_ms if state is None or at_ms < state else state

    def merge_both(self, left: int, right: int) -> int:
        """The earlier one."""
        return min(left, right)

    def finish(self, state: int | None, now: int = 0) -> Any:
        """The time."""
        return state

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The earliest times."""
        return runs.first_times()

    def catalyst_parts(self) -> Parts:
        """A time."""
        return EARLIEST


class Age(FirstSeen):
    """How long ago the first event was, in ms."""

    reads_clock = True
    declaration = declare("age", RECENCY, "how long ago the first event came", "i64")

    def finish(self, state: int | None, now: int = 0) -> Any:
        """The span."""
        return None if state is None else elapsed_ms(state, now)


class LastSeen(EventOperator):
    """The time of the last event, in ms since 1970; null where there is none."""

    declaration = declare("last_seen", RECENCY, "when the newest event came, since 1970", "i64")
    order = "any"

    def add(self, state: Any, at_ms: int) -> Any:
        """The latest time."""
        return at_ms if state is None or at_ms > state else state

    def merge_both(self, left: int, right: int) -> int:
        """The later one."""
        return max(left, right)

    def finish(self, state: int | None, now: int = 0) -> Any:
        """The time."""
        return state

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The latest times."""
        return runs.last_times()

    def catalyst_parts(self) -> Parts:
        """A time."""
        return LATEST


class TimeSince(LastSeen):
    """How long ago the last event was, in ms; null where there is none."""

    reads_clock = True
    declaration = declare("time_since", RECENCY, "how long ago the newest event came", "i64", where=OPTIONAL_WHERE)

    def finish(self, state: int | None, now: int = 0) -> Any:
        """The span."""
        return None if state is None else elapsed_ms(state, now)


class HasSeen(LastSeen):
    """Whether any event matched."""

    declaration = declare("has_seen", RECENCY, "whether there was an event", "bool", where=OPTIONAL_WHERE)

    def finish(self, state: int | None, now: int = 0) -> Any:
        """Whether there is a time."""
        return state is not None


class SeenInWindow(LastSeen):
    """Whether the last event is less than the window ago, to the millisecond: ``first_seen_in_window``."""

    reads_clock = True
    declaration = declare(
        "first_seen_in_window",
        RECENCY,
        "whether there was an event within the window, to the millisecond",
        "bool",
        window="required",
    )

    @property
    def window_ms(self) -> None:
        """No window has panes here: the time of the last event is enough."""
        return None

    def finish(self, state: int | None, now: int = 0) -> Any:
        """Whether it is."""
        return state is not None and now - state < self.params["window"]


class TimeSinceLastN(EventOperator):
    """How long ago the n-th last event was, in ms; null until there are n. The state is the last n times, in order."""

    reads_clock = True
    declaration = declare(
        "time_since_last_n",
        RECENCY,
        "how long ago the `n`-th newest event came",
        "i64",
        bound="n",
        memory="as many values as `n` or `samples` says",
        n=COUNT,
    )
    order = "any"

    def add(self, state: Any, at_ms: int) -> Any:
        """The time among the last ones in place of the oldest."""
        if state is None:
            return [at_ms]
        if at_ms >= state[-1]:
            state.append(at_ms)
        else:
            insort(state, at_ms)
        if len(state) > self._n:
            del state[0]
        return state

    @cached_property
    def _n(self) -> int:
        """How many times are kept."""
        n: int = self.params["n"]
        return n

    def merge_both(self, left: list[int], right: list[int]) -> list[int]:
        """The last n of both."""
        return sorted(left + right)[-self.params["n"] :]

    def finish(self, state: list[int] | None, now: int = 0) -> Any:
        """The span."""
        return elapsed_ms(state[0], now) if state is not None and len(state) == self.params["n"] else None

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The last times of each run."""
        times, (counts, at) = runs.times, runs.newest(self._n)
        if bool(np.any((times[1:] < times[:-1]) & ~runs.is_first()[1:])):
            times = times[np.lexsort((times, runs.run_of_row()))]
        return Lists(counts, Numbers(times[at]))
