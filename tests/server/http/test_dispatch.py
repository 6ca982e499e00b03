from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import ServerProcess
    from tests.server.conftest import Api, Wire

Connect = Callable[..., "Wire"]
Code = Callable[[Any], str]


@pytest.mark.parametrize(
    ("method", "suffix", "allow"),
    [
        ("PATCH", "", "DELETE, GET, HEAD, POST, PUT, OPTIONS"),
        ("TRACE", "", "DELETE, GET, HEAD, POST, PUT, OPTIONS"),
        ("PROPFIND", "", "DELETE, GET, HEAD, POST, PUT, OPTIONS"),
        ("GET", "/_retention", "POST, OPTIONS"),
        ("HEAD", "/_retention", "POST, OPTIONS"),
        ("PUT", "/_retention", "POST, OPTIONS"),
        ("POST", "/pk/k", "GET, OPTIONS"),
        ("PUT", "/pk/k", "GET, OPTIONS"),
        ("DELETE", "/pk/k", "GET, OPTIONS"),
        ("HEAD", "/pk/k", "GET, OPTIONS"),
    ],
)
def test_a_verb_that_a_resource_lacks_is_405_with_those_it_has(
    server: ServerProcess, api: Api, connect: Connect, method: str, suffix: str, allow: str
) -> None:
    answer = connect(server).request(method, api.stream(1) + suffix).answer(method)
    assert answer.status == 405
    assert answer.headers["allow"] == allow
    if method != "HEAD":
        assert answer.code() == "method_not_allowed"


@pytest.mark.parametrize("resource", ["_profile", "touch/wait", "_otlp/v1/traces"])
def test_a_resource_is_never_a_stream(api: Api, code_of: Code, resource: str) -> None:
    path = f"{api.stream(1)}/{resource}"
    for method in ("PUT", "DELETE"):
        refused = api.call(method, path)
        assert refused.status_code == 405
        assert code_of(refused) == "method_not_allowed"


def test_every_refusal_of_a_stream_says_what_and_why(api: Api, code_of: Code) -> None:
    missing = api.name()
    refusals = [
        api.get(missing), api.post(missing, [1]), api.delete(missing), api.post(missing + "/_retention", {}),
        api.get(missing + "/pk/x"), api.get(api.stream(), offset="x"), api.put(missing, headers={"stream-ttl": "x"}),
        api.put("/v1/stream/"), api.get("/v1/stream//"), api.call("PATCH", missing),
    ]  # fmt: skip
    for refused in refusals:
        assert code_of(refused) in ("not_found", "bad_request", "method_not_allowed")
        assert refused.headers["cache-control"] == "no-store"
    assert refusals[0].json()["error"]["stream"] == missing.rpartition("/")[2]


@pytest.mark.parametrize(
    "name",
    ["Stream-Key", "Stream-Seq", "Stream-Closed", "Stream-Timestamp", "Producer-Id", "Content-Type", "If-Match",
     "Authorization", "Origin"],
)  # fmt: skip
def test_a_header_that_counts_may_come_once(server: ServerProcess, api: Api, connect: Connect, name: str) -> None:
    path, wire = api.stream(), connect(server)
    lines = [f"{name}: a", f"{name.upper()}: b"]
    if name != "Content-Type":
        lines.append("Content-Type: application/json")
    answer = wire.request("POST", path, b"1", *lines).answer()
    assert answer.status in (400, 401, 403)
    assert answer.code() in ("bad_request", "unauthorized", "forbidden")
    assert api.get(path).json() == []


def test_headers_that_do_not_count_may_be_repeated(server: ServerProcess, api: Api, connect: Connect) -> None:
    path = api.stream(1)
    lines = ["Accept: a", "Accept: b", "X-Forwarded-For: a", "X-Forwarded-For: b", "Cookie: x=1", "Cookie: y=2"]
    assert connect(server).request("GET", path, b"", *lines).answer().body == b"[1]"


def test_long_addresses_are_not_remembered(server: ServerProcess, connect: Connect, rss: Callable[[Any], int]) -> None:
    wire, padding = connect(server), "k" * 7000
    before = rss(server)
    for number in range(5000):
        assert wire.request("GET", f"/v1/stream/none/pk/{number}{padding}").answer().status == 404
    assert rss(server) - before < 32 * 1024 * 1024
