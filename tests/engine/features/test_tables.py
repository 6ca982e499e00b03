"""Tables answered from states and a tail: whatever happens in between, every event counts once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.errors import FeatureNotInTable, KeyShapeMismatch, UnknownTable
from support.feature_rig import ORDERS, SPENT, USERS, Pipelines, event, op, table

GREATEST = {"greatest": op("max", field="amount")}


@pytest.fixture
def pipelines(tmp_path: Path) -> Iterator[Pipelines]:
    with Pipelines(tmp_path / "data", storage={"seal_rows": 4}) as opened:
        opened.register(ORDERS, USERS)
        yield opened


def order(user: str, amount: float = 1.0) -> dict[str, Any]:
    return {"user": user, "amount": amount}


def folded(pipelines: Pipelines, *events: dict[str, Any]) -> None:
    """Events that lie in states."""
    for one in events:
        pipelines.push("Order", one)
    pipelines.seal("Order")
    assert pipelines.work() >= 1


def test_a_get_right_after_a_push_sees_it(pipelines: Pipelines) -> None:
    assert pipelines.get("Users", "a") == {}
    for number in range(1, 4):
        pipelines.push("Order", order("a", 2.0), order("b"))
        assert pipelines.get("Users", "a") == {"n": number, "total": 2.0 * number}
    assert pipelines.get("Users", ["b"], features=["n"]) == {"n": 3}
    assert pipelines.get("Users", "nobody") == {}


def test_a_question_that_does_not_fit_is_refused(pipelines: Pipelines) -> None:
    with pytest.raises(UnknownTable):
        pipelines.get("Nothing", "a")
    with pytest.raises(FeatureNotInTable):
        pipelines.get("Users", "a", features=["other"])
    with pytest.raises(KeyShapeMismatch):
        pipelines.get("Users", 7)


def test_history_in_states_and_a_tail_are_one_row(pipelines: Pipelines) -> None:
    folded(pipelines, *[order("a")] * 6)
    pipelines.push("Order", order("a", 5.0))
    answer = pipelines.answer("Users", "a", explain=True)
    assert answer.row == {"n": 7, "total": 11.0}
    assert answer.complete is True
    told = answer.explain
    assert told is not None
    names = [state.name for state in pipelines.states("Users")]
    assert names and told["features"]["n"]["states"] == names
    assert told["features"]["n"]["tail_events"] == 1
    assert told["features"]["n"]["complete"] and told["features"]["n"]["life"].startswith("n@")
    stream = pipelines.find("events/Order")
    assert told["tail_from"] == stream.offset_at(6)
    assert told["through"] == stream.tail_offset()


def test_a_restart_folds_again_from_where_states_end(pipelines: Pipelines) -> None:
    folded(pipelines, order("a"), order("b"))
    pipelines.push("Order", order("a"))
    pipelines.reopen()
    assert pipelines.get("Users", "a") == {"n": 2, "total": 2.0}
    assert pipelines.get("Users", "b") == {"n": 1, "total": 1.0}


def test_a_feature_that_is_added_is_backfilled_and_its_siblings_keep_their_state(pipelines: Pipelines) -> None:
    folded(pipelines, order("a", 3.0), order("a", 2.0))
    before = {one: life.id for one, life in pipelines.engine.feature_reader.defined("Users").lives.items()}
    pipelines.register(ORDERS, table("Users", "Order", ["user"], {**SPENT, **GREATEST}))
    pipelines.push("Order", order("a", 1.0))
    answer = pipelines.answer("Users", "a", explain=True)
    assert answer.row == {"n": 3, "total": 6.0, "greatest": None}
    assert answer.complete is False
    assert answer.explain is not None and not answer.explain["features"]["greatest"]["complete"]
    assert pipelines.answer("Users", "a", features=["n"]).complete
    assert pipelines.work() == 2
    answer = pipelines.answer("Users", "a")
    assert answer.row == {"n": 3, "total": 6.0, "greatest": 3.0}
    assert answer.complete is True
    lives = pipelines.engine.feature_reader.defined("Users").lives
    assert {name: lives[name].id for name in before} == before
    assert [sorted(state.lives) for state in pipelines.states("Users")] == [["greatest", "n", "total"]]


def test_a_feature_that_is_born_now_begins_empty(pipelines: Pipelines) -> None:
    folded(pipelines, order("a", 3.0))
    pipelines.push("Order", order("a", 9.0))
    pipelines.register(ORDERS, table("Users", "Order", ["user"], {**SPENT, **GREATEST}), backfill=False)
    pipelines.push("Order", order("a", 1.0))
    answer = pipelines.answer("Users", "a")
    assert answer.row == {"n": 3, "total": 13.0, "greatest": 1.0}
    assert answer.complete is True
    pipelines.seal("Order")
    pipelines.work()
    pipelines.reopen()
    assert pipelines.get("Users", "a") == {"n": 3, "total": 13.0, "greatest": 1.0}


def test_a_feature_that_is_cleared_begins_anew_and_states_of_its_old_life_go(pipelines: Pipelines) -> None:
    folded(pipelines, order("a", 3.0))
    pipelines.register(ORDERS, table("Users", "Order", ["user"], {"n": op("count", window="1h")}), force=True)
    assert pipelines.get("Users", "a") in ({"n": 0}, {})
    pipelines.push("Order", order("a"))
    assert pipelines.get("Users", "a") == {"n": 1}
    pipelines.work()
    assert pipelines.states("Users") == []
    pipelines.reopen()
    assert pipelines.get("Users", "a") == {"n": 1}


def test_levels_of_states_stay_few(tmp_path: Path) -> None:
    with Pipelines(tmp_path / "data", storage={"seal_rows": 4}, pipeline={"min_rows": 1, "fan_out": 2}) as again:
        again.register(ORDERS, USERS)
        for number in range(32):
            for _ in range(4):
                again.push("Order", order("a"), order(f"u{number}"))
            again.seal("Order")
            again.work()
            assert len(again.states("Users")) <= 8
            assert again.get("Users", "a")["n"] == 4 * (number + 1)
        again.reopen()
        assert again.get("Users", "u3") == {"n": 4, "total": 4.0}


def test_an_entity_that_was_idle_for_too_long_starts_afresh_across_states(tmp_path: Path) -> None:
    source = event("Order", {"user": "str", "amount": "f64"}, cold_after_ms=10_000)
    with Pipelines(tmp_path / "data", storage={"seal_rows": 4}) as pipelines:
        pipelines.register(source, USERS)
        folded(pipelines, order("a"), order("a"), order("b"))
        pipelines.push("Order", order("a"), after_s=11)
        assert pipelines.get("Users", "a") == {"n": 1, "total": 1.0}
        assert pipelines.get("Users", "b") == {}
        pipelines.seal("Order")
        pipelines.work()
        pipelines.push("Order", order("a"))
        assert pipelines.get("Users", "a") == {"n": 2, "total": 2.0}
        pipelines.reopen()
        assert pipelines.get("Users", "a") == {"n": 2, "total": 2.0}


def test_events_before_a_break_still_count_for_features_that_do_not_need_the_field(pipelines: Pipelines) -> None:
    pipelines.push("Order", order("a", 1.5), order("a", 2.5))
    narrow = event("Order", {"user": "str", "amount": "str"})
    count = table("Users", "Order", ["user"], {"n": op("count"), "last": op("last", field="amount")})
    pipelines.register(narrow, count, force=True)
    pipelines.push("Order", {"user": "a", "amount": "three"})
    assert pipelines.get("Users", "a") == {"n": 3, "last": "three"}
    pipelines.reopen()
    assert pipelines.get("Users", "a") == {"n": 3, "last": "three"}
    pipelines.seal("Order")
    pipelines.work()
    assert pipelines.get("Users", "a") == {"n": 3, "last": "three"}


def test_a_field_that_is_widened_keeps_state(tmp_path: Path) -> None:
    with Pipelines(tmp_path / "data", storage={"seal_rows": 4}) as pipelines:
        pipelines.register(event("Order", {"user": "str", "amount": "i64"}), USERS)
        folded(pipelines, {"user": "a", "amount": 2})
        pipelines.push("Order", {"user": "a", "amount": 3})
        pipelines.register(ORDERS, USERS)
        pipelines.push("Order", order("a", 0.5))
        assert pipelines.get("Users", "a") == {"n": 3, "total": 5.5}
        pipelines.reopen()
        assert pipelines.get("Users", "a") == {"n": 3, "total": 5.5}


def test_a_table_with_more_history_than_the_server_folds_waits_for_states(tmp_path: Path) -> None:
    with Pipelines(tmp_path / "data", storage={"seal_rows": 4}, features={"fold_rows": 4}) as pipelines:
        pipelines.register(ORDERS)
        for _ in range(10):
            pipelines.push("Order", order("a"))
        pipelines.seal("Order")
        pipelines.push("Order", order("a"))
        pipelines.register(ORDERS, USERS)
        answer = pipelines.answer("Users", "a")
        assert answer.row == {"n": None, "total": None}
        assert answer.complete is False
        pipelines.work()
        answer = pipelines.answer("Users", "a")
        assert answer.row == {"n": 11, "total": 11.0}
        assert answer.complete is True


def test_a_table_that_answers_goes_on_while_states_are_far_behind(tmp_path: Path) -> None:
    settings = {"min_rows": 1, "unit_bytes": 100}
    with Pipelines(
        tmp_path / "data", storage={"seal_rows": 4}, features={"fold_rows": 4}, pipeline=settings
    ) as pipelines:
        pipelines.register(ORDERS, USERS)
        for number in range(1, 31):
            pipelines.push("Order", order("a"))
            assert pipelines.get("Users", "a")["n"] == number
        pipelines.seal("Order")
        pipelines.register(ORDERS, table("Users", "Order", ["user"], {**SPENT, **GREATEST}))
        while settled := pipelines.work_once(limit=1):
            assert settled[0].outcome == "committed"
            answer = pipelines.answer("Users", "a")
            assert answer.row["n"] == 30
            assert answer.row["total"] == 30.0
        assert answer.complete and answer.row["greatest"] == 1.0
        assert pipelines.engine.feature_reader.tail_of("Users").base.start == 30  # type: ignore[union-attr]


def test_state_survives_the_retention_of_its_events(tmp_path: Path) -> None:
    source = event("Order", {"user": "str", "amount": "f64"}, keep_events_for="1h")
    with Pipelines(tmp_path / "data", storage={"seal_rows": 4}) as pipelines:
        pipelines.register(source, USERS)
        for _ in range(6):
            pipelines.push("Order", order("a"))
        pipelines.seal("Order")
        pipelines.clock.us += 2 * 3_600_000_000
        pipelines.sweep()
        assert pipelines.find("events/Order").head.first_seq == 0, "events are kept until they are folded"
        pipelines.work()
        pipelines.sweep()
        assert pipelines.find("events/Order").head.first_seq > 0
        assert pipelines.get("Users", "a") == {"n": 6, "total": 6.0}
        pipelines.push("Order", order("a"))
        pipelines.seal("Order")
        pipelines.reopen()
        assert pipelines.get("Users", "a") == {"n": 7, "total": 7.0}
        pipelines.register(source, table("Users", "Order", ["user"], {**SPENT, **GREATEST}))
        pipelines.work()
        answer = pipelines.answer("Users", "a", explain=True)
        assert answer.row["n"] == 7 and answer.complete
        assert answer.explain is not None
        born = answer.explain["features"]["greatest"]["since"]
        assert born == pipelines.find("events/Order").offset_at(pipelines.find("events/Order").head.first_seq)


def test_an_empty_directory_takes_over_the_states_of_its_store(tmp_path: Path) -> None:
    store = {"object_store": (tmp_path / "store").as_uri(), "seal_rows": 4}
    with Pipelines(tmp_path / "one", storage=store) as pipelines:
        pipelines.register(ORDERS, USERS)
        folded(pipelines, *[order("a")] * 5)
        pipelines.seal("Order")
        pipelines.run(pipelines.engine.sealer.publish_journals())
        listed = pipelines.states("Users")
    with Pipelines(tmp_path / "two", storage=store) as again:
        assert again.states("Users") == listed
        assert again.get("Users", "a") == {"n": 5, "total": 5.0}
        again.push("Order", order("a"))
        assert again.get("Users", "a") == {"n": 6, "total": 6.0}


def test_states_go_with_their_event_source(pipelines: Pipelines) -> None:
    folded(pipelines, order("a"))
    pipelines.seal("Order")
    objects = pipelines.engine.objects
    assert list(objects.list("states"))
    pipelines.register(event("Other", {"x": "f64"}), force=True)
    with pytest.raises(UnknownTable):
        pipelines.get("Users", "a")
    pipelines.clock.us += 120 * 1_000_000
    pipelines.clear()
    assert not list(objects.list("states"))
    pipelines.register(ORDERS, USERS, force=True)
    pipelines.push("Order", order("a"))
    assert pipelines.get("Users", "a") == {"n": 1, "total": 1.0}


def test_states_may_come_after_a_table_was_removed(pipelines: Pipelines) -> None:
    """Nobody has asked for anything since the removal."""
    pipelines.register(ORDERS, USERS, table("More", "Order", ["user"], SPENT))
    folded(pipelines, *[order("a")] * 4)
    row = {"n": 4, "total": 4.0}
    assert pipelines.get("Users", "a") == pipelines.get("More", "a") == row
    pipelines.register(ORDERS, USERS, force=True)
    folded(pipelines, *[order("a")] * 4)
    assert pipelines.get("Users", "a") == {"n": 8, "total": 8.0}
    with pytest.raises(UnknownTable):
        pipelines.get("More", "a")


def test_objects_of_merged_states_go_after_the_next_manifest(pipelines: Pipelines) -> None:
    folded(pipelines, order("a", 3.0), order("a", 2.0))
    pipelines.seal("Order")
    pipelines.register(ORDERS, table("Users", "Order", ["user"], {**SPENT, **GREATEST}))
    pipelines.work()
    objects = pipelines.engine.objects
    assert len(list(objects.list("states"))) == 3
    pipelines.seal("Order")
    pipelines.clock.us += 120 * 1_000_000
    pipelines.clear()
    assert len(list(objects.list("states"))) == 1
    assert pipelines.get("Users", "a") == {"n": 2, "total": 5.0, "greatest": 3.0}


def test_several_tables_over_one_source_are_folded_together(pipelines: Pipelines) -> None:
    overall = table("All", "Order", [], SPENT)
    big = {"kind": "derivation", "name": "Big", "upstreams": ["Order"], "output_kind": "event",
           "ops": [{"op": "filter", "expr": "(amount > 5.0)"}]}  # fmt: skip
    spenders = table("Spenders", "Big", ["user"], {"big": op("count")})
    pipelines.register(ORDERS, USERS, overall, big, spenders)
    pipelines.push("Order", order("a", 2.0), order("a", 7.0), order("b", 9.0))
    for _ in range(2):
        assert pipelines.get("Users", "a") == {"n": 2, "total": 9.0}
        assert pipelines.get("All", "") == {"n": 3, "total": 18.0}
        assert pipelines.get("Spenders", "a") == {"big": 1}
        pipelines.seal("Order")
        pipelines.work()
        pipelines.reopen()


@pytest.mark.parametrize("seed", range(6))
def test_no_event_is_missed_or_counted_twice_whatever_happens(tmp_path: Path, seed: int) -> None:
    random, users = Random(seed), [f"u{number}" for number in range(5)]
    seen: dict[str, list[float]] = {user: [] for user in users}
    agg = dict(SPENT)
    with Pipelines(tmp_path / "data", storage={"seal_rows": 6}, pipeline={"min_rows": 1, "fan_out": 2}) as pipelines:
        pipelines.register(ORDERS, USERS)

        def push() -> None:
            orders = [order(random.choice(users), random.randrange(9)) for _ in range(random.randrange(1, 5))]
            for one in orders:
                seen[one["user"]].append(one["amount"])
            pipelines.push("Order", *orders)

        def commit_late() -> None:
            """A unit is performed, and more events come before it is committed."""
            granted = pipelines.run(pipelines.engine.work.lease("late", random.randrange(1, 4), ("features",)))
            if granted is None:
                return
            results = pipelines.performed(granted)
            push()
            pipelines.seal("Order")
            pipelines.run(pipelines.engine.work.commit(granted.lease.id, granted.lease.token, results))

        def add_feature() -> None:
            agg[f"f{len(agg)}"] = op("count") if len(agg) % 2 else op("sum", field="amount")
            pipelines.register(ORDERS, table("Users", "Order", ["user"], agg))

        actions = [push] * 8 + [lambda: pipelines.seal("Order")] * 3 + [pipelines.work_once] * 2 + [commit_late] * 2
        actions += [pipelines.reopen, add_feature]
        for _ in range(60):
            random.choice(actions)()  # type: ignore[operator]
            user = random.choice(users)
            answer = pipelines.answer("Users", user)
            amounts = seen[user]
            if not amounts:
                assert answer.row == {}
                continue
            assert answer.row["n"] == len(amounts)
            assert answer.row["total"] == sum(amounts)
            for name, value in answer.row.items():
                wanted = len(amounts) if agg[name]["op"] == "count" else sum(amounts)
                assert value == wanted or (value is None and not answer.complete)
        pipelines.seal("Order")
        pipelines.work()
        for user, amounts in seen.items():
            answer = pipelines.answer("Users", user)
            assert answer.complete and (not amounts or answer.row["n"] == len(amounts))
