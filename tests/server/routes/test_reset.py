from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2

from server.pipelines import Pipeline

if TYPE_CHECKING:
    from conftest import StartServer
    from server.conftest import Api

DESCRIPTORS = [
    {"kind": "event", "name": "Txn", "schema": {"user": "str"}},
    {"kind": "table", "name": "Users", "key": ["user"], "upstreams": ["Txn"], "agg": {"n": {"op": "count"}}},
]


def test_a_ping_knows_the_version_of_the_registry(api: Api) -> None:
    pipeline = Pipeline(api)
    before = api.post("/v1/ping", {}).json()
    assert pipeline.register().status_code == 200
    after = api.post("/v1/ping", {}).json()
    assert after["registry_version"] == before["registry_version"] + 1
    assert after["server_version"]


def test_a_server_keeps_what_it_has_unless_it_runs_for_tests(api: Api) -> None:
    pipeline = Pipeline(api)
    assert pipeline.register().status_code == 200
    refused = api.post("/v1/reset", {})
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "reset_disabled_in_production"
    assert pipeline.event in {node["name"] for node in api.get("/v1/registry").json()["descriptors"]}


def test_a_server_for_tests_forgets_everything(start_server: StartServer) -> None:
    with httpx2.Client(base_url=start_server(features__test_mode="true").url, trust_env=False) as http:
        for app in ("one", "two"):
            named = [{**node, "name": app + node["name"], "upstreams": [app + "Txn"]} for node in DESCRIPTORS[1:]]
            named.append({**DESCRIPTORS[0], "name": app + "Txn"})
            assert http.post("/v1/register", json={"app": app, "descriptors": named}).status_code == 200
        http.post("/v1/push/oneTxn", json={"user": "u"})
        removed = http.post("/v1/reset", json={}).json()
        assert removed["status"] == "ok"
        assert removed["registry_version"] == 3
        assert len(removed["removed"]) == 4
        assert http.get("/v1/registry").json()["descriptors"] == []
        assert http.get("/v1/stream/events/oneTxn").status_code == 404
        assert http.post("/v1/register", json={"descriptors": DESCRIPTORS}).status_code == 200
        assert http.post("/v1/get", json={"table": "Users", "key": "u"}).json() == {}
