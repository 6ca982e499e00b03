"""The operators of features, one function each: what is kept of the events of a key.

``where`` leaves out the rows for which it is not true. ``window`` is how far back events count; without it all count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.client.expressions import Expression, text
from headrace.client.requests import Span, duration

Where = Expression | str | None
Window = Span | None

_SPANS = {"window", "sub_window", "baseline_window", "half_life"}
_FIELDS = {"field", "lat_field", "lon_field"}


class Feature:
    """An operator with its parameters; it gets its name in ``agg``."""

    __slots__ = ("op", "params")

    def __init__(self, op: str, params: Mapping[str, Any]) -> None:
        self.op = op
        self.params = {name: _written(name, value) for name, value in params.items() if value is not None}

    def __repr__(self) -> str:
        return f"{self.op}({', '.join(f'{name}={value!r}' for name, value in self.params.items())})"

    def descriptor(self) -> dict[str, Any]:
        """How it is written in a registration."""
        return {"op": self.op, "params": self.params}


def _written(name: str, value: Any) -> Any:
    if name in _SPANS:
        return duration(value)
    if name == "where":
        return text(value)
    if name in _FIELDS and not isinstance(value, str):
        raise TypeError(f"{value!r} is not the name of a field; compute it with with_columns first")
    return list(value) if isinstance(value, tuple) else value


def _feature(op: str, **params: Any) -> Feature:
    return Feature(op, params)


def count(*, window: Window = None, where: Where = None) -> Feature:
    """How many events there were."""
    return _feature("count", window=window, where=where)


def sum(field: str, *, window: Window = None, where: Where = None) -> Feature:
    """The sum of a field."""
    return _feature("sum", field=field, window=window, where=where)


def mean(field: str, *, window: Window = None, where: Where = None) -> Feature:
    """The mean of a field."""
    return _feature("mean", field=field, window=window, where=where)


def min(field: str, *, window: Window = None, where: Where = None) -> Feature:
    """The least value of a field."""
    return _feature("min", field=field, window=window, where=where)


def max(field: str, *, window: Window = None, where: Where = None) -> Feature:
    """The greatest value of a field."""
    return _feature("max", field=field, window=window, where=where)


def var(field: str, *, window: Window = None, where: Where = None) -> Feature:
    """The variance of a field."""
    return _feature("var", field=field, window=window, where=where)


def std(field: str, *, window: Window = None, where: Where = None) -> Feature:
    """The standard deviation of a field."""
    return _feature("std", field=field, window=window, where=where)


def ratio(where: Where, *, window: Window = None) -> Feature:
    """Which share of the events ``where`` holds for."""
    return _feature("ratio", where=where, window=window)


def n_unique(field: str, *, window: Window = None, where: Where = None) -> Feature:
    """How many different values a field had."""
    return _feature("n_unique", field=field, window=window, where=where)


def quantile(field: str, q: float, *, window: Window = None, where: Where = None) -> Feature:
    """The value below which the share ``q`` of a field's values lies."""
    return _feature("quantile", field=field, q=q, window=window, where=where)


def top_k(field: str, k: int | None = None, *, window: Window = None, where: Where = None) -> Feature:
    """The ``k`` most frequent values of a field, with their counts."""
    return _feature("top_k", field=field, k=k, window=window, where=where)


def entropy(field: str, *, max_categories: int | None = None, window: Window = None, where: Where = None) -> Feature:
    """How evenly a field's values are spread, in bits."""
    return _feature("entropy", field=field, max_categories=max_categories, window=window, where=where)


def bloom_member(
    field: str, *, expected_n: int | None = None, fpr: float | None = None, where: Where = None
) -> Feature:
    """Whether the newest value of a field may have been there before."""
    return _feature("bloom_member", field=field, expected_n=expected_n, fpr=fpr, where=where)


def histogram(field: str, buckets: Sequence[float], *, where: Where = None) -> Feature:
    """How many values of a field lie between each two edges."""
    return _feature("histogram", field=field, buckets=list(buckets), where=where)


def hour_of_day_histogram(*, where: Where = None) -> Feature:
    """How many events each hour of the day had, in UTC."""
    return _feature("hour_of_day_histogram", where=where)


def dow_hour_histogram(*, where: Where = None) -> Feature:
    """How many events each hour of the week had, in UTC."""
    return _feature("dow_hour_histogram", where=where)


def event_type_mix(
    field: str,
    *,
    categories: Sequence[str] | None = None,
    max_categories: int | None = None,
    where: Where = None,
) -> Feature:
    """The share of each value of a field."""
    chosen = None if categories is None else list(categories)
    return _feature("event_type_mix", field=field, categories=chosen, max_categories=max_categories, where=where)


def first(field: str, *, where: Where = None) -> Feature:
    """The first value of a field."""
    return _feature("first", field=field, where=where)


def last(field: str, *, where: Where = None) -> Feature:
    """The newest value of a field."""
    return _feature("last", field=field, where=where)


def first_n(field: str, n: int, *, where: Where = None) -> Feature:
    """The first ``n`` values of a field."""
    return _feature("first_n", field=field, n=n, where=where)


def last_n(field: str, n: int, *, where: Where = None) -> Feature:
    """The newest ``n`` values of a field."""
    return _feature("last_n", field=field, n=n, where=where)


def most_recent_n(field: str, n: int, *, where: Where = None) -> Feature:
    """The newest ``n`` values of a field, the newest first."""
    return _feature("most_recent_n", field=field, n=n, where=where)


def lag(field: str, n: int | None = None, *, where: Where = None) -> Feature:
    """The value of a field ``n`` events ago."""
    return _feature("lag", field=field, n=n, where=where)


def reservoir_sample(field: str, samples: int, *, where: Where = None) -> Feature:
    """So many values of a field, chosen evenly among all."""
    return _feature("reservoir_sample", field=field, samples=samples, where=where)


def delta_from_prev(field: str, *, where: Where = None) -> Feature:
    """By how much the newest value of a field differs from the one before."""
    return _feature("delta_from_prev", field=field, where=where)


def first_seen(*, where: Where = None) -> Feature:
    """When the first event came, in milliseconds since 1970."""
    return _feature("first_seen", where=where)


def last_seen(*, where: Where = None) -> Feature:
    """When the newest event came, in milliseconds since 1970."""
    return _feature("last_seen", where=where)


def age(*, where: Where = None) -> Feature:
    """How long ago the first event came, in milliseconds."""
    return _feature("age", where=where)


def has_seen(where: Where = None) -> Feature:
    """Whether there ever was such an event."""
    return _feature("has_seen", where=where)


def time_since(where: Where = None) -> Feature:
    """How long ago the newest such event came, in milliseconds."""
    return _feature("time_since", where=where)


def time_since_last_n(n: int, *, where: Where = None) -> Feature:
    """How long ago the newest but ``n`` - 1 such event came, in milliseconds."""
    return _feature("time_since_last_n", n=n, where=where)


def first_seen_in_window(window: Span, *, where: Where = None) -> Feature:
    """Whether there was such an event within the window."""
    return _feature("first_seen_in_window", window=window, where=where)


def streak(where: Where) -> Feature:
    """How many of the newest events ``where`` holds for without a break."""
    return _feature("streak", where=where)


def max_streak(where: Where) -> Feature:
    """The longest run of events for which ``where`` holds."""
    return _feature("max_streak", where=where)


def negative_streak(where: Where) -> Feature:
    """How many of the newest events ``where`` does not hold for without a break."""
    return _feature("negative_streak", where=where)


def ewma(field: str, half_life: Span, *, where: Where = None) -> Feature:
    """The mean of a field in which older values weigh less."""
    return _feature("ewma", field=field, half_life=half_life, where=where)


def ewvar(field: str, half_life: Span, *, where: Where = None) -> Feature:
    """The variance of a field in which older values weigh less."""
    return _feature("ewvar", field=field, half_life=half_life, where=where)


def ew_zscore(field: str, half_life: Span, *, where: Where = None) -> Feature:
    """How many such deviations the newest value lies away from such a mean."""
    return _feature("ew_zscore", field=field, half_life=half_life, where=where)


def decayed_sum(field: str, half_life: Span, *, where: Where = None) -> Feature:
    """The sum of a field in which older values weigh less."""
    return _feature("decayed_sum", field=field, half_life=half_life, where=where)


def decayed_count(half_life: Span, *, where: Where = None) -> Feature:
    """The number of events, of which older ones weigh less."""
    return _feature("decayed_count", half_life=half_life, where=where)


def twa(field: str, window: Span, *, where: Where = None) -> Feature:
    """The mean of a field over time: each value counts for as long as it held."""
    return _feature("twa", field=field, window=window, where=where)


def rate_of_change(field: str, window: Span, *, where: Where = None) -> Feature:
    """By how much a field changes per second."""
    return _feature("rate_of_change", field=field, window=window, where=where)


def inter_arrival_stats(window: Span, *, where: Where = None) -> Feature:
    """How much time lies between events."""
    return _feature("inter_arrival_stats", window=window, where=where)


def burst_count(window: Span, sub_window: Span, *, where: Where = None) -> Feature:
    """How many of the shorter windows within the longer one had events."""
    return _feature("burst_count", window=window, sub_window=sub_window, where=where)


def trend(field: str, window: Span, *, where: Where = None) -> Feature:
    """The slope of the line that fits a field's values best."""
    return _feature("trend", field=field, window=window, where=where)


def trend_residual(field: str, window: Span, *, where: Where = None) -> Feature:
    """How far a field's values lie from that line."""
    return _feature("trend_residual", field=field, window=window, where=where)


def outlier_count(field: str, window: Span, *, sigma: float | None = None, where: Where = None) -> Feature:
    """How many values lay more than ``sigma`` deviations from the mean before them."""
    return _feature("outlier_count", field=field, sigma=sigma, window=window, where=where)


def value_change_count(field: str, window: Span, *, where: Where = None) -> Feature:
    """How often a field's value was another than the one before."""
    return _feature("value_change_count", field=field, window=window, where=where)


def z_score(field: str, baseline_window: Span, *, where: Where = None) -> Feature:
    """How many deviations the newest value lies away from the mean."""
    return _feature("z_score", field=field, baseline_window=baseline_window, where=where)


def seasonal_deviation(field: str, *, where: Where = None) -> Feature:
    """How many deviations the newest value lies away from the mean of its hour of the day."""
    return _feature("seasonal_deviation", field=field, where=where)


def geo_velocity(lat: str, lon: str, *, where: Where = None) -> Feature:
    """The greatest speed between two events, in km/h."""
    return _feature("geo_velocity", lat_field=lat, lon_field=lon, where=where)


def geo_distance(lat: str, lon: str, *, where: Where = None) -> Feature:
    """The length of the way from event to event, in km."""
    return _feature("geo_distance", lat_field=lat, lon_field=lon, where=where)


def geo_spread(lat: str, lon: str, *, where: Where = None) -> Feature:
    """How far events lie from their middle, in km."""
    return _feature("geo_spread", lat_field=lat, lon_field=lon, where=where)


def distance_from_home(lat: str, lon: str, *, samples: int | None = None, where: Where = None) -> Feature:
    """How far the newest event lies from the middle of the ones before, in km."""
    return _feature("distance_from_home", lat_field=lat, lon_field=lon, samples=samples, where=where)
