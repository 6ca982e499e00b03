"""Sketches keep their stated errors, and tell values apart as the reference does."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.operators import sketches

# Thrice what is stated: 1.33 % of the rank for quantiles, 1.6 % of the count for distinct values.
RANK_ERROR, COUNT_ERROR = 0.04, 0.05


def halves(values: np.ndarray, parts: int) -> list[Any]:
    return np.array_split(values, parts)


@pytest.mark.parametrize("parts", [1, 16])
def test_quantiles_of_many_numbers_lie_near_their_ranks(parts: int) -> None:
    numbers = np.random.default_rng(7).lognormal(3, 2, 100_000)
    found = sketches.distribution(sketches.union([sketches.quantiles(part) for part in halves(numbers, parts)]))
    assert found["count"] == len(numbers)
    assert found["min"] == numbers.min()
    assert found["max"] == numbers.max()
    for name, share in sketches.RANKS.items():
        assert (numbers <= found[name]).mean() == pytest.approx(share, abs=RANK_ERROR), name


@pytest.mark.parametrize("parts", [1, 16])
@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.float64()])
def test_distinct_counts_of_many_values_are_near(parts: int, kind: pa.DataType) -> None:
    values = np.random.default_rng(7).integers(0, 30_000, 60_000)
    count = len(np.unique(values))
    made = [sketches.distinct(pa.array(part).cast(kind)) for part in halves(values, parts)]
    assert sketches.distinct_count(sketches.union(made)) == pytest.approx(count, rel=COUNT_ERROR)


def test_few_values_are_counted_exactly_in_any_order_of_merging() -> None:
    made = [sketches.distinct_of([at, at + 1]) for at in range(100)]
    together = sketches.union(made)
    one_by_one = reduce(lambda left, right: sketches.union([right, left]), made)
    assert sketches.distinct_count(together) == sketches.distinct_count(one_by_one) == 101


@pytest.mark.parametrize(
    ("values", "count"),
    [
        (["", "a", ""], 2),
        (["a", "A", "é", "🜁"], 4),
        ([True, False, True], 2),
        ([0.0, -0.0, 0.1, 1e308], 3),
        ([0, 2**63 - 1, -(2**63), 2**63, 2**64], 5),
        (["\ud800", "a"], 2),
    ],
)
def test_values_are_told_apart_as_the_reference_does(values: list[Any], count: int) -> None:
    assert sketches.distinct_count(sketches.distinct_of(values)) == count


def test_a_column_is_fed_as_its_values_are() -> None:
    for values in (["", "a"], [1, -1], [0.5, 0.0], [True, False]):
        both = sketches.union([sketches.distinct(pa.array(values)), sketches.distinct_of(values)])
        assert sketches.distinct_count(both) == 2


@given(st.lists(st.floats(), max_size=20))
def test_a_column_of_doubles_is_hashed_as_each_of_them(values: list[float]) -> None:
    column = sketches._xxhash64(np.array(values)).tolist()
    assert column == [sketches._hll_input(value) for value in values]
