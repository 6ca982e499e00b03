"""Listing the routing keys of a stream over HTTP: what may be asked, what is answered, and what is said about it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import msgspec
import pytest

from engine.search.keyed import append as keyed_append
from engine.search.keyed import keyed as keyed_stream
from engine.search.keyed import opened
from headrace.engine.runtime.gates import Gate
from headrace.server.routes.route_table import openapi_document
from headrace.server.routes.routing_keys import RoutingKeysRoute
from headrace.storage.keys import KeyStore
from server.callers import Caller
from server.registries import append, name_of, post
from support.log_stream import SEARCH, Logs
from support.plain_worker import Worker

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api

Code = Callable[[Any], str]
SOON = {"storage__seal_rows": "50", "storage__seal_age_s": "0", "pipeline__min_rows": "0", "pipeline__fan_out": "2"}
KEY = {"jsonPointer": "/service", "required": False}


@pytest.fixture(scope="module")
def server(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that publishes at once, and for which any number of entries is worth the work."""
    soon = type(server)(tmp_path_factory.mktemp("soon") / "data", SOON).start()
    yield soon
    soon.kill()


def keyed(api: Api, *keys: str, search: dict[str, Any] | None = None) -> str:
    """A stream with a routing key, and an event for each of these."""
    path = api.stream()
    settings = {"routingKey": KEY, **({"schema": {"type": "object"}, "search": search} if search else {})}
    assert post(api, path, **settings).status_code == 200
    if keys:
        append(api, path, *({"service": key} for key in keys))
    return path


def listing(api: Api, path: str, **query: Any) -> dict[str, Any]:
    """One page, after holding it against the OpenAPI document."""
    answer = api.get(f"{path}/_routing_keys", **query)
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store"), answer.text
    described = openapi_document()
    content = described["paths"]["/v1/stream/{name}/_routing_keys"]["get"]["responses"]["200"]["content"]
    jsonschema_rs.validate(
        {**content["application/json"]["schema"], "components": described["components"]}, answer.json()
    )
    found: dict[str, Any] = answer.json()
    return found


# -- what is answered


def test_a_page_has_every_field(api: Api) -> None:
    path = keyed(api, "b", "a", "b")
    found = listing(api, path)
    assert found.pop("took_ms") >= 0
    assert all(isinstance(found["timing"][name], int) for name in found["timing"])
    assert set(found.pop("timing")) == {
        "lexicon_run_get_ms",
        "lexicon_decode_ms",
        "lexicon_enumerate_ms",
        "lexicon_merge_ms",
        "fallback_scan_ms",
        "fallback_segment_get_ms",
        "fallback_wal_scan_ms",
        "lexicon_runs_loaded",
    }
    coverage = found.pop("coverage")
    assert coverage.pop("scanned_uploaded_segments") + coverage.pop("scanned_wal_rows") in (1, 3)
    assert coverage == {
        "complete": True,
        "indexed_segments": 0,
        "scanned_local_segments": 0,
        "possible_missing_uploaded_segments": 0,
        "possible_missing_local_segments": 0,
    }
    assert found == {
        "stream": name_of(path),
        "source": {"kind": "routing_key", "name": ""},
        "keys": ["a", "b"],
        "next_after": None,
    }


def test_pages_lead_through_all_keys_in_order_and_once(api: Api) -> None:
    keys = [f"{n:x}é\U0001f600"[::-1] for n in range(130)]
    path = keyed(api, *keys, *keys)
    found: list[str] = []
    after: dict[str, str] = {}
    while True:
        one = listing(api, path, limit=37, **after)
        found += one["keys"]
        if one["next_after"] is None:
            break
        assert one["next_after"] == one["keys"][-1] and len(one["keys"]) == 37
        after = {"after": one["next_after"]}
    assert found == sorted(set(keys))


def test_a_page_has_a_hundred_keys_if_nothing_is_said(api: Api) -> None:
    path = keyed(api, *(f"{n:04}" for n in range(501)))
    assert [len(listing(api, path, **query)["keys"]) for query in ({}, {"limit": 500}, {"after": ""})] == [
        100,
        500,
        100,
    ]
    assert listing(api, path, limit=500)["next_after"] == "0499"
    assert listing(api, path, after="0400", limit=100)["next_after"] is None


def test_a_stream_without_keys_has_an_empty_page(api: Api) -> None:
    path = keyed(api)
    append(api, path, {"other": 1})
    found = listing(api, path)
    assert found["keys"] == []
    assert found["next_after"] is None
    assert found["coverage"]["complete"] is True
    assert listing(api, keyed(api, "a"), after="a")["keys"] == []


def test_keys_come_from_lexicons_where_there_are_some(server: ServerProcess, api: Api, eventually: Any) -> None:
    path, logs = keyed(api, search=SEARCH), Logs(server.url)
    logs.append(name_of(path), 0, 400)
    eventually(lambda: logs.published(name_of(path)) == 400)
    expected = sorted(f"service-{n}" for n in range(12))
    scanned = listing(api, path)
    assert scanned["keys"] == expected
    assert scanned["coverage"]["scanned_uploaded_segments"] == 1
    Worker(server.url).work()
    indexed = listing(api, path)
    assert indexed["keys"] == expected
    assert indexed["timing"]["lexicon_runs_loaded"] == 1
    assert indexed["coverage"]["indexed_segments"] == 1
    assert indexed["coverage"]["scanned_uploaded_segments"] == 0
    append(api, path, {"service": "a new one"})
    assert listing(api, path)["keys"] == ["a new one", *expected]


def test_an_appended_key_is_in_the_very_next_page(server: ServerProcess, api: Api) -> None:
    path, done = keyed(api, search=SEARCH), threading.Event()

    def ingest() -> None:
        number = 0
        while not done.is_set():
            api.post(path, [{"service": f"n{number % 50}"}])
            number += 1

    def work() -> None:
        while not done.is_set():
            Worker(server.url).work_once()
            done.wait(0.1)

    threads = [threading.Thread(target=run) for run in (ingest, work)]
    for thread in threads:
        thread.start()
    try:
        for number in range(25):
            append(api, path, {"service": f"k{number:03}"})
            found = listing(api, path, after="k", limit=500)
            assert found["coverage"]["complete"]
            assert [key for key in found["keys"] if key[0] == "k"] == [f"k{n:03}" for n in range(number + 1)]
    finally:
        done.set()
        for thread in threads:
            thread.join()


# -- who may ask for what


@pytest.mark.parametrize("limit", ["0", "-1", "501", "1.5", "many", "", "+5", "05", "٥", "99999999999999999999"])
def test_a_limit_that_is_none_is_refused(api: Api, code_of: Code, limit: str) -> None:
    refused = api.get(f"{keyed(api, 'a')}/_routing_keys", limit=limit)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert "invalid limit" in refused.json()["error"]["message"]


def test_a_stream_without_a_routing_key_has_none_to_list(api: Api, code_of: Code) -> None:
    path = keyed(api, "a")
    assert post(api, path, routingKey=None).status_code == 200
    for one in (path, api.stream(1), api.octets(b"x")):
        refused = api.get(f"{one}/_routing_keys")
        assert refused.status_code == 400
        assert code_of(refused) == "bad_request"
        assert "routing key not configured" in refused.json()["error"]["message"]


def test_what_is_not_there_cannot_be_listed(api: Api, code_of: Code) -> None:
    refused = api.get(f"{api.name()}/_routing_keys")
    assert refused.status_code == 404
    assert code_of(refused) == "not_found"
    refused = api.get(f"{keyed(api, 'a')}/_routing_keys", before="x")
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    refused = api.post(f"{keyed(api, 'a')}/_routing_keys", {})
    assert refused.status_code == 405
    assert refused.headers["allow"] == "GET, OPTIONS"


def test_a_key_of_the_server_needs_the_scope_and_the_prefix(start_server: StartServer, api_of: Any) -> None:
    server = start_server()
    api = api_of(server)
    path = keyed(api, "a")
    store = KeyStore(server.data_dir / "keys.db")
    tokens = [store.create(user_id="ada", scopes=["read"], prefix=prefix)[1] for prefix in ("", "other/")]
    store.close()
    found = [api.get(f"{path}/_routing_keys", {"authorization": f"Bearer {token}"}).status_code for token in tokens]
    assert found == [200, 403]


# -- when there is no time


def test_an_answer_that_had_no_time_says_what_may_be_missing(tmp_path: Path) -> None:
    async def scenario(seconds: float) -> dict[str, Any]:
        config = rig.engine.config
        hurried = msgspec.structs.replace(config.server, resolver_timeout_s=seconds)
        rig.engine.config = msgspec.structs.replace(config, server=hurried)
        resource = RoutingKeysRoute(rig.engine, Gate(1))
        reply = await asyncio.wait_for(Caller().ask(resource, rig.find("s")).answered, 60)
        assert reply.status == 200
        found: dict[str, Any] = msgspec.json.decode(reply.body)
        return found

    with opened(tmp_path) as rig:
        keyed_stream(rig, "s")
        keyed_append(rig, "s", ["a", "b"])
        rig.publish("s")
        found = rig.run(scenario(0))
        assert found["keys"] == []
        assert found["next_after"] is None
        assert found["coverage"]["complete"] is False
        assert found["coverage"]["possible_missing_uploaded_segments"] == 1
        found = rig.run(scenario(60))
        assert found["keys"] == ["a", "b"]
        assert found["coverage"]["complete"] is True


def test_who_waits_too_long_for_a_turn_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = rig.engine.config
        hurried = msgspec.structs.replace(config.server, resolver_timeout_s=0.05)
        rig.engine.config = msgspec.structs.replace(config, server=hurried)
        gate = Gate(1)
        async with gate:
            reply = await asyncio.wait_for(Caller().ask(RoutingKeysRoute(rig.engine, gate), rig.find("s")).answered, 60)
        assert reply.status == 408
        assert gate.active == 0

    with opened(tmp_path) as rig:
        keyed_stream(rig, "s")
        rig.run(scenario())
