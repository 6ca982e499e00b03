"""The journal of one stream: which keys were touched last at which position.

A position is the number of entries before it, and a cursor is an epoch and a position: its holder knows every change
before it. The journal is kept in memory, and is read from the end of the log, from its ``floor`` on. It says where it
does not know: for cursors before the floor, and for ranges whose keys were left out.
"""

from __future__ import annotations

import mmap
from itertools import islice

from headrace.profiles.state_protocol.keys import Key, id_of
from headrace.profiles.state_protocol.profile import Memory

_SPREAD = 0x9E3779B97F4A7C15
#: The cells of a key lie in one line of memory, so that each key costs one page at most.
_LINE = 16
MAX_POSITION = 2**32 - 1


class PositionFilter:
    """The last positions of any number of keys. Keys may share cells, so an answer can be too late, never too early."""

    def __init__(self, pow2: int, k: int) -> None:
        """``2 ** pow2`` cells, ``k`` for each key; memory is allocated as it is written to."""
        self._lines = (1 << pow2) // _LINE - 1
        self._cells = memoryview(mmap.mmap(-1, 4 << pow2)).cast("I")
        self._shifts = tuple(range(0, 4 * k, 4))

    def put(self, key_id: int, position: int) -> None:
        """Record that a key was touched at a position."""
        cells = self._cells
        for cell in self._cells_of(key_id):
            cells[cell] = max(cells[cell], position)

    def last(self, key_id: int) -> int:
        """The last position at which a key may have been touched; 0 for never."""
        cells = self._cells
        return min(cells[cell] for cell in self._cells_of(key_id))

    def _cells_of(self, key_id: int) -> list[int]:
        spread = key_id * _SPREAD
        line = (spread >> 32 & self._lines) * _LINE
        spread ^= spread >> 29
        return [line + (spread >> shift & _LINE - 1) for shift in self._shifts]


#: So many keys are remembered exactly; older ones are in the filter.
RECENT = 65_536
#: One part in so many of them moves to the filter at once.
_MOVED_PART = 16
_KEY_BITS = 64
_KEY = 2**_KEY_BITS - 1


class TouchJournal:
    """Touches of one stream."""

    def __init__(self, epoch: str, floor: int, memory: Memory, recent: int = RECENT) -> None:
        self.epoch = epoch
        #: Changes before it are unknown.
        self.floor = floor
        #: Changes before it are in the journal.
        self.through = floor
        #: Keys that were touched since are remembered exactly.
        self.exact_since = floor
        #: Keys of rows that were touched before these were left out: some of them, all, or those of some templates.
        self.thinned = 0
        self.coarse = 0
        self.cold = 0
        self._memory = memory
        self._max_recent = recent
        #: Id of a key → the position of its last touch, and in the low bits the key.
        self._recent: dict[int, int] = {}
        self._filter: PositionFilter | None = None
        self._base = floor

    @property
    def cursor(self) -> str:
        """The cursor of a reader that knows all changes so far."""
        return self.at(self.through)

    def __len__(self) -> int:
        """How many keys are remembered exactly."""
        return len(self._recent)

    @property
    def filter_bytes(self) -> int:
        """The size of the filter of older keys."""
        return 0 if self._filter is None else 4 << self._memory.filter_pow2

    def at(self, position: int) -> str:
        """The cursor of a position."""
        return f"{self.epoch}:{position}"

    def record(self, key: Key, position: int) -> None:
        """Record that the change before a position touched a key; positions never go back."""
        recent, key_id = self._recent, id_of(key)
        recent.pop(key_id, None)
        recent[key_id] = position << _KEY_BITS | key
        if len(recent) > self._max_recent:
            self._shrink_recent()

    def last(self, key_id: int) -> int:
        """The last position at which a key of this id may have been touched; 0 for never."""
        packed = self._recent.get(key_id)
        if packed is not None:
            return packed >> _KEY_BITS
        stored = 0 if self._filter is None else self._filter.last(key_id)
        return self._base + stored if stored else 0

    def touched(self, key: Key, since: int) -> bool | None:
        """Whether this very key was touched after a position; None where that is not known any more."""
        packed = self._recent.get(id_of(key))
        if packed is not None and packed >> _KEY_BITS > since:
            return True if packed & _KEY == key else None
        if packed is not None or since >= self.exact_since:
            return False
        return None if self.last(id_of(key)) > since else False

    def resize(self, memory: Memory) -> None:
        """Change the size of the filter; touches in a filter of another size are forgotten."""
        if (memory.filter_pow2, memory.k) != (self._memory.filter_pow2, self._memory.k) and self._filter is not None:
            self._filter, self._base, self.floor = None, self.exact_since - 1, self.exact_since
        self._memory = memory

    def forget(self) -> None:
        """Forget all touches so far."""
        self._recent.clear()
        self._filter = None
        self._base = self.floor = self.exact_since = self.through

    def _shrink_recent(self) -> None:
        """Move the keys that were touched longest ago to the filter."""
        for key_id in list(islice(self._recent, max(1, self._max_recent // _MOVED_PART))):
            self._move_to_filter(key_id, self._recent.pop(key_id) >> _KEY_BITS)

    def _move_to_filter(self, key_id: int, position: int) -> None:
        if position - self._base > MAX_POSITION:
            # Larger positions do not fit into the filter: a new one begins, and the old one is forgotten.
            self._filter, self._base, self.floor = None, position - 1, self.exact_since
        if self._filter is None:
            self._filter = PositionFilter(self._memory.filter_pow2, self._memory.k)
        self._filter.put(key_id, position - self._base)
        self.exact_since = position
