"""Tails that stand still while many rows of them are looked up, so that all of these rows are of one moment."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.engine.derive.tails import Follower


class Hold:
    """No tail of these streams is folded on until it is released; rows are answered ahead of the tails meanwhile."""

    def __init__(self, followers: Iterable[Follower], names: Iterable[str]) -> None:
        self._followers, self._names = list(dict.fromkeys(followers)), frozenset(names)
        self._marks = self._marked()

    def __enter__(self) -> Hold:
        for follower in self._followers:
            follower.holds += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for follower in self._followers:
            follower.holds -= 1

    @property
    def is_intact(self) -> bool:
        """Whether the same generations answer as at first, from the same events."""
        return self._marked() == self._marks

    def _marked(self) -> list[Any]:
        """What changes where rows would not be of one moment, or cannot be answered without the tails."""
        return [
            (follower.name, name, generation.number, generation.position, follower.overflows)
            for follower in self._followers
            for name, generation in follower.generations.items()
            if name in self._names
        ]
