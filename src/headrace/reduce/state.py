"""The state of a measure: a product of small monoids, the same for all kinds, as a value and as columns.

=============================  ============================  =========================
component                      two merge to                  of
=============================  ============================  =========================
count                          their sum, at most 2^63 - 1   every kind
sum, min, max                  sum, least, greatest          floats
sum_int, min_int, max_int      sum, least, greatest          integers, exactly
histogram: exponent -> count   sums by exponent              summaries that ask for one
sketch: DataSketches bytes     the union                     quantiles, distinct
=============================  ============================  =========================

An absent component is neutral, so a state without any is the identity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
import pyarrow as pa

from headrace.operators import sketches

MOST = 2**63 - 1

#: What a state belongs to: ``key`` is the JSON array of the dimension values in the order of the rollup.
KEYS = pa.schema(
    [
        ("rollup", pa.string()),
        ("interval", pa.int64()),
        ("pane", pa.int64()),
        ("key", pa.string()),
        ("measure", pa.string()),
    ]
)
STATE = pa.schema(
    [
        ("count", pa.int64()),
        ("sum", pa.float64()),
        ("sum_int", pa.decimal128(38, 0)),
        ("min", pa.float64()),
        ("max", pa.float64()),
        ("min_int", pa.int64()),
        ("max_int", pa.int64()),
        ("histogram", pa.map_(pa.int32(), pa.int64())),
        ("sketch", pa.binary()),
    ]
)
PANES = pa.schema([*KEYS, *STATE])

T = TypeVar("T")


class State(msgspec.Struct, frozen=True, gc=False):
    """What a measure keeps of some events; integers may have any size here."""

    count: int | None = None
    sum: float | None = None
    sum_int: int | None = None
    min: float | None = None
    max: float | None = None
    min_int: int | None = None
    max_int: int | None = None
    histogram: dict[int, int] | None = None
    sketch: bytes | None = None


def merge_states(left: State, right: State) -> State:
    """The state of the events of both; associative and commutative, up to rounding and the error of sketches."""
    return State(
        count=_merge_present(_add_counts, left.count, right.count),
        sum=_merge_present(float.__add__, left.sum, right.sum),
        sum_int=_merge_present(int.__add__, left.sum_int, right.sum_int),
        min=_merge_present(min, left.min, right.min),
        max=_merge_present(max, left.max, right.max),
        min_int=_merge_present(min, left.min_int, right.min_int),
        max_int=_merge_present(max, left.max_int, right.max_int),
        histogram=_merge_present(_merge_histograms, left.histogram, right.histogram),
        sketch=_merge_present(lambda one, other: sketches.union([one, other]), left.sketch, right.sketch),
    )


def _merge_present(merge: Callable[[T, T], T], left: T | None, right: T | None) -> T | None:
    if left is None or right is None:
        return right if left is None else left
    return merge(left, right)


def _add_counts(left: int, right: int) -> int:
    return min(left + right, MOST)


def _merge_histograms(left: dict[int, int], right: dict[int, int]) -> dict[int, int]:
    return {at: _add_counts(left.get(at, 0), right.get(at, 0)) for at in sorted({*left, *right})}
