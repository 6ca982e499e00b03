"""One row for every kind of change: before, after, what is told, whether it needs force, and what features keep."""

from __future__ import annotations

from typing import Any, NamedTuple

from schema.descriptor.payloads import SCHEMA, Descriptor, derivation, event, filtered, op, table

#: Features that look at: nothing, amount, amount through where, and n; all are told apart by what they depend on.
FEATURES = {
    "events": op("count", window="1h"),
    "total": op("sum", field="amount"),
    "large": op("count", where="amount > 100"),
    "mean_n": op("mean", field="n"),
}
U = table(**FEATURES)
KEPT = dict.fromkeys(FEATURES, "kept")
ZEROED = dict.fromkeys(FEATURES, "zeroed")
OF_AMOUNT = {**KEPT, "total": "zeroed", "large": "zeroed"}
OPTIONAL = {"type": "str", "required": False}


def changed(descriptor: Descriptor, **members: Any) -> Descriptor:
    return {**descriptor, **members}


def fields(**more: Any) -> Descriptor:
    """The source with some fields changed, added, or (None) taken away."""
    return event(schema={name: kind for name, kind in {**SCHEMA, **more}.items() if kind is not None})


def features(**more: Any) -> Descriptor:
    """The table with some features changed, added, or taken away."""
    return table(**{name: feature for name, feature in {**FEATURES, **more}.items() if feature is not None})


class Row(NamedTuple):
    """One change: before, after, and what it is."""

    number: str
    before: list[Descriptor]
    after: list[Descriptor]
    destructive: bool
    told: list[dict[str, Any]] = []
    lives: dict[str, dict[str, str]] = {"User": KEPT}
    added: list[str] = []
    removed: list[str] = []
    dropped: dict[str, list[str]] = {}


E = event()
BIG = derivation("Big", "Txn", filtered("amount > 10"))
UB = table(upstream="Big", **FEATURES)
OFFSET = {"from": "30d", "to": "7d"}
AMOUNT_ZEROED = {"name": "User", "zeroed_features": ["large", "total"]}
ALL_ZEROED = {"name": "User", "zeroed_features": sorted(FEATURES)}
