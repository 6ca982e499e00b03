"""When keys were last touched, in little room: a filter whose cells hold positions in place of bits."""

from __future__ import annotations

import mmap

_SPREAD = 0x9E3779B97F4A7C15
#: The cells of a key lie in one line of memory, so that each key costs one page at most.
_LINE = 16
MOST = 2**32 - 1


class Filter:
    """The last position of any number of keys. Keys may share cells: an answer can be too late, never too early."""

    def __init__(self, pow2: int, k: int) -> None:
        """``2 ** pow2`` cells, ``k`` for each key; the system gives memory as it is written to."""
        self._lines = (1 << pow2) // _LINE - 1
        self._cells = memoryview(mmap.mmap(-1, 4 << pow2)).cast("I")
        self._shifts = tuple(range(0, 4 * k, 4))

    def put(self, key_id: int, position: int) -> None:
        """A key was touched at a position."""
        cells = self._cells
        for cell in self._cells_of(key_id):
            cells[cell] = max(cells[cell], position)

    def last(self, key_id: int) -> int:
        """The last position at which a key may have been touched; 0: it never was."""
        cells = self._cells
        return min(cells[cell] for cell in self._cells_of(key_id))

    def _cells_of(self, key_id: int) -> list[int]:
        spread = key_id * _SPREAD
        line = (spread >> 32 & self._lines) * _LINE
        spread ^= spread >> 29
        return [line + (spread >> shift & _LINE - 1) for shift in self._shifts]
