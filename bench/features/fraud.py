"""A fraud team's pipeline of the size and mix of operators that the beava project measures itself with.

Five sources, nine tables, 111 features: windows from five minutes to thirty days, and nearly every operator.
"""

from __future__ import annotations

from typing import Any

Feature = tuple[str, dict[str, Any]]

SOURCES: dict[str, dict[str, str]] = {
    "Payment": {
        **dict.fromkeys(("user", "card", "device", "ip", "net", "shop", "currency", "trade"), "str"),
        **dict.fromkeys(("card_country", "ip_country", "bill_country", "funding", "person"), "str"),
        **dict.fromkeys(("amount", "lat", "lon"), "f64"),
        **dict.fromkeys(("declined", "secured"), "i64"),
    },
    "Login": {
        **dict.fromkeys(("user", "device", "ip", "agent"), "str"),
        **dict.fromkeys(("lat", "lon"), "f64"),
        "success": "i64",
    },
    "Signup": dict.fromkeys(("user", "email", "domain", "phone", "person", "ip", "net", "device", "birth"), "str"),
    "NewCard": {
        **dict.fromkeys(("user", "card", "bank", "card_country", "funding", "device", "ip"), "str"),
        "success": "i64",
    },
    "Refund": {**dict.fromkeys(("user", "card", "reason"), "str"), "amount": "f64", "disputed": "i64"},
}

#: The source and the key of each table.
KEYS = {
    "payments_by_user": ("Payment", "user"),
    "payments_by_card": ("Payment", "card"),
    "payments_by_device": ("Payment", "device"),
    "payments_by_ip": ("Payment", "ip"),
    "payments_by_shop": ("Payment", "shop"),
    "logins_by_user": ("Login", "user"),
    "signups_by_ip": ("Signup", "ip"),
    "cards_by_device": ("NewCard", "device"),
    "refunds_by_user": ("Refund", "user"),
}

_M5, _H1, _D1, _D7, _D30 = ({"window": window} for window in ("5m", "1h", "24h", "7d", "30d"))
_AMOUNT = {"field": "amount"}
_PLACE = {"lat_field": "lat", "lon_field": "lon"}
_DECLINED = {"where": "(declined == 1)"}
_APPROVED = {"where": "(declined == 0)"}
_SUCCEEDED = {"where": "(success == 1)"}
_DISPUTED = {"where": "(disputed == 1)"}


def _distinct(field: str, **window: str) -> Feature:
    return "n_unique", {"field": field, **window}


def _plain(*names: str) -> list[Feature]:
    return [(name, {}) for name in names]


#: The features of each table; the first of the first counts events.
TABLES: dict[str, list[Feature]] = {
    "payments_by_user": [
        ("count", {}),
        *(("count", window) for window in (_M5, _H1, _D1)),
        *(("sum", {**_AMOUNT, **window}) for window in ({}, _H1, _D1)),
        *((name, {**_AMOUNT, **_D1}) for name in ("mean", "min", "var", "std")),
        ("max", _AMOUNT),
        *(("quantile", {**_AMOUNT, "q": q, **_D1}) for q in (0.5, 0.95, 0.99)),
        *(_distinct(field, **_D1) for field in ("shop", "ip", "device")),
        _distinct("card_country", **_D7),
        ("top_k", {"field": "shop", "k": 5, **_D1}),
        ("entropy", {"field": "trade", **_D1}),
        ("bloom_member", {"field": "device"}),
        *((name, {**_AMOUNT, "half_life": "1h"}) for name in ("ewma", "ewvar", "ew_zscore")),
        ("decayed_sum", {**_AMOUNT, "half_life": "24h"}),
        ("decayed_count", {"half_life": "24h"}),
        *((name, {**_AMOUNT, **_M5}) for name in ("twa", "rate_of_change", "trend", "trend_residual", "outlier_count")),
        ("inter_arrival_stats", _H1),
        ("burst_count", {"sub_window": "10s", **_M5}),
        ("value_change_count", {"field": "device", **_M5}),
        ("z_score", {**_AMOUNT, "baseline_window": "24h"}),
        *((name, _AMOUNT) for name in ("delta_from_prev", "seasonal_deviation", "first", "last")),
        *((name, {**_AMOUNT, "n": 5}) for name in ("last_n", "most_recent_n")),
        ("first_n", {"field": "shop", "n": 5}),
        ("lag", {**_AMOUNT, "n": 1}),
        ("reservoir_sample", {**_AMOUNT, "samples": 50}),
        *_plain("first_seen", "last_seen", "age", "has_seen", "time_since", "streak", "max_streak"),
        ("negative_streak", _APPROVED),
        ("time_since_last_n", {"n": 5}),
        ("first_seen_in_window", _D1),
        *_plain("hour_of_day_histogram", "dow_hour_histogram"),
        ("event_type_mix", {"field": "trade"}),
        *((name, _PLACE) for name in ("geo_velocity", "geo_distance", "geo_spread", "distance_from_home")),
    ],
    "payments_by_card": [
        *(("count", window) for window in (_H1, _D1)),
        ("count", {**_DECLINED, **_H1}),
        ("burst_count", {"sub_window": "10s", **_M5}),
        ("negative_streak", _APPROVED),
        *_plain("first_seen", "age"),
        _distinct("shop", **_D1),
    ],
    "payments_by_device": [
        *(_distinct(field, **_D1) for field in ("user", "card")),
        *_plain("first_seen", "last_seen", "age"),
        ("count", _D1),
    ],
    "payments_by_ip": [
        *(("count", window) for window in (_H1, _D1)),
        _distinct("card", **_H1),
        _distinct("user", **_D1),
        *_plain("first_seen", "age"),
        ("sum", {**_AMOUNT, **_H1}),
        ("top_k", {"field": "user", "k": 3, **_D1}),
    ],
    "payments_by_shop": [
        ("count", _D1),
        _distinct("user", **_D1),
        ("quantile", {**_AMOUNT, "q": 0.99, **_D1}),
        *_plain("first_seen"),
    ],
    "logins_by_user": [
        *(("count", window) for window in (_H1, _D1)),
        _distinct("ip", **_H1),
        _distinct("agent", **_D1),
        ("negative_streak", _SUCCEEDED),
        *_plain("last_seen", "time_since"),
        ("geo_velocity", _PLACE),
    ],
    "signups_by_ip": [
        ("count", _D1),
        ("burst_count", {"sub_window": "5s", "window": "10m"}),
        _distinct("person", **_D30),
        _distinct("email", **_D1),
    ],
    "cards_by_device": [("count", _D1), _distinct("card"), ("negative_streak", _SUCCEEDED)],
    "refunds_by_user": [
        ("count", _D1),
        ("count", {}),
        ("count", _DISPUTED),
        ("sum", _AMOUNT),
        ("decayed_count", {"half_life": "30d", **_DISPUTED}),
        ("time_since", _DISPUTED),
        ("streak", _DISPUTED),
        ("first_seen_in_window", _D30),
    ],
}

_PAYMENT = (
    b'{"user":"u-%06d","card":"c-%06d","device":"d-%05d","ip":"10.0.%d.%d","net":"10.0.%d","shop":"s-%03d",'
    b'"currency":"NOK","trade":"t-%02d","card_country":"NO","ip_country":"%s","bill_country":"NO","funding":"credit",'
    b'"person":"p-%06d","amount":%d.25,"lat":60.%03d,"lon":6.%03d,"declined":%d,"secured":1}'
)
_COUNTRIES = (b"NO", b"SE", b"DK", b"FI")


def payment(number: int, user: int) -> bytes:
    """A payment with this number of this user, who has two cards, a few devices and a net."""
    net = user % 250
    return _PAYMENT % (
        *(user, 2 * user + number % 2, user % 20_000 + number % 3, net, number % 250, net, number * 31 % 997),
        *(number % 40, _COUNTRIES[number % 4], user, number % 500, number * 7 % 1000, number * 11 % 1000),
        int(number % 11 == 0),
    )
