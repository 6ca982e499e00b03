"""Features from Python against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.client.test_operators import arguments

import headrace as hr
from headrace import errors, testing
from headrace.client.features import MAX_PUSHED_EVENTS
from headrace.errors import TooLarge
from headrace.operators.catalogue import DECLARATIONS

#: Operators that need a condition, though the server does not insist.
WHERE = {name: {"where": "amount > 0"} for name in ("ratio", "streak", "max_streak", "negative_streak")}


@hr.event(dedupe_key="id")
class Txn:
    id: str | None
    user: str
    amount: float
    shop: int = 0


@hr.event
def Large(txn: Txn):  # type: ignore[no-untyped-def]
    return txn.filter(hr.col("amount") >= 10)


@hr.table(key="user")
def Spending(txn: Txn):  # type: ignore[no-untyped-def]
    return txn.agg(n=hr.count(), total=hr.sum("amount"), recent=hr.count(window="1h"))


@hr.table(key=["user", "shop"])
def ByShop(large: Large):  # type: ignore[no-untyped-def, valid-type]
    return large.agg(n=hr.count(), most=hr.max("amount"))


@hr.table
def Everything(txn: Txn):  # type: ignore[no-untyped-def]
    return txn.agg(n=hr.count(where=hr.col("amount") > 1))


@hr.table(key="user")
def Narrow(txn: Txn):  # type: ignore[no-untyped-def]
    return txn.agg(n=hr.count())


@pytest.fixture
def app() -> Iterator[testing.VirtualApp]:
    with testing.app() as app:
        yield app


def test_what_was_pushed_is_in_the_next_row(app: testing.VirtualApp) -> None:
    diff = app.register(Spending, ByShop, Everything)
    assert diff.status == "ok"
    assert diff.added == ["ByShop", "Everything", "Large", "Spending", "Txn"]
    pushed = app.push(Txn, {"user": "u1", "amount": 3.0})
    assert pushed.registry_version == diff.registry_version
    assert pushed.idempotent_replay is False
    app.push_many("Txn", [{"user": "u1", "amount": amount, "shop": 7} for amount in (10, 12.5)])
    assert app.get(Spending, "u1") == {"n": 3, "total": 25.5, "recent": 3}
    assert app.get(ByShop, ("u1", 7)) == {"n": 2, "most": 12.5}
    assert app.get("Everything") == {"n": 3}
    assert app.get(Spending, "nobody") == {}
    assert app.get(Spending, "u1").complete


def test_features_may_be_chosen(app: testing.VirtualApp) -> None:
    app.register(Spending)
    app.push(Txn, {"user": "u1", "amount": 3.0})
    assert app.get(Spending, "u1", features=["total"]) == {"total": 3.0}
    with pytest.raises(errors.FeatureNotInTable):
        app.get(Spending, "u1", features=["nonsense"])


def test_a_row_says_how_it_came_about(app: testing.VirtualApp) -> None:
    app.register(Spending)
    offset = app.push(Txn, {"user": "u1", "amount": 3.0}).offset
    row = app.get(Spending, "u1", features=["n"], explain=True)
    assert row == {"n": 1}
    assert row.explain is not None
    assert row.explain["table"] == "Spending"
    assert row.explain["through"] == offset
    assert list(row.explain["features"]) == ["n"]


def test_several_rows_come_as_of_one_moment(app: testing.VirtualApp) -> None:
    app.register(Spending, Everything)
    app.push_many(Txn, [{"user": user, "amount": 2.0} for user in ("a", "b", "a")])
    asked: list[Any] = [(Spending, "a"), (Spending, "nobody"), ("Everything", []), ("Spending", "b", ["n"])]
    assert app.batch_get(asked) == [{"n": 2, "total": 4.0, "recent": 2}, {}, {"n": 3}, {"n": 1}]


def test_several_rows_are_as_old_as_one_row_would_be(app: testing.VirtualApp) -> None:
    app.register(Spending, Everything)
    app.push(Txn, {"user": "a", "amount": 2.0})
    for wait, recent in (("59m", 1), ("1m", 0), ("1d", 0)):
        app.clock.advance(wait)
        row = {"n": 1, "total": 2.0, "recent": recent}
        assert app.get(Spending, "a") == row
        assert app.batch_get([(Spending, "a"), (Everything, "")]) == [row, {"n": 1}]


def test_a_repeated_event_is_acknowledged_and_not_counted(app: testing.VirtualApp) -> None:
    app.register(Spending)
    first = app.push(Txn, {"id": "1", "user": "u1", "amount": 3.0})
    again = app.push(Txn, {"id": "1", "user": "u1", "amount": 3.0})
    assert again.offset == first.offset
    assert again.idempotent_replay is True
    assert app.get(Spending, "u1")["n"] == 1


def test_events_that_are_refused_are_named_and_the_others_are_stored(app: testing.VirtualApp) -> None:
    app.register(Spending)
    rows = [
        {"user": "u1", "amount": 1.0},
        {"amount": 1.0},
        {"user": "u1", "amount": "1"},
        {"user": "u1", "amount": 2.0},
    ]
    with pytest.raises(hr.PushRefused, match="2 of 4") as caught:
        app.push_many(Txn, rows)
    refusals = caught.value.refusals
    assert {at: type(refusal) for at, refusal in refusals.items()} == {1: errors.MissingField, 2: errors.SchemaMismatch}
    assert app.get(Spending, "u1")["total"] == 3.0
    with pytest.raises(hr.PushRefused, match="1 of 1"):
        app.push_many(Txn, [{"user": "u1"}])


def test_many_events_travel_in_several_requests(app: testing.VirtualApp) -> None:
    app.register(Everything)
    count = 2 * MAX_PUSHED_EVENTS + 1
    pushed = app.push_many(Txn, ({"user": "u", "amount": 2.0} for _ in range(count)))
    assert len({one.offset for one in pushed}) == count
    assert app.get(Everything) == {"n": count}


def test_a_failure_on_the_way_says_what_is_stored(app: testing.VirtualApp) -> None:
    app.register(Everything)

    def rows() -> Iterator[dict[str, Any]]:
        yield from [{"user": "u", "amount": 2.0}] * MAX_PUSHED_EVENTS
        app.register(Ping, force=True)
        yield {"user": "u", "amount": 2.0}

    with pytest.raises(errors.UnknownEvent) as caught:
        app.push_many(Txn, rows())
    assert len(caught.value.facts["results"]) == MAX_PUSHED_EVENTS


def test_pushes_are_refused_by_typed_errors(app: testing.VirtualApp) -> None:
    with pytest.raises(errors.UnknownEvent):
        app.push("Txn", {})
    app.register(Spending)
    for fields, kind in (
        ({"user": "u"}, errors.MissingField),
        ({"user": "u", "amount": 1.0, "colour": "red"}, errors.UnknownField),
        ({"user": 3, "amount": 1.0}, errors.SchemaMismatch),
    ):
        with pytest.raises(kind):
            app.push(Txn, fields)
    with pytest.raises(errors.UnknownTable):
        app.get("Nonsense", "u")
    with pytest.raises(errors.KeyShapeMismatch):
        app.get(Spending, 7)


def test_losing_a_feature_needs_force(app: testing.VirtualApp) -> None:
    app.register(Spending)
    app.push(Txn, {"user": "u1", "amount": 3.0})
    narrower = {**Spending.descriptor(), "agg": {"n": Spending.descriptor()["agg"]["n"]}}
    with pytest.raises(hr.RegistrationConflict) as caught:
        app.register(Txn, narrower)
    assert caught.value.diff.changed == [{"name": "Spending", "removed_features": ["recent", "total"]}]
    preview = app.register(Txn, narrower, dry_run=True)
    assert preview.conflict
    assert preview.changed == caught.value.diff.changed
    assert app.registry().registry_version == 1
    done = app.register(Txn, narrower, force=True)
    assert done.status == "ok"
    assert done.registry_version == 2
    assert app.get(Spending, "u1") == {"n": 1}


def test_a_wrong_declaration_has_every_reason(app: testing.VirtualApp) -> None:
    @hr.table(key="usr")
    def Wrong(txn: Txn):  # type: ignore[no-untyped-def]
        return txn.agg(a=hr.sum("amuont"), b=hr.quantile("amount", q=2))

    with pytest.raises(hr.RegistrationInvalid) as caught:
        app.register(Wrong)
    assert "invalid_percentile_q" in {problem.code for problem in caught.value.errors}
    assert app.registry().registry_version == 0


def test_the_same_registration_changes_nothing(app: testing.VirtualApp) -> None:
    version = app.register(Spending).registry_version
    again = app.register(Spending)
    assert not again
    assert again.registry_version == version


def test_apps_leave_each_other_alone(app: testing.VirtualApp) -> None:
    @hr.table
    def Other() -> Any:
        return hr.upstream("Txn").agg(n=hr.count())

    app.register(Spending, app="payments")
    diff = app.register(Other, app="ads")
    assert diff.added == ["Other"]
    assert diff.removed == []
    with pytest.raises(hr.RegistrationConflict) as caught:
        app.register(Narrow, app="ads")
    assert caught.value.code == "owned_by"
    assert [found["name"] for found in app.registry("ads").descriptors] == ["Other"]


def test_an_expected_version_must_be_the_current_one(app: testing.VirtualApp) -> None:
    app.register(Txn, expected_version=0)
    with pytest.raises(hr.RegistrationConflict) as caught:
        app.register(Spending, expected_version=0)
    assert caught.value.diff.registry_version == 1


def test_a_registry_can_go_back(app: testing.VirtualApp) -> None:
    app.register(Txn)
    app.register(Spending)
    with pytest.raises(hr.RegistrationConflict):
        app.rollback(1)
    assert app.rollback(1, dry_run=True).removed == ["Spending"]
    assert app.rollback(1, force=True).registry_version == 3
    assert [version.registry_version for version in app.registry_history()] == [1, 2, 3]


def test_a_new_feature_counts_what_was_pushed_before_it(app: testing.VirtualApp) -> None:
    app.register(Narrow)
    app.push_many(Txn, [{"user": "u1", "amount": 1.0}] * 3)
    diff = app.register(Narrow, Spending)
    assert diff.added == ["Spending"]
    assert app.get(Spending, "u1") == {"n": 3, "total": 3.0, "recent": 3}
    app.register(Narrow, Spending, Everything, backfill=False)
    assert app.get(Everything) == {}


def test_a_row_can_be_asked_for_as_it_was(app: testing.VirtualApp) -> None:
    app.register(Spending)
    app.push(Txn, {"user": "u1", "amount": 1.0})
    app.clock.advance("10m")
    app.push(Txn, {"user": "u1", "amount": 2.0})
    assert app.get(Spending, "u1", as_of="2026-01-01T00:05:00Z")["total"] == 1.0
    assert app.get(Spending, "u1", as_of=datetime(2026, 1, 1, 0, 10, tzinfo=UTC))["total"] == 3.0


@pytest.mark.parametrize("fold_rows", ["1000", "1"], ids=["at once", "after a while"])
def test_rows_of_the_past_come_in_the_order_in_which_they_were_asked_for(fold_rows: str) -> None:
    with testing.app(features__fold_rows=fold_rows) as app:
        app.register(Spending)
        for amount in (1.0, 2.0, 4.0):
            app.push(Txn, {"user": "u1", "amount": amount})
            app.clock.advance("40m")
        moments = ["2026-01-01T00:50:00Z", datetime(2025, 12, 31, tzinfo=UTC), "2026-01-01T01:20:00Z"]
        found = list(app.history(Spending, [("u1", moment) for moment in moments], ["total", "recent"]))
        assert found == [{"total": 3.0, "recent": 2}, {}, {"total": 7.0, "recent": 2}]
        assert all(row.complete for row in found)


@hr.event
class Ping:
    user: str
    amount: float
    lat: float
    lon: float


@hr.table(key="user")
def AllOperators(ping: Ping):  # type: ignore[no-untyped-def]
    features = {name: getattr(hr, name)(**arguments(name), **WHERE.get(name, {})) for name in DECLARATIONS}
    return ping.agg(**{f"f_{name}": feature for name, feature in features.items()})


def test_every_operator_can_be_declared_and_read(app: testing.VirtualApp) -> None:
    app.register(AllOperators)
    for number in range(3):
        app.push(Ping, {"user": "u", "amount": 1.5 * number, "lat": 1.0 + number, "lon": 2.0})
        app.clock.advance("1m")
    row = app.get(AllOperators, "u")
    assert set(row) == {f"f_{name}" for name in DECLARATIONS}
    assert [name for name, value in row.items() if value is None] == []
    assert row["f_count"] == 3
    assert row["f_sum"] == 4.5
    assert row["f_max"] == 3.0
    assert row["f_streak"] == 2


def test_only_what_is_declared_has_a_name(app: testing.VirtualApp) -> None:
    with pytest.raises(TypeError, match="is no event and no table"):
        app.push(dict, {})


def test_what_was_stored_is_there_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Neither somebody's settings nor the file in the working directory are those of the embedded server.
    monkeypatch.setenv("HEADRACE_SERVER__HOST", "nowhere.invalid")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headrace.toml").write_text("[nonsense]\n")
    with hr.App.embedded("data") as app:
        app.client.stream("notes").create(body={"n": 1})
    with hr.App.embedded(tmp_path / "data") as app:
        assert [batch.items for batch in app.client.stream("notes").read()] == [[{"n": 1}]]


@hr.event(dedupe_key="id")
class Order:
    id: str
    user: str


@hr.table(key="user")
def Orders(order: Order):  # type: ignore[no-untyped-def]
    return order.agg(n=hr.count())


def test_features_and_what_they_count_are_there_the_next_time(tmp_path: Path) -> None:
    with hr.App.embedded(tmp_path) as app:
        app.register(Orders)
        first = app.push(Order, {"id": "1", "user": "u"})
    with hr.App.embedded(tmp_path) as app:
        assert not app.register(Orders)
        again = app.push(Order, {"id": "1", "user": "u"})
        assert again.offset == first.offset
        assert again.idempotent_replay is True
        app.push(Order, {"id": "2", "user": "u"})
        assert app.get(Orders, "u") == {"n": 2}


def test_the_process_ends_with_the_app(tmp_path: Path) -> None:
    app = hr.App.embedded(tmp_path)
    app.close()
    with pytest.raises(hr.Unreachable), hr.Client(app.client.settings.url, retry_for=0) as client:
        client.stream("notes").info()


def test_settings_are_those_of_the_server(tmp_path: Path) -> None:
    with hr.App.embedded(tmp_path, limits__body_bytes="100") as app, pytest.raises(TooLarge):
        app.client.stream("notes").create(body={"long": "x" * 200})


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(hr.Unreachable, match=r"did not start: .*nonsense"):
        hr.App.embedded(tmp_path, limits__nonsense="1")
