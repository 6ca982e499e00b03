"""From the moment an event expires on, no route returns it, whatever has been removed by then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import testing
from server.conftest import Api

SECRET = "confidential"
SEARCH = {
    "schema": {"type": "object"},
    "routingKey": {"jsonPointer": "/who", "required": True},
    "search": {
        "primaryTimestampField": "at",
        "fields": {
            "at": {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/at"}], "column": True},
            "who": {"kind": "keyword", "bindings": [{"version": 1, "jsonPointer": "/who"}], "exact": True},
        },
        "rollups": {"n": {"dimensions": ["who"], "intervals": ["1h"], "measures": {"n": {"kind": "count"}}}},
    },
}
RANGE = {"from": "2026-01-01T00:00:00Z", "to": "2027-01-01T00:00:00Z"}


@pytest.fixture(params=["log", "segments"])
def app(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[testing.VirtualApp]:
    """A server with a virtual clock that publishes nothing, or every append at once."""
    seal = {} if request.param == "log" else {"storage__seal_rows": "1"}
    with testing.app(tmp_path, **seal) as opened:
        yield opened


@pytest.fixture
def api(app: testing.VirtualApp) -> Iterator[Api]:
    """Plain requests to the same server."""
    api = Api(app.client.settings.url)
    with api.client:
        yield api


def test_an_expired_event_is_in_no_answer(app: testing.VirtualApp, api: Api) -> None:
    path = "/v1/stream/visits"
    assert api.put(path, headers={"content-type": "application/json", "stream-retention-age": "5s"}).is_success
    assert api.post(f"{path}/_schema", SEARCH).status_code == 200
    first = append(api, path, SECRET)
    app.clock.advance("3s")
    append(api, path, "public")
    assert all(SECRET in text for text in answers(api, path).values())

    app.clock.advance("2001ms")
    assert {name: text for name, text in answers(api, path).items() if SECRET in text} == {}
    assert all("public" in text for text in answers(api, path).values())
    gone = api.get(path, offset=first)
    assert gone.status_code == 200
    assert "public" in gone.text
    app.clock.advance("3s")
    gone = api.get(path, offset=first)
    assert gone.status_code == 410
    assert gone.json()["error"]["code"] == "offset_gone"


def test_a_source_with_a_table_hides_what_its_table_still_needs(app: testing.VirtualApp, api: Api) -> None:
    fields = {"kind": "event", "name": "Visit", "schema": {"who": "str"}, "keep_events_for": "5s"}
    count = {"n": {"op": "count", "params": {}}}
    table = {"kind": "table", "name": "Visits", "key": ["who"], "upstreams": ["Visit"], "agg": count}
    assert api.post("/v1/register", {"nodes": [fields, table]}).status_code == 200
    assert api.post("/v1/push/Visit", {"who": SECRET}).status_code == 200

    app.clock.advance("5001ms")
    for query in ({}, {"offset": "-1"}, {"filter": "who:*"}, {"since": "2020-01-01T00:00:00Z"}):
        assert SECRET not in api.get("/v1/stream/events/Visit", **query).text
    assert SECRET not in api.post("/v1/stream/events/Visit/_search", {"q": "has:who"}).text
    assert api.post("/v1/get", {"table": "Visits", "key": SECRET}).json()["n"] == 1


def append(api: Api, path: str, who: str) -> str:
    answer = api.post(path, {"at": "2026-06-01T00:00:00Z", "who": who})
    assert answer.status_code == 204
    return str(answer.headers["stream-next-offset"])


def answers(api: Api, path: str) -> dict[str, str]:
    """What every route that returns events, or values of them, says of a stream."""
    fork = api.name()
    assert api.put(fork, headers={"stream-forked-from": path}).status_code == 201
    reads: dict[str, dict[str, Any]] = {
        "read": {},
        "start": {"offset": "-1"},
        "since": {"since": "2020-01-01T00:00:00Z"},
        "filter": {"filter": f"who:{SECRET} OR who:public"},
        "long-poll": {"offset": "-1", "live": "long-poll"},
        "version": {"schema_version": "1"},
    }
    return {
        **{name: api.get(path, **query).text for name, query in reads.items()},
        "fork": api.get(fork).text,
        "search": api.post(f"{path}/_search", {"q": "has:who"}).text,
        "aggregate": api.post(
            f"{path}/_aggregate", {"rollup": "n", "interval": "1h", "group_by": ["who"], **RANGE}
        ).text,
        "keys": api.get(f"{path}/_routing_keys").text,
        "sse": next_event(api, path),
    }


def next_event(api: Api, path: str) -> str:
    """The first data that a subscriber gets from the start."""
    with api.client.stream("GET", path, params={"offset": "-1", "live": "sse"}) as response:
        lines: list[str] = []
        for line in response.iter_lines():
            lines.append(line)
            if line.startswith("data:["):
                return "\n".join(lines)
    return "\n".join(lines)
