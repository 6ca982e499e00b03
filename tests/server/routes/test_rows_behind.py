"""Rows that are asked for while their tables are far behind: right within the time of a request, or it says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import pytest

if TYPE_CHECKING:
    from tests.conftest import StartServer

EVENTS, USERS = 12_000, 100
#: How often these are pushed before somebody asks: how many are too many depends on the machine.
ARRAYS = (1, 2, 4, 8, 16)
EVENT = {"kind": "event", "name": "Order", "schema": {"user": "str", "amount": "f64"}}
COSTLY = {
    f"f{number}": {"op": "quantile", "params": {"field": "amount", "q": 0.5, "window": f"{number + 1}h"}}
    for number in range(80)
}


def table(name: str, key: list[str]) -> dict[str, Any]:
    agg = {"n": {"op": "count", "params": {}}, **COSTLY}
    return {"kind": "table", "name": name, "key": key, "upstreams": ["Order"], "agg": agg}


@pytest.fixture
def http(start_server: StartServer) -> Any:
    server = start_server(server__resolver_timeout_s="0.5")
    with httpx2.Client(base_url=server.url, timeout=30.0) as client:
        answer = client.post("/v1/register", json={"descriptors": [EVENT, table("Users", ["user"]), table("All", [])]})
        assert answer.status_code == 200, answer.text
        ask(client, "Users", "u1")
        yield client


def ask(http: httpx2.Client, name: str, key: Any) -> httpx2.Response:
    return http.post("/v1/get", json={"table": name, "key": key})


def push_all(http: httpx2.Client) -> str:
    """Many events in few arrays; answers the offset after the last."""
    for first in range(0, EVENTS, 3_000):
        events = [{"user": f"u{number % USERS}", "amount": 1.0} for number in range(first, first + 3_000)]
        answer = http.post("/v1/push/Order", json=events)
        assert answer.status_code == 200
    offset: str = answer.json()["results"][-1]["offset"]
    return offset


def test_a_get_sees_every_push_before_it_though_tails_are_far_behind(http: httpx2.Client) -> None:
    push_all(http)
    first = http.post("/v1/get", json={"table": "Users", "key": "u7", "explain": True, "features": ["n"]})
    assert first.status_code == 200 and first.headers["headrace-coverage"] == "complete"
    assert first.json()["row"] == {"n": EVENTS // USERS}
    asked = [{"table": "Users", "key": f"u{number}", "features": ["n"]} for number in (1, 2, 3)]
    batch = http.post("/v1/batch_get", json={"requests": asked})
    assert batch.status_code == 200 and batch.headers["headrace-coverage"] == "complete"
    assert batch.json()["results"] == [{"n": EVENTS // USERS}] * 3


def test_a_large_batch_that_is_not_found_in_time_says_what_any_row_may_lack(http: httpx2.Client) -> None:
    asked = [{"table": name, "key": key, "features": ["n"]} for name, key in (("All", []), *[("Users", "u1")] * 100)]
    events, late, last = 0, None, ""
    for arrays in ARRAYS:
        for _ in range(arrays):
            events, last = events + EVENTS, push_all(http)
        late = http.post("/v1/batch_get", json={"requests": asked})
        if late.status_code != 200:
            break
    assert late is not None
    error = late.json()["error"]
    assert late.status_code == 408
    assert error["code"] == "request_timeout"
    assert events >= error["events"] > 0 and error["offset"] < last


def test_a_row_that_is_not_found_in_time_says_how_many_events_it_lacks(http: httpx2.Client) -> None:
    events, late, last = 0, list[httpx2.Response](), ""
    for arrays in ARRAYS:
        for _ in range(arrays):
            events, last = events + EVENTS, push_all(http)
        late = [answer := ask(http, "All", [])]
        while answer.status_code == 408:
            late.append(answer := ask(http, "All", []))
        if len(late) > 1:
            break
    *refused, found = late
    assert found.status_code == 200 and found.json()["n"] == events
    assert refused, "all events of a table with one row, each folded into eighty features"
    errors = [answer.json()["error"] for answer in refused]
    lacking = [error["events"] for error in errors]
    assert all(error["code"] == "request_timeout" and error["offset"] < last for error in errors)
    assert events >= lacking[0] > 0 and lacking == sorted(lacking, reverse=True), "what was folded is kept"
