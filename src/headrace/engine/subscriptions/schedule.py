"""What is due when: one moment per key."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from itertools import count
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Schedule(Generic[Key]):
    """Keys in the order of their moments. A moment that moves later costs nothing until the earlier one comes."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Key]] = []
        self._order = count()
        self._due: dict[Key, int] = {}
        self._queued: dict[Key, int] = {}

    def set(self, key: Key, due_us: int | None) -> None:
        """Give a key its moment, or none."""
        if due_us is None:
            self._due.pop(key, None)
            return
        self._due[key] = due_us
        if key not in self._queued or due_us < self._queued[key]:
            self._push(key, due_us)

    def pop(self, now_us: int) -> list[Key]:
        """Take the keys whose moment has come."""
        found: list[Key] = []
        while self._heap and self._heap[0][0] <= now_us:
            moment, _, key = heapq.heappop(self._heap)
            if self._queued.get(key) != moment:
                continue
            del self._queued[key]
            due_us = self._due.get(key)
            if due_us is not None and due_us > now_us:
                self._push(key, due_us)
            elif due_us is not None:
                del self._due[key]
                found.append(key)
        return found

    def next_us(self) -> int | None:
        """A moment before which nothing is due; None where nothing is scheduled."""
        return self._heap[0][0] if self._heap else None

    def _push(self, key: Key, due_us: int) -> None:
        self._queued[key] = due_us
        heapq.heappush(self._heap, (due_us, next(self._order), key))
