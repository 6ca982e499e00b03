from __future__ import annotations

from functools import cmp_to_key
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.extract.match.top_hits import SortValues, first_candidates

KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63)])),
    (pa.float64(), st.sampled_from([-1.5, -0.0, 0.0, 2.25, 1e308, -1e308, 5e-324])),
    (pa.string(), st.sampled_from(["", "a", "ab", "b", "é", "\U0001f600"])),
    (pa.bool_(), st.booleans()),
]
columns = st.sampled_from(KINDS).flatmap(
    lambda kind: st.tuples(st.just(kind[0]), st.lists(st.none() | kind[1], min_size=1, max_size=12))
)


def rank(a: Any, b: Any, descending: bool) -> int:
    if a == b:
        return 0
    is_less = b is None or (a is not None and a < b)
    return (-1 if is_less else 1) * (-1 if descending else 1)


@given(columns, st.booleans(), st.data())
def test_values_lie_before_a_bound_or_are_equal_to_it(
    column: tuple[Any, list[Any]], descending: bool, data: st.DataObject
) -> None:
    kind, values = column
    bound = data.draw(st.sampled_from(values))
    before, equal = SortValues(pa.array(values, kind), descending=descending).sides(bound)
    assert before.tolist() == [rank(value, bound, descending) < 0 for value in values]
    assert equal.tolist() == [value == bound for value in values]


@given(st.lists(st.none() | st.integers(-3, 3), min_size=1), st.sampled_from([2**64, -(2**70)]), st.booleans())
def test_a_bound_may_be_beyond_the_column(values: list[Any], bound: int, descending: bool) -> None:
    before, equal = SortValues(pa.array(values, pa.int64()), descending=descending).sides(bound)
    assert before.tolist() == [rank(value, bound, descending) < 0 for value in values]
    assert not equal.any()


@given(columns, st.booleans())
def test_codes_have_the_order_of_values(column: tuple[Any, list[Any]], descending: bool) -> None:
    kind, values = column
    codes = SortValues(pa.array(values, kind), descending=descending).codes().tolist()
    for a, code in zip(values, codes, strict=True):
        for b, other in zip(values, codes, strict=True):
            assert (code > other) - (code < other) == rank(a, b, descending)


@given(columns, st.data())
def test_some_are_chosen(column: tuple[Any, list[Any]], data: st.DataObject) -> None:
    kind, values = column
    chosen = data.draw(st.lists(st.integers(0, len(values) - 1)))
    made = SortValues(pa.array(values, kind), descending=True)
    assert made[np.array(chosen, np.int64)].to_list() == [values[at] for at in chosen]
    mask = [at in chosen for at in range(len(values))]
    assert made[np.array(mask)].to_list() == [value for value, kept in zip(values, mask, strict=True) if kept]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20), st.integers(1, 25))
def test_the_first_are_those_that_sorting_would_put_first(pairs: list[tuple[int, int]], count: int) -> None:
    keys = [np.array(key, np.int64) for key in (*zip(*pairs, strict=True), range(len(pairs)))]
    wanted = sorted(range(len(pairs)), key=cmp_to_key(lambda a, b: 1 if (*pairs[a], a) > (*pairs[b], b) else -1))
    assert first_candidates(keys, count).tolist() == wanted[:count]
