"""Windows: 64 panes aligned to the epoch, each with a state of its own.

A pane is ceil(window / 64) ms wide and counts while ``now - start < window``. The state is ``{number of the pane:
state}`` in the order of time. Panes that can count at no moment after the newest one are dropped, so there are at
most 64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.reduce.features.operator import Operator

PANES = 64


class Windowed(Operator):
    """An operator over the events of the panes that count at the moment of the answer."""

    def __init__(self, inner: Operator, window_ms: int) -> None:
        self.inner = inner
        self.fields = inner.fields
        self.takes_all = inner.takes_all  # type: ignore[misc]
        self.window_ms = window_ms
        self.width_ms = -(-window_ms // PANES)
        self.commutative = inner.commutative  # type: ignore[misc]
        self.span = -(-window_ms // self.width_ms)
        self._fold = inner.fold

    def fold(self, state: Any, at_ms: int, seq: int, row: Mapping[str, Any], matched: bool) -> Any:
        """The state with the event in its pane."""
        pane = at_ms // self.width_ms
        if state is None:
            folded = self._fold(None, at_ms, seq, row, matched)
            return None if folded is None else {pane: folded}
        held = state.get(pane)
        folded = self._fold(held, at_ms, seq, row, matched)
        if folded is not held:
            state[pane] = folded
            if held is None:
                self._trim(state, pane)
        return state

    def merge_both(self, left: dict[int, Any], right: dict[int, Any]) -> dict[int, Any]:
        """The panes of both, those of one number merged."""
        floor = max(*left, *right) - self.span
        panes = {pane: state for pane, state in left.items() if pane > floor}
        for pane, state in right.items():
            if pane > floor:
                panes[pane] = self.inner.merge_both(panes[pane], state) if pane in panes else state
        return panes

    def finish(self, state: dict[int, Any] | None, now_ms: int) -> Any:
        """The answer over the panes that count."""
        return self.inner.finish(self.inner.merge_all(self.counting(state, now_ms)), now_ms)

    def counting(self, state: dict[int, Any] | None, now_ms: int) -> list[Any]:
        """The states of the panes that count, earliest first."""
        first = (now_ms - self.window_ms) // self.width_ms
        return [held for pane, held in state.items() if pane > first] if state else []

    def _trim(self, state: dict[int, Any], newest: int) -> None:
        floor = newest - self.span
        while (oldest := next(iter(state))) <= floor:
            del state[oldest]
