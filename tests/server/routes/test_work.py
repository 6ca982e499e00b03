"""Work over HTTP: a worker that speaks to a real server and writes into its store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import msgspec
import pytest

from headrace.reduce.work_units import Unit
from headrace.server.routes.route_table import openapi_document
from headrace.storage.keys import KeyStore
from headrace.storage.objects import Objects
from server.registries import name_of, post
from support.work_rig import SCHEMA, make, search

if TYPE_CHECKING:
    import httpx2
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api

DOCUMENT = openapi_document()
SOON = {"storage__seal_age_s": "0", "pipeline__min_rows": "0", "pipeline__lease_s": "20"}


@pytest.fixture(scope="module")
def server(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that publishes at once, and for which any number of entries is worth the work."""
    soon = type(server)(tmp_path_factory.mktemp("soon") / "data", SOON).start()
    yield soon
    soon.kill()


@pytest.fixture
def stream(api: Api, eventually: Callable[..., None]) -> Iterator[str]:
    """The path of a stream with a search configuration and a published entry; nothing else is due."""
    path = api.stream()
    assert post(api, path, schema=SCHEMA, search=search("user")).status_code == 200
    assert api.post(path, [{"user": "a"}]).status_code == 204
    eventually(lambda: name_of(path) in told(api)["due"])
    yield path
    api.delete(path)


def fits(answer: httpx2.Response, path: str, verb: str = "post", status: int = 200) -> Any:
    """The body of an answer, after holding it against the OpenAPI document."""
    assert answer.status_code == status, answer.text
    described = DOCUMENT["paths"][path][verb]["responses"][str(status)]["content"]["application/json"]["schema"]
    jsonschema_rs.validate(described | {"components": DOCUMENT["components"]}, answer.json())
    return answer.json()


def told(api: Api) -> Any:
    return fits(api.get("/v1/work"), "/v1/work", "get")


def lease(api: Api, **body: Any) -> Any:
    return fits(api.post("/v1/work/lease", {"worker": "w", **body}), "/v1/work/lease")


def report(api: Api, leased: Any, verb: str, **body: Any) -> httpx2.Response:
    return api.post(f"/v1/work/leases/{leased['lease']['id']}/{verb}", {"token": leased["lease"]["token"], **body})


def made(leased: Any) -> list[dict[str, Any]]:
    """Write what a lease asks for into the store that it names."""
    objects = Objects.open(leased["store"])
    units = msgspec.convert(leased["units"], list[Unit])
    return [{"unit": unit.unit, "companion": msgspec.to_builtins(make(objects, unit))} for unit in units]


def test_a_worker_leases_reports_and_commits(api: Api, stream: str) -> None:
    leased = lease(api, limit=5, jobs=["index"])
    (unit,) = leased["units"]
    assert unit["stream"] == name_of(stream)
    assert unit["first_seq"] == 0
    assert unit["count"] == 1
    assert leased["lease"]["ttl_ms"] == 20_000
    assert leased["store"].startswith("file:///")
    beat = fits(report(api, leased, "heartbeat", done=0, total=1), "/v1/work/leases/{id}/heartbeat")
    assert beat["dropped"] == []
    found = told(api)
    assert found["leases"][0]["units"][0]["stream"] == name_of(stream)
    assert {"stream": name_of(stream), "done": 0, "total": 1} in found["streams"]
    assert api.metric("headrace_work_leases") == api.metric("headrace_work_units") == 1
    results = made(leased)
    for _ in range(2):
        committed = fits(report(api, leased, "commit", results=results), "/v1/work/leases/{id}/commit")
        assert committed["results"] == [{"unit": unit["unit"], "outcome": "committed"}]
    assert lease(api)["lease"] is None
    assert api.metric("headrace_work_leases") == 0


def test_a_lease_that_is_lost_is_told_so(api: Api, stream: str, code_of: Callable[..., str]) -> None:
    leased = lease(api)
    results = made(leased)
    assert report(api, leased, "release").status_code == 204
    for verb, body in {"commit": {"results": results}, "heartbeat": {}}.items():
        answer = report(api, leased, verb, **body)
        assert answer.status_code == 409
        assert code_of(answer) == "lease_lost"
    again = lease(api)
    assert again["lease"]["token"] > leased["lease"]["token"]
    stale = {**again, "lease": {**again["lease"], "token": leased["lease"]["token"]}}
    assert report(api, stale, "commit", results=[]).status_code == 409
    assert report(api, again, "commit", results=made(again)).status_code == 200


def test_who_works_and_what_rests_is_told(api: Api, stream: str) -> None:
    facts = {
        "host": "node-7.example",
        "master": "spark://cluster:7077",
        "ui": "http://node-7:4040",
        "event_log": "s3://logs/spark",
    }
    leased = lease(api, worker="node-7", **facts)
    report(api, leased, "commit", results=[{"unit": unit["unit"], "error": "boom"} for unit in leased["units"]])
    found = told(api)
    (resting,) = found["resting"]
    assert resting["stream"] == name_of(stream)
    assert resting["attempts"] == 1
    assert resting["reason"] == "boom"
    assert resting["retry_at"] > resting["last_attempt_at"]
    local, *others = found["workers"]
    assert local["worker"] == "server"
    assert local["local"] is True
    assert local["alive"] is True
    (worker,) = [one for one in others if one["worker"] == "node-7"]
    assert {name: worker[name] for name in facts} == facts
    assert local["ui"] is local["event_log"] is None
    assert worker["alive"] is True
    assert worker["done"] == 0
    assert worker["failed"] == 1
    assert worker["lost"] == 0
    assert worker["released"] == 0
    assert found["counts"]["workers"] == sum(one["alive"] for one in found["workers"])


def test_a_deleted_stream_is_told_to_who_works_on_it(api: Api, stream: str) -> None:
    leased = lease(api)
    assert api.delete(stream).status_code == 204
    beat = report(api, leased, "heartbeat").json()
    assert beat["dropped"] == [unit["unit"] for unit in leased["units"]]
    (result,) = report(api, leased, "commit", results=made(leased)).json()["results"]
    assert result["outcome"] == "dropped"
    assert result["reason"] == "the stream was deleted"


def test_work_is_paused_and_resumed(api: Api, stream: str) -> None:
    assert fits(api.post("/v1/work/pause"), "/v1/work/pause") == {"paused": True}
    assert api.metric("headrace_work_paused") == 1
    assert told(api)["paused"]
    leased = lease(api)
    assert leased["units"] == []
    assert leased["paused"] is True
    assert fits(api.post("/v1/work/resume", {}), "/v1/work/resume") == {"paused": False}
    assert lease(api)["units"]


def test_a_stream_that_is_asked_for_is_tried_again(api: Api, stream: str, code_of: Callable[..., str]) -> None:
    leased = lease(api)
    results = [{"unit": unit["unit"], "error": "boom"} for unit in leased["units"]]
    (result,) = report(api, leased, "commit", results=results).json()["results"]
    assert result["outcome"] == "failed"
    assert result["reason"] == "boom"
    assert lease(api)["units"] == []
    ran = fits(api.post("/v1/work/run", {"stream": name_of(stream)}), "/v1/work/run")
    assert ran == {"stream": name_of(stream), "due": True}
    assert lease(api)["units"]
    sealed = fits(api.post("/v1/work/run", {"stream": name_of(stream), "seal": True}), "/v1/work/run")
    assert sealed == {"stream": name_of(stream), "due": True}
    assert api.post("/v1/work/run", {"stream": name_of(api.stream())}).json()["due"] is False
    missing = api.post("/v1/work/run", {"stream": "nobody"})
    assert missing.status_code == 404
    assert code_of(missing) == "not_found"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("lease", {}),
        ("lease", {"worker": ""}),
        ("lease", {"worker": "w", "limit": 0}),
        ("lease", {"worker": "w", "limit": 257}),
        ("lease", {"worker": "w", "jobs": []}),
        ("lease", {"worker": "w", "jobs": ["dance"]}),
        ("lease", {"worker": "w", "colour": "blue"}),
        ("lease", {"worker": "w", "host": ""}),
        ("lease", {"worker": "w", "master": 5}),
        ("lease", b"{"),
        ("lease", b"\xff"),
        ("leases/x/heartbeat", {"token": -1}),
        ("leases/x/commit", {"token": 1}),
        ("leases/x/commit", {"token": 1, "results": [{"gone": True}]}),
        ("leases/x/commit", {"token": 1, "results": [{"unit": "u", "companion": {}}]}),
        ("run", {"stream": 5}),
        ("lease?now=1", {"worker": "w"}),
    ],
)
def test_what_cannot_be_meant_is_refused(api: Api, code_of: Callable[..., str], path: str, body: Any) -> None:
    answer = api.post(f"/v1/work/{path}", body)
    assert answer.status_code == 400
    assert code_of(answer) == "bad_request"


def test_other_verbs_and_encodings_are_refused(api: Api) -> None:
    assert api.get("/v1/work/lease").status_code == 405
    assert api.post("/v1/work", {}).status_code == 405
    assert api.post("/v1/work/lease", b"x", {"content-encoding": "gzip"}).status_code == 415


@pytest.mark.parametrize(("scope", "status"), [("read", 403), ("write", 403), ("admin", 200)])
def test_only_an_operator_works(api: Api, server: ServerProcess, scope: str, status: int) -> None:
    keys = KeyStore(server.data_dir / "keys.db")
    _, token = keys.create(user_id="u", scopes=[scope])
    _, narrow = keys.create(user_id="u", scopes=[scope], prefix="some/")
    keys.close()
    for key, expected in ((token, status), (narrow, 403)):
        bearer = {"authorization": f"Bearer {key}"}
        assert api.get("/v1/work", bearer).status_code == expected
        assert api.post("/v1/work/lease", {"worker": "w"}, bearer).status_code == expected


def test_a_killed_server_remembers_its_leases(
    start_server: StartServer, api_of: Callable[[ServerProcess], Api], eventually: Callable[..., None]
) -> None:
    server = start_server(**SOON)
    api = api_of(server)
    path = api.stream()
    post(api, path, schema=SCHEMA, search=search("user"))
    api.post(path, [{"user": "a"}])
    eventually(lambda: told(api)["due"])
    leased = lease(api)
    results = made(leased)
    for _ in range(2):
        server.kill()
        server.start()
        api = api_of(server)
        answer = fits(report(api, leased, "commit", results=results), "/v1/work/leases/{id}/commit")
        assert [one["outcome"] for one in answer["results"]] == ["committed"]
        assert lease(api)["units"] == []


def test_a_body_has_a_limit(start_server: StartServer, api_of: Callable[[ServerProcess], Api]) -> None:
    server = start_server(limits__body_bytes="1000")
    answer = api_of(server).post("/v1/work/lease", {"worker": "w" * 2000})
    assert answer.status_code == 413


def test_a_pipeline_is_attached_until_it_says_that_it_is_not(api: Api) -> None:
    def attach(**body: Any) -> Any:
        return fits(api.post("/v1/work/attach", {"pipeline": "node-7-1", **body}), "/v1/work/attach")

    assert attach() == {"attached": True, "ttl_ms": 20_000}
    assert told(api)["counts"]["pipelines"] == api.metric("headrace_work_pipelines") == 1
    assert attach(attached=False) == {"attached": False, "ttl_ms": 20_000}
    assert told(api)["counts"]["pipelines"] == api.metric("headrace_work_pipelines") == 0
    assert api.post("/v1/work/attach", {}).status_code == 400


def test_who_did_what_is_told(api: Api, stream: str) -> None:
    leased = lease(api, worker="node-8")
    assert report(api, leased, "commit", results=made(leased)).status_code == 200
    (worker,) = [worker for worker in told(api)["workers"] if worker["worker"] == "node-8"]
    assert worker["jobs"] == {"index": 1}
    done = {"worker": "node-8", "local": False, "job": "index", "units": 1}
    assert api.get(f"{stream}/_index_status").json()["done"] == [done]
    assert api.get(f"{stream}/_details").json()["index_status"]["done"] == [done]
    assert 'headrace_work_done_units_total{by="pipeline",job="index"}' in api.get("/metrics").text
