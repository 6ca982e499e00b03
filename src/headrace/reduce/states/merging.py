"""Putting the history of a key together from several states: along the events first, then over the lives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.format.state.layout import State
from headrace.reduce.states.coverage import Chain
from headrace.reduce.states.definition import Reducer

Packed = Mapping[str, bytes]


def merged(
    reducer: Reducer, lives: Mapping[str, str], chains: Sequence[Chain], find: Callable[[State], Packed | None]
) -> Any:
    """The row of a key, given what each state has of it; None where none has anything. ``lives`` are by name."""
    rows = [row for chain in chains if (row := _along(reducer, lives, chain, find)) is not None]
    if len(rows) <= 1:
        return rows[0] if rows else None
    # The frame is that of the longest history, which comes first.
    packed: dict[str, bytes] = {}
    for row in reversed(rows):
        packed |= reducer.pack(row)
    return reducer.unpack(packed)


def _along(reducer: Reducer, lives: Mapping[str, str], chain: Chain, find: Callable[[State], Packed | None]) -> Any:
    """The lives of one chain, over all its states."""
    wanted = {"", *(lives[name] for name in chain.names)}
    row = None
    for state in chain.states:
        packed = find(state)
        if packed is not None:
            part = reducer.unpack({life: found for life, found in packed.items() if life in wanted})
            row = part if row is None else reducer.merge(row, part)
    return row
