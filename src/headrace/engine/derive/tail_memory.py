"""What the tails of definitions take in memory, and how they share what they may take."""

from __future__ import annotations

from typing import Any

from headrace.engine.derive.generation import Generation
from headrace.engine.derive.state_reader import StateReader


def tails(serving: StateReader[Any]) -> list[Generation]:
    """What answers for definitions now."""
    return [generation for follower in serving.followers for generation in follower.generations.values()]


def held_bytes(serving: StateReader[Any]) -> int:
    """About what tails take in memory, and events that they have not folded yet."""
    pending = [follower.pending for follower in serving.followers if follower.pending is not None]
    return sum(tail.fold.memory for tail in tails(serving)) + sum(events.memory for events in pending)


def balance(serving: StateReader[Any], hot_bytes: int) -> None:
    """Give every tail the same part of the memory for rows at hand."""
    found = tails(serving)
    for tail in found:
        tail.fold.hot_bytes = hot_bytes // len(found)


def shrink(serving: StateReader[Any]) -> None:
    """Pack some of the rows of tails that nobody folds right now."""
    for follower in serving.followers:
        if not follower.busy:
            for generation in follower.generations.values():
                generation.fold.cool()
