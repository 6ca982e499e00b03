"""The operator of a feature: all 54 by name.

Parameters are those that were checked at registration: durations in milliseconds, defaults filled in. Without a
``window`` all events since the entity's first count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from headrace.reduce.features import (
    categories,
    core,
    decay,
    distinct,
    distributions,
    geo,
    moments,
    ordinal,
    outliers,
    recency,
    velocity,
)
from headrace.reduce.features.operator import Operator
from headrace.reduce.features.window import Windowed
from headrace.schema.descriptor.nodes import Feature, Type

Params: TypeAlias = Mapping[str, Any]
#: Makes an operator of its parameters, its field ("" where it has none) and the type of that.
Maker: TypeAlias = Callable[[Params, str, Type], Operator]


def operator(feature: Feature, types: Mapping[str, Type]) -> Operator:
    """The operator of a feature over rows of these types."""
    params = feature.params
    field = params.get("field", "")
    made = _MAKERS[feature.op](params, field, types.get(field, "f64"))
    window = params.get("baseline_window" if feature.op == "z_score" else "window")
    if window is None or isinstance(made, recency.SeenWithin):
        return made
    if isinstance(made, outliers.Outliers):
        return outliers.OutliersInWindow(made, window)
    return Windowed(made, window)


_MAKERS: dict[str, Maker] = {
    "count": lambda params, field, kind: core.Count(),
    "sum": lambda params, field, kind: core.Sum(field, kind),
    "mean": lambda params, field, kind: core.Mean(field, kind),
    "min": lambda params, field, kind: core.Extreme(field, kind, min),
    "max": lambda params, field, kind: core.Extreme(field, kind, max),
    "var": lambda params, field, kind: moments.Spread(field, kind, moments.variance),
    "std": lambda params, field, kind: moments.Spread(field, kind, moments.deviation),
    "ratio": lambda params, field, kind: core.Ratio(),
    "n_unique": lambda params, field, kind: distinct.NUnique(field, kind),
    "quantile": lambda params, field, kind: distributions.Quantile(field, kind, params["q"]),
    "top_k": lambda params, field, kind: categories.TopK(field, kind, params["k"]),
    "entropy": lambda params, field, kind: categories.Entropy(field, kind, params["max_categories"]),
    "bloom_member": lambda params, field, kind: distinct.BloomMember(field, kind, params["expected_n"], params["fpr"]),
    "histogram": lambda params, field, kind: distributions.histogram(field, params["buckets"]),
    "hour_of_day_histogram": lambda params, field, kind: distributions.hour_of_day(),
    "dow_hour_histogram": lambda params, field, kind: distributions.hour_of_week(),
    "event_type_mix": lambda params, field, kind: categories.Mix(
        field, kind, params["max_categories"], params.get("categories")
    ),
    "first": lambda params, field, kind: ordinal.First(field, kind),
    "last": lambda params, field, kind: ordinal.Last(field, kind),
    "first_n": lambda params, field, kind: ordinal.FirstN(field, kind, params["n"]),
    "last_n": lambda params, field, kind: ordinal.Recent(field, kind, params["n"], ordinal.oldest_first),
    "most_recent_n": lambda params, field, kind: ordinal.Recent(field, kind, params["n"], ordinal.newest_first),
    "lag": lambda params, field, kind: ordinal.Recent(field, kind, params["n"] + 1, ordinal.lagging),
    "delta_from_prev": lambda params, field, kind: ordinal.Recent(field, kind, 2, ordinal.delta),
    "reservoir_sample": lambda params, field, kind: ordinal.Sample(field, kind, params["samples"]),
    "first_seen": lambda params, field, kind: recency.FirstSeen(),
    "last_seen": lambda params, field, kind: recency.LastSeen(),
    "age": lambda params, field, kind: recency.Age(),
    "has_seen": lambda params, field, kind: recency.HasSeen(),
    "time_since": lambda params, field, kind: recency.TimeSince(),
    "time_since_last_n": lambda params, field, kind: recency.TimeSinceLastN(params["n"]),
    "first_seen_in_window": lambda params, field, kind: recency.SeenWithin(params["window"]),
    "streak": lambda params, field, kind: ordinal.Streak(wanted=True),
    "negative_streak": lambda params, field, kind: ordinal.Streak(wanted=False),
    "max_streak": lambda params, field, kind: ordinal.MaxStreak(),
    "ewma": lambda params, field, kind: decay.Weighted(field, kind, params["half_life"], decay.mean),
    "ewvar": lambda params, field, kind: decay.Weighted(field, kind, params["half_life"], decay.variance),
    "ew_zscore": lambda params, field, kind: decay.Weighted(field, kind, params["half_life"], decay.score),
    "decayed_sum": lambda params, field, kind: decay.Decayed(field, params["half_life"]),
    "decayed_count": lambda params, field, kind: decay.Decayed(None, params["half_life"]),
    "twa": lambda params, field, kind: decay.TimeWeighted(field, kind),
    "rate_of_change": lambda params, field, kind: velocity.RateOfChange(field, kind),
    "inter_arrival_stats": lambda params, field, kind: velocity.InterArrival(),
    "burst_count": lambda params, field, kind: distinct.BurstCount(params["sub_window"]),
    "trend": lambda params, field, kind: velocity.Trend(field, kind, velocity.slope),
    "trend_residual": lambda params, field, kind: velocity.Trend(field, kind, velocity.residual),
    "outlier_count": lambda params, field, kind: outliers.Outliers(field, kind, params["sigma"]),
    "value_change_count": lambda params, field, kind: velocity.ValueChanges(field, kind),
    "z_score": lambda params, field, kind: moments.ZScore(field, kind),
    "seasonal_deviation": lambda params, field, kind: moments.SeasonalDeviation(field, kind),
    "geo_velocity": lambda params, field, kind: geo.GeoVelocity(params["lat_field"], params["lon_field"]),
    "geo_distance": lambda params, field, kind: geo.GeoDistance(params["lat_field"], params["lon_field"]),
    "geo_spread": lambda params, field, kind: geo.GeoSpread(params["lat_field"], params["lon_field"]),
    "distance_from_home": lambda params, field, kind: geo.DistanceFromHome(
        params["lat_field"], params["lon_field"], params["samples"]
    ),
}
