"""The memory of the tails of definitions, and how it is shared among them."""

from __future__ import annotations

from typing import Any

from headrace.engine.derive.generation import Generation
from headrace.engine.derive.state_reader import StateReader


def list_tails(serving: StateReader[Any]) -> list[Generation]:
    """The current generations of all definitions."""
    return [generation for follower in serving.followers for generation in follower.generations.values()]


def tail_bytes(serving: StateReader[Any]) -> int:
    """About what tails take in memory, and events that they have not folded yet."""
    pending = [follower.pending for follower in serving.followers if follower.pending is not None]
    return sum(tail.fold.memory for tail in list_tails(serving)) + sum(events.memory for events in pending)


def balance(serving: StateReader[Any], hot_bytes: int) -> None:
    """Give every tail an equal part of the memory for unpacked rows."""
    generations = list_tails(serving)
    for tail in generations:
        tail.fold.hot_bytes = hot_bytes // len(generations)


def shrink(serving: StateReader[Any]) -> None:
    """Pack some rows of tails that no thread is folding."""
    for follower in serving.followers:
        if not follower.busy:
            for generation in follower.generations.values():
                generation.fold.cool()
