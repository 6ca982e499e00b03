"""The waiters of a stream, indexed by the ids of the keys they wait for, and by their deadlines."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from time import monotonic

from headrace.errors import Overloaded
from headrace.profiles.state_protocol.keys import Key, Template, id_of
from headrace.profiles.state_protocol.profile import Memory

#: Waits end at ticks of this length, so that many share one timer.
TICK_S = 0.05
FINE_KEY, TEMPLATE_KEY, TABLE_KEY = "fineKey", "templateKey", "tableKey"


class Waiter:
    """A client that waits until one of its keys is touched after a position."""

    __slots__ = (
        "answer",
        "exact",
        "fallbacks",
        "fine",
        "ids",
        "keys",
        "kind",
        "parked_at",
        "since",
        "templates",
        "tick",
    )

    def __init__(
        self,
        since: int,
        kind: str,
        *,
        keys: Iterable[Key] = (),
        ids: Iterable[int] = (),
        fine: bool = False,
        templates: tuple[Template, ...] = (),
        fallbacks: Iterable[Key] = (),
        exact: bool = False,
    ) -> None:
        self.since = since
        self.kind = kind
        #: The keys waited for; ids where only these are known; keys that are touched in place of others under load.
        self.keys = frozenset(keys)
        self.ids = frozenset(ids)
        self.fallbacks = frozenset(fallbacks)
        #: Whether its keys are those of rows, and the templates that they are of.
        self.fine = fine
        self.templates = templates
        self.exact = exact
        #: Called with the outcome: whether something was touched, or why that is not known.
        self.answer: Callable[[bool | str], None] = _ignore_outcome
        #: Changes before this position were processed when it was parked.
        self.parked_at = 0
        self.tick = 0

    def wants(self, key: Key) -> bool:
        """Whether a touch of this key ends the wait."""
        return key in self.keys or key in self.fallbacks or id_of(key) in self.ids

    @property
    def size(self) -> int:
        """How many keys it waits for."""
        return len(self.keys) + len(self.ids) + len(self.fallbacks)

    def every_id(self) -> Iterator[int]:
        """The ids of all keys that may end the wait."""
        yield from self.ids
        for key in self.keys | self.fallbacks:
            yield id_of(key)


def _ignore_outcome(outcome: bool | str) -> None:
    """Do nothing: the answer of a waiter that is not parked yet."""


def _expired_keys(until_s: dict[int, float], now_s: float) -> list[int]:
    """The keys whose time is up; they are in the order of their times."""
    return list(takewhile(lambda key: until_s[key] < now_s, until_s))


class Waiters:
    """The waiters of one stream.

    A key is hot while a waiter waits for it, and for some time after, since a client that was woken waits again. So is
    a template that waiters name.
    """

    def __init__(self, memory: Memory) -> None:
        self.parked: dict[Waiter, None] = {}
        #: Waiters with too many keys to be in the index.
        self.broad: dict[Waiter, None] = {}
        self.index: dict[int, dict[Waiter, None]] = {}
        #: Ids of keys without waiters that are still hot, and until when.
        self.warm: dict[int, float] = {}
        #: How many wait for rows of each template; templates without waiters that are still hot, and until when.
        self.templates: Counter[int] = Counter()
        self.warm_templates: dict[int, float] = {}
        self.memory = memory
        self._hot_from: dict[int, int] = {}
        self._keys = 0
        #: How many wait for rows without naming templates.
        self._unnamed = 0

    def add(self, waiter: Waiter, through: int) -> None:
        """Park a waiter, when changes before a position are processed; refused where there are too many keys."""
        if self._keys + waiter.size > self.memory.hot_max_keys:
            raise Overloaded("too many keys are waited for on this stream", retry_after=1)
        self._keys += waiter.size
        self.parked[waiter] = None
        waiter.parked_at = through
        self._count_templates(waiter)
        if waiter.size > self.memory.key_index_max_keys:
            self.broad[waiter] = None
            return
        for key_id in waiter.every_id():
            waiters = self.index.get(key_id)
            if waiters is None:
                waiters = self.index[key_id] = {}
                if self.warm.pop(key_id, None) is None:
                    self._hot_from[key_id] = through
            waiters[waiter] = None

    def remove(self, waiter: Waiter) -> bool:
        """Remove a waiter; False where it was removed before."""
        if waiter not in self.parked:
            return False
        del self.parked[waiter]
        self._keys -= waiter.size
        self._uncount_templates(waiter)
        if waiter in self.broad:
            del self.broad[waiter]
            return True
        for key_id in waiter.every_id():
            waiters = self.index.get(key_id)
            if waiters is not None:
                waiters.pop(waiter, None)
                if not waiters:
                    self._cool(key_id)
        return True

    def _cool(self, key_id: int) -> None:
        del self.index[key_id]
        if len(self.warm) < self.memory.hot_max_keys:
            self.warm[key_id] = monotonic() + self.memory.hot_key_ttl_ms / 1000
        else:
            del self._hot_from[key_id]

    def _count_templates(self, waiter: Waiter) -> None:
        self._unnamed += waiter.fine and not waiter.templates
        for template in waiter.templates:
            self.templates[template.id] += 1
            self.warm_templates.pop(template.id, None)

    def _uncount_templates(self, waiter: Waiter) -> None:
        self._unnamed -= waiter.fine and not waiter.templates
        for template in waiter.templates:
            self.templates[template.id] -= 1
            if not self.templates[template.id]:
                del self.templates[template.id]
                if len(self.templates) + len(self.warm_templates) < self.memory.hot_max_templates:
                    self.warm_templates[template.id] = monotonic() + self.memory.hot_template_ttl_ms / 1000

    def cool_down(self) -> None:
        """Forget keys and templates that were hot for long enough."""
        now_s = monotonic()
        for key_id in _expired_keys(self.warm, now_s):
            del self.warm[key_id], self._hot_from[key_id]
        for template in _expired_keys(self.warm_templates, now_s):
            del self.warm_templates[template]

    @property
    def distinguishes_templates(self) -> bool:
        """Whether no waiter is concerned by templates that are not hot."""
        return not self._unnamed and len(self.templates) <= self.memory.hot_max_templates

    def is_cold(self, template: Template, active_from: int) -> bool:
        """Whether a template is not hot; it counts as hot for waiters that were parked before it became active."""
        if template.id in self.templates or template.id in self.warm_templates:
            return False
        first = next(iter(self.parked), None)
        return self.distinguishes_templates and (first is None or active_from <= first.parked_at)

    def is_hot(self, key: Key) -> bool:
        """Whether a waiter waits for a key, or did a moment ago."""
        key_id = id_of(key)
        return key_id in self.index or key_id in self.warm

    def hot_since(self, waiter: Waiter, position: int) -> bool:
        """Whether all keys of a waiter have been hot since changes from a position on were processed."""
        return all(self._hot_from.get(key_id, position + 1) <= position for key_id in waiter.every_id())

    def has_waiter(self, key: Key) -> bool:
        """Whether a waiter may wait for a key."""
        return id_of(key) in self.index or bool(self.broad)

    def waiting_for(self, touched: dict[Key, int]) -> list[Waiter]:
        """The waiters for which one of these keys was touched after their cursors; keys come with their positions."""
        index, waiters = self.index, dict[Waiter, None]()
        for key, position in touched.items():
            for waiter in index.get(id_of(key), ()):
                if position > waiter.since and waiter.wants(key):
                    waiters[waiter] = None
        for waiter in self.broad:
            if any(position > waiter.since and waiter.wants(key) for key, position in touched.items()):
                waiters[waiter] = None
        return list(waiters)


class Deadlines:
    """When waiters time out; one timer for all of them."""

    def __init__(self, on_time: Callable[[Waiter], None]) -> None:
        self._on_time = on_time
        self._ticks: dict[int, dict[Waiter, None]] = {}
        self._order: list[int] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, waiter: Waiter, wait_s: float) -> None:
        """Time out a waiter after so many seconds."""
        loop = asyncio.get_running_loop()
        tick = waiter.tick = math.ceil((loop.time() + wait_s) / TICK_S)
        if tick not in self._ticks:
            self._ticks[tick] = {}
            heapq.heappush(self._order, tick)
            if self._order[0] == tick:
                self._arm(loop)
        self._ticks[tick][waiter] = None

    def remove(self, waiter: Waiter) -> None:
        """Forget a waiter that was answered or has gone."""
        self._ticks.get(waiter.tick, {}).pop(waiter, None)

    def close(self) -> None:
        """Forget all waiters."""
        self._ticks.clear()
        self._order.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._order[0] * TICK_S, self._fire) if self._order else None

    def _fire(self) -> None:
        loop = asyncio.get_running_loop()
        while self._order and self._order[0] * TICK_S <= loop.time():
            for waiter in self._ticks.pop(heapq.heappop(self._order)):
                self._on_time(waiter)
        self._timer = None
        self._arm(loop)
