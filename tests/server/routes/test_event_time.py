"""Event time over HTTP: events count when they happened, late ones are told, those ahead of the clock refused."""

from __future__ import annotations

import itertools
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from server.conftest import Api

_numbers = itertools.count(1)
HOUR_S = 3600


class Source:
    """An event source with a time of its own, and a table over it."""

    def __init__(self, api: Api, kind: str = "datetime", **settings: Any) -> None:
        number = next(_numbers)
        self.api, self.name, self.table = api, f"Timed{number}", f"TimedUsers{number}"
        event = {"kind": "event", "name": self.name, "schema": {"user": "str", "at": kind}, "timestamp_field": "at"}
        self.descriptors = [{**event, **settings}, self._table()]
        answer = api.post("/v1/register", {"descriptors": self.descriptors, "app": self.name})
        assert answer.status_code == 200, answer.text

    def _table(self) -> dict[str, Any]:
        agg = {
            "n": {"op": "count", "params": {}},
            "recent": {"op": "count", "params": {"window": "1h"}},
            "last": {"op": "last", "params": {"field": "at"}},
            "seen": {"op": "last_seen", "params": {}},
            "since": {"op": "time_since", "params": {}},
        }
        return {"kind": "table", "name": self.table, "key": ["user"], "upstreams": [self.name], "agg": agg}

    def push(self, body: Any) -> Any:
        return self.api.post(f"/v1/push/{self.name}", body)

    def get(self, user: str = "u", **options: Any) -> Any:
        return self.api.post("/v1/get", {"table": self.table, "key": user, **options})

    def late_metric(self) -> float:
        lines = self.api.get("/metrics").text.splitlines()
        begin = f'headrace_late_events_total{{stream="events/{self.name}"}} '
        return next((float(line.removeprefix(begin)) for line in lines if line.startswith(begin)), 0.0)


def text(ago_s: float) -> str:
    return datetime.fromtimestamp(time.time() - ago_s, UTC).isoformat()


def event(ago_s: float, user: str = "u") -> dict[str, Any]:
    return {"user": user, "at": text(ago_s)}


def test_events_count_where_they_happened_in_whatever_order_they_come(api: Api) -> None:
    source = Source(api)
    events = [event(600), event(3 * HOUR_S), event(30 * 24 * HOUR_S), event(60)]
    assert source.push(events).status_code == 200
    row = source.get().json()
    assert (row["n"], row["recent"], row["last"]) == (4, 2, events[3]["at"])
    assert 60_000 <= row["since"] < 90_000
    source.push(event(2 * HOUR_S))
    assert source.get().json()["last"] == events[3]["at"]
    assert "headrace-late-events" not in source.get().headers


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)])
def test_a_unix_time_is_read_in_its_unit(api: Api, unit: str, factor: float) -> None:
    source = Source(api, "i64", timestamp_unit=unit)
    at = int((time.time() - 120) * factor)
    assert source.push({"user": "u", "at": at}).status_code == 200
    assert source.get().json()["seen"] == int(at * (1000 / factor))


def test_late_events_are_told_and_counted_and_change_nothing(api: Api) -> None:
    source = Source(api, late_after="1h")
    source.push([event(60), event(2 * HOUR_S), event(3 * HOUR_S), event(3 * HOUR_S, "never seen")])
    answer = source.get(explain=True)
    assert answer.json()["row"]["n"] == 1
    assert answer.json()["explain"]["late_events"] == 2
    assert answer.headers["headrace-late-events"] == "2"
    unseen = source.get("never seen")
    assert (unseen.json(), unseen.headers["headrace-late-events"]) == ({}, "1")
    batch = api.post("/v1/batch_get", {"requests": [{"table": source.table, "key": key} for key in ("u", "x")]})
    assert batch.json()["late_events"] == [2, 0]
    assert source.late_metric() == 3.0
    source.push(event(HOUR_S - 60))
    assert source.get().json()["n"] == 2


def test_an_event_ahead_of_the_clock_is_refused_and_the_others_are_taken(api: Api) -> None:
    source = Source(api)
    answer = source.push([event(0), event(-120), event(-30)])
    assert answer.status_code == 200
    assert [result.get("error", {}).get("code") for result in answer.json()["results"]] == [
        None,
        "event_time_ahead",
        None,
    ]
    alone = source.push(event(-HOUR_S))
    assert (alone.status_code, alone.json()["error"]["code"]) == (400, "event_time_ahead")
    assert alone.json()["error"]["field"] == "at"
    assert source.push([event(-120)]).status_code == 400
    row = source.get().json()
    assert (row["n"], row["recent"], row["since"]) == (2, 2, 0)
    direct = api.post(f"/v1/stream/events/{source.name}", [event(-120)])
    assert direct.status_code == 400
    assert source.get().json()["n"] == 2


def test_an_event_is_not_ahead_of_the_append_time_that_its_request_gives(api: Api) -> None:
    source = Source(api)
    headers = {"stream-timestamp": text(24 * HOUR_S)}
    path = f"/v1/stream/events/{source.name}"
    assert api.post(path, [event(23 * HOUR_S)], headers).status_code == 400
    assert api.post(path, [event(25 * HOUR_S)], headers).status_code in (200, 204)
    assert source.get().json()["n"] == 1


@pytest.mark.parametrize("at", ["2026-01-01", "yesterday", 5, None, "2026-13-01T00:00:00Z"])
def test_a_time_that_is_none_is_refused_as_any_other_value(api: Api, at: Any) -> None:
    answer = Source(api).push({"user": "u", "at": at})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "schema_mismatch")


def test_an_event_without_its_time_is_refused(api: Api) -> None:
    answer = Source(api).push({"user": "u"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "missing_field")


@pytest.mark.parametrize("at", [-(2**63), 2**63 - 1, 10**17, -(10**12)])
def test_a_unix_time_of_another_unit_is_refused_with_a_reason(api: Api, at: int) -> None:
    source = Source(api, "i64", timestamp_unit="s")
    answer = source.push({"user": "u", "at": at})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] in ("event_time_ahead", "schema_mismatch")
    assert "timestamp_unit" in answer.json()["error"]["message"]
    assert source.get().json() == {}


def test_the_event_time_of_a_source_is_listed_and_changed_only_with_force(api: Api) -> None:
    source = Source(api, late_after="1h")
    registered = api.get("/v1/registry", app=source.name).json()["descriptors"]
    listed = next(node for node in registered if node["name"] == source.name)
    assert (listed["timestamp_field"], listed["late_after"]) == ("at", "1h")
    source.push([event(60), event(2 * HOUR_S)])
    del source.descriptors[0]["late_after"]
    payload = {"descriptors": source.descriptors, "app": source.name}
    refused = api.post("/v1/register", payload)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "registration_conflict")
    assert api.post("/v1/register", {**payload, "force": True, "backfill": True}).status_code == 200
    answer = source.get()
    assert answer.json()["n"] == 2
    assert "headrace-late-events" not in answer.headers


def test_an_empty_array_is_refused_as_elsewhere(api: Api) -> None:
    source = Source(api)
    assert source.push([]).status_code == 400
    assert api.post(f"/v1/stream/events/{source.name}", []).status_code == 400
