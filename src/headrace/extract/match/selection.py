"""Which rows of a window answer: their numbers, or a mark for every row, whichever came first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Mask = NDArray[np.bool_]
Numbers = TypeVar("Numbers", Int32s, Int64s)

#: Numbers of which one in so many is there are looked up in an array of marks.
DENSE = 32


class Selection:
    """Some of the rows 0 to ``count``; never changed."""

    __slots__ = ("_mask", "_rows", "count")

    def __init__(self, count: int, *, rows: Int32s | None = None, mask: Mask | None = None) -> None:
        self.count = count
        self._rows = rows
        self._mask = mask

    @classmethod
    def every(cls, count: int) -> Selection:
        """All rows."""
        return cls(count, mask=np.ones(count, np.bool_))

    @classmethod
    def none(cls, count: int) -> Selection:
        """No row."""
        return cls(count, rows=np.empty(0, np.int32))

    def rows(self) -> Int32s:
        """The numbers of the rows, ascending."""
        if self._rows is None:
            assert self._mask is not None
            self._rows = np.flatnonzero(self._mask).astype(np.int32)
        return self._rows

    def mask(self) -> Mask:
        """A mark for every row."""
        if self._mask is None:
            assert self._rows is not None
            self._mask = np.zeros(self.count, np.bool_)
            self._mask[self._rows] = True
        return self._mask

    def __len__(self) -> int:
        return len(self._rows) if self._rows is not None else int(np.count_nonzero(self.mask()))

    def __and__(self, other: Selection) -> Selection:
        if self._rows is None and other._rows is None:
            return Selection(self.count, mask=self.mask() & other.mask())
        few, many = sorted((self, other), key=Selection._size)
        rows = few.rows()
        if many._rows is None or many._mask is not None:
            return Selection(self.count, rows=rows[many.mask()[rows]])
        return Selection(self.count, rows=rows[among(rows, many.rows())])

    @classmethod
    def union(cls, count: int, parts: Sequence[Selection]) -> Selection:
        """The rows that are in any of these."""
        nonempty = [part for part in parts if part._rows is None or len(part._rows)]
        if len(nonempty) <= 1:
            return nonempty[0] if nonempty else cls.none(count)
        mask = np.zeros(count, np.bool_)
        for part in nonempty:
            if part._rows is None:
                mask |= part.mask()
            else:
                mask[part._rows] = True
        return cls(count, mask=mask)

    def __sub__(self, other: Selection) -> Selection:
        if self._rows is not None:
            return Selection(self.count, rows=self._rows[~other.mask()[self._rows]])
        mask = self.mask().copy()
        if other._rows is None:
            mask &= ~other.mask()
        else:
            mask[other._rows] = False
        return Selection(self.count, mask=mask)

    def _size(self) -> int:
        """How many rows there may be, at once."""
        return self.count + 1 if self._rows is None else len(self._rows)


def between(rows: Numbers, start: int, stop: int) -> tuple[int, int]:
    """Where ascending numbers from ``start`` to before ``stop`` begin and end."""
    # Bounds of another type would have all the numbers converted.
    low, high = np.searchsorted(rows, np.array((start, stop), rows.dtype))
    return int(low), int(high)


def within(rows: Int32s, start: int, stop: int) -> Int32s:
    """The part of ascending rows that lies in a window, counted from its start."""
    low, high = between(rows, start, stop)
    shifted: Int32s = rows[low:high] - np.int32(start) if start else rows[low:high]
    return shifted


def among(wanted: Numbers, held: Numbers) -> Mask:
    """For each of some ascending numbers whether it is among others, which are ascending too."""
    if not len(wanted) or not len(held):
        return np.zeros(len(wanted), np.bool_)
    first, last = int(wanted[0]), int(wanted[-1])
    if last - first < DENSE * len(wanted):
        low, high = between(held, first, last + 1)
        if high - low == len(wanted) and np.array_equal(held[low:high], wanted):
            return np.ones(len(wanted), np.bool_)
        marks: Mask = np.zeros(last - first + 1, np.bool_)
        marks[held[low:high] - wanted[0]] = True
        chosen: Mask = marks[wanted - wanted[0]]
        return chosen
    places = np.searchsorted(held, wanted)
    places[places == len(held)] = len(held) - 1
    is_member: Mask = held[places] == wanted
    return is_member
