"""Runs of events that match without a gap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from headrace.operators.declaration import RECENCY, REQUIRED_WHERE, declare
from headrace.operators.operator import Operator, Row
from headrace.operators.runs import RowRuns
from headrace.operators.state_columns import Numbers, Records

_SPLIT = "an event that comes late may split a row of events, and where each of them lies in it is not kept"


class Streak(Operator):
    """How many of the last events match without a gap.

    The state is ``[length of the run at the end, number of events]``: where they are equal the run goes on to the left.
    """

    declaration = declare(
        "streak",
        RECENCY,
        "of the newest events, how many in a row match `where`",
        "i64",
        where=REQUIRED_WHERE,
        needs_log=_SPLIT,
    )
    takes_all = True
    #: Whether events go on with the run that match, or those that do not.
    wanted: ClassVar[bool] = True

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
        """The run goes on or breaks off."""
        goes_on = matched is self.wanted
        if state is None:
            return [int(goes_on), 1]
        state[0] = state[0] + 1 if goes_on else 0
        state[1] += 1
        return state

    def merge_both(self, left: list[int], right: list[int]) -> list[int]:
        """The run of the right, with that of the left where it goes through."""
        through = right[0] == right[1]
        return [right[0] + left[0] if through else right[0], left[1] + right[1]]

    def finish(self, state: list[int] | None, now: int = 0) -> int:
        """The length."""
        return 0 if state is None else state[0]

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The length of the streak at the end of each run, and its number of rows."""
        breaks = np.where(runs.matched == self.wanted, -1, np.arange(len(runs.times)))
        last_break = np.maximum(np.maximum.reduceat(breaks, runs.starts), runs.starts - 1)
        return Records(Numbers(runs.ends() - 1 - last_break), Numbers(runs.counts()))


class NegativeStreak(Streak):
    """How many of the last events do not match without a gap."""

    declaration = declare(
        "negative_streak",
        RECENCY,
        "of the newest events, how many in a row do not match `where`",
        "i64",
        where=REQUIRED_WHERE,
        needs_log=_SPLIT,
    )
    wanted = False


class MaxStreak(Operator):
    """The longest run of events that match; the state is ``[run at the start, at the end, longest, events]``."""

    declaration = declare(
        "max_streak",
        RECENCY,
        "the longest row of events that matched `where`",
        "i64",
        where=REQUIRED_WHERE,
        needs_log=_SPLIT,
    )
    takes_all = True

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
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

    def finish(self, state: list[int] | None, now: int = 0) -> int:
        """The length."""
        return 0 if state is None else state[2]

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The streaks at the start and at the end of each run, and the longest."""
        rows, ends = np.arange(len(runs.times)), runs.ends()
        before_run = np.where(runs.is_first(), rows - 1, -1)
        lengths = rows - np.maximum.accumulate(np.where(runs.matched, before_run, rows))
        first_break = np.minimum.reduceat(np.where(runs.matched, len(rows), rows), runs.starts)
        return Records(
            Numbers(np.minimum(first_break, ends) - runs.starts),
            Numbers(lengths[ends - 1]),
            Numbers(np.maximum.reduceat(lengths, runs.starts)),
            Numbers(runs.counts()),
        )
