"""What every operator means, computed in one pass over the list of all events with exact numbers.

Written from the documentation of the operators; it shares no code with them.
"""

from __future__ import annotations

import decimal
import math
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

from operators.events import TYPES, Event

decimal.getcontext().prec = 60
_MASK = 2**64 - 1

Found = list[Event]
Params = dict[str, Any]


def answer(op: str, params: Params, events: Found, now_ms: int) -> Any:
    """The answer at a moment; floats and Fractions are exact or nearly so."""
    window = params.get("baseline_window") or params.get("window")
    if window is not None and op != "first_seen_in_window":
        width = math.ceil(Fraction(window, 64))
        events = [event for event in events if now_ms - event.at_ms // width * width < window]
    if op not in ("ratio", "streak", "max_streak", "negative_streak"):
        events = [event for event in events if event.matched]
    if "field" in params:
        events = [event for event in events if event.row.get(params["field"]) is not None]
    if "lat_field" in params:
        events = [
            e
            for e in events
            if e.row.get(params["lat_field"]) is not None and e.row.get(params["lon_field"]) is not None
        ]
    return MEANINGS[op](events, params, now_ms)


def values(events: Found, params: Params) -> list[Any]:
    return [event.row[params["field"]] for event in events]


def fractions(events: Found, params: Params) -> list[Fraction]:
    return [Fraction(value) for value in values(events, params)]


def same(value: Any, params: Params) -> Any:
    """A form in which equal values are equal."""
    if TYPES[params["field"]] == "datetime":
        try:
            moment = datetime.fromisoformat(value).astimezone(UTC)
        except ValueError:
            return value
        return moment.isoformat().replace("+00:00", "Z")
    return value + 0.0 if isinstance(value, float) else value


def typed(value: Any, params: Params) -> Any:
    return float(value) if TYPES[params["field"]] == "f64" else value


def total(events: Found, params: Params, now: int) -> Any:
    return sum(fractions(events, params)) if events else None


def sum_squares(events: Found, params: Params, now: int) -> Any:
    return sum(number**2 for number in fractions(events, params)) if events else None


def mode(events: Found, params: Params, now: int) -> Any:
    counts = Counter(same(value, params) for value in values(events, params))
    best = min(counts, key=lambda value: (-counts[value], value), default=None)
    return None if best is None else typed(best, params)


def average(numbers: list[Fraction]) -> Fraction:
    return sum(numbers, Fraction(0)) / len(numbers)


def squares(numbers: list[Fraction]) -> Fraction:
    middle = average(numbers)
    return sum(((number - middle) ** 2 for number in numbers), Fraction(0))


def root(number: Fraction) -> Fraction:
    return Fraction((Decimal(number.numerator) / Decimal(number.denominator)).sqrt())


def mean(events: Found, params: Params, now: int) -> Any:
    return average(fractions(events, params)) if events else None


def var(events: Found, params: Params, now: int) -> Any:
    return squares(fractions(events, params)) / len(events) if events else None


def std(events: Found, params: Params, now: int) -> Any:
    return root(squares(fractions(events, params)) / len(events)) if events else None


def ratio(events: Found, params: Params, now: int) -> Any:
    return Fraction(sum(event.matched for event in events), len(events)) if events else None


def n_unique(events: Found, params: Params, now: int) -> int:
    return len({same(value, params) for value in values(events, params)})


def quantile(events: Found, params: Params, now: int) -> Any:
    if not events:
        return None
    ordered = sorted(fractions(events, params))
    place = Fraction(params["q"]) * (len(ordered) - 1)
    below = ordered[math.floor(place)]
    return below + (ordered[math.ceil(place)] - below) * (place - math.floor(place))


def counted(events: Found, params: Params) -> list[tuple[Any, int]]:
    counts = Counter(same(value, params) for value in values(events, params))
    return sorted(counts.items(), key=lambda found: (-found[1], found[0]))


def top_k(events: Found, params: Params, now: int) -> Any:
    return [{"value": typed(v, params), "count": n} for v, n in counted(events, params)[: params["k"]]]


def entropy(events: Found, params: Params, now: int) -> Any:
    counts = [count for _, count in counted(events, params)[: params["max_categories"]]]
    shares = [count / sum(counts) for count in counts]
    return -sum(share * math.log2(share) for share in shares) if shares else None


def bloom_member(events: Found, params: Params, now: int) -> bool:
    found = [same(value, params) for value in values(events, params)]
    return bool(found) and found[-1] in found[:-1]


def histogram(events: Found, params: Params, now: int) -> Any:
    edges = params["buckets"]
    texts = [str(edge).removesuffix(".0") for edge in edges]
    names = [f"<{texts[0]}", *(f"{texts[at]}-{texts[at + 1]}" for at in range(len(edges) - 1)), f">={texts[-1]}"]
    counts = dict.fromkeys(names, 0)
    for value in values(events, params):
        counts[names[sum(value >= edge for edge in edges)]] += 1
    return counts


def moment(event: Event) -> datetime:
    return datetime.fromtimestamp(event.at_ms // 1000, UTC)


def hour_of_day_histogram(events: Found, params: Params, now: int) -> Any:
    hours = Counter(moment(event).hour for event in events)
    return [hours[hour] for hour in range(24)]


def dow_hour_histogram(events: Found, params: Params, now: int) -> Any:
    cells = Counter(moment(event).strftime("%a-%H") for event in events)
    days = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
    return {f"{day}-{hour:02}": cells[f"{day}-{hour:02}"] for day in days for hour in range(24)}


def event_type_mix(events: Found, params: Params, now: int) -> Any:
    def text(value: Any) -> str:
        known = typed(same(value, params), params)
        return str(known).lower() if isinstance(known, bool) else str(known)

    counts = Counter(text(value) for value in values(events, params))
    allowed = params.get("categories")
    if allowed is not None:
        return {name: Fraction(counts[name], len(events)) for name in map(text, allowed) if counts[name]}
    kept = sorted(counts.items(), key=lambda found: (-found[1], found[0]))[: params["max_categories"]]
    return {name: Fraction(count, len(events)) for name, count in kept}


def kept(events: Found, params: Params) -> list[Any]:
    return [typed(value, params) for value in values(events, params)]


def lag(events: Found, params: Params, now: int) -> Any:
    found = kept(events, params)
    return found[-1 - params["n"]] if len(found) > params["n"] else None


def delta_from_prev(events: Found, params: Params, now: int) -> Any:
    found = fractions(events, params)
    return found[-1] - found[-2] if len(found) > 1 else None


def reservoir_sample(events: Found, params: Params, now: int) -> Any:
    least = sorted(mixed(event.seq) for event in events)[: params["samples"]]
    return kept([event for event in events if mixed(event.seq) in least], params)


def mixed(seq: int) -> int:
    """SplitMix64 of a sequence number."""
    state = (seq + 0x9E3779B97F4A7C15) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ state >> shift) * factor & _MASK
    return state ^ state >> 31


def time_since_last_n(events: Found, params: Params, now: int) -> Any:
    return now - events[-params["n"]].at_ms if len(events) >= params["n"] else None


def runs(events: Found, wanted: bool) -> list[int]:
    """The lengths of the runs, the last one being that at the end."""
    found = [0]
    for event in events:
        if event.matched is wanted:
            found[-1] += 1
        else:
            found.append(0)
    return found


def weighted(events: Found, params: Params) -> tuple[Decimal, Decimal, Decimal] | None:
    """Mean and variance by the recurrences of an exponentially weighted average, and how far the mean stays behind."""
    middle = spread = None
    behind = Decimal(0)
    last = 0
    for event in events:
        value = Decimal(event.row[params["field"]])
        if middle is None or spread is None:
            middle, spread = value, Decimal(0)
        else:
            gap = event.at_ms - last
            left = Decimal(2) ** (-Decimal(gap) / params["half_life"]) if gap else Decimal("0.5")
            away = value - middle
            spread = left * (spread + (1 - left) * away * away)
            behind = left * away
            middle = value - behind
        last = event.at_ms
    return None if middle is None or spread is None else (middle, spread, behind)


def ewma(events: Found, params: Params, now: int) -> Any:
    found = weighted(events, params)
    return found and Fraction(found[0])


def ewvar(events: Found, params: Params, now: int) -> Any:
    found = weighted(events, params)
    return found and Fraction(found[1])


def ew_zscore(events: Found, params: Params, now: int) -> Any:
    found = weighted(events, params)
    if found is None or found[1] == 0:
        return None
    return Fraction(found[2] / found[1].sqrt())


def decayed(events: Found, params: Params, now: int, each: Callable[[Event], Decimal]) -> Fraction:
    half_life = params["half_life"]
    return Fraction(sum((each(e) * Decimal(2) ** (-Decimal(now - e.at_ms) / half_life) for e in events), Decimal(0)))


def decayed_sum(events: Found, params: Params, now: int) -> Any:
    return decayed(events, params, now, lambda event: Decimal(event.row[params["field"]])) if events else None


def decayed_count(events: Found, params: Params, now: int) -> Any:
    return decayed(events, params, now, lambda event: Decimal(1))


def twa(events: Found, params: Params, now: int) -> Any:
    if not events:
        return None
    found = fractions(events, params)
    ends = [event.at_ms for event in events[1:]] + [now]
    held = [end - event.at_ms for event, end in zip(events, ends, strict=True)]
    return sum(v * ms for v, ms in zip(found, held, strict=True)) / sum(held) if sum(held) else found[-1]


def rate_of_change(events: Found, params: Params, now: int) -> Any:
    if not events or events[-1].at_ms == events[0].at_ms:
        return None
    found = fractions(events, params)
    return (found[-1] - found[0]) / Fraction(events[-1].at_ms - events[0].at_ms, 1000)


def inter_arrival_stats(events: Found, params: Params, now: int) -> Any:
    if len(events) < 2:
        return None
    return average([Fraction(b.at_ms - a.at_ms) for a, b in pairwise(events)])


def burst_count(events: Found, params: Params, now: int) -> int:
    return len({math.floor(Fraction(event.at_ms, params["sub_window"])) for event in events})


def line(events: Found, params: Params) -> tuple[Fraction, Fraction] | None:
    """Slope per second and mean squared residual of the least-squares line."""
    if len({event.at_ms for event in events}) < 2:
        return None
    times = [Fraction(event.at_ms, 1000) for event in events]
    found = fractions(events, params)
    middle_t, middle_v = average(times), average(found)
    both = sum((t - middle_t) * (v - middle_v) for t, v in zip(times, found, strict=True))
    slope = both / squares(times)
    errors = [v - middle_v - slope * (t - middle_t) for t, v in zip(times, found, strict=True)]
    return slope, average([error**2 for error in errors])


def trend(events: Found, params: Params, now: int) -> Any:
    found = line(events, params)
    return found and found[0]


def trend_residual(events: Found, params: Params, now: int) -> Any:
    found = line(events, params)
    return found and root(found[1])


def outlier_count(events: Found, params: Params, now: int) -> int:
    sigma = Fraction(params["sigma"])
    found = fractions(events, params)
    many = 0
    for at, event in enumerate(events):
        if "window" in params:
            width = math.ceil(Fraction(params["window"], 64))
            others = [v for v, e in zip(found, events, strict=True) if e.at_ms // width < event.at_ms // width]
        else:
            others = found[:at] + found[at + 1 :]
        if len(others) >= 5:
            spread = squares(others) / len(others)
            many += spread > 0 and (found[at] - average(others)) ** 2 > sigma**2 * spread
    return many


def value_change_count(events: Found, params: Params, now: int) -> int:
    found = [same(value, params) for value in values(events, params)]
    return sum(one != other for one, other in pairwise(found))


def score(value: Fraction, numbers: list[Fraction]) -> Any:
    if len(numbers) < 2 or squares(numbers) == 0:
        return None
    return (value - average(numbers)) / root(squares(numbers) / len(numbers))


def z_score(events: Found, params: Params, now: int) -> Any:
    found = fractions(events, params)
    return score(found[-1], found) if found else None


def seasonal_deviation(events: Found, params: Params, now: int) -> Any:
    if not events:
        return None
    hour = moment(events[-1]).hour
    found = fractions([event for event in events if moment(event).hour == hour], params)
    return score(found[-1], found)


def places(events: Found, params: Params) -> list[tuple[float, float]]:
    return [(event.row[params["lat_field"]], event.row[params["lon_field"]]) for event in events]


def way(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Kilometres between two places, by the angle between their vectors (half of it, by the chord)."""

    def vector(lat: float, lon: float) -> tuple[float, float, float]:
        up, along = math.radians(lat), math.radians(lon)
        return math.cos(up) * math.cos(along), math.cos(up) * math.sin(along), math.sin(up)

    chord = math.dist(vector(*one), vector(*other))
    return 2 * 6371 * math.asin(min(1.0, chord / 2))


def geo_velocity(events: Found, params: Params, now: int) -> Any:
    found = places(events, params)
    speeds = [
        way(found[at - 1], found[at]) / (events[at].at_ms - events[at - 1].at_ms) * 3_600_000
        for at in range(1, len(events))
        if events[at].at_ms > events[at - 1].at_ms
    ]
    return max(speeds, default=None)


def geo_distance(events: Found, params: Params, now: int) -> float:
    found = places(events, params)
    return math.fsum(way(one, other) for one, other in pairwise(found))


def geo_spread(events: Found, params: Params, now: int) -> Any:
    if len(events) < 2:
        return None
    lats, lons = ([Fraction(place[at]) for place in places(events, params)] for at in (0, 1))
    narrow = math.cos(math.radians(average(lats)))
    return 111.32 * math.sqrt((squares(lats) + squares(lons) * Fraction(narrow) ** 2) / len(events))


def distance_from_home(events: Found, params: Params, now: int) -> Any:
    found = places(events, params)[-params["samples"] :]
    if not found:
        return None
    return way(found[-1], (sum(p[0] for p in found) / len(found), sum(p[1] for p in found) / len(found)))


MEANINGS: dict[str, Callable[[Found, Params, int], Any]] = {
    "sum_squares": sum_squares,
    "mode": mode,
    "count": lambda events, params, now: len(events),
    "sum": total,
    "mean": mean,
    "min": lambda events, params, now: min(kept(events, params), default=None),
    "max": lambda events, params, now: max(kept(events, params), default=None),
    "var": var,
    "std": std,
    "ratio": ratio,
    "n_unique": n_unique,
    "first": lambda events, params, now: next(iter(kept(events, params)), None),
    "last": lambda events, params, now: next(reversed(kept(events, params)), None),
    "quantile": quantile,
    "top_k": top_k,
    "bloom_member": bloom_member,
    "entropy": entropy,
    "histogram": histogram,
    "hour_of_day_histogram": hour_of_day_histogram,
    "dow_hour_histogram": dow_hour_histogram,
    "event_type_mix": event_type_mix,
    "most_recent_n": lambda events, params, now: kept(events, params)[::-1][: params["n"]],
    "reservoir_sample": reservoir_sample,
    "first_seen": lambda events, params, now: events[0].at_ms if events else None,
    "last_seen": lambda events, params, now: events[-1].at_ms if events else None,
    "age": lambda events, params, now: now - events[0].at_ms if events else None,
    "has_seen": lambda events, params, now: bool(events),
    "time_since": lambda events, params, now: now - events[-1].at_ms if events else None,
    "time_since_last_n": time_since_last_n,
    "streak": lambda events, params, now: runs(events, True)[-1],
    "max_streak": lambda events, params, now: max(runs(events, True)),
    "negative_streak": lambda events, params, now: runs(events, False)[-1],
    "first_seen_in_window": lambda events, params, now: any(now - e.at_ms < params["window"] for e in events),
    "ewma": ewma,
    "ewvar": ewvar,
    "ew_zscore": ew_zscore,
    "decayed_sum": decayed_sum,
    "decayed_count": decayed_count,
    "twa": twa,
    "rate_of_change": rate_of_change,
    "inter_arrival_stats": inter_arrival_stats,
    "burst_count": burst_count,
    "delta_from_prev": delta_from_prev,
    "trend": trend,
    "trend_residual": trend_residual,
    "outlier_count": outlier_count,
    "value_change_count": value_change_count,
    "z_score": z_score,
    "seasonal_deviation": seasonal_deviation,
    "first_n": lambda events, params, now: kept(events, params)[: params["n"]],
    "last_n": lambda events, params, now: kept(events, params)[-params["n"] :],
    "lag": lag,
    "geo_velocity": geo_velocity,
    "geo_distance": geo_distance,
    "geo_spread": geo_spread,
    "distance_from_home": distance_from_home,
}
