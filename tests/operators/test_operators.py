"""What operators answer in plain cases, with numbers one can check in the head."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.operators.catalogue import make_operator
from headrace.schema.descriptor.nodes import Type

TYPES: dict[str, Type] = {"x": "f64", "i": "i64", "s": "str", "lat": "f64", "lon": "f64"}
DAY = 86_400_000
MONDAY_MS = 1_704_067_200_000  # 2024-01-01
PLACES = {"lat_field": "lat", "lon_field": "lon"}


def answer(op: str, params: dict[str, Any], events: list[tuple[int, dict[str, Any]]], now_ms: int) -> Any:
    reducer = make_operator(op, params, TYPES)
    state = None
    for seq, (at_ms, row) in enumerate(events):
        state = reducer.fold(state, at_ms, seq, row, True)
    return reducer.finish(state, now_ms)


def xs(*values: float, gap_ms: int = 1000) -> list[tuple[int, dict[str, Any]]]:
    return [(at * gap_ms, {"x": value}) for at, value in enumerate(values)]


def texts(*values: str) -> list[tuple[int, dict[str, Any]]]:
    return [(at, {"s": value}) for at, value in enumerate(values)]


@pytest.mark.parametrize(
    ("op", "params", "events", "now_ms", "wanted"),
    [
        ("sum", {"field": "i"}, [(0, {"i": 2}), (1, {"i": 3})], 1, 5.0),
        ("min", {"field": "i"}, [(0, {"i": 2}), (1, {"i": 3})], 1, 2),
        ("var", {"field": "x"}, xs(1, 3), 9, 1.0),
        ("std", {"field": "x"}, xs(1, 5), 9, 2.0),
        ("quantile", {"field": "x", "q": 0.5}, xs(1, 2, 10, 20), 9, 6.0),
        ("most_recent_n", {"field": "x", "n": 2}, xs(1, 2, 3), 9, [3.0, 2.0]),
        ("last_n", {"field": "x", "n": 2}, xs(1, 2, 3), 9, [2.0, 3.0]),
        ("lag", {"field": "x", "n": 1}, xs(1, 2, 3), 9, 2.0),
        ("bloom_member", {"field": "s", "expected_n": 99, "fpr": 0.01}, texts("a", "b", "a"), 9, True),
        ("bloom_member", {"field": "s", "expected_n": 99, "fpr": 0.01}, texts("a", "a", "b"), 9, False),
        ("top_k", {"field": "s", "k": 1}, texts("b", "a", "b"), 9, [{"value": "b", "count": 2}]),
        ("entropy", {"field": "s", "max_categories": 9}, texts("a", "a", "b", "c"), 9, 1.5),
        ("event_type_mix", {"field": "s", "max_categories": 9}, texts("a", "b", "a", "a"), 9, {"a": 0.75, "b": 0.25}),
        ("event_type_mix", {"field": "s", "max_categories": 9, "categories": ["b"]}, texts("a", "b"), 9, {"b": 0.5}),
        (
            "histogram",
            {"field": "x", "buckets": [0.5, 10.0]},
            xs(0, 0.5, 9, 10),
            9,
            {"<0.5": 1, "0.5-10": 2, ">=10": 1},
        ),
        ("rate_of_change", {"field": "x", "window": DAY}, xs(1, 9, 5), 2000, 2.0),
        ("trend", {"field": "x", "window": DAY}, xs(1, 4, 7), 2000, 3.0),
        ("trend_residual", {"field": "x", "window": DAY}, xs(0, 3, 0, 3), 3000, 1.8**0.5),
        ("inter_arrival_stats", {"window": DAY}, xs(1, 1, 1, gap_ms=40), 80, 40.0),
        ("burst_count", {"window": DAY, "sub_window": 100}, xs(1, 1, 1, 1, gap_ms=60), 180, 2),
        ("value_change_count", {"field": "x", "window": DAY}, xs(1, 1.0, 2, 1), 9000, 2),
        ("twa", {"field": "x", "window": DAY}, xs(10, 20), 4000, 17.5),
        ("decayed_sum", {"field": "x", "half_life": 1000}, xs(8, 4), 2000, 4.0),
        ("decayed_count", {"half_life": 1000}, xs(8, 4), 1000, 1.5),
        ("ewma", {"field": "x", "half_life": 1000}, xs(8, 4), 9000, 6.0),
        ("ewvar", {"field": "x", "half_life": 1000}, xs(8, 4), 9000, 4.0),
        ("ew_zscore", {"field": "x", "half_life": 1000}, xs(8, 4), 9000, -1.0),
        ("z_score", {"field": "x", "baseline_window": DAY}, xs(1, 3), 9000, 1.0),
        ("seasonal_deviation", {"field": "x"}, [(0, {"x": 1}), (9**7, {"x": 50}), (DAY, {"x": 3})], DAY * 2, 1.0),
        ("seasonal_deviation", {"field": "x"}, [(0, {"x": 9}), (DAY, {"x": 1}), (DAY + 9**7, {"x": 5})], DAY * 2, None),
        (
            "geo_distance",
            PLACES,
            [(0, {"lat": 0, "lon": 0}), (9, {"lat": 0, "lon": 90})],
            9,
            6371 * 3.141592653589793 / 2,
        ),
        ("geo_velocity", PLACES, [(0, {"lat": 0, "lon": 0}), (9, {"lat": 0, "lon": 0})], 9, 0.0),
        ("geo_spread", PLACES, [(0, {"lat": -1, "lon": 0}), (9, {"lat": 1, "lon": 0})], 9, 111.32),
        ("distance_from_home", {**PLACES, "samples": 9}, [(0, {"lat": 5, "lon": 6})], 9, 0.0),
    ],
)
def test_an_operator_answers(op: str, params: dict[str, Any], events: Any, now_ms: int, wanted: Any) -> None:
    found = answer(op, params, events, now_ms)
    assert found == pytest.approx(wanted) if isinstance(wanted, float) else found == wanted


def test_hours_are_those_of_a_week_that_begins_on_monday() -> None:
    events = [(MONDAY_MS, {}), (MONDAY_MS + 6 * DAY + 23 * 3_600_000, {})]
    week = answer("dow_hour_histogram", {}, events, MONDAY_MS * 2)
    assert {cell for cell, count in week.items() if count} == {"Mon-00", "Sun-23"}
    assert len(week) == 168


def test_a_value_is_an_outlier_against_the_panes_before_its_own() -> None:
    params = {"field": "x", "window": 6400, "sigma": 3.0}
    usual = [(at, {"x": 100.0 + at % 3}) for at in range(10)]
    assert answer("outlier_count", params, [*usual, (10, {"x": 5000.0})], 200) == 0
    assert answer("outlier_count", params, [*usual, (100, {"x": 5000.0})], 200) == 1
    assert answer("outlier_count", params, [*usual[:4], (100, {"x": 5000.0})], 200) == 0


def test_a_value_is_an_outlier_against_all_others_where_there_is_no_window() -> None:
    assert answer("outlier_count", {"field": "x", "sigma": 3.0}, xs(100, 95, 110, 102, 98, 5000), 9000) == 1
    assert answer("outlier_count", {"field": "x", "sigma": 3.0}, xs(7, 7, 7, 7, 7, 7), 9000) == 0


def test_a_pane_counts_while_its_start_is_within_the_window() -> None:
    events = [(199, {"x": 1.0}), (200, {"x": 1.0})]
    found = [answer("count", {"window": 6400}, events, now_ms) for now_ms in (200, 6499, 6500, 6599, 6600)]
    assert found == [2, 2, 1, 1, 0]


def test_a_sample_is_the_same_however_often_it_is_drawn() -> None:
    drawn = answer("reservoir_sample", {"field": "x", "samples": 3}, xs(*range(100)), 10**6)
    assert len(drawn) == 3
    assert drawn == sorted(drawn)
    assert drawn == answer("reservoir_sample", {"field": "x", "samples": 3}, xs(*range(100)), 10**6)


@pytest.mark.parametrize(
    ("op", "params", "wanted"),
    [
        ("count", {}, 0),
        ("sum", {"field": "x"}, None),
        ("n_unique", {"field": "x"}, 0),
        ("top_k", {"field": "x", "k": 3}, []),
        ("event_type_mix", {"field": "s", "max_categories": 3}, {}),
        ("has_seen", {}, False),
        ("streak", {}, 0),
        ("geo_distance", PLACES, 0.0),
        ("hour_of_day_histogram", {}, [0] * 24),
        ("decayed_count", {"half_life": 5}, 0.0),
    ],
)
def test_an_operator_without_events_answers(op: str, params: dict[str, Any], wanted: Any) -> None:
    assert answer(op, params, [], 9) == wanted
