"""The page: the first hits of an order that come after a place, out of candidates that come in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.extract.match.selection import Int32s, Mask
from headrace.query.sort import Order, SortKey, SortPosition, arrange, follows

Codes = NDArray[np.int64]


class Sides(NamedTuple):
    """For every candidate whether it comes before a bound, or is equal to it."""

    before: Mask
    equal: Mask


class SortValues:
    """One value for each candidate, in an Arrow array; null is missing, which is greater than all others."""

    def __init__(self, array: Any, *, descending: bool) -> None:
        self._array = array
        self._descending = descending

    def __getitem__(self, chosen: Mask | NDArray[np.integer]) -> SortValues:
        mask = pa.array(chosen)
        array = self._array.filter(mask) if pa.types.is_boolean(mask.type) else self._array.take(mask)
        return SortValues(array, descending=self._descending)

    def sides(self, bound: Any) -> Sides:
        """How the candidates lie to a bound."""
        missing = self._array.is_null().to_numpy(zero_copy_only=False)
        if bound is None:
            return Sides(np.zeros(len(missing), np.bool_) if self._descending else ~missing, missing)
        if pa.types.is_integer(self._array.type) and not -(2**63) <= bound < 2**63:
            # Of an event that no column can hold: all values are smaller, or greater.
            is_before = (bound > 0) != self._descending
            before = ~missing if is_before else np.zeros(len(missing), np.bool_)
            return Sides(before | missing if self._descending else before, np.zeros(len(missing), np.bool_))
        compare = pc.greater if self._descending else pc.less
        value = pa.scalar(bound, self._array.type)
        # Where there is no value, a descending order begins, an ascending one ends.
        before = compare(self._array, value).fill_null(self._descending).to_numpy(zero_copy_only=False)
        equal = pc.equal(self._array, value).fill_null(False).to_numpy(zero_copy_only=False)
        return Sides(before, equal)

    def codes(self) -> Codes:
        """Numbers in the order of the candidates: the first has the least, equal ones have equal ones."""
        array = self._array
        if pa.types.is_string(array.type):
            codes = _rank(array)
        elif pa.types.is_floating(array.type):
            codes = _order_doubles(array.fill_null(0.0).to_numpy(zero_copy_only=False))
        else:
            codes = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        if array.null_count:
            codes = _with_missing(codes, array.is_null().to_numpy(zero_copy_only=False))
        return ~codes if self._descending else codes

    def to_list(self) -> list[Any]:
        """The values, None where there is none."""
        listed: list[Any] = self._array.to_pylist()
        return listed


def first(keys: Sequence[Codes], count: int) -> NDArray[np.intp]:
    """The places of so many candidates that come first, in order; earlier keys decide before later ones."""
    pool = np.arange(len(keys[0]))
    chosen = []
    for key in keys:
        if len(pool) <= count:
            break
        codes = key[pool]
        last = np.partition(codes, count - 1)[count - 1]
        ahead = pool[codes < last]
        chosen.append(ahead)
        count -= len(ahead)
        pool = pool[codes == last]
    places = np.concatenate([*chosen, pool[:count]])
    return places[np.lexsort([key[places] for key in reversed(keys)])]


def _rank(strings: Any) -> Codes:
    ranks: Codes = pc.rank(strings, sort_keys="ascending", tiebreaker="dense").to_numpy(zero_copy_only=False)
    return ranks.astype(np.int64)


def _order_doubles(floats: NDArray[np.float64]) -> Codes:
    """Doubles as integers of the same order; both zeros are one."""
    bits = (floats + 0.0).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)


def _with_missing(codes: Codes, missing: Mask) -> Codes:
    """The codes, those of missing values the greatest."""
    greatest = np.int64(2**63 - 1)
    if bool((codes == greatest).any()):  # the greatest of all numbers is a value
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    completed: Codes = np.where(missing, greatest, codes)
    return completed


#: Gives the values of a key for some rows, as an Arrow array.
Lookup = Callable[[SortKey, Int32s], Any]


class HeldHit(NamedTuple):
    """A hit so far: where it stands in the order, and which event it is."""

    position: SortPosition
    seq: int


class Bounds(NamedTuple):
    """What the first key can be in some rows: from, to, and whether it may be missing; None is not known."""

    least: Any
    greatest: Any
    missing: bool


class TopHits:
    """Holds at most ``size`` hits; those of a bound that is not reached any more are not even looked up."""

    def __init__(self, order: Order, after: SortPosition | None, size: int) -> None:
        self._order = order
        self._after = after
        self._size = size
        self._held: list[HeldHit] = []
        self.peak = 0

    @property
    def held(self) -> list[HeldHit]:
        """The hits, in order."""
        return self._held

    def may_take(self, bounds: Bounds | None) -> bool:
        """Whether rows within these bounds could still come in."""
        if not self._size:
            return False
        if bounds is None or bounds.least is None:
            return True
        key = self._order[0]
        foremost = None if bounds.missing and key.descending else bounds.greatest if key.descending else bounds.least
        hindmost = (
            None if bounds.missing and not key.descending else bounds.least if key.descending else bounds.greatest
        )
        if self._is_full and follows((foremost,), self._held[-1].position[:1], (key,)):
            return False
        return self._after is None or not follows(self._after[:1], (hindmost,), (key,))

    def offer(self, rows: Int32s, first_seq: int, lookup: Lookup) -> None:
        """Take those of some ascending rows that come in."""
        if not len(rows) or not self._size:
            return
        leading = SortValues(lookup(self._order[0], rows), descending=self._order[0].descending)
        keep = self._within_reach(leading)
        if keep is not None:
            rows, leading = rows[keep], leading[keep]
        columns = [leading, *(SortValues(lookup(key, rows), descending=key.descending) for key in self._order[1:])]
        if self._after is not None:
            keep = _following(columns, self._after)
            rows, columns = rows[keep], [column[keep] for column in columns]
        if not len(rows):
            return
        chosen = first([column.codes() for column in columns], self._size)
        places = zip(*(column[chosen].to_list() for column in columns), strict=True)
        self._merge(
            [HeldHit(position, first_seq + row) for position, row in zip(places, rows[chosen].tolist(), strict=True)]
        )

    def offer_one(self, held: HeldHit) -> None:
        """Take a hit whose place is known, if it comes in."""
        if self._size and (self._after is None or follows(held.position, self._after, self._order)):
            self._merge([held])

    @property
    def _is_full(self) -> bool:
        return len(self._held) >= self._size

    def _within_reach(self, leading: SortValues) -> Mask | None:
        """The candidates that the first key does not already rule out; None is all."""
        keep: Mask | None = None
        if self._is_full:
            before, equal = leading.sides(self._held[-1].position[0])
            keep = before | equal
        if self._after is not None:
            behind = ~leading.sides(self._after[0]).before
            keep = behind if keep is None else keep & behind
        return keep

    def _merge(self, hits: list[HeldHit]) -> None:
        self._held += hits
        arrange(self._held, self._order, attrgetter("position"))
        del self._held[self._size :]
        self.peak = max(self.peak, len(self._held))


def _following(columns: list[SortValues], after: SortPosition) -> Mask:
    """The candidates that come after a place."""
    behind: Mask | None = None
    tied: Mask | None = None
    for column, bound in zip(columns, after, strict=True):
        before, equal = column.sides(bound)
        later = ~before & ~equal
        behind = later if behind is None or tied is None else behind | (tied & later)
        tied = equal if tied is None else tied & equal
    assert behind is not None, "an order has keys"
    return behind


def sequence(first_seq: int, rows: Int32s) -> Any:
    """The sequence numbers of some rows, as an Arrow array."""
    return pa.array(rows.astype(np.int64) + first_seq)
