"""The pipelines that every server is given, in one shape that all of them take, and the events for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from bench.features import fraud

_SCATTER = 48_271


class Table(NamedTuple):
    """Features by name: operator and parameters; the rows are those of one key field of one event."""

    name: str
    event: str
    key: str
    features: dict[str, tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Pipeline:
    """Sources and tables; events of one source are pushed, rows of one table are read, and a feature counts events."""

    name: str
    title: str
    sources: dict[str, dict[str, str]]
    tables: tuple[Table, ...]
    #: The event with this number, of this user.
    make: Callable[[int, int], bytes]
    counter: str
    #: Members of every source besides its schema.
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def event(self) -> str:
        """The source that events are pushed to."""
        return self.tables[0].event

    @property
    def table(self) -> str:
        """The table that is read."""
        return self.tables[0].name

    @property
    def features(self) -> int:
        """How many features there are."""
        return sum(len(table.features) for table in self.tables)

    def nodes(self) -> list[dict[str, Any]]:
        """The payload of a registration: the sources, then the tables."""
        return [*self.source_nodes(), *map(_table_node, self.tables)]

    def source_nodes(self) -> list[dict[str, Any]]:
        """The sources alone."""
        return [
            {"kind": "event", "name": name, "schema": {"fields": fields, "optional_fields": []}, **self.settings}
            for name, fields in self.sources.items()
        ]


def user_name(user: int) -> str:
    """The key of a user."""
    return f"u-{user:06d}"


def user_of(number: int, users: int) -> int:
    """The user of an event: each has its turn, in a scattered order."""
    return number * _SCATTER % users


def _table_node(table: Table) -> dict[str, Any]:
    agg = {name: {"op": op, "params": params} for name, (op, params) in table.features.items()}
    return {
        "kind": "derivation",
        "name": table.name,
        "upstreams": [table.event],
        "output_kind": "table",
        "table_primary_key": [table.key],
        "ops": [{"op": "group_by", "keys": [table.key], "agg": agg}],
    }


_PAYMENT = {"user": "str", "amount": "f64", "fee": "f64", "score": "f64", "ok": "bool"}
_PAYMENT_BYTES = b'{"user":"u-%06d","amount":%d.25,"fee":%d.5,"score":0.%03d,"ok":%s}'


def _payment(number: int, user: int) -> bytes:
    ok = b"true" if number % 7 else b"false"
    return _PAYMENT_BYTES % (user, number % 500, number % 9, number * 37 % 1000, ok)


def _payments(name: str, title: str, features: dict[str, tuple[str, dict[str, Any]]]) -> Pipeline:
    table = Table("ByUser", "Payment", "user", features)
    return Pipeline(name, title, {"Payment": _PAYMENT}, (table,), _payment, "n")


_HOUR, _DAY = {"window": "1h"}, {"window": "24h"}

TWO = _payments("two", "2 features", {"n": ("count", _HOUR), "total": ("sum", {"field": "amount", **_HOUR})})
_BEGAN = datetime.now(UTC)


def _dated_payment(number: int, user: int) -> bytes:
    """A payment of the last minute; a later number may have an earlier time."""
    at = (_BEGAN - timedelta(milliseconds=number * _SCATTER % 60_000)).isoformat(timespec="milliseconds")
    return _payment(number, user)[:-1] + b',"at":"%s"}' % at.encode()


#: The same events, which have a time: it counts for nothing, or features go by it.
DATED = replace(TWO, name="dated", sources={"Payment": {**_PAYMENT, "at": "datetime"}}, make=_dated_payment)
TIMED = replace(DATED, name="timed", settings={"timestamp_field": "at"})

FIFTEEN = _payments(
    "fifteen",
    "15 features",
    {
        "n": ("count", {}),
        "n_hour": ("count", _HOUR),
        "n_day": ("count", _DAY),
        "failed_hour": ("count", {"where": "(ok == false)", **_HOUR}),
        "total": ("sum", {"field": "amount"}),
        "total_hour": ("sum", {"field": "amount", **_HOUR}),
        "mean": ("mean", {"field": "amount"}),
        "mean_day": ("mean", {"field": "amount", **_DAY}),
        "least": ("min", {"field": "amount"}),
        "most": ("max", {"field": "amount"}),
        "most_hour": ("max", {"field": "amount", **_HOUR}),
        "spread": ("std", {"field": "amount"}),
        "fees": ("sum", {"field": "fee"}),
        "score": ("last", {"field": "score"}),
        "at": ("last_seen", {}),
    },
)

FRAUD = Pipeline(
    "fraud",
    f"{sum(map(len, fraud.TABLES.values()))} features",
    fraud.SOURCES,
    tuple(
        Table(name, *fraud.KEYS[name], {f"{name}_{n}": feature for n, feature in enumerate(features)})
        for name, features in fraud.TABLES.items()
    ),
    fraud.payment,
    counter="payments_by_user_0",
)

#: Of a source and a table that are nobody else's: what starts with the first work has started with these.
FIRST = replace(
    TWO, name="first", sources={"First": _PAYMENT}, tables=(TWO.tables[0]._replace(name="ByFirst", event="First"),)
)

MEASURED = (TWO, FIFTEEN, FRAUD)
PIPELINES = {pipeline.name: pipeline for pipeline in (*MEASURED, FIRST, DATED, TIMED)}
