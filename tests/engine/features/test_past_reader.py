"""Rows as of a moment: what a table would have said then, from states and events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.engine.features import past_reader
from headrace.engine.features.past_reader import PastRows, RowMoment
from headrace.errors import FeatureNotInTable, TimedOut
from support.feature_rig import ORDERS, SPENT, USERS, Pipelines, event, op, table

WINDOWED = {**SPENT, "lately": op("count", window="10s"), "streak": op("streak", where="(amount > 3.0)")}


def rows(pipelines: Pipelines, asked: Sequence[tuple[Any, ...]], features: list[str] | None = None) -> PastRows:
    moments = [RowMoment(*one) for one in asked]
    return pipelines.run(pipelines.engine.past_reader.rows("Users", moments, features))


@pytest.mark.parametrize("seed", range(4))
def test_a_row_is_what_was_answered_then(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    with Pipelines(tmp_path / "data", storage={"seal_rows": 5}, pipeline={"min_rows": 1, "fan_out": 3}) as pipelines:
        pipelines.register(ORDERS, table("Users", "Order", ["user"], WINDOWED))
        asked, wanted = list[tuple[Any, int]](), list[dict[str, Any]]()
        for _ in range(60):
            orders = [{"user": random.choice("abc"), "amount": float(random.randrange(9))} for _ in range(2)]
            pipelines.push("Order", *orders, after_s=random.choice((0, 0.5, 3, 30)))
            pipelines.clock.us += random.choice((0, 1, 999, 1_000_000))
            if random.random() < 0.5:
                user = random.choice("abcz")
                asked.append((user, pipelines.clock.us))
                wanted.append(pipelines.get("Users", user))
                pipelines.clock.us += 1
            if random.random() < 0.15:
                pipelines.seal("Order")
                pipelines.work_once()
        order = random.sample(range(len(asked)), len(asked))
        found = rows(pipelines, [asked[at] for at in order])
        assert found.rows == [wanted[at] for at in order] and found.complete
        assert [rows(pipelines, [one]).rows[0] for one in asked] == wanted
        some = rows(pipelines, asked[-3:], ["streak", "n"])
        assert some.rows == [{name: row[name] for name in ("streak", "n") if row} for row in wanted[-3:]]


def test_a_moment_before_every_event_has_no_row_and_one_to_come_has_the_newest(tmp_path: Path) -> None:
    with Pipelines(tmp_path / "data") as pipelines:
        pipelines.register(ORDERS, USERS)
        assert rows(pipelines, [("a", 5)]).rows == [{}]
        pipelines.push("Order", {"user": "a", "amount": 1.0})
        later = pipelines.clock.us + 10**12
        assert rows(pipelines, [("a", 5), ("a", later)]).rows == [{}, {"n": 1, "total": 1.0}]


def test_where_events_are_gone_it_says_from_where_it_knows(tmp_path: Path) -> None:
    source = event("Order", {"user": "str", "amount": "f64"}, keep_events_for="1h")
    with Pipelines(tmp_path / "data", storage={"seal_rows": 4}) as pipelines:
        pipelines.register(source, USERS)
        for _ in range(8):
            pipelines.push("Order", {"user": "a", "amount": 1.0})
        middle_us = pipelines.clock.us - 4_000_000
        pipelines.seal("Order")
        pipelines.work()
        pipelines.clock.us += 2 * 3_600_000_000
        pipelines.sweep()
        pipelines.push("Order", {"user": "a", "amount": 1.0})
        found = rows(pipelines, [("a", pipelines.clock.us)])
        assert found.rows == [{"n": 9, "total": 9.0}]
        assert found.complete is True
        assert found.reaches_us == pipelines.clock.us
        assert not rows(pipelines, [("a", middle_us)]).complete


def test_features_are_folded_from_where_each_has_states(tmp_path: Path) -> None:
    with Pipelines(tmp_path / "data", storage={"seal_rows": 4}) as pipelines:
        pipelines.register(ORDERS, USERS)
        for _ in range(6):
            pipelines.push("Order", {"user": "a", "amount": 2.0})
        pipelines.seal("Order")
        pipelines.work()
        more = {**SPENT, "again": op("count")}
        pipelines.register(ORDERS, table("Users", "Order", ["user"], more))
        found = rows(pipelines, [("a", pipelines.clock.us)])
        assert found.rows == [{"n": 6, "total": 12.0, "again": 6}]
        assert found.complete is True


def test_too_many_events_for_the_time_of_a_request_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Pipelines(tmp_path / "data") as pipelines:
        pipelines.register(ORDERS, USERS)
        for _ in range(3):
            pipelines.push("Order", *[{"user": "a", "amount": 1.0}] * 20)
        monkeypatch.setattr(past_reader, "monotonic", iter(range(0, 10**6, 10)).__next__)
        with pytest.raises(TimedOut, match="too many to fold"):
            rows(pipelines, [("a", pipelines.clock.us)])
        monkeypatch.undo()
        with pytest.raises(FeatureNotInTable):
            rows(pipelines, [("a", 5)], ["other"])


def test_what_was_appended_after_a_moment_was_not_known_at_it(tmp_path: Path) -> None:
    with Pipelines(tmp_path / "data", storage={"seal_rows": 4}) as pipelines:
        pipelines.register(ORDERS, table("Users", "Order", ["user"], {"n": op("count"), "since": op("time_since")}))
        times_us = []
        for _ in range(10):
            pipelines.push("Order", {"user": "a", "amount": 1.0})
            times_us.append(pipelines.clock.us)
        pipelines.seal("Order")
        pipelines.work()
        asked = [("a", times_us[at], times_us[known]) for at, known in ((9, 4), (4, 9), (9, 9), (0, 3), (7, 4))]
        asked += [("a", times_us[9]), ("a", times_us[9], 5)]
        found = rows(pipelines, asked)
        assert [row.get("n") for row in found.rows] == [5, 5, 10, 1, 5, 10, None]
        # A row is answered as of its first clock, whatever was known.
        assert found.rows[0]["since"] == (times_us[9] - times_us[4]) // 1000 and found.rows[1]["since"] == 0
        assert [rows(pipelines, [one]).rows[0] for one in asked] == found.rows


def test_a_row_by_event_time_is_partial_where_events_are_gone(tmp_path: Path) -> None:
    schema = {"user": "str", "amount": "f64", "at": "i64"}
    source = event("Order", schema, keep_events_for="1h", timestamp_field="at", timestamp_unit="us")
    with Pipelines(tmp_path / "data", storage={"seal_rows": 4}) as pipelines:
        pipelines.register(source, USERS)
        for _ in range(8):
            pipelines.push("Order", {"user": "a", "amount": 1.0, "at": pipelines.clock.us - 3_600_000_000})
        assert rows(pipelines, [("a", pipelines.clock.us)]).complete
        pipelines.seal("Order")
        pipelines.work()
        pipelines.clock.us += 2 * 3_600_000_000
        pipelines.sweep()
        # It happened before all others, and came after they were gone.
        at_us = pipelines.clock.us - 4 * 3_600_000_000
        pipelines.push("Order", {"user": "a", "amount": 1.0, "at": at_us})
        found = rows(pipelines, [("a", pipelines.clock.us), ("a", at_us), ("a", at_us - 1)])
        # The state of all of life has nine events, and does not say which of them happened until a moment.
        assert pipelines.get("Users", "a")["n"] == 9
        assert [row.get("n") for row in found.rows] == [1, 1, None]
        assert not found.complete and found.since_seq == 8
