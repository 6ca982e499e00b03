"""Runs of events that match, or do not, one after the other. Every state is at most four numbers; 0 without events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.reduce.features.operator import Operator


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

    def joined(self, left: list[int], right: list[int]) -> list[int]:
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

    def joined(self, left: list[int], right: list[int]) -> list[int]:
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
