from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api, Wire

Connect = Callable[..., "Wire"]
PAGE = "https://app.example"


@pytest.fixture
def allowing(start_server: StartServer) -> Iterator[ServerProcess]:
    """A server that lets one web origin in."""
    return start_server(server__cors_origins=f"{PAGE}, http://localhost:3000")


def hosted(wire: Wire, method: str, target: str, host: str, *lines: str) -> Wire:
    return wire.send("\r\n".join([f"{method} {target} HTTP/1.1", f"Host: {host}", *lines, "", ""]).encode("latin-1"))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:80", "[::1]", "[::1]:4437", "127.8.8.8:1"])
def test_loopback_names_are_served(server: ServerProcess, connect: Connect, host: str) -> None:
    for target in ("/v1/streams", "/v1/stream/none"):
        assert hosted(connect(server), "GET", target, host).answer().status in (200, 404)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "169.254.1.1", "0.0.0.0", "[::]", "", "a b",
     "localhost:x", "127.0.0.1:99999999", "::1", "xn--localhost", "127.0.0.1@evil", "\xff"],
)  # fmt: skip
@pytest.mark.parametrize("target", ["/v1/streams", "/v1/stream/none", "/metrics", "/openapi.json"])
def test_a_foreign_host_name_is_403(server: ServerProcess, connect: Connect, host: str, target: str) -> None:
    answer = hosted(connect(server), "GET", target, host).answer()
    assert (answer.status, answer.code()) in ((403, "forbidden"), (400, "bad_request"))
    assert answer.status == 403 or not host or host == "a b"


def test_a_foreign_page_may_do_nothing(server: ServerProcess, api: Api, connect: Connect) -> None:
    path = api.stream(1)
    for origin in (PAGE, "null", "http://127.0.0.1:1", "https://localhost", "file://", "http://localhost.evil.example"):
        for method, target in (("GET", path), ("DELETE", path), ("GET", "/v1/streams"), ("PUT", path + "x")):
            answer = connect(server).request(method, target, b"", f"Origin: {origin}").answer()
            assert answer.status == 403
            assert answer.code() == "forbidden"
            assert "access-control-allow-origin" not in answer.headers
    assert api.get(path).json() == [1]
    assert api.head(path + "x").status_code == 404


def test_our_own_page_may_call(server: ServerProcess, api: Api, connect: Connect) -> None:
    wire = connect(server)
    assert wire.request("GET", api.stream(1), b"", f"Origin: http://{wire.host}").answer().body == b"[1]"


def test_preflights_are_answered_whatever_is_asked(server: ServerProcess, api: Api, connect: Connect) -> None:
    lines = (f"Origin: {PAGE}", "Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: stream-key")
    for target in (api.stream(), api.name(), "/v1/streams", "/nowhere", "*"):
        answer = connect(server).request("OPTIONS", target, b"", *lines).answer()
        assert answer.status == 204
        allowed = answer.headers["access-control-allow-headers"].split(", ")
        for name in ("if-none-match", "if-match", "content-type", "stream-key", "producer-id", "authorization",
                     "traceparent", "tracestate", "baggage"):  # fmt: skip
            assert name in allowed
        assert "PUT" in answer.headers["access-control-allow-methods"]
        assert "access-control-allow-origin" not in answer.headers


def test_an_allowed_page_may_call_and_see_what_it_needs(allowing: ServerProcess, api_of: Any, connect: Connect) -> None:
    path, wire = api_of(allowing).stream(1), connect(allowing)
    for target in (path, "/v1/streams", path + "?live=true&offset=-1", path + "?offset=x", path + "missing"):
        answer = wire.request("GET", target, b"", f"Origin: {PAGE}").answer()
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "Origin" in answer.headers["vary"]
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        for name in ("stream-next-offset", "stream-closed", "etag", "link", "retry-after", "producer-expected-seq"):
            assert name in exposed
    preflight = wire.request("OPTIONS", path, b"", f"Origin: {PAGE}", "Access-Control-Request-Method: POST").answer()
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-origin"] == PAGE
    status, headers = wire.request("GET", path + "?live=sse&offset=-1", b"", f"Origin: {PAGE}").head()
    assert status == 200
    assert headers["access-control-allow-origin"] == PAGE


def test_other_pages_stay_out_where_one_is_allowed(allowing: ServerProcess, api_of: Any, connect: Connect) -> None:
    path, wire = api_of(allowing).stream(1), connect(allowing)
    for origin in ("https://other.example", "http://app.example", PAGE + ":444", PAGE + ".evil.example", "null"):
        answer = wire.request("GET", path, b"", f"Origin: {origin}").answer()
        assert answer.status == 403
        assert answer.code() == "forbidden"
        assert "access-control-allow-origin" not in answer.headers
        preflight = wire.request("OPTIONS", path, b"", f"Origin: {origin}").answer()
        assert "access-control-allow-origin" not in preflight.headers


def test_a_cache_is_told_that_the_origin_matters_even_to_programs(
    allowing: ServerProcess, api_of: Any, connect: Connect
) -> None:
    answer = connect(allowing).request("GET", api_of(allowing).stream(1)).answer()
    assert "Origin" in answer.headers.get("vary", "")


def test_probes_answer_under_any_name(server: ServerProcess, connect: Connect) -> None:
    for target in ("/health", "/health/live", "/health/ready"):
        assert hosted(connect(server), "GET", target, "lb.example").answer().status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_is_403_whatever_it_asks(
    server: ServerProcess, api: Api, connect: Connect, site: str
) -> None:
    path = api.stream(1)
    for method, target in (
        ("GET", path), ("HEAD", path), ("POST", path), ("DELETE", path), ("PUT", path + "x"), ("GET", "/v1/streams"),
        ("GET", "/health"), ("GET", "/metrics"), ("GET", "/nowhere"), ("POST", "/"), ("GET", "/v1/stream/"),
    ):  # fmt: skip
        for mode in ("no-cors", "navigate"):
            lines = (f"Sec-Fetch-Site: {site}", f"Sec-Fetch-Mode: {mode}")
            assert connect(server).request(method, target, b"", *lines).answer(method).status == 403
    assert api.get(path).json() == [1]
    assert api.head(path + "x").status_code == 404


@pytest.mark.parametrize("target", ["/", "/console"])
def test_a_link_on_another_site_may_open_our_pages_and_no_frame_may(
    server: ServerProcess, connect: Connect, target: str
) -> None:
    def status(*lines: str) -> int:
        return connect(server).request("GET", target, b"", "Sec-Fetch-Site: cross-site", *lines).answer().status

    assert status("Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document") != 403
    assert status("Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe") == 403
    assert status("Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: script") == 403
    assert status("Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document", "Origin: null") == 403


def test_a_listed_page_may_call_across_sites(allowing: ServerProcess, api_of: Any, connect: Connect) -> None:
    path = api_of(allowing).stream(1)
    lines = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors")
    answer = connect(allowing).request("GET", path, b"", f"Origin: {PAGE}", *lines).answer()
    assert answer.status == 200
    assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
    answer = connect(allowing).request("GET", path, b"", *lines).answer()
    assert answer.status == 403
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
