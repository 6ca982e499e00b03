"""Tails after a change: what comes is folded as tables are defined now, though nobody has asked for them since."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.feature_rig import Pipelines, event, op, table

HOUR_S = 3600
FEATURES = {"n": op("count"), "total": op("sum", field="amount"), "last": op("last_n", field="amount", n=9)}


@pytest.fixture
def pipelines(tmp_path: Path) -> Iterator[Pipelines]:
    with Pipelines(tmp_path / "data", storage={"seal_rows": 2}) as opened:
        yield opened


def pipeline(kind: str = "i64", more: dict[str, Any] | None = None, **settings: Any) -> list[dict[str, Any]]:
    source = event("Order", {"user": "str", "amount": kind}, **settings)
    tables = (table(name, "Order", ["user"], {**FEATURES, **(more or {})}) for name in ("Users", "Others"))
    return [source, *tables]


def begun(pipelines: Pipelines, seals: bool) -> None:
    """Two tables that were asked, of one event each, in states or in the tail."""
    pipelines.register(*pipeline())
    pipelines.push("Order", {"user": "a", "amount": 1})
    if seals:
        pipelines.seal("Order")
        assert pipelines.work()
    for name in ("Users", "Others"):
        assert pipelines.get(name, "a") == {"n": 1, "total": 1.0, "last": [1]}


@pytest.mark.parametrize("seals", [False, True], ids=["tail", "states"])
@pytest.mark.parametrize("more", [{}, {"most": op("max", field="amount")}], ids=["alone", "with another feature"])
def test_fractions_of_a_widened_field_are_not_cut_off(pipelines: Pipelines, seals: bool, more: dict[str, Any]) -> None:
    begun(pipelines, seals)
    pipelines.register(*pipeline("f64", more))
    pipelines.push("Order", {"user": "a", "amount": 0.5})
    pipelines.get("Others", "a")
    if seals:
        pipelines.seal("Order")
        pipelines.work()
    wanted = {"n": 2, "total": 1.5, "last": [1.0, 0.5], **({"most": 1.0} if more else {})}
    assert pipelines.get("Users", "a") == wanted
    pipelines.reopen()
    assert pipelines.get("Users", "a") == wanted


@pytest.mark.parametrize("seals", [False, True], ids=["tail", "states"])
def test_entities_go_cold_by_the_limit_that_holds(pipelines: Pipelines, seals: bool) -> None:
    begun(pipelines, seals)
    pipelines.register(*pipeline(cold_after="1h"))
    pipelines.push("Order", {"user": "a", "amount": 2})
    pipelines.push("Order", {"user": "a", "amount": 4}, after_s=2 * HOUR_S)
    pipelines.get("Others", "a")
    assert pipelines.get("Users", "a") == {"n": 1, "total": 4.0, "last": [4]}
    pipelines.register(*pipeline())
    pipelines.push("Order", {"user": "a", "amount": 8}, after_s=2 * HOUR_S)
    pipelines.get("Others", "a")
    assert pipelines.get("Users", "a") == {"n": 2, "total": 12.0, "last": [4, 8]}


def test_a_feature_that_is_removed_meanwhile_is_not_missed(pipelines: Pipelines) -> None:
    begun(pipelines, True)
    less = pipeline()
    for one in less[1:]:
        one["agg"] = {name: feature for name, feature in one["agg"].items() if name != "total"}
    pipelines.register(*less, force=True)
    pipelines.push("Order", {"user": "a", "amount": 2})
    pipelines.get("Others", "a")
    assert pipelines.get("Users", "a") == {"n": 2, "last": [1, 2]}
    pipelines.register(*pipeline())
    pipelines.push("Order", {"user": "a", "amount": 3})
    pipelines.seal("Order")
    pipelines.work()
    assert pipelines.get("Users", "a") == {"n": 3, "total": 6.0, "last": [1, 2, 3]}


def test_rows_of_another_key_are_not_those_of_the_old_one(pipelines: Pipelines) -> None:
    fields = {"user": "str", "shop": "str"}
    for key in ("user", "shop", "user"):
        pipelines.register(event("Order", fields), table("Users", "Order", [key], {"n": op("count")}), force=True)
        assert pipelines.get("Users", "a") == {}
        pipelines.push("Order", {"user": "a", "shop": "b"})
        wanted = {"n": 1}
        assert pipelines.get("Users", "a" if key == "user" else "b") == wanted
        assert pipelines.get("Users", "b" if key == "user" else "a") == {}
