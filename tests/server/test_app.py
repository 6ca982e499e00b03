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
    "target",
    ["/", "/v1", "/v1/", "/v1/stream", "/v1/streamsx", "/v2/stream/x", "/V1/stream/x", "/favicon.ico", "/%2e%2e/etc",
     "/v1/server", "/v1/stream%2Fx", "//v1/stream/x", "/v1//stream/x"],
)  # fmt: skip
def test_nothing_is_served_elsewhere(server: ServerProcess, connect: Connect, target: str) -> None:
    answer = connect(server).request("GET", target).answer()
    assert (answer.status, answer.code()) == (404, "not_found")


@pytest.mark.parametrize("target", ["/v1/streams", "/health", "/openapi.json", "/metrics", "/v1/server/_details"])
def test_a_route_tells_its_verbs(server: ServerProcess, connect: Connect, target: str) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = connect(server).request(method, target).answer()
        assert (answer.status, answer.code()) == (405, "method_not_allowed")
        assert "GET" in answer.headers["allow"]


def test_a_slash_too_many_does_not_send_the_caller_elsewhere(server: ServerProcess, connect: Connect) -> None:
    answer = connect(server).request("GET", "/v1/streams/").answer()
    assert answer.status in (200, 404)


@pytest.mark.parametrize("target", ["/v1/streams", "/health", "/openapi.json", "/metrics", "/health/ready"])
def test_head_is_get_without_the_body(server: ServerProcess, connect: Connect, target: str) -> None:
    wire = connect(server)
    got = wire.request("GET", target).answer()
    head = wire.request("HEAD", target).answer("HEAD")
    assert (got.status, head.status) == (200, 200)
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
