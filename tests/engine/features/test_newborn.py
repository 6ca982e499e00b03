"""A feature that has no past to count is ready when its registration is answered, and misses no push after that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.engine.derive.state_reader import INLINE_ROWS
from headrace.engine.features.registry import Current
from support.feature_rig import ORDERS, SPENT, Pipelines, event, op, table

#: More events than a question folds on the event loop.
MANY = INLINE_ROWS + 500
OTHER = {**SPENT, "total": op("mean", field="amount")}
MORE = {**SPENT, "most": op("max", field="amount")}
#: The features after a change, its terms, and what those without a past say of the pushes that follow.
CHANGES = {
    "forced": (OTHER, {"force": True}, {"total": 2.0}),
    "without backfill": (MORE, {"backfill": False}, {"most": 2.0}),
    "another key": (SPENT, {"force": True}, {}),
}


@pytest.fixture
def pipelines(tmp_path: Path) -> Iterator[Pipelines]:
    with Pipelines(tmp_path / "data", storage={"seal_rows": 4}) as opened:
        yield opened


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kept_in", ["tail", "states"])
@pytest.mark.parametrize("pushes", [0, 1, MANY])
def test_a_feature_without_a_past_is_never_backfilling(
    pipelines: Pipelines, change: str, kept_in: str, pushes: int
) -> None:
    features, terms, newborn = CHANGES[change]
    pipelines.register(ORDERS, table("Users", "Order", ["user"], SPENT))
    pipelines.push("Order", *({"user": "a", "amount": 1.0} for _ in range(MANY)))
    if kept_in == "states":
        pipelines.seal("Order")
        pipelines.work()
    assert pipelines.get("Users", "a") == {"n": MANY, "total": MANY}
    key, asked = ([], []) if change == "another key" else (["user"], "a")
    pipelines.register(ORDERS, table("Users", "Order", key, features), **terms)
    if pushes:
        pipelines.push("Order", *({"user": "a", "amount": 2.0} for _ in range(pushes)))
    row, complete, *_ = pipelines.answer("Users", asked)
    assert complete
    if change == "another key":
        assert row == ({"n": pushes, "total": 2.0 * pushes} if pushes else {})
        return
    kept = {"n": MANY + pushes, "total": MANY + 2.0 * pushes}
    assert row == {**kept, **(newborn if pushes else dict.fromkeys(newborn))}


def test_pushes_after_a_birth_are_counted_though_the_past_of_other_features_is_not_folded(tmp_path: Path) -> None:
    with Pipelines(tmp_path / "data", storage={"seal_rows": 4}, features={"fold_rows": 10}) as pipelines:
        pipelines.register(ORDERS, table("Users", "Order", ["user"], SPENT))
        pipelines.push("Order", *({"user": "a", "amount": 1.0} for _ in range(30)))
        pipelines.seal("Order")
        pipelines.register(ORDERS, table("Users", "Order", ["user"], MORE), backfill=False)
        pipelines.push("Order", *({"user": "a", "amount": 2.0} for _ in range(12)))
        pipelines.seal("Order")
        assert pipelines.answer("Users", "a", features=["most"])[:2] == ({"most": 2.0}, True)
        assert pipelines.answer("Users", "a")[:2] == ({"n": None, "total": None, "most": 2.0}, False)
        pipelines.work()
        assert pipelines.answer("Users", "a")[:2] == ({"n": 42, "total": 54.0, "most": 2.0}, True)


def test_pushes_between_a_change_and_a_get_of_another_table_are_counted(pipelines: Pipelines) -> None:
    tables = [table(name, "Order", ["user"], SPENT) for name in ("Users", "Others")]
    pipelines.register(ORDERS, *tables)
    pipelines.push("Order", {"user": "a", "amount": 1.0})
    for name in ("Users", "Others"):
        pipelines.get(name, "a")
    pipelines.register(ORDERS, *(table(name, "Order", ["user"], OTHER) for name in ("Users", "Others")), force=True)
    for number in range(3):
        pipelines.push("Order", *({"user": "a", "amount": 2.0} for _ in range(MANY // 2)))
        assert pipelines.get("Others", "a") == {"n": 1 + (number + 1) * (MANY // 2), "total": 2.0}
    assert pipelines.answer("Users", "a")[:2] == ({"n": 1 + 3 * (MANY // 2), "total": 2.0}, True)


def test_a_feature_over_a_source_without_events_has_no_past(pipelines: Pipelines) -> None:
    pipelines.register(ORDERS, table("Users", "Order", ["user"], SPENT))
    assert pipelines.get("Users", "a") == {}
    pipelines.register(ORDERS, table("Users", "Order", ["user"], MORE))
    pipelines.push("Order", *({"user": "a", "amount": 2.0} for _ in range(MANY)))
    assert pipelines.answer("Users", "a")[:2] == ({"n": MANY, "total": 2.0 * MANY, "most": 2.0}, True)


def test_a_change_is_visible_before_the_events_that_follow_it(
    pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise those of the same commit could be folded without it."""
    pipelines.register(ORDERS, table("Users", "Order", ["user"], SPENT))
    features, stream = pipelines.engine.features, pipelines.find("events/Order")
    publish, before, heads = features._publish, stream.head, []

    def publishing(current: Current) -> None:
        heads.append(stream.head)
        publish(current)

    monkeypatch.setattr(features, "_publish", publishing)
    source = event("Order", {**ORDERS["schema"], "city": {"type": "str", "required": False}})
    pipelines.register(source, table("Users", "Order", ["user"], SPENT))
    assert heads == [before] and stream.head is not before
