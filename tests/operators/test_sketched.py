"""Where states are too large to be exact: answers within the stated error, states within the stated bound."""

from __future__ import annotations

import math
from collections import Counter
from functools import reduce
from typing import Any

import numpy as np
import pytest

from headrace.operators.catalogue import make_operator
from headrace.operators.operator import Operator
from headrace.operators.state_bytes import pack, unpack
from headrace.schema.descriptor.nodes import Type

TYPES: dict[str, Type] = {"x": "f64", "i": "i64", "s": "str"}
MANY = 20_000
SPREAD = [0, 1, 5000, 5001, 9000, 19_999, MANY]
RANDOM = np.random.default_rng(7)
NORMAL = RANDOM.normal(100, 15, MANY).tolist()
SKEWED = [f"v{rank}" for rank in RANDOM.zipf(1.3, MANY).tolist()]


def merged(reducer: Operator, field: str, values: list[Any], gap_ms: int = 1) -> Any:
    """The state of the values, folded in parts that were stored in between."""
    parts = []
    for start, end in zip([0, *SPREAD], [*SPREAD, len(values)], strict=True):
        state = None
        for at in range(start, end):
            state = reducer.fold(state, at * gap_ms, at, {field: values[at]}, True)
        parts.append(unpack(pack(state)))
    return reduce(reducer.merge, parts, None)


@pytest.mark.parametrize("window", [None, 10**6])
@pytest.mark.parametrize(
    ("field", "values"),
    [("s", [f"v{at}" for at in range(MANY)]), ("i", list(range(MANY))), ("x", [at / 2 for at in range(MANY)])],
)
def test_distinct_values_are_counted_within_five_percent(field: str, values: list[Any], window: int | None) -> None:
    reducer = make_operator("n_unique", {"field": field, "window": window}, TYPES)
    state = merged(reducer, field, values)
    assert math.isclose(reducer.finish(state, MANY), MANY, rel_tol=0.05)
    assert len(pack(state)) < (64 if window else 1) * 8_000


def test_whole_doubles_count_as_their_integers() -> None:
    reducer = make_operator("n_unique", {"field": "x"}, TYPES)
    state = merged(reducer, "x", [float(at % 1000) if at % 2 else at % 1000 for at in range(MANY)])
    assert math.isclose(reducer.finish(state, MANY), 1000, rel_tol=0.05)


def test_sub_windows_are_counted_within_five_percent() -> None:
    reducer = make_operator("burst_count", {"window": 10**6, "sub_window": 10}, TYPES)
    assert math.isclose(reducer.finish(merged(reducer, "x", [1.0] * MANY), MANY), MANY // 10, rel_tol=0.05)


@pytest.mark.parametrize("window", [None, 10**6])
@pytest.mark.parametrize("q", [0.01, 0.5, 0.99])
def test_the_rank_of_a_quantile_is_within_two_percent(q: float, window: int | None) -> None:
    reducer = make_operator("quantile", {"field": "x", "q": q, "window": window}, TYPES)
    state = merged(reducer, "x", NORMAL)
    found = reducer.finish(state, MANY)
    assert abs(sum(value < found for value in NORMAL) / MANY - q) < 0.02
    assert len(pack(state)) < (64 if window else 1) * 8_000


def test_counts_of_frequent_values_miss_less_than_one_in_a_thousand_of_all() -> None:
    reducer = make_operator("top_k", {"field": "s", "k": 20}, TYPES)
    state = merged(reducer, "s", SKEWED)
    truth = Counter(SKEWED)
    found = reducer.finish(state, MANY)
    assert len(truth) > 2048
    assert len(state[0]) <= 2048
    assert [entry["value"] for entry in found[:5]] == [value for value, _ in truth.most_common(5)]
    for entry in found:
        assert 0 <= truth[entry["value"]] - entry["count"] <= MANY / 1024


def test_shares_of_categories_miss_less_than_one_in_a_thousand() -> None:
    reducer = make_operator("event_type_mix", {"field": "s", "max_categories": 10}, TYPES)
    truth = Counter(SKEWED)
    shares = reducer.finish(merged(reducer, "s", SKEWED), MANY)
    assert len(shares) == 10
    assert all(0 <= truth[name] / MANY - share <= 1 / 1024 for name, share in shares.items())


def test_entropy_of_the_most_frequent_is_close_though_others_are_given_up() -> None:
    reducer = make_operator("entropy", {"field": "s", "max_categories": 8}, TYPES)
    counts = [count for _, count in Counter(SKEWED).most_common(8)]
    truth = sum(count / sum(counts) * math.log2(sum(counts) / count) for count in counts)
    assert math.isclose(reducer.finish(merged(reducer, "s", SKEWED), MANY), truth, abs_tol=0.02)


def test_outliers_of_full_panes_are_counted_within_the_error_of_ranks() -> None:
    reducer = make_operator("outlier_count", {"field": "x", "window": 64_000, "sigma": 1.0}, TYPES)
    state = merged(reducer, "x", NORMAL)
    wanted = 0
    for start in range(1000, MANY, 1000):
        before = np.array(NORMAL[:start])
        wanted += int((np.abs(np.array(NORMAL[start : start + 1000]) - before.mean()) > before.std()).sum())
    assert abs(reducer.finish(state, MANY) - wanted) < 0.03 * MANY


def test_a_value_seen_once_is_known_and_a_new_one_rarely_taken_for_it() -> None:
    reducer = make_operator("bloom_member", {"field": "i", "expected_n": 1000, "fpr": 0.01}, TYPES)
    state = None
    for value in range(1000):
        state = reducer.fold(state, value, value, {"i": value}, True)
    known = [
        reducer.finish(reducer.merge(state, reducer.fold(None, 1000, 1000, {"i": value}, True)), 0)
        for value in range(3000)
    ]
    assert all(known[:1000])
    assert sum(known[1000:]) < 0.02 * 2000
    assert len(pack(state)) < 1300
