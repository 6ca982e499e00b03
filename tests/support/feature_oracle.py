"""Rows of features by event time, computed by pandas from all events at once; it shares no code with the product.

Written from the documentation of event sources and of operators. An event source names the field of an event that is
its event time, and how late an event may be; operators are those of the orders ``any`` and ``time``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Context, Decimal
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

#: How many nanoseconds a unit has.
UNITS_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
EARTH_KM = 6371
DEGREE_KM = 111.32
DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
_MASK = 2**64 - 1
_EXACT = Context(prec=60, Emin=-(10**9), Emax=10**9)

Params = Mapping[str, Any]


class Source(NamedTuple):
    """What an event source says of time: the field, its unit (None: RFC 3339), and after how long an event is late.

    Without a field the time of an event is that of its append.
    """

    field: str | None
    unit: str | None = None
    late_after_us: int | None = None


def moment_us(value: Any, unit: str | None) -> int:
    """The event time in microseconds, nanoseconds rounded down."""
    return int(pd.Timestamp(value).value if unit is None else value * UNITS_NS[unit]) // 1000


def event_time_us(appended: tuple[int, Mapping[str, Any]], source: Source) -> int:
    """The event time of an event that was appended at a time."""
    append_us, event = appended
    return append_us if source.field is None else moment_us(event[source.field], source.unit)


def frame_of(events: Iterable[tuple[int, Mapping[str, Any] | None]], source: Source, key: str) -> pd.DataFrame:
    """All events with their append times in the order of the log, each with its times, key, and whether it is late.

    Events of a stream that do not fit the source are None, and do not count.
    """
    numbered = [(seq, append_us, event) for seq, (append_us, event) in enumerate(events) if event is not None]
    given = [(append_us, event) for _, append_us, event in numbered]
    frame = pd.DataFrame({"event": pd.Series([event for _, event in given], dtype=object)})
    frame["seq"] = pd.Series([seq for seq, _, _ in numbered], dtype="int64")
    frame["append_us"] = pd.Series([append_us for append_us, _ in given], dtype="int64")
    frame["event_us"] = pd.Series([event_time_us(each, source) for each in given], dtype="int64")
    frame["at_ms"] = frame.event_us // 1000
    frame["key"] = pd.Series([event[key] for _, event in given], dtype=object)
    late_after_us = math.inf if source.late_after_us is None else source.late_after_us
    frame["late"] = frame.append_us - frame.event_us > late_after_us
    return frame


def known(frame: pd.DataFrame, as_of_us: int | None = None, as_known_at_us: int | None = None) -> pd.DataFrame:
    """The events of which an answer can know, late ones too: until an event time, appended until an append time."""
    is_known = pd.Series(True, index=frame.index)
    if as_of_us is not None:
        is_known &= frame.event_us <= as_of_us
    if as_known_at_us is not None:
        is_known &= frame.append_us <= as_known_at_us
    return frame[is_known]


def row_of(
    frame: pd.DataFrame, key: Any, features: Mapping[str, tuple[str, Params]], types: Mapping[str, str], now_ms: int
) -> dict[str, Any]:
    """The row of a key from the events that are known: none where no event of it counts."""
    own = frame[(frame.key == key) & ~frame.late].sort_values(["at_ms", "seq"])
    return {name: answer(op, params, types, own, now_ms) for name, (op, params) in features.items()} if len(own) else {}


def late_count(frame: pd.DataFrame, key: Any) -> int:
    """How many late events of a key are known."""
    return int((frame.late & (frame.key == key)).sum())


#: Conditions that tests use, as functions of an event.
WHERES: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "(b == true)": lambda event: event.get("b") is True,
    "((x > 0) or (i > 0))": lambda event: (event.get("x") or 0) > 0 or (event.get("i") or 0) > 0,
}


def answer(op: str, params: Params, types: Mapping[str, str], events: pd.DataFrame, now_ms: int) -> Any:
    """What an operator says of events that are in the order of time."""
    window_ms = params.get("baseline_window") or params.get("window")
    if window_ms is not None and op != "first_seen_in_window":
        width_ms = math.ceil(window_ms / 64)
        events = events[now_ms - events.at_ms // width_ms * width_ms < window_ms]
    matched = events.event.map(WHERES[params["where"]]) if "where" in params else pd.Series(True, events.index)
    if op != "ratio":
        events = events[matched.astype(bool)]
    fields = [params[name] for name in ("field", "lat_field", "lon_field") if name in params]
    columns = {field: events.event.map(lambda event, field=field: event.get(field)) for field in fields}
    is_whole = pd.Series(True, events.index)
    for column in columns.values():
        is_whole &= column.notna()
    counted = Counted(
        params,
        now_ms,
        types.get(params.get("field", ""), ""),
        events[is_whole],
        {field: column[is_whole] for field, column in columns.items()},
        matched.reindex(events.index)[is_whole],
    )
    return MEANINGS[op](counted)


class Counted(NamedTuple):
    """The events that count for an operator, and their values."""

    params: Params
    now_ms: int
    kind: str
    events: pd.DataFrame
    columns: dict[str, pd.Series]
    matched: pd.Series

    def __len__(self) -> int:
        return len(self.events)

    def __bool__(self) -> bool:
        return len(self.events) > 0

    @property
    def at_ms(self) -> pd.Series:
        return self.events.at_ms

    @property
    def times(self) -> pd.DatetimeIndex:
        return pd.DatetimeIndex(pd.to_datetime(self.at_ms, unit="ms", utc=True))

    @property
    def raw(self) -> pd.Series:
        return self.columns[self.params["field"]]

    @property
    def values(self) -> list[Any]:
        """Values as answers write them."""
        return [self.typed(value) for value in self.raw]

    @property
    def numbers(self) -> pd.Series:
        return self.raw.astype("float64")

    @property
    def forms(self) -> list[Any]:
        """Forms in which equal values are equal."""
        if self.kind == "datetime":
            return [utc(value) for value in self.raw]
        return [value + 0.0 if isinstance(value, float) else value for value in self.raw]

    @property
    def ranked(self) -> list[tuple[Any, int]]:
        """Values and how often they are there, the most frequent first, the least of equally frequent ones first."""
        counts = pd.Series(1, index=pd.Index(self.forms, dtype=object)).groupby(level=0, sort=False).sum()
        return sorted(counts.items(), key=lambda found: (-found[1], found[0]))  # type: ignore[operator]

    def typed(self, value: Any) -> Any:
        return float(value) if self.kind == "f64" else int(value) if self.kind == "i64" else value

    def last(self, count: int) -> list[Any]:
        return self.values[-count:]


def utc(text: str) -> str:
    """A moment in UTC; a leap second, which has no number, as it is."""
    try:
        return pd.Timestamp(text).tz_convert("UTC").isoformat().replace("+00:00", "Z")
    except ValueError:
        return text


def finite(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def ratio(c: Counted) -> Any:
    return float(c.matched.mean()) if c else None


def total(c: Counted) -> Any:
    return float(sum(c.raw)) if c else None


def statistic(name: str) -> Callable[[Counted], Any]:
    """A statistic of pandas over the numbers, null where there are none."""
    return lambda c: float(getattr(c.numbers, name)(**({"ddof": 0} if name in ("var", "std") else {}))) if c else None


def extreme(name: str) -> Callable[[Counted], Any]:
    return lambda c: c.typed(getattr(c.raw, name)()) if c else None


def quantile(c: Counted) -> Any:
    return float(c.numbers.quantile(c.params["q"], interpolation="linear")) if c else None


def bloom_member(c: Counted) -> bool:
    return bool(c) and bool(pd.Series(c.forms, dtype=object).duplicated(keep="first").iloc[-1])


def histogram(c: Counted) -> dict[str, int]:
    edges = c.params["buckets"]
    texts = [f"{edge:g}" for edge in edges]
    names = [f"<{texts[0]}", *(f"{low}-{high}" for low, high in pairwise(texts)), f">={texts[-1]}"]
    cut = pd.cut(c.numbers, [-math.inf, *edges, math.inf], right=False, labels=names)
    return {name: int((cut == name).sum()) for name in names}


def hour_of_day_histogram(c: Counted) -> list[int]:
    return [int((c.times.hour == hour).sum()) for hour in range(24)]


def dow_hour_histogram(c: Counted) -> dict[str, int]:
    counts = pd.Series(1, index=c.times.dayofweek * 24 + c.times.hour).groupby(level=0).sum()
    return {f"{day}-{hour:02}": int(counts.get(at * 24 + hour, 0)) for at, day in enumerate(DAYS) for hour in range(24)}


def top_k(c: Counted) -> list[dict[str, Any]]:
    return [{"value": c.typed(value), "count": int(count)} for value, count in c.ranked[: c.params["k"]]]


def mode(c: Counted) -> Any:
    return c.typed(c.ranked[0][0]) if c else None


def entropy(c: Counted) -> Any:
    counts = pd.Series([count for _, count in c.ranked[: c.params.get("max_categories", 256)]], dtype="float64")
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum()) if c else None


def event_type_mix(c: Counted) -> dict[str, float]:
    def text(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    counts = sorted(((text(c.typed(value)), count) for value, count in c.ranked), key=lambda each: (-each[1], each[0]))
    categories = c.params.get("categories")
    if categories is not None:
        counts = [(name, dict(counts).get(name, 0)) for name in map(text, categories)]
    kept = counts[: None if categories is not None else c.params.get("max_categories", 256)]
    return {name: float(count / len(c)) for name, count in kept if count}


def lag(c: Counted) -> Any:
    n = c.params.get("n", 1)
    return c.values[-1 - n] if len(c) > n else None


def delta_from_prev(c: Counted) -> Any:
    return float(c.raw.iloc[-1] - c.raw.iloc[-2]) if len(c) > 1 else None


def scattered(seq: int) -> int:
    """SplitMix64 of a sequence number, by which a sample is drawn."""
    state = (seq + 0x9E3779B97F4A7C15) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ state >> shift) * factor & _MASK
    return state ^ state >> 31


def reservoir_sample(c: Counted) -> list[Any]:
    chosen = sorted(c.events.seq, key=scattered)[: c.params["samples"]]
    return [value for value, is_in in zip(c.values, c.events.seq.isin(chosen), strict=True) if is_in]


def since(c: Counted, place: int) -> Any:
    """How long ago an event was; one that is ahead of now was no time ago."""
    return max(0, c.now_ms - int(c.at_ms.iloc[place])) if len(c) >= abs(place) else None


def seen(c: Counted, place: int) -> Any:
    return int(c.at_ms.iloc[place]) if c else None


def first_seen_in_window(c: Counted) -> bool:
    return bool((c.now_ms - c.at_ms < c.params["window"]).any())


def decayed(c: Counted, values: Iterable[Any]) -> float | None:
    """The sum of values that fade until now; where the newest event is ahead of now, until that event."""
    total, until_ms = Decimal(0), max([c.now_ms, *c.at_ms])
    for value, at_ms in zip(values, c.at_ms, strict=True):
        exponent = _EXACT.divide(Decimal(int(at_ms) - until_ms), Decimal(c.params["half_life"]))
        total = _EXACT.add(total, _EXACT.multiply(Decimal(value), _EXACT.power(Decimal(2), exponent)))
    return finite(total)


def score(value: float, numbers: pd.Series) -> Any:
    spread = float(numbers.std(ddof=0))
    return (value - float(numbers.mean())) / spread if numbers.nunique() > 1 else None


def z_score(c: Counted) -> Any:
    return score(c.numbers.iloc[-1], c.numbers) if c else None


def seasonal_deviation(c: Counted) -> Any:
    return score(c.numbers.iloc[-1], c.numbers[c.times.hour == c.times.hour[-1]]) if c else None


def burst_count(c: Counted) -> int:
    return int((c.at_ms // c.params["sub_window"]).nunique())


def rate_of_change(c: Counted) -> Any:
    if c.at_ms.nunique() < 2:
        return None
    return float(c.raw.iloc[-1] - c.raw.iloc[0]) / (int(c.at_ms.iloc[-1] - c.at_ms.iloc[0]) / 1000)


def inter_arrival_stats(c: Counted) -> Any:
    return float(c.at_ms.diff().mean()) if len(c) > 1 else None


def line(c: Counted) -> tuple[float, pd.Series] | None:
    """The slope of the line of least squares, and what it leaves of each value."""
    if c.at_ms.nunique() < 2:
        return None
    seconds, numbers = (c.at_ms - c.at_ms.iloc[0]) / 1000, c.numbers
    seconds, numbers = seconds - seconds.mean(), numbers - numbers.mean()
    slope = float((seconds * numbers).sum() / (seconds**2).sum())
    return slope, numbers - slope * seconds


def trend(c: Counted) -> Any:
    fitted = line(c)
    return fitted and fitted[0]


def trend_residual(c: Counted) -> Any:
    fitted = line(c)
    return fitted and math.sqrt((fitted[1] ** 2).mean())


def outlier_count(c: Counted) -> int:
    panes = c.at_ms // math.ceil(c.params["window"] / 64)
    outliers = 0
    for pane, numbers in c.numbers.groupby(panes):
        before = c.numbers[panes < pane]
        if len(before) >= 5 and before.nunique() > 1:
            away = (numbers - before.mean()).abs()
            outliers += int((away > c.params.get("sigma", 3.0) * before.std(ddof=0)).sum())
    return outliers


def places(c: Counted) -> tuple[pd.Series, pd.Series]:
    return tuple(c.columns[c.params[name]].astype("float64") for name in ("lat_field", "lon_field"))  # type: ignore[return-value]


def geo_spread(c: Counted) -> Any:
    if len(c) < 2:
        return None
    lats, lons = places(c)
    narrow = math.cos(math.radians(lats.mean()))
    return DEGREE_KM * math.sqrt(lats.var(ddof=0) + lons.var(ddof=0) * narrow**2)


def distance_km(lat: float, lon: float, other_lat: float, other_lon: float) -> float:
    """The great circle between two places, by haversines."""
    phi, other_phi = math.radians(lat), math.radians(other_lat)
    across = math.sin(math.radians(other_lon - lon) / 2) ** 2
    chord = math.sin((other_phi - phi) / 2) ** 2 + math.cos(phi) * math.cos(other_phi) * across
    return 2 * EARTH_KM * math.asin(math.sqrt(min(1.0, chord)))


def distance_from_home(c: Counted) -> Any:
    lats, lons = (column.iloc[-c.params.get("samples", 100) :] for column in places(c))
    return distance_km(lats.iloc[-1], lons.iloc[-1], lats.mean(), lons.mean()) if c else None


MEANINGS: dict[str, Callable[[Counted], Any]] = {
    "count": len,
    "sum": total,
    "mean": lambda c: total(c) / len(c) if c else None,
    "sum_squares": lambda c: float((c.numbers**2).sum()) if c else None,
    "min": extreme("min"),
    "max": extreme("max"),
    "var": statistic("var"),
    "std": statistic("std"),
    "ratio": ratio,
    "n_unique": lambda c: len(c.ranked),
    "bloom_member": bloom_member,
    "quantile": quantile,
    "histogram": histogram,
    "hour_of_day_histogram": hour_of_day_histogram,
    "dow_hour_histogram": dow_hour_histogram,
    "top_k": top_k,
    "mode": mode,
    "entropy": entropy,
    "event_type_mix": event_type_mix,
    "first": lambda c: c.values[0] if c else None,
    "last": lambda c: c.values[-1] if c else None,
    "first_n": lambda c: c.values[: c.params["n"]],
    "last_n": lambda c: c.last(c.params["n"]),
    "most_recent_n": lambda c: c.last(c.params["n"])[::-1],
    "lag": lag,
    "delta_from_prev": delta_from_prev,
    "reservoir_sample": reservoir_sample,
    "first_seen": lambda c: seen(c, 0),
    "age": lambda c: since(c, 0) if c else None,
    "last_seen": lambda c: seen(c, -1),
    "time_since": lambda c: since(c, -1),
    "has_seen": bool,
    "first_seen_in_window": first_seen_in_window,
    "time_since_last_n": lambda c: since(c, -c.params["n"]),
    "decayed_sum": lambda c: decayed(c, c.raw) if c else None,
    "decayed_count": lambda c: decayed(c, [1] * len(c)),
    "z_score": z_score,
    "seasonal_deviation": seasonal_deviation,
    "burst_count": burst_count,
    "rate_of_change": rate_of_change,
    "inter_arrival_stats": inter_arrival_stats,
    "trend": trend,
    "trend_residual": trend_residual,
    "outlier_count": outlier_count,
    "geo_spread": geo_spread,
    "distance_from_home": distance_from_home,
}
