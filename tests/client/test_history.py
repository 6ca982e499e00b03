"""Rows of the past by two clocks: when events happened, and when they were appended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import httpx2
import pandas as pd
import pytest

import headrace as hr
from headrace import testing


@hr.event(timestamp_field="at", late_after="1h")
class Payment:
    user: str
    amount: float
    at: datetime


@hr.table(key="user")
def Spending(payment: Payment):  # type: ignore[no-untyped-def]
    return payment.agg(n=hr.count(), total=hr.sum("amount"), recent=hr.count(window="15m"), last=hr.last("amount"))


def day(clock: str) -> str:
    return f"2026-03-01T{clock}:00Z"


def fill(app: testing.VirtualApp) -> None:
    """Payments that come in another order than they happened; the third one is late."""
    app.register(Spending)
    arrivals = [("10:00", "10:00", 1.0), ("10:30", "10:05", 2.0), ("11:00", "09:30", 4.0), ("11:10", "10:20", 8.0)]
    testing.replay(
        app,
        [(day(append), Payment, {"user": "ada", "amount": amount, "at": day(at)}) for append, at, amount in arrivals],
    )


@pytest.mark.parametrize("fold_rows", ["1000", "1"], ids=["at once", "after a while"])
def test_rows_have_what_happened_until_a_moment_and_was_known_at_another(fold_rows: str) -> None:
    with testing.app(at=day("09:00"), features__fold_rows=fold_rows) as app:
        fill(app)
        questions: list[Any] = [
            ("ada", day("10:10")),
            ("ada", day("10:10"), day("10:10")),
            ("ada", day("10:10"), day("10:30")),
            ("ada", day("10:25")),
            ("ada", day("10:25"), day("11:09")),
            ("ada", day("09:59")),
            ("ada", day("09:29")),
            ("ada", "2026-03-02T00:00:00Z"),
        ]
        rows = list(app.history(Spending, questions))
        assert [row.get("total") for row in rows] == [3.0, 1.0, 3.0, 11.0, 3.0, None, None, 11.0]
        assert [row.get("recent") for row in rows] == [2, 1, 2, 1, 0, None, None, 0]
        assert [row.get("last") for row in rows] == [2.0, 1.0, 2.0, 8.0, 2.0, None, None, 8.0]
        assert [row.late_events for row in rows] == [1, 0, 0, 1, 1, 1, 0, 1]
        assert all(row.complete for row in rows)
        common = list(app.history(Spending, [question[:2] for question in questions], as_known_at=day("10:10")))
        assert [row.get("total") for row in common] == [1.0] * 5 + [None, None, 1.0]


def test_a_row_of_the_past_says_how_many_events_were_late() -> None:
    with testing.app(at=day("09:00")) as app:
        fill(app)
        row = app.get(Spending, "ada", as_of=day("10:10"), explain=True)
        assert row["total"] == 3.0 and row.late_events == 1 and row.complete
        assert row.explain is not None and row.explain["late_events"] == 1
        known = app.get(Spending, "ada", as_of=day("10:10"), as_known_at=day("10:29"))
        assert known["total"] == 1.0 and known.late_events == 0
        question = {"table": "Spending", "key": "ada", "as_of": day("10:10"), "as_known_at": day("10:10")}
        with httpx2.Client(base_url=app.client.settings.url, trust_env=False) as http:
            answer = http.post("/v1/get", json=question)
            assert answer.json()["total"] == 1.0 and "headrace-late-events" not in answer.headers
            later = http.post("/v1/get", json={**question, "as_known_at": day("11:00")})
            assert later.json()["total"] == 3.0 and later.headers["headrace-late-events"] == "1"
            refused = http.post("/v1/get", json={**question, "as_known_at": "at noon"})
            assert refused.status_code == 400 and refused.json()["error"]["code"] == "bad_request"
            assert "as_known_at" in refused.json()["error"]["message"]


def test_a_training_set_is_what_merge_asof_joins() -> None:
    random, start = Random(7), datetime(2026, 3, 1, tzinfo=UTC)
    with testing.app(at=start) as app:
        app.register(Spending)
        events = []
        for number in range(200):
            app.clock.advance("30s")
            at = start + timedelta(seconds=30 * number - random.randrange(3000), milliseconds=random.randrange(1000))
            user = random.choice("abc")
            app.push(Payment, {"user": user, "amount": float(number), "at": at})
            events.append({"user": user, "at": at, "n": 0})
        frame = pd.DataFrame(events).sort_values("at", kind="stable")
        frame["n"] = frame.groupby("user").cumcount() + 1
        moments = [start + timedelta(seconds=random.randrange(-3000, 6000)) for _ in range(80)]
        labels = pd.DataFrame({"when": moments, "user": [random.choice("abcz") for _ in moments]}).sort_values("when")
        joined = pd.merge_asof(labels, frame, left_on="when", right_on="at", by="user")
        made = app.training_set(labels, {Spending: ["n"]}, at="when").to_pandas()
        assert made["n"].astype("Float64").tolist() == joined["n"].astype("Float64").tolist()
