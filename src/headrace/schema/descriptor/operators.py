"""The operators of tables as data: their parameters, fields, windows and result types.

A parameter has a kind, bounds and a default. Memory is bounded in every case: an operator keeps a constant, a sketch,
or as much as one parameter says; without window that parameter must be given or have a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from headrace.schema.descriptor.nodes import Feature, Type

Kind = Literal["field", "duration", "integer", "number", "edges", "categories", "where"]
Windows = Literal["none", "optional", "required"]
Result = Literal["str", "f64", "i64", "bool", "bytes", "datetime", "json", "field"]

NUMBERS: tuple[Type, ...] = ("i64", "f64")
ANY: tuple[Type, ...] = ("str", "f64", "i64", "bool", "bytes", "datetime")

#: Where a parameter must be given.
REQUIRED: Any = object()


class Parameter(NamedTuple):
    """A parameter of an operator; ``above`` and ``below`` are exclusive bounds."""

    kind: Kind
    default: Any = REQUIRED
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    types: tuple[Type, ...] = ()
    code: str = "aggregation_invalid_param"
    aliases: tuple[str, ...] = ()

    def bounds(self) -> str:
        """The bounds as words."""
        if self.above is not None:
            return f"above {self.above:g}" + (f" and below {self.below:g}" if self.below is not None else "")
        return f"from {self.least:g} to {self.most:g}" if self.most is not None else f"at least {self.least:g}"

    def admits(self, value: float) -> bool:
        """Whether a number lies within the bounds."""
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )


class Operator(NamedTuple):
    """One operator; ``bound`` is the parameter that bounds its memory, "" where it needs none."""

    name: str
    params: Mapping[str, Parameter]
    window: Windows
    result: Result
    bound: str = ""


_NUMBER = Parameter("field", types=NUMBERS)
_VALUE = Parameter("field", types=ANY)
_N = Parameter("integer", least=1, most=1024)
_HALF_LIFE = Parameter("duration", code="aggregation_invalid_half_life")
_WHERE = Parameter("where", None)
_WINDOW = Parameter("duration", None, code="aggregation_invalid_window")
_PLACE = {name: Parameter("field", types=NUMBERS, aliases=(name[:3],)) for name in ("lat_field", "lon_field")}
_MAX_CATEGORIES = Parameter("integer", 256, least=1, most=4096)


def _build_operators() -> dict[str, Operator]:
    operators: dict[str, Operator] = {}

    def add(names: str, window: Windows, result: Result, bound: str = "", **params: Parameter) -> None:
        windows = {} if window == "none" else {"window": _WINDOW if window == "optional" else _REQUIRED_WINDOW}
        for name in names.split():
            operators[name] = Operator(name, {**params, **windows, "where": _WHERE}, window, result, bound)

    add("count", "optional", "i64")
    add("sum mean var std", "optional", "f64", field=_NUMBER)
    add("min max", "optional", "field", field=_NUMBER)
    add("ratio", "optional", "f64")
    add("n_unique", "optional", "i64", field=_VALUE)
    add("first last", "none", "field", field=_VALUE)
    add("quantile", "optional", "f64", field=_NUMBER, q=_Q)
    add("top_k", "optional", "json", "k", field=_VALUE, k=_K)
    add("bloom_member", "none", "bool", field=_VALUE, expected_n=_EXPECTED, fpr=_FPR)
    add("entropy", "optional", "f64", "max_categories", field=_VALUE, max_categories=_MAX_CATEGORIES)
    add("histogram", "none", "json", "buckets", field=_NUMBER, buckets=Parameter("edges"))
    add("hour_of_day_histogram dow_hour_histogram", "none", "json")
    add(
        "event_type_mix",
        "none",
        "json",
        "max_categories",
        field=_VALUE,
        categories=Parameter("categories", None),
        max_categories=_MAX_CATEGORIES,
    )
    add("most_recent_n first_n last_n", "none", "json", "n", field=_VALUE, n=_N)
    add("reservoir_sample", "none", "json", "samples", field=_VALUE, samples=_N)
    add("first_seen last_seen age", "none", "i64")
    add("has_seen", "none", "bool")
    add("time_since", "none", "i64")
    add("time_since_last_n", "none", "i64", "n", n=_N)
    add("streak max_streak negative_streak", "none", "i64")
    add("first_seen_in_window", "required", "bool")
    add("ewma ewvar ew_zscore decayed_sum", "none", "f64", field=_NUMBER, half_life=_HALF_LIFE)
    add("decayed_count", "none", "f64", half_life=_HALF_LIFE)
    add("twa rate_of_change trend trend_residual", "required", "f64", field=_NUMBER)
    add("inter_arrival_stats", "required", "f64")
    add("burst_count", "required", "i64", sub_window=Parameter("duration", code="aggregation_invalid_sub_window"))
    add("outlier_count", "required", "i64", field=_NUMBER, sigma=Parameter("number", 3.0, above=0))
    add("value_change_count", "required", "i64", field=_VALUE)
    add("z_score", "none", "f64", field=_NUMBER, baseline_window=_BASELINE)
    add("delta_from_prev seasonal_deviation", "none", "f64", field=_NUMBER)
    add("lag", "none", "field", "n", field=_VALUE, n=_N._replace(default=1))
    add("geo_velocity geo_distance geo_spread", "none", "f64", "", **_PLACE)
    add("distance_from_home", "none", "f64", "samples", **_PLACE, samples=_N._replace(default=100))
    return operators


_REQUIRED_WINDOW = _WINDOW._replace(default=REQUIRED)
_BASELINE = _REQUIRED_WINDOW._replace(aliases=("window",))
_Q = Parameter("number", above=0, below=1, code="invalid_percentile_q")
_K = Parameter("integer", 10, least=1, most=1024, code="invalid_top_k_k")
_EXPECTED = Parameter("integer", 1024, least=1, most=1_000_000, aliases=("capacity",))
_FPR = Parameter("number", 0.01, above=0, below=1, code="invalid_bloom_fpr", aliases=("target_fpr",))

OPERATORS: Mapping[str, Operator] = _build_operators()

#: Other names of operators.
ALIASES: Mapping[str, str] = {
    "ema": "ewma",
    "avg": "mean",
    "variance": "var",
    "stddev": "std",
    "count_distinct": "n_unique",
    "percentile": "quantile",
}


def result_type(feature: Feature, types: Mapping[str, Type]) -> Result:
    """The result type of a feature; ``json`` for lists and maps."""
    result = OPERATORS[feature.op].result
    return types[feature.params["field"]] if result == "field" else result


def inputs(feature: Feature) -> tuple[str, ...]:
    """The fields a feature takes values from, apart from its ``where``."""
    parameters = OPERATORS[feature.op].params
    return tuple(
        feature.params[name] for name, param in parameters.items() if param.kind == "field" and name in feature.params
    )
