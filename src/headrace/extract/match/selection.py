"""Which rows of a companion answer: selections of the rows of a window, and comparisons of columns that make them.

A selection has the numbers of its rows or a mark for every row, whichever came first. A comparison leaves out the row
groups whose bounds already answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.format.companion.postings import Int32s, Mask, is_unicode
from headrace.format.companion.reader import ColumnGroup, CompanionReader
from headrace.query.tree import Operator

Int64s = NDArray[np.int64]
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


def rows_in_window(rows: Int32s, start: int, stop: int) -> Int32s:
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


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "=": pc.equal,
}
INT64 = range(-(2**63), 2**63)


class Window:
    """Rows ``start`` to ``stop`` of a companion, and those of them that are still in question; None is all."""

    __slots__ = ("candidates", "start", "stop")

    def __init__(self, start: int, stop: int, candidates: Selection | None = None) -> None:
        self.start = start
        self.stop = stop
        self.candidates = candidates

    @property
    def count(self) -> int:
        """How many rows it has."""
        return self.stop - self.start

    def among(self, candidates: Selection | None) -> Window:
        """The same rows, fewer in question."""
        return Window(self.start, self.stop, candidates)


class Columns:
    """The stored columns of one companion."""

    def __init__(self, companion: CompanionReader) -> None:
        self._companion = companion
        self._groups: dict[str, Sequence[ColumnGroup]] = {}

    def groups(self, name: str) -> Sequence[ColumnGroup]:
        """The row groups of a column."""
        groups = self._groups.get(name)
        if groups is None:
            groups = self._groups[name] = self._companion.groups(name)
        return groups

    def touching(self, name: str, start: int, stop: int) -> Iterator[tuple[int, ColumnGroup]]:
        """The numbers of the row groups that have rows from ``start`` to ``stop``, and the groups."""
        groups = self.groups(name)
        number = bisect_right(groups, start, key=_start) - 1
        while number < len(groups) and groups[number].start < stop:
            yield number, groups[number]
            number += 1

    def comparing(self, name: str, sign: Operator | str, bound: Any, window: Window) -> Selection:
        """The rows of a window that have a value on that side of a bound, or equal to it."""
        mask = np.zeros(window.count, np.bool_)
        if isinstance(bound, int) and not isinstance(bound, bool) and bound not in INT64:
            if sign == "=" or (bound > 0) == (sign in (">", ">=")):
                return Selection(window.count, mask=mask)
            # Every value that a column can hold lies on the asked side.
            sign, bound = ("<=", INT64[-1]) if bound > 0 else (">=", INT64[0])
        if isinstance(bound, str) and not is_unicode(bound):
            return Selection(window.count, mask=mask)
        for number, group in self._groups_in_question(name, window):
            matches: Mask | bool | None = _judge_group(group, sign, bound)
            if matches is None:
                column = self._companion.column(name, number)
                matches = _matching(column, lambda values: _COMPARE[sign](values, bound))
            _put(mask, window, group, matches)
        return Selection(window.count, mask=mask)

    def containing(self, name: str, part: str, window: Window) -> Selection:
        """The rows of a window that have a text with this part."""
        mask = np.zeros(window.count, np.bool_)
        for number, group in self._groups_in_question(name, window) if is_unicode(part) else ():
            column = self._companion.column(name, number)
            _put(mask, window, group, _matching(column, lambda values: pc.match_substring(values, part)))
        return Selection(window.count, mask=mask)

    def first_values(self, name: str, rows: Int32s) -> Any:
        """The first value of a column in each of some ascending rows, as an Arrow array."""
        start, stop = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        parts = [_scalars(self._companion.column(name, 0).slice(0, 0))]
        for number, group in self.touching(name, start, stop):
            low, high = between(rows, group.start, group.stop)
            if low < high:
                column = self._companion.column(name, number)
                is_complete = high - low == len(column)
                parts.append(_scalars(column if is_complete else column.take(pa.array(rows[low:high] - group.start))))
        return parts[1] if len(parts) == 2 else pa.concat_arrays(parts)

    def _groups_in_question(self, name: str, window: Window) -> Iterator[tuple[int, ColumnGroup]]:
        """The row groups of a column that have rows in question."""
        rows = None if window.candidates is None else window.candidates.rows()
        for number, group in self.touching(name, window.start, window.stop):
            if rows is not None:
                low, high = between(rows, group.start - window.start, group.stop - window.start)
                if low == high:
                    continue
            yield number, group


def _start(group: ColumnGroup) -> int:
    return group.start


def _scalars(column: Any) -> Any:
    """Of lists the first element."""
    if not pa.types.is_list(column.type):
        return column
    valid = column.is_valid()
    firsts = pc.list_element(column.filter(valid), 0)
    return firsts if not column.null_count else pc.replace_with_mask(pa.nulls(len(column), firsts.type), valid, firsts)


def _judge_group(group: ColumnGroup, sign: str, bound: Any) -> bool | None:
    """Whether all rows of a group are in the requested range, or none is; None where the values decide."""
    if group.least is None or group.greatest is None:
        return False if group.nulls == group.stop - group.start else None
    outside = {
        "<": group.least >= bound,
        "<=": group.least > bound,
        ">": group.greatest <= bound,
        ">=": group.greatest < bound,
        "=": not group.least <= bound <= group.greatest,
    }
    if outside[sign]:
        return False
    inside = {
        "<": group.greatest < bound,
        "<=": group.greatest <= bound,
        ">": group.least > bound,
        ">=": group.least >= bound,
        "=": group.least == bound == group.greatest,
    }
    return True if inside[sign] and not group.nulls else None


def _matching(column: Any, test: Callable[[Any], Any]) -> Mask:
    """For every row of a column of scalars or lists whether any value passes."""
    if pa.types.is_list(column.type):
        mask = np.zeros(len(column), np.bool_)
        mask[pc.list_parent_indices(column).filter(test(column.flatten())).to_numpy()] = True
        return mask
    matches: Mask = test(column).fill_null(False).to_numpy(zero_copy_only=False)
    return matches


def _put(mask: Mask, window: Window, group: ColumnGroup, matches: Mask | bool) -> None:
    """Write what was found in a group into the mask of a window."""
    low, high = max(group.start, window.start), min(group.stop, window.stop)
    part = matches if isinstance(matches, bool) else matches[low - group.start : high - group.start]
    mask[low - window.start : high - window.start] = part


#: The most row groups of one window.
_MAX_TOGETHER = 16


def by_group(groups: Sequence[ColumnGroup], start: int, stop: int, *, backward: bool) -> Iterator[Window]:
    """Row group by row group: for orders whose bounds rule many of them out."""
    for group in reversed(groups) if backward else groups:
        low, high = max(group.start, start), min(group.stop, stop)
        if low < high:
            yield Window(low, high)


def growing_windows(groups: Sequence[ColumnGroup], start: int, stop: int, *, backward: bool) -> Iterator[Window]:
    """One row group, then two, then four: for orders in which the first rows may be enough."""
    pending = list(by_group(groups, start, stop, backward=backward))
    at, size = 0, 1
    while at < len(pending):
        together = pending[at : at + size]
        yield Window(min(window.start for window in together), max(window.stop for window in together))
        at, size = at + size, min(2 * size, _MAX_TOGETHER)
