"""Histograms ``log2_v1``: the bucket of a number x is labelled 2^e with e = floor(log2(max(1, |x|))).

A histogram maps e to a count. A percentile is the least label with at least that share of the numbers not above its
bucket: a lower bound of the true one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_PERCENTS = {"p50": 50, "p95": 95, "p99": 99}


def exponent(number: float) -> int:
    """The e of a number's bucket, exactly."""
    magnitude = max(1, abs(number))
    return magnitude.bit_length() - 1 if isinstance(magnitude, int) else math.frexp(magnitude)[1] - 1


def exponent_of_integer(value: str) -> str:
    """The same of a 64-bit integer in DuckDB, whose log2 rounds up just below a power of two."""
    magnitude = f"greatest(abs({value}::HUGEINT), 1)::UBIGINT"
    rounded = f"floor(log2({magnitude}::DOUBLE))::INTEGER"
    return f"({rounded} - ({magnitude} >> {rounded} = 0)::INTEGER)"


def exponent_of_float(value: str) -> str:
    """The same of a double in DuckDB."""
    magnitude = f"greatest(abs({value}), 1.0::DOUBLE)"
    rounded = f"floor(log2({magnitude}))::INTEGER"
    return f"({rounded} - (pow(2.0::DOUBLE, {rounded}) > {magnitude})::INTEGER)"


def label_counts(histogram: Mapping[int, int]) -> dict[str, int]:
    """The histogram as it is answered: labels in decimal, in their order."""
    return {str(2**at): histogram[at] for at in sorted(histogram)}


def percentiles(histogram: Mapping[int, int]) -> dict[str, int | None]:
    """The label of each percentile; None where nothing was counted."""
    if not histogram:
        return dict.fromkeys(_PERCENTS)
    walk, total = iter(sorted(histogram.items())), sum(histogram.values())
    at, below = next(walk)
    labels: dict[str, int | None] = {}
    for name, percent in _PERCENTS.items():
        while below * 100 < percent * total:
            at, count = next(walk)
            below += count
        labels[name] = 2**at
    return labels


def merge_lists(lists: pa.ListArray) -> pa.MapArray:
    """One histogram for every list of them; null for a list without any count."""
    maps = lists.values
    starts = maps.offsets.to_numpy()[lists.offsets.to_numpy()]
    groups = np.repeat(np.arange(len(lists)), np.diff(starts))
    inside = slice(starts[0], starts[-1])
    places = (groups << 32) | maps.keys.to_numpy()[inside]
    order = np.argsort(places, kind="stable")
    buckets, first = np.unique(places[order], return_index=True)
    counts = totals(maps.items.to_numpy()[inside][order], first)
    offsets = np.searchsorted(buckets >> 32, np.arange(len(lists) + 1))
    keys, items = pa.array((buckets & (2**32 - 1)).astype(np.int32)), pa.array(counts)
    return pa.MapArray.from_arrays(
        pa.array(offsets.astype(np.int32)), keys, items, mask=pa.array(np.diff(offsets) == 0)
    )


def totals(counts: NDArray[np.int64], first: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """The sum of each run of counts that begins at ``first``, at most 2^63 - 1: by halves, which cannot overflow."""
    if not len(first):
        return np.empty(0, np.int64)
    low = np.add.reduceat(counts & (2**32 - 1), first)
    high = np.add.reduceat(counts >> 32, first) + (low >> 32)
    return np.where(high >= 2**31, np.int64(2**63 - 1), (high << 32) | (low & (2**32 - 1)))
