from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api, Wire

Connect = Callable[..., "Wire"]
Code = Callable[[Any], str]


@pytest.mark.parametrize(
    "target",
    ["/v1", "/v1/", "/v1/stream", "/v1/streamsx", "/v2/stream/x", "/V1/stream/x", "/favicon.ico", "/%2e%2e/etc",
     "/v1/server", "/v1/stream%2Fx", "//v1/stream/x", "/v1//stream/x"],
)  # fmt: skip
def test_nothing_is_served_elsewhere(server: ServerProcess, connect: Connect, target: str) -> None:
    answer = connect(server).request("GET", target).answer()
    assert answer.status == 404
    assert answer.code() == "not_found"


def test_the_root_names_the_server_and_where_to_go_on(api: Api) -> None:
    answer = api.get("/", from_a_bookmark="1")
    assert answer.status_code == 200
    entrance = answer.json()
    assert (entrance["name"], entrance["version"]) == ("headrace", version("headrace"))
    for path in entrance["links"].values():
        assert api.get(path).status_code == 200, path
    assert api.head("/").status_code == 200


@pytest.mark.parametrize("target", ["/", "/v1/streams", "/health", "/openapi.json", "/metrics", "/v1/server/_details"])
def test_a_route_tells_its_verbs(server: ServerProcess, connect: Connect, target: str) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = connect(server).request(method, target).answer()
        assert answer.status == 405
        assert answer.code() == "method_not_allowed"
        assert "GET" in answer.headers["allow"]


@pytest.mark.parametrize(
    ("target", "allow"),
    [
        ("/v1/streams", "GET, HEAD, OPTIONS"),
        ("/v1/register", "OPTIONS, POST"),
        ("/v1/entity-types", "GET, HEAD, OPTIONS, POST"),
        ("/v1/entity-types/x/enhancement", "GET, HEAD, OPTIONS, POST"),
        ("/v1/stream/__ds/subscriptions/x", "DELETE, GET, HEAD, OPTIONS, PUT"),
    ],
)
def test_a_route_tells_all_its_verbs_also_where_each_has_its_own(
    server: ServerProcess, connect: Connect, target: str, allow: str
) -> None:
    assert connect(server).request("PATCH", target).answer().headers["allow"] == allow


@pytest.mark.parametrize(
    ("method", "word", "allow"),
    [
        ("GET", "merge", "OPTIONS, POST"),
        ("HEAD", "split", "OPTIONS, POST"),
        ("POST", "duplicates", "GET, HEAD, OPTIONS"),
        ("POST", "merged", "GET, HEAD, OPTIONS"),
    ],
)
def test_a_word_that_has_an_address_of_its_own_is_no_id(
    server: ServerProcess, connect: Connect, method: str, word: str, allow: str
) -> None:
    answer = connect(server).request(method, f"/v1/entities/{word}").answer(method)
    assert answer.status == 405
    assert answer.headers["allow"] == allow


@pytest.mark.parametrize("name", ["Host", "Content-Type", "If-None-Match"])
def test_a_header_that_counts_may_come_once_on_every_route(server: ServerProcess, connect: Connect, name: str) -> None:
    wire = connect(server)
    answer = wire.request("GET", "/v1/streams", b"", f"{name}: evil.example", f"{name}: {wire.host}").answer()
    assert answer.status == 400
    assert answer.code() == "bad_request"
    assert json.loads(answer.body)["error"]["field"] == name.lower()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/stream/surrogates"),
        ("POST", "/v1/stream/surrogates/_search"),
        ("POST", "/v1/stream/surrogates/_aggregate"),
        ("POST", "/v1/stream/surrogates/_schema"),
        ("POST", "/v1/stream/surrogates/_profile"),
        ("POST", "/v1/stream/surrogates/_retention"),
        ("POST", "/v1/get"),
        ("POST", "/v1/batch_get"),
        ("POST", "/v1/register"),
        ("POST", "/v1/observations"),
        ("POST", "/v1/entity-types"),
        ("PUT", "/v1/stream/__ds/subscriptions/surrogates"),
    ],
)
def test_half_of_a_surrogate_pair_is_named_on_every_route_that_takes_json(api: Api, method: str, path: str) -> None:
    api.put("/v1/stream/surrogates", headers={"content-type": "application/json"})
    answer = api.call(method, path, rb'{"a":"\ud83d"}', {"content-type": "application/json"})
    assert answer.status_code == 400
    assert r"\ud83d at byte 6 is half of a surrogate pair" in answer.json()["error"]["message"]


def test_headers_that_do_not_count_may_be_repeated_on_every_route(server: ServerProcess, connect: Connect) -> None:
    lines = ["Accept: a", "Accept: b", "Cookie: x=1", "Cookie: y=2"]
    assert connect(server).request("GET", "/v1/streams", b"", *lines).answer().status == 200


@pytest.mark.parametrize("escape", ["%ff", "%fe", "%C3", "%ED%A0%80", "%zz", "%"])
@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("PUT", "/v1/stream/__ds/subscriptions/{}"),
        ("GET", "/v1/entity-types/{}"),
        ("DELETE", "/v1/stream/__ds/subscriptions/a{}b"),
        ("GET", "/nowhere/{}"),
    ],
)
def test_a_path_that_is_not_utf_8_is_refused_on_every_route(
    server: ServerProcess, connect: Connect, method: str, target: str, escape: str
) -> None:
    body = json.dumps({"type": "pull-wake", "pattern": "a/*", "wake_stream": "w"}).encode()
    lines = ["Content-Type: application/json"]
    answer = connect(server).request(method, target.format(escape), body, *lines).answer()
    assert answer.status == 400
    assert answer.code() == "bad_request"
    assert json.loads(answer.body)["error"]["field"] == "path"


def test_every_documented_route_refuses_other_verbs_with_those_it_has(server: ServerProcess, api: Api) -> None:
    for path, operations in api.get("/openapi.json").json()["paths"].items():
        verbs = {verb.upper() for verb in operations if verb in ("get", "put", "post", "delete")}
        answer = api.call("PATCH", re.sub(r"\{[^}]+\}", "x", path), headers={"x-request-id": "r1"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed"), path
        assert verbs <= set(answer.headers["allow"].split(", ")), path
        assert answer.headers["x-request-id"] == "r1"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_body_on_its_way_is_not_working_time(start_server: StartServer, connect: Connect) -> None:
    wire = connect(start_server(server__resolver_timeout_s="0.3"))
    body = b'{"nodes": []}'
    wire.request("POST", "/v1/register", b"", "Content-Type: application/json", f"Content-Length: {len(body)}")
    time.sleep(0.8)
    assert wire.send(body).answer().status in (200, 400)


def test_bodies_that_arrive_together_have_one_limit_on_every_route(
    start_server: StartServer, api_of: Any, connect: Connect, eventually: Callable[..., None]
) -> None:
    most = 4 * 1024 * 1024  # the longest registration just fits in
    server = start_server(limits__arriving_bytes=str(most), limits__body_bytes="1000000")
    first, second = connect(server), connect(server)
    head = "Content-Type: application/json", f"Content-Length: {most}"
    first.request("POST", "/v1/register", b"", *head).send(b" " * (most - 1))
    eventually(lambda: second_refused(api_of(server)))
    assert second.request("GET", "/health").answer().status == 200
    first.send(b"1")
    assert first.answer().status == 400
    assert not second_refused(api_of(server))


def second_refused(api: Api) -> bool:
    answer = api.call("POST", "/v1/register", b" " * 50_000 + b"1", {"content-type": "application/json"})
    assert answer.status_code in (400, 429)
    return bool(answer.status_code == 429)


def test_a_slash_too_many_does_not_send_the_caller_elsewhere(server: ServerProcess, connect: Connect) -> None:
    answer = connect(server).request("GET", "/v1/streams/").answer()
    assert answer.status in (200, 404)


@pytest.mark.parametrize("target", ["/v1/streams", "/health", "/openapi.json", "/metrics", "/health/ready"])
def test_head_is_get_without_the_body(server: ServerProcess, connect: Connect, target: str) -> None:
    wire = connect(server)
    got = wire.request("GET", target).answer()
    head = wire.request("HEAD", target).answer("HEAD")
    assert got.status == 200
    assert head.status == 200
    assert head.headers["content-type"] == got.headers["content-type"]
    assert wire.request("GET", "/health").answer().body == b'{"ok":true}'


def test_answers_of_the_other_side_are_json_and_not_stored(api: Api) -> None:
    for target in ("/v1/streams", "/health", "/openapi.json"):
        answer = api.get(target)
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"


def test_a_body_where_none_belongs_is_ignored(api: Api) -> None:
    assert api.call("GET", "/v1/streams", b"x" * 1000).status_code == 200
    assert api.call("DELETE", api.stream(1), b"x" * 1000).status_code == 204
    assert api.call("GET", api.stream(1), b"x" * 1000).json() == [1]
