"""Event time in the SDK: rows say how many events came too late, and the clock of the server decides what is ahead."""

from __future__ import annotations

from datetime import datetime

import pytest

import headrace as hr
from headrace import testing
from headrace.client.features import PushRefused


class Visit(hr.Event, timestamp_field="at", late_after="1h"):
    user: str
    at: datetime


@hr.table(key="user")
def Visits(visit: Visit) -> hr.Aggregated:
    return visit.agg(n=hr.count(), recent=hr.count(window="10m"), since=hr.time_since())


def test_rows_say_how_many_events_came_too_late() -> None:
    with testing.app(at="2026-03-01T12:00:00Z") as app:
        app.register(Visits)
        for user, at in (("a", "11:59:00"), ("a", "10:59:59"), ("b", "10:00:00"), ("a", "11:00:00"), ("a", "11:52:00")):
            app.push(Visit, {"user": user, "at": f"2026-03-01T{at}Z"})
        row = app.get(Visits, "a")
        assert (dict(row), row.late_events) == ({"n": 3, "recent": 2, "since": 60_000}, 1)
        rows = app.batch_get([(Visits, "a"), (Visits, "b"), (Visits, "c")])
        assert [row.late_events for row in rows] == [1, 1, 0]
        assert [bool(row) for row in rows] == [True, False, False]


def test_an_event_up_to_a_minute_ahead_counts_at_once_and_for_its_whole_window() -> None:
    with testing.app(at="2026-03-01T12:00:00Z") as app:
        app.register(Visits)
        app.push_many(Visit, [{"user": "a", "at": f"2026-03-01T{at}Z"} for at in ("12:01:00", "11:50:30")])
        with pytest.raises(PushRefused) as refused:
            app.push_many(Visit, [{"user": "a", "at": "2026-03-01T12:01:00.000001Z"}])
        assert refused.value.facts["results"][0]["error"]["code"] == "event_time_ahead"
        assert dict(app.get(Visits, "a")) == {"n": 2, "recent": 2, "since": 0}
        app.clock.advance("10m")
        assert dict(app.get(Visits, "a")) == {"n": 2, "recent": 1, "since": 540_000}
        app.clock.advance("2m")
        assert dict(app.get(Visits, "a")) == {"n": 2, "recent": 0, "since": 660_000}
