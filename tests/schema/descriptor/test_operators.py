from __future__ import annotations

from typing import Any

import pytest

from headrace.operators.catalogue import DECLARATIONS
from headrace.schema.descriptor.nodes import Table
from headrace.schema.descriptor.validate import inputs, resolve_table, result_type
from schema.descriptor.payloads import event, nodes, op, table, told

SCHEMA = {
    "user": "str",
    "amount": "f64",
    "n": "i64",
    "ok": "bool",
    "raw": "bytes",
    "at": "datetime",
    "lat": "f64",
    "lon": "f64",
}
E = event(schema=SCHEMA)
PLACE = {"lat_field": "lat", "lon_field": "lon"}

#: Every operator with no more than it must be told, and the type of what it gives for i64.
LEAST: dict[str, tuple[dict[str, Any], str]] = {
    "count": ({}, "i64"),
    "sum": ({"field": "n"}, "f64"),
    "mean": ({"field": "n"}, "f64"),
    "sum_squares": ({"field": "n"}, "f64"),
    "mode": ({"field": "n"}, "i64"),
    "min": ({"field": "n"}, "i64"),
    "max": ({"field": "n"}, "i64"),
    "var": ({"field": "n"}, "f64"),
    "std": ({"field": "n"}, "f64"),
    "ratio": ({}, "f64"),
    "n_unique": ({"field": "n"}, "i64"),
    "first": ({"field": "n"}, "i64"),
    "last": ({"field": "n"}, "i64"),
    "quantile": ({"field": "n", "q": 0.5}, "f64"),
    "top_k": ({"field": "n"}, "list<struct<value: i64, count: i64>>"),
    "bloom_member": ({"field": "n"}, "bool"),
    "entropy": ({"field": "n"}, "f64"),
    "histogram": ({"field": "n", "buckets": [1, 2]}, "map<i64>"),
    "hour_of_day_histogram": ({}, "list<i64>"),
    "dow_hour_histogram": ({}, "map<i64>"),
    "event_type_mix": ({"field": "n"}, "map<f64>"),
    "most_recent_n": ({"field": "n", "n": 3}, "list<i64>"),
    "reservoir_sample": ({"field": "n", "samples": 3}, "list<i64>"),
    "first_seen": ({}, "i64"),
    "last_seen": ({}, "i64"),
    "age": ({}, "i64"),
    "has_seen": ({}, "bool"),
    "time_since": ({}, "i64"),
    "time_since_last_n": ({"n": 3}, "i64"),
    "streak": ({}, "i64"),
    "max_streak": ({}, "i64"),
    "negative_streak": ({}, "i64"),
    "first_seen_in_window": ({"window": "1h"}, "bool"),
    "ewma": ({"field": "n", "half_life": "1h"}, "f64"),
    "ewvar": ({"field": "n", "half_life": "1h"}, "f64"),
    "ew_zscore": ({"field": "n", "half_life": "1h"}, "f64"),
    "decayed_sum": ({"field": "n", "half_life": "1h"}, "f64"),
    "decayed_count": ({"half_life": "1h"}, "f64"),
    "twa": ({"field": "n", "window": "1h"}, "f64"),
    "rate_of_change": ({"field": "n", "window": "1h"}, "f64"),
    "inter_arrival_stats": ({"window": "1h"}, "f64"),
    "burst_count": ({"window": "1h", "sub_window": "1m"}, "i64"),
    "delta_from_prev": ({"field": "n"}, "f64"),
    "trend": ({"field": "n", "window": "1h"}, "f64"),
    "trend_residual": ({"field": "n", "window": "1h"}, "f64"),
    "outlier_count": ({"field": "n", "window": "1h"}, "i64"),
    "value_change_count": ({"field": "n", "window": "1h"}, "i64"),
    "z_score": ({"field": "n", "baseline_window": "1h"}, "f64"),
    "seasonal_deviation": ({"field": "n"}, "f64"),
    "first_n": ({"field": "n", "n": 3}, "list<i64>"),
    "last_n": ({"field": "n", "n": 3}, "list<i64>"),
    "lag": ({"field": "n"}, "i64"),
    "geo_velocity": (PLACE, "f64"),
    "geo_distance": (PLACE, "f64"),
    "geo_spread": (PLACE, "f64"),
    "distance_from_home": (PLACE, "f64"),
}
#: Those that look at a window, and those of them that must.
WINDOWED = {
    "count",
    "sum",
    "sum_squares",
    "mode",
    "mean",
    "min",
    "max",
    "var",
    "std",
    "ratio",
    "n_unique",
    "quantile",
    "top_k",
    "entropy",
    "first_seen_in_window",
    "twa",
    "rate_of_change",
    "inter_arrival_stats",
    "burst_count",
    "trend",
    "trend_residual",
    "outlier_count",
    "value_change_count",
}
MUST = {
    "first_seen_in_window",
    "twa",
    "rate_of_change",
    "inter_arrival_stats",
    "burst_count",
    "trend",
    "trend_residual",
    "outlier_count",
    "value_change_count",
}
#: Those that take values of any type.
ANY = {
    "mode",
    "n_unique",
    "first",
    "last",
    "top_k",
    "bloom_member",
    "entropy",
    "event_type_mix",
    "most_recent_n",
    "reservoir_sample",
    "value_change_count",
    "first_n",
    "last_n",
    "lag",
}
FIELD = {name for name, (params, _) in LEAST.items() if "field" in params}


def refusals(name: str, **params: Any) -> list[tuple[str, str]]:
    """The codes of a feature, and the parameters they are about."""
    found = told(E, table(f=op(name, **params)))
    return [(code, path.removeprefix("descriptors[1].agg.f.params").removeprefix(".")) for code, path in found]


def test_every_operator_is_here() -> None:
    assert set(DECLARATIONS) == set(LEAST)


@pytest.mark.parametrize("name", LEAST)
def test_an_operator_is_content_with_what_it_must_be_told(name: str) -> None:
    params, result = LEAST[name]
    known = nodes(E, table(f=op(name, **params)))
    resolved = resolve_table(known, "User")
    assert result_type(resolved.table.features["f"], resolved.types) == result
    assert set(inputs(resolved.table.features["f"])) == {
        params[key] for key in ("field", "lat_field", "lon_field") if key in params
    }


@pytest.mark.parametrize("name", LEAST)
def test_every_operator_takes_where(name: str) -> None:
    params = LEAST[name][0]
    (_, found) = nodes(E, table(f=op(name, **params, where="ok and n>1"))).values()
    assert isinstance(found, Table)
    assert found.features["f"].params["where"] == "(ok and (n > 1))"
    assert refusals(name, **params, where="ok and") == [("invalid_expression", "where")]
    assert refusals(name, **params, where="n + 1") == [("schema_mismatch", "where")]
    assert refusals(name, **params, where="nothing == 1") == [("unknown_field_reference", "where")]
    assert refusals(name, **params, where=True) == [("aggregation_invalid_param", "where")]


@pytest.mark.parametrize("name", LEAST)
def test_a_window_is_taken_required_or_refused(name: str) -> None:
    params = {key: value for key, value in LEAST[name][0].items() if key != "window"}
    if name == "z_score":
        assert refusals(name, field="n", window="1h") == []
        assert refusals(name, field="n") == [("aggregation_invalid_window", "baseline_window")]
        return
    with_window = [] if name in WINDOWED else [("window_not_supported", "window")]
    without = [("aggregation_invalid_window", "window")] if name in MUST else []
    assert refusals(name, **params, window="1h") == with_window
    assert refusals(name, **params, window_ms=3_600_000) == with_window
    assert refusals(name, **params) == without
    assert refusals(name, **params, window="forever") == without
    assert refusals(name, **params, window=None) == without


@pytest.mark.parametrize("name", sorted(WINDOWED))
@pytest.mark.parametrize(
    "window", ["0s", "1", "1w", "-1h", "1.5h", "01h", " 1h", "1h30m", "", 3600, "9999999d", [], "1H"]
)
def test_a_window_that_is_no_duration_is_refused(name: str, window: Any) -> None:
    params = {**LEAST[name][0], "window": window}
    assert refusals(name, **params)[0] == ("aggregation_invalid_window", "window")


@pytest.mark.parametrize("name", sorted(FIELD))
def test_a_field_is_a_column_of_a_type_that_fits(name: str) -> None:
    params = LEAST[name][0]
    for field in ("user", "ok", "raw", "at"):
        wanted = [] if name in ANY else [("schema_mismatch", "field")]
        assert refusals(name, **{**params, "field": field}) == wanted
    for field in ("amount", "n"):
        assert refusals(name, **{**params, "field": field}) == []
    assert refusals(name, **{**params, "field": "nothing"}) == [("unknown_field_reference", "field")]
    assert refusals(name, **{**params, "field": "(amount * 2)"}) == [("schema_mismatch", "field")]
    assert refusals(name, **{**params, "field": "cast(n, float)"}) == [("schema_mismatch", "field")]
    assert refusals(name, **{**params, "field": 3}) == [("aggregation_invalid_param", "field")]
    assert refusals(name, **{key: value for key, value in params.items() if key != "field"}) == [
        ("aggregation_invalid_param", "field")
    ]


N_OPS = ("first_n", "last_n", "most_recent_n", "time_since_last_n", "lag")
RANGES: list[tuple[str, str, list[Any], list[Any], str]] = [
    ("quantile", "q", [0.001, 0.5, 0.999], [0, 1, -0.1, 1.1, "0.5", None, True, []], "invalid_percentile_q"),
    ("top_k", "k", [1, 10, 1024, 3.0, None], [0, 1025, -1, 2.5, "3", True], "invalid_top_k_k"),
    ("bloom_member", "fpr", [0.001, 0.5, None], [0, 1, -1, 2, "0.1"], "invalid_bloom_fpr"),
    ("bloom_member", "target_fpr", [0.001], [0, 1], "invalid_bloom_fpr"),
    ("bloom_member", "expected_n", [1, 1_000_000], [0, 1.5, 1_000_001, "9"], "aggregation_invalid_param"),
    ("bloom_member", "capacity", [5], [0], "aggregation_invalid_param"),
    ("reservoir_sample", "samples", [1, 1024], [0, 1025, 1.5, "3"], "aggregation_invalid_param"),
    ("distance_from_home", "samples", [1, 1024, None], [0, 1025], "aggregation_invalid_param"),
    ("entropy", "max_categories", [1, 4096, None], [0, 4097], "aggregation_invalid_param"),
    ("event_type_mix", "max_categories", [1, 4096, None], [0, 4097], "aggregation_invalid_param"),
    ("event_type_mix", "categories", [[1], [1, 2]], [[], [1, 1], 3, [None], [[1]]], "aggregation_invalid_param"),
    ("outlier_count", "sigma", [0.1, 3, 99, None], [0, -1, "3"], "aggregation_invalid_param"),
    (
        "histogram",
        "buckets",
        [[1], [1, 2.5], [-1, 0]],
        [[], [2, 1], [1, 1], ["1"], 3, [True]],
        "aggregation_invalid_param",
    ),
    ("burst_count", "sub_window", ["1ms", "1h"], ["61m", "0s", "forever", None, 5], "aggregation_invalid_sub_window"),
    *(
        (name, "half_life", ["1ms", "365d"], ["forever", "0s", "", None, 60], "aggregation_invalid_half_life")
        for name in ("ewma", "ewvar", "ew_zscore", "decayed_sum", "decayed_count")
    ),
    *((name, "n", [1, 1024], [0, 1025, -1, 1.5, "3", True], "aggregation_invalid_param") for name in N_OPS),
]


@pytest.mark.parametrize(("name", "key", "good", "bad", "code"), RANGES)
def test_parameters_have_ranges(name: str, key: str, good: list[Any], bad: list[Any], code: str) -> None:
    others = {"capacity": "expected_n", "target_fpr": "fpr"}
    for value in good:
        assert refusals(name, **{**LEAST[name][0], key: value}) == [], value
    for value in bad:
        assert refusals(name, **{**LEAST[name][0], key: value}) == [(code, others.get(key, key))], value


def test_categories_are_of_the_type_of_the_field() -> None:
    assert refusals("event_type_mix", field="user", categories=["a", "b"]) == []
    assert refusals("event_type_mix", field="user", categories=["a", 1]) == [("schema_mismatch", "categories[1]")]


@pytest.mark.parametrize("name", LEAST)
def test_an_unknown_parameter_is_refused(name: str) -> None:
    assert refusals(name, **LEAST[name][0], windows="1h") == [("aggregation_invalid_param", "windows")]


def test_a_parameter_under_two_names_is_refused() -> None:
    assert refusals("bloom_member", field="n", fpr=0.1, target_fpr=0.1) == [("aggregation_invalid_param", "target_fpr")]
    assert refusals("count", window="1h", window_ms=5) == [("aggregation_invalid_param", "window_ms")]


def test_places_may_be_named_shortly() -> None:
    assert nodes(E, table(f=op("geo_spread", lat="lat", lon="lon"))) == nodes(E, table(f=op("geo_spread", **PLACE)))
    assert refusals("geo_spread", lat_field="user", lon_field="at") == [
        ("schema_mismatch", "lat_field"),
        ("schema_mismatch", "lon_field"),
    ]


@pytest.mark.parametrize(
    ("alias", "name"),
    [("avg", "mean"), ("variance", "var"), ("stddev", "std"), ("count_distinct", "n_unique"), ("ema", "ewma")],
)
def test_old_names_of_operators_mean_the_new(alias: str, name: str) -> None:
    params = LEAST[name][0]
    assert nodes(E, table(f=op(alias, **params))) == nodes(E, table(f=op(name, **params)))


def test_all_that_is_wrong_with_features_is_said_at_once() -> None:
    features = {
        "a": op("quantile", field="n", q=2, window="x"),
        "b": op("top_k", field="n", k=0),
        "c": op("nothing"),
        "d": op("first", field="n", window="1h"),
    }
    assert told(E, table(**features)) == [
        ("invalid_percentile_q", "descriptors[1].agg.a.params.q"),
        ("aggregation_invalid_window", "descriptors[1].agg.a.params.window"),
        ("invalid_top_k_k", "descriptors[1].agg.b.params.k"),
        ("unknown_op", "descriptors[1].agg.c.op"),
        ("window_not_supported", "descriptors[1].agg.d.params.window"),
    ]
