"""The operators of features, a function each.

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
_LISTS = {"buckets", "categories"}


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
    return list(value) if name in _LISTS else value


def _feature(op: str, **params: Any) -> Feature:
    return Feature(op, params)


# Written by tools/operators.py from here on: change the class of an operator and run it.


def count(*, window: Span | None = None, where: Where = None) -> Feature:
    """How many events. Example: ``hr.count(window="1h")``"""
    return _feature("count", window=window, where=where)


def sum(field: str, *, window: Span | None = None, where: Where = None) -> Feature:
    """The sum of the values, as a float. Example: ``hr.sum("amount", window="1h")``"""
    return _feature("sum", field=field, window=window, where=where)


def mean(field: str, *, window: Span | None = None, where: Where = None) -> Feature:
    """The mean of the values. Example: ``hr.mean("amount", window="1h")``"""
    return _feature("mean", field=field, window=window, where=where)


def sum_squares(field: str, *, window: Span | None = None, where: Where = None) -> Feature:
    """The sum of the squares of the values. Example: ``hr.sum_squares("amount", window="1h")``"""
    return _feature("sum_squares", field=field, window=window, where=where)


def min(field: str, *, window: Span | None = None, where: Where = None) -> Feature:
    """The least value, in the type of its field. Example: ``hr.min("amount", window="1h")``"""
    return _feature("min", field=field, window=window, where=where)


def max(field: str, *, window: Span | None = None, where: Where = None) -> Feature:
    """The greatest value, in the type of its field. Example: ``hr.max("amount", window="1h")``"""
    return _feature("max", field=field, window=window, where=where)


def var(field: str, *, window: Span | None = None, where: Where = None) -> Feature:
    """The variance of the population. Example: ``hr.var("amount", window="1h")``"""
    return _feature("var", field=field, window=window, where=where)


def std(field: str, *, window: Span | None = None, where: Where = None) -> Feature:
    """The standard deviation of the population. Example: ``hr.std("amount", window="1h")``"""
    return _feature("std", field=field, window=window, where=where)


def ratio(where: Where, *, window: Span | None = None) -> Feature:
    """The share of all events for which ``where`` is true. Example: ``hr.ratio("amount > 10", window="1h")``"""
    return _feature("ratio", window=window, where=where)


def n_unique(field: str, *, window: Span | None = None, where: Where = None) -> Feature:
    """How many different values: exact up to 256, then ± 1.6 %. Example: ``hr.n_unique("shop", window="1h")``"""
    return _feature("n_unique", field=field, window=window, where=where)


def bloom_member(
    field: str, *, expected_n: int | None = None, fpr: float | None = None, where: Where = None
) -> Feature:
    """Whether the newest value had been there before; wrong with chance ``fpr`` where it had not.

    Example: ``hr.bloom_member("shop")``
    """
    return _feature("bloom_member", field=field, expected_n=expected_n, fpr=fpr, where=where)


def quantile(field: str, q: float, *, window: Span | None = None, where: Where = None) -> Feature:
    """The value below which the share ``q`` of all lies: exact up to 256 values, then within 1.33 % of rank.

    Example: ``hr.quantile("amount", 0.95, window="1h")``
    """
    return _feature("quantile", field=field, q=q, window=window, where=where)


def histogram(field: str, buckets: Sequence[float], *, where: Where = None) -> Feature:
    """`{"<10": n, "10-20": n, ">=20": n}``. Example: ``hr.histogram("amount", [10, 20])``"""
    return _feature("histogram", field=field, buckets=buckets, where=where)


def hour_of_day_histogram(*, where: Where = None) -> Feature:
    """24 counts, one for each hour of the day in UTC. Example: ``hr.hour_of_day_histogram()``"""
    return _feature("hour_of_day_histogram", where=where)


def dow_hour_histogram(*, where: Where = None) -> Feature:
    """`{"Mon-00": n, …}``, one for each hour of the week in UTC. Example: ``hr.dow_hour_histogram()``"""
    return _feature("dow_hour_histogram", where=where)


def top_k(field: str, k: int | None = None, *, window: Span | None = None, where: Where = None) -> Feature:
    """`[{"value": …, "count": …}]``, the most frequent values first; exact up to 2,048 different ones.

    Example: ``hr.top_k("shop", 3, window="1h")``
    """
    return _feature("top_k", field=field, k=k, window=window, where=where)


def mode(field: str, *, window: Span | None = None, where: Where = None) -> Feature:
    """The most frequent value, the least of equally frequent ones; exact up to 2,048 different ones.

    Example: ``hr.mode("shop", window="1h")``
    """
    return _feature("mode", field=field, window=window, where=where)


def entropy(
    field: str, *, max_categories: int | None = None, window: Span | None = None, where: Where = None
) -> Feature:
    """How evenly values are spread, in bits. Example: ``hr.entropy("shop", window="1h")``"""
    return _feature("entropy", field=field, max_categories=max_categories, window=window, where=where)


def event_type_mix(
    field: str, *, categories: Sequence[str] | None = None, max_categories: int | None = None, where: Where = None
) -> Feature:
    """`{category: share of all values}``. Example: ``hr.event_type_mix("shop")``"""
    return _feature("event_type_mix", field=field, categories=categories, max_categories=max_categories, where=where)


def first(field: str, *, where: Where = None) -> Feature:
    """The first value. Example: ``hr.first("shop")``"""
    return _feature("first", field=field, where=where)


def last(field: str, *, where: Where = None) -> Feature:
    """The newest value. Example: ``hr.last("shop")``"""
    return _feature("last", field=field, where=where)


def first_n(field: str, n: int, *, where: Where = None) -> Feature:
    """The first values, the oldest first. Example: ``hr.first_n("shop", 3)``"""
    return _feature("first_n", field=field, n=n, where=where)


def last_n(field: str, n: int, *, where: Where = None) -> Feature:
    """The newest values, the oldest first. Example: ``hr.last_n("shop", 3)``"""
    return _feature("last_n", field=field, n=n, where=where)


def most_recent_n(field: str, n: int, *, where: Where = None) -> Feature:
    """The newest values, the newest first. Example: ``hr.most_recent_n("shop", 3)``"""
    return _feature("most_recent_n", field=field, n=n, where=where)


def lag(field: str, n: int | None = None, *, where: Where = None) -> Feature:
    """The value ``n`` events before the newest. Example: ``hr.lag("shop", 3)``"""
    return _feature("lag", field=field, n=n, where=where)


def delta_from_prev(field: str, *, where: Where = None) -> Feature:
    """The newest value minus the one before. Example: ``hr.delta_from_prev("amount")``"""
    return _feature("delta_from_prev", field=field, where=where)


def reservoir_sample(field: str, samples: int, *, where: Where = None) -> Feature:
    """So many values, evenly chosen among all, in the order of events.

    Example: ``hr.reservoir_sample("shop", 3)``
    """
    return _feature("reservoir_sample", field=field, samples=samples, where=where)


def first_seen(*, where: Where = None) -> Feature:
    """When the first event came, since 1970. Example: ``hr.first_seen()``"""
    return _feature("first_seen", where=where)


def age(*, where: Where = None) -> Feature:
    """How long ago the first event came. Example: ``hr.age()``"""
    return _feature("age", where=where)


def last_seen(*, where: Where = None) -> Feature:
    """When the newest event came, since 1970. Example: ``hr.last_seen()``"""
    return _feature("last_seen", where=where)


def time_since(where: Where = None) -> Feature:
    """How long ago the newest event came. Example: ``hr.time_since("amount > 10")``"""
    return _feature("time_since", where=where)


def has_seen(where: Where = None) -> Feature:
    """Whether there was an event. Example: ``hr.has_seen("amount > 10")``"""
    return _feature("has_seen", where=where)


def first_seen_in_window(window: Span, *, where: Where = None) -> Feature:
    """Whether there was an event within the window, to the millisecond.

    Example: ``hr.first_seen_in_window("1h")``
    """
    return _feature("first_seen_in_window", window=window, where=where)


def time_since_last_n(n: int, *, where: Where = None) -> Feature:
    """How long ago the ``n``-th newest event came. Example: ``hr.time_since_last_n(3)``"""
    return _feature("time_since_last_n", n=n, where=where)


def streak(where: Where) -> Feature:
    """Of the newest events, how many in a row match ``where``. Example: ``hr.streak("amount > 10")``"""
    return _feature("streak", where=where)


def negative_streak(where: Where) -> Feature:
    """Of the newest events, how many in a row do not match ``where``.

    Example: ``hr.negative_streak("amount > 10")``
    """
    return _feature("negative_streak", where=where)


def max_streak(where: Where) -> Feature:
    """The longest row of events that matched ``where``. Example: ``hr.max_streak("amount > 10")``"""
    return _feature("max_streak", where=where)


def ewma(field: str, half_life: Span, *, where: Where = None) -> Feature:
    """The mean, in which weights halve with each half-life between events; of events in the same millisecond each
    takes half of the weight.

    Example: ``hr.ewma("amount", "10m")``
    """
    return _feature("ewma", field=field, half_life=half_life, where=where)


def ewvar(field: str, half_life: Span, *, where: Where = None) -> Feature:
    """The variance with the weights of ``ewma``. Example: ``hr.ewvar("amount", "10m")``"""
    return _feature("ewvar", field=field, half_life=half_life, where=where)


def ew_zscore(field: str, half_life: Span, *, where: Where = None) -> Feature:
    """How many standard deviations, with the weights of ``ewma``, the newest value lies above that mean.

    Example: ``hr.ew_zscore("amount", "10m")``
    """
    return _feature("ew_zscore", field=field, half_life=half_life, where=where)


def decayed_sum(field: str, half_life: Span, *, where: Where = None) -> Feature:
    """The sum of values, each halving with every half-life until it is read.

    Example: ``hr.decayed_sum("amount", "10m")``
    """
    return _feature("decayed_sum", field=field, half_life=half_life, where=where)


def decayed_count(half_life: Span, *, where: Where = None) -> Feature:
    """The number of events, each halving with every half-life until it is read.

    Example: ``hr.decayed_count("10m")``
    """
    return _feature("decayed_count", half_life=half_life, where=where)


def twa(field: str, window: Span, *, where: Where = None) -> Feature:
    """The mean by how long each value held, the newest until now. Example: ``hr.twa("amount", "1h")``"""
    return _feature("twa", field=field, window=window, where=where)


def z_score(field: str, baseline_window: Span, *, where: Where = None) -> Feature:
    """How many standard deviations of the population the newest value lies above the mean of the window; null where
    all values are equal.

    Example: ``hr.z_score("amount", "24h")``
    """
    return _feature("z_score", field=field, baseline_window=baseline_window, where=where)


def seasonal_deviation(field: str, *, where: Where = None) -> Feature:
    """How many standard deviations the newest value lies above the mean of its hour of the day (UTC).

    Example: ``hr.seasonal_deviation("amount")``
    """
    return _feature("seasonal_deviation", field=field, where=where)


def burst_count(window: Span, sub_window: Span, *, where: Where = None) -> Feature:
    """How many sub-windows had events. Example: ``hr.burst_count("1h", "1m")``"""
    return _feature("burst_count", sub_window=sub_window, window=window, where=where)


def rate_of_change(field: str, window: Span, *, where: Where = None) -> Feature:
    """The newest value minus the first of the window, per second. Example: ``hr.rate_of_change("amount", "1h")``"""
    return _feature("rate_of_change", field=field, window=window, where=where)


def inter_arrival_stats(window: Span, *, where: Where = None) -> Feature:
    """The mean gap between events, in ms. Example: ``hr.inter_arrival_stats("1h")``"""
    return _feature("inter_arrival_stats", window=window, where=where)


def value_change_count(field: str, window: Span, *, where: Where = None) -> Feature:
    """How often a value was another than the one before. Example: ``hr.value_change_count("shop", "1h")``"""
    return _feature("value_change_count", field=field, window=window, where=where)


def trend(field: str, window: Span, *, where: Where = None) -> Feature:
    """The slope of the line that fits the values best, per second. Example: ``hr.trend("amount", "1h")``"""
    return _feature("trend", field=field, window=window, where=where)


def trend_residual(field: str, window: Span, *, where: Where = None) -> Feature:
    """How far values lie from the line that fits them best: the root of the mean square.

    Example: ``hr.trend_residual("amount", "1h")``
    """
    return _feature("trend_residual", field=field, window=window, where=where)


def outlier_count(field: str, window: Span, *, sigma: float | None = None, where: Where = None) -> Feature:
    """Values further than ``sigma`` deviations from the mean of the panes before their own.

    Example: ``hr.outlier_count("amount", "1h")``
    """
    return _feature("outlier_count", field=field, sigma=sigma, window=window, where=where)


def geo_velocity(lat: str, lon: str, *, where: Where = None) -> Feature:
    """The greatest speed from one event to the next, in km/h. Example: ``hr.geo_velocity("lat", "lon")``"""
    return _feature("geo_velocity", lat_field=lat, lon_field=lon, where=where)


def geo_distance(lat: str, lon: str, *, where: Where = None) -> Feature:
    """The length of the way from event to event, in km. Example: ``hr.geo_distance("lat", "lon")``"""
    return _feature("geo_distance", lat_field=lat, lon_field=lon, where=where)


def geo_spread(lat: str, lon: str, *, where: Where = None) -> Feature:
    """The root of the mean squared distance from the middle, in km. Example: ``hr.geo_spread("lat", "lon")``"""
    return _feature("geo_spread", lat_field=lat, lon_field=lon, where=where)


def distance_from_home(lat: str, lon: str, *, samples: int | None = None, where: Where = None) -> Feature:
    """How far the newest place is from the mean of the last so many, in km.

    Example: ``hr.distance_from_home("lat", "lon")``
    """
    return _feature("distance_from_home", lat_field=lat, lon_field=lon, samples=samples, where=where)
