"""DataSketches: how numbers are distributed (KLL of doubles) and how many values differ (HLL), as bytes.

Spark writes and reads the same bytes: ``kll_sketch_agg_double(value, 200)``, ``hll_sketch_agg(value, 12)`` and their
merges. A quantile lies within 1.33 % of its rank 99 times in 100 and is exact for up to about 200 numbers. A distinct
count has a standard error of 1.6 % and is all but exact for up to about 200 values.

What is counted as distinct is fed so that Spark hashes it alike:

==============  ============================================================
strings         as they are; the empty one, which sketches pass over, as a noncharacter
integer, date   as a 64-bit integer, or as text where it has more bits
bool            as 0 or 1
float           as the 64-bit integer that Spark's ``xxhash64`` makes of it, a permutation of the doubles
==============  ============================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct

import datasketches
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

#: A value in the form in which it is compared.
Canonical = str | int | float | bool

KLL_K = 200
HLL_LG_K = 12
EMPTY_TEXT = "\uffff"
RANKS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}

_HLL_FAMILY = 7
_PRIMES = [
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
]
_HASH_SEED = 42
_DOUBLE = Struct("<d")


def quantiles(numbers: NDArray[np.float64]) -> bytes:
    """A sketch of how these numbers are distributed."""
    sketch = datasketches.kll_doubles_sketch(KLL_K)
    # A copy: the library takes no array that it might not write to.
    sketch.update(np.array(numbers, dtype=np.float64))
    return bytes(sketch.serialize())


def distinct(values: pa.Array) -> bytes:
    """A sketch of how many values of a column differ; none of them is null."""
    if pa.types.is_floating(values.type):
        return _hll_sketch(_xxhash64(values.to_numpy()).tolist())
    return distinct_of(values.to_pylist())


def distinct_of(values: Iterable[Canonical]) -> bytes:
    """The same of any values."""
    return _hll_sketch(_hll_input(value) for value in values)


def union(parts: Sequence[bytes]) -> bytes:
    """One sketch for all the events of several of the same kind."""
    if len(parts) == 1:
        return parts[0]
    return _hll_union(parts) if parts[0][2] == _HLL_FAMILY else _kll_union(parts)


def distinct_count(sketch: bytes) -> int:
    """About how many values differ."""
    estimate: float = datasketches.hll_sketch.deserialize(sketch).get_estimate()
    return round(estimate)


def distribution(sketch: bytes) -> dict[str, float]:
    """How many numbers, the least, the greatest, and the least with at least each share of them not above it."""
    kll = datasketches.kll_doubles_sketch.deserialize(sketch)
    shares = dict(zip(RANKS, kll.get_quantiles(list(RANKS.values()), True), strict=True))
    return {"count": kll.n, "min": kll.get_min_value(), "max": kll.get_max_value(), **shares}


def _hll_sketch(fed: Iterable[int | str]) -> bytes:
    sketch = datasketches.hll_sketch(HLL_LG_K, datasketches.tgt_hll_type.HLL_8)
    update = sketch.update
    for value in fed:
        update(value)
    return bytes(sketch.serialize_compact())


def _hll_input(value: Canonical) -> int | str:
    match value:
        case bool():
            return int(value)
        case int():
            return value if -(2**63) <= value < 2**63 else str(value)
        case float():
            digest = xxhash.xxh64_intdigest(_DOUBLE.pack(value + 0.0), _HASH_SEED)
            return digest - (1 << 64) if digest >> 63 else digest
    return replace_surrogates(value) or EMPTY_TEXT


def replace_surrogates(text: str) -> str:
    """A text as a column can hold it: half of a surrogate pair becomes the replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _kll_union(parts: Sequence[bytes]) -> bytes:
    merged = datasketches.kll_doubles_sketch.deserialize(parts[0])
    for part in parts[1:]:
        merged.merge(datasketches.kll_doubles_sketch.deserialize(part))
    return bytes(merged.serialize())


def _hll_union(parts: Sequence[bytes]) -> bytes:
    merged = datasketches.hll_union(HLL_LG_K)
    for part in parts:
        merged.update(datasketches.hll_sketch.deserialize(part))
    return bytes(merged.get_result(datasketches.tgt_hll_type.HLL_8).serialize_compact())


def _xxhash64(numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """XXH64 of the eight bytes of every double; both zeros are one.

    On whole columns this takes half the time of one call of ``xxhash`` per value.
    """
    first, second, third, fourth, fifth = _PRIMES
    bits = (np.asarray(numbers, dtype=np.float64) + 0.0).view(np.uint64)
    mixed = (np.uint64(_HASH_SEED) + fifth + np.uint64(8)) ^ (_rotate(bits * second, 31) * first)
    mixed = _rotate(mixed, 27) * first + fourth
    mixed = (mixed ^ (mixed >> np.uint64(33))) * second
    mixed = (mixed ^ (mixed >> np.uint64(29))) * third
    return (mixed ^ (mixed >> np.uint64(32))).view(np.int64)


def _rotate(words: NDArray[np.uint64], by: int) -> NDArray[np.uint64]:
    return (words << np.uint64(by)) | (words >> np.uint64(64 - by))
