"""The values that candidates are sorted by, natively: which come before a bound, and which are the first of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.extract.match.selection import Mask

Codes = NDArray[np.int64]


class Sides(NamedTuple):
    """For every candidate whether it comes before a bound, or is equal to it."""

    before: Mask
    equal: Mask


class Values:
    """One value for each candidate, in an Arrow array; null is missing, which is greater than all others."""

    def __init__(self, array: Any, *, descending: bool) -> None:
        self._array = array
        self._descending = descending

    def __getitem__(self, chosen: Mask | NDArray[np.integer]) -> Values:
        mask = pa.array(chosen)
        array = self._array.filter(mask) if pa.types.is_boolean(mask.type) else self._array.take(mask)
        return Values(array, descending=self._descending)

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
            codes = _ranked(array)
        elif pa.types.is_floating(array.type):
            codes = _ordered(array.fill_null(0.0).to_numpy(zero_copy_only=False))
        else:
            codes = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        if array.null_count:
            codes = _with_missing(codes, array.is_null().to_numpy(zero_copy_only=False))
        return ~codes if self._descending else codes

    def to_list(self) -> list[Any]:
        """The values, None where there is none."""
        found: list[Any] = self._array.to_pylist()
        return found


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


def _ranked(strings: Any) -> Codes:
    ranks: Codes = pc.rank(strings, sort_keys="ascending", tiebreaker="dense").to_numpy(zero_copy_only=False)
    return ranks.astype(np.int64)


def _ordered(floats: NDArray[np.float64]) -> Codes:
    """Doubles as integers of the same order; both zeros are one."""
    bits = (floats + 0.0).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)


def _with_missing(codes: Codes, missing: Mask) -> Codes:
    """The codes, those of missing values the greatest."""
    greatest = np.int64(2**63 - 1)
    if bool((codes == greatest).any()):  # the greatest of all numbers is a value
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    found: Codes = np.where(missing, greatest, codes)
    return found
