"""The streams of the server itself: its metrics, the account of what was done, and who may do what to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from headrace.storage.keys import KeyStore
from server.conftest import Api

if TYPE_CHECKING:
    from tests.conftest import StartServer

METRICS, REGISTRY = "/v1/stream/__stream_metrics__", "/v1/stream/__registry__"
JSON = {"content-type": "application/json"}
Code = Callable[[Any], str]


@pytest.fixture
def quick(start_server: StartServer) -> Any:
    """A server that emits its metrics often."""
    api = Api(start_server(system__metrics_interval_s="0.2").url)
    yield api
    api.client.close()


def awaited(ask: Callable[[], Any]) -> Any:
    """What is found, as soon as something is."""
    until = time.monotonic() + 8
    while time.monotonic() < until:
        if found := ask():
            return found
        time.sleep(0.05)
    raise AssertionError("it never came")


def told(api: Api, what: str, **query: Any) -> list[dict[str, Any]]:
    answer = api.get(REGISTRY, **query)
    return [note for note in answer.json() if note["what"] == what] if answer.status_code == 200 else []


# -- the account


def test_the_life_of_a_stream_is_told_by_who_and_when(api: Api) -> None:
    path = api.stream()
    name = path.removeprefix("/v1/stream/")
    api.post(f"{path}/_schema", {"schema": {"type": "object"}})
    api.post(f"{path}/_retention", {"age": "1h"})
    api.post(f"{path}/_profile", {"profile": {"kind": "state-protocol"}})
    api.post(path, headers={"stream-closed": "true"})
    api.delete(path)
    awaited(lambda: told(api, "stream_deleted", key=name))
    notes = api.get(REGISTRY, key=name).json()
    assert [note["what"] for note in notes] == [
        "stream_created",
        "schema_changed",
        "retention_changed",
        "profile_changed",
        "stream_closed",
        "stream_deleted",
    ]
    assert {note["who"] for note in notes} == {"local"}
    assert {note["stream"] for note in notes} == {name}
    assert sorted(note["at"] for note in notes) == [note["at"] for note in notes]
    assert notes[0]["content_type"] == "application/json"
    assert notes[1]["version"] == 1
    assert notes[3]["profile"] == {"kind": "state-protocol"}


def test_a_key_is_told_by_its_user(start_server: StartServer, tmp_path: Any) -> None:
    server = start_server(data="keyed")
    keys = KeyStore(tmp_path / "keyed" / "keys.db")
    _, token = keys.create(user_id="ada", scopes=["read", "write"], prefix="", name="")
    keys.close()
    api = Api(server.url)
    try:
        path = api.name()
        assert api.put(path, headers={**JSON, "authorization": f"Bearer {token}"}).status_code == 201
        (note,) = awaited(lambda: told(api, "stream_created"))
        assert note["who"] == "ada"
    finally:
        api.client.close()


def test_what_was_not_done_is_not_told(api: Api) -> None:
    path = api.stream({"id": 1})
    assert api.post(f"{path}/_schema", {"schema": {"type": "object"}}).status_code == 400
    assert api.put(path, headers=JSON).status_code == 200
    name = path.removeprefix("/v1/stream/")
    awaited(lambda: told(api, "stream_created", key=name))
    assert [note["what"] for note in api.get(REGISTRY, key=name).json()] == ["stream_created"]


def test_the_account_survives_a_kill(start_server: StartServer) -> None:
    server = start_server(data="killed")
    api = Api(server.url)
    paths = [api.stream() for _ in range(20)]
    api.client.close()
    server.kill()
    api = Api(start_server(data="killed").url)
    try:
        names = {path.removeprefix("/v1/stream/") for path in paths}
        awaited(lambda: len(told(api, "stream_created")) == len(names))
        assert {note["stream"] for note in told(api, "stream_created")} == names
    finally:
        api.client.close()


def test_the_account_can_be_switched_off(start_server: StartServer) -> None:
    api = Api(start_server(system__registry_log="false", system__metrics_interval_s="0").url)
    try:
        api.stream()
        assert api.get(REGISTRY).status_code == 404
        assert api.get(METRICS).status_code == 404
    finally:
        api.client.close()


# -- the metrics


def test_intervals_tell_what_prometheus_shows(quick: Api) -> None:
    path = quick.stream()
    for number in range(5):
        quick.post(path, [{"n": number}] * 3)

    def appended() -> list[dict[str, Any]]:
        answer = quick.get(METRICS)
        records = answer.json() if answer.status_code == 200 else []
        return [record for record in records if record["metric"] == "headrace_appended_events_total"]

    awaited(lambda: sum(record["sum"] for record in appended()) >= 15)
    assert sum(record["sum"] for record in appended()) == quick.metric("headrace_appended_events_total") == 15
    record = appended()[0]
    assert record["apiVersion"] == "durable.streams/metrics/v1"
    assert record["metricKind"] == "counter"
    assert record["temporality"] == "delta"
    assert record["unit"] == "count"
    assert record["windowEnd"] > record["windowStart"]
    assert record["seriesKey"].startswith("counter|delta|headrace_appended_events_total|count||")


def test_labels_are_attributes_and_gauges_are_told_as_they_are(quick: Api) -> None:
    def limits() -> list[dict[str, Any]]:
        answer = quick.get(METRICS)
        records = answer.json() if answer.status_code == 200 else []
        return [record for record in records if record["metric"] == "headrace_gate_limit"]

    found = awaited(limits)
    assert {"gate": "read", "kind": "configured"} in [record["attributes"] for record in found]
    assert found[0]["temporality"] == "instant"


def test_the_metrics_are_lean_and_feed_nothing(quick: Api) -> None:
    awaited(lambda: quick.get(METRICS).status_code == 200)
    registry = quick.get(f"{METRICS}/_schema").json()
    assert registry["currentVersion"] == 1
    assert "routingKey" not in registry and "search" not in registry
    assert quick.get(f"{METRICS}/_profile").json()["profile"] == {"kind": "metrics"}
    status = quick.get(f"{METRICS}/_index_status").json()
    assert status["search_families"] == [] and status["exact_indexes"] == []
    assert not status["routing_key_index"]["configured"] and not status["routing_key_lexicon"]["configured"]
    assert quick.get(f"{METRICS}/_routing_keys").status_code == 400
    assert quick.get(METRICS, key=quick.get(METRICS).json()[0]["seriesKey"]).json() == []
    assert quick.get(f"{METRICS}/_search", q="cpu").status_code == 400
    assert quick.head(METRICS).headers["stream-retention-age"] == "7d"


# -- who may what


@pytest.mark.parametrize("name", ["__stream_metrics__", "__registry__", "__stream_stats__", "__mine"])
def test_reserved_names_cannot_be_taken(api: Api, code_of: Code, name: str) -> None:
    answer = api.put(f"/v1/stream/{name}", headers=JSON)
    assert answer.status_code == 400
    assert "reserved" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "resource", "body"),
    [
        ("POST", "", [{"forged": True}]),
        ("DELETE", "", None),
        ("POST", "/_schema", {"routingKey": None}),
        ("POST", "/_profile", {"profile": {"kind": "generic"}}),
        ("POST", "/_retention", {"age": "1s"}),
        ("POST", "/_seal", None),
    ],
)
def test_only_the_server_writes_its_streams(api: Api, code_of: Code, method: str, resource: str, body: Any) -> None:
    api.stream()
    awaited(lambda: told(api, "stream_created"))
    before = api.get(REGISTRY).json()
    answer = api.call(method, REGISTRY + resource, body)
    assert answer.status_code == 403
    assert code_of(answer) == "reserved_stream"
    assert api.get(REGISTRY).json()[: len(before)] == before


def test_streams_of_the_server_are_not_forked(api: Api, code_of: Code) -> None:
    api.stream()
    awaited(lambda: told(api, "stream_created"))
    answer = api.put(api.name(), headers={**JSON, "Stream-Forked-From": REGISTRY})
    assert answer.status_code == 403
    assert code_of(answer) == "reserved_stream"
    assert answer.json()["error"]["field"] == "Stream-Forked-From"


def test_the_list_shows_them_only_to_those_who_ask(api: Api) -> None:
    api.stream()
    awaited(lambda: told(api, "stream_created"))
    assert not [row for row in api.get("/v1/streams", limit=1000).json() if row["name"].startswith("__")]
    named = {row["name"]: row["profile"] for row in api.get("/v1/streams", prefix="__").json()}
    assert named["__registry__"] == "generic"


def test_who_waits_at_the_tail_of_the_account_is_told(api: Api) -> None:
    api.stream()
    awaited(lambda: told(api, "stream_created"))
    offset = api.offset(REGISTRY)
    path = api.stream()
    answer = api.get(REGISTRY, live="long-poll", offset=offset, timeout="5s")
    assert path.removeprefix("/v1/stream/") in [note["stream"] for note in answer.json()]
