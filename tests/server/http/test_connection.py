from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import ServerProcess
    from tests.server.conftest import Api, Wire

Connect = Callable[..., "Wire"]
Eventually = Callable[..., None]

# -- pipelining


def test_answers_come_in_the_order_of_the_requests(server: ServerProcess, api: Api, connect: Connect) -> None:
    """Requests of every kind at once: quick ones, ones that wait for the disk, and ones for the other side."""
    path, wire, missing = api.stream(), connect(server), api.name()
    large = b'"' + b"x" * 300_000 + b'"'
    expected: list[tuple[str, int]] = []

    def ask(method: str, target: str, status: int, body: bytes = b"", *lines: str) -> None:
        wire.request(method, target, body, f"X-Request-Id: {len(expected)}", *lines)
        expected.append((method, status))

    kind = "Content-Type: application/json"
    for _ in range(4):
        ask("POST", path, 204, b"1", kind)
        ask("GET", path, 200)
        ask("HEAD", missing, 404)
        ask("GET", "/v1/streams", 200)
        ask("POST", path, 204, large, kind)
        ask("GET", f"{path}?live=long-poll&offset=now&timeout=20ms", 204)
        ask("PATCH", path, 405)
        ask("POST", path, 204, b"2", kind)
        ask("GET", path, 200, b"", "Accept-Encoding: gzip")
        ask("OPTIONS", path, 204)
        ask("DELETE", missing, 404)
        ask("GET", "/health", 200)
    for number, (method, status) in enumerate(expected):
        answer = wire.answer(method)
        assert answer.status == status
        assert answer.headers["x-request-id"] == str(number)
    assert len(api.get(path, offset="now").json()) == 0
    assert api.metric("headrace_watchers") == 0


def test_pipelined_appends_keep_their_order(server: ServerProcess, api: Api, connect: Connect) -> None:
    path, wire, many = api.stream(), connect(server), 500
    host = wire.host.encode()
    head = b"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
    bodies = [b"%d" % number for number in range(many)]
    wire.send(b"".join(head % (path.encode(), host, len(body), body) for body in bodies))
    answers = [wire.answer() for _ in range(many)]
    assert {answer.status for answer in answers} == {204}
    offsets = [answer.headers["stream-next-offset"] for answer in answers]
    assert offsets == sorted(set(offsets))
    assert api.get(path).json() == list(range(many))


def test_a_request_in_pieces_is_one_request(server: ServerProcess, api: Api, connect: Connect) -> None:
    path, wire = api.stream(), connect(server)
    request = (
        f"POST {path} HTTP/1.1\r\nHost: {wire.host}\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    )
    for byte in request.encode() + b'{"a":"b"}':
        wire.send(bytes([byte]))
    assert wire.answer().status == 204
    assert api.get(path).json() == [{"a": "b"}]


def test_blanks_around_the_value_of_a_header_are_no_part_of_it(
    server: ServerProcess, api: Api, connect: Connect
) -> None:
    path = api.stream()
    for line in ("Stream-Key:k", "Stream-Key:  k", "Stream-Key: k  ", "Stream-Key: k\t "):
        assert connect(server).append(path, b"1", line).answer().status == 204
    assert api.get(path, key="k").json() == [1, 1, 1, 1]


@pytest.mark.parametrize("size", [100_000, 1_000_000])
def test_a_body_that_follows_a_split_head_is_not_counted_as_head(
    server: ServerProcess, api: Api, connect: Connect, size: int
) -> None:
    path, wire = api.octets(), connect(server)
    wire.send(f"POST {path} HTTP/1.1\r\nHost: {wire.host}\r\nContent-".encode())
    time.sleep(0.05)
    wire.send(b"Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
    assert wire.answer().status == 204


def test_requests_that_follow_a_split_head_are_not_counted_as_head(server: ServerProcess, connect: Connect) -> None:
    wire, padding = connect(server), "k" * 3000
    for number in range(60):
        wire.request("GET", f"/v1/stream/none?x={number}{padding}")
    assert [wire.answer().status for _ in range(60)] == [404] * 60


def test_a_valid_request_before_garbage_is_still_answered(server: ServerProcess, api: Api, connect: Connect) -> None:
    path, wire = api.stream(), connect(server)
    wire.append(path, b"1").send(b"\x00\x01\x02 garbage\r\n\r\n")
    assert wire.answer().status == 204
    assert api.get(path).json() == [1]


def test_a_request_in_flight_is_answered_before_the_one_behind_it_is_refused(
    server: ServerProcess, api: Api, connect: Connect, eventually: Eventually
) -> None:
    path, wire = api.stream(1), connect(server)
    wire.request("GET", f"{path}?live=long-poll&offset=now&timeout=30s", b"", "Content-Encoding: identity")
    eventually(lambda: api.metric("headrace_watchers") == 1)
    wire.request("GET", path, b"", "X-A: " + "a" * 33_000)
    api.post(path, [2])
    assert wire.answer().body == b"[2]"
    assert wire.answer().code() == "headers_too_large"
    assert wire.ended()


def test_a_request_that_was_answered_early_has_no_second_answer(server: ServerProcess, connect: Connect) -> None:
    wire = connect(server).begin("/v1/streams", "Transfer-Encoding: chunked")
    assert wire.answer().status == 405
    assert wire.send(b"no chunk").ended()


def test_nothing_is_done_after_connection_close(server: ServerProcess, api: Api, connect: Connect) -> None:
    path, wire = api.stream(), connect(server)
    wire.request("HEAD", path, b"", "Connection: close").append(path, b'"too late"')
    answer = wire.answer("HEAD")
    assert answer.status == 200
    assert answer.headers["connection"] == "close"
    assert wire.ended()
    other = connect(server)
    other.append(path, b"1", "Connection: close").append(path, b'"too late"')
    assert other.answer().status == 204
    assert other.ended()
    assert api.get(path).json() == [1]


# -- versions and forms


def test_http_1_0_is_answered_and_hung_up(server: ServerProcess, api: Api, connect: Connect) -> None:
    path = api.stream(1)
    for target, body in ((path, b"[1]"), ("/health", b'{"ok":true}')):
        wire = connect(server)
        wire.send(f"GET {target} HTTP/1.0\r\n\r\n".encode())
        assert wire.answer().body == body
        assert wire.ended()


def test_http_1_0_may_ask_to_stay(server: ServerProcess, api: Api, connect: Connect) -> None:
    path, wire = api.stream(1), connect(server)
    for _ in range(2):
        answer = wire.request("GET", path, b"", "Connection: keep-alive", version="1.0").answer()
        assert answer.body == b"[1]"


def test_a_connection_serves_many_requests(server: ServerProcess, api: Api, connect: Connect) -> None:
    path, wire = api.stream(), connect(server)
    for number in range(100):
        assert wire.append(path, b"%d" % number).answer().status == 204
        assert wire.request("GET", path, b"").answer().status == 200
    assert len(api.get(path).json()) == 100


def test_an_absolute_address_is_understood(server: ServerProcess, api: Api, connect: Connect) -> None:
    path, wire = api.stream(1), connect(server)
    assert wire.request("GET", f"http://{wire.host}{path}").answer().body == b"[1]"
    assert (
        wire.request("POST", f"http://{wire.host}{path}", b"2", "Content-Type: application/json").answer().status == 204
    )
    assert wire.request("GET", f"http://{wire.host}{path}?offset=now").answer().body == b"[]"


def test_headers_of_proxies_are_not_believed(server: ServerProcess, api: Api, connect: Connect) -> None:
    wire = connect(server)
    forwarded = ("X-Forwarded-Proto: https", "X-Forwarded-Host: evil.example", "Forwarded: proto=https")
    for way in ((), ("Content-Encoding: identity",)):
        path = api.name()
        answer = wire.request("PUT", path, b"x", *forwarded, *way).answer()
        assert answer.status == 201
        assert answer.headers["location"] == f"http://{wire.host}{path}"


def test_a_client_that_expects_continue_is_told_to(server: ServerProcess, api: Api, connect: Connect) -> None:
    path, wire = api.stream(), connect(server)
    wire.begin(path, "Expect: 100-continue", "Content-Length: 3", kind="application/json")
    assert wire.answer().status == 100
    wire.send(b"[1]")
    assert wire.answer().status == 204
    wire.begin(path, "Expect: 100-continue", "Content-Length: 20000000")
    assert wire.answer().status == 413


@pytest.mark.parametrize("upgrade", ["h2c", "websocket", "TLS/1.0"])
def test_an_offer_to_upgrade_is_ignored(server: ServerProcess, api: Api, connect: Connect, upgrade: str) -> None:
    path = api.stream(1)
    lines = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {upgrade}", "HTTP2-Settings: AAMAAABk")
    assert connect(server).request("GET", path, b"", *lines).answer().body == b"[1]"
    assert connect(server).append(path, b"2", *lines).answer().status == 204
    assert api.get(path).json() == [1, 2]


def test_head_never_has_a_body(server: ServerProcess, api: Api, connect: Connect) -> None:
    wire = connect(server)
    targets = [api.stream(1), api.name(), "/v1/streams", "/health", "/nowhere", "/v1/stream/", api.stream() + "/pk/x"]
    for target in targets * 2:
        wire.request("HEAD", target).answer("HEAD")
        assert wire.request("GET", "/health").answer().body == b'{"ok":true}'


# -- half-closed and gone


def test_who_has_said_everything_still_hears_the_answer(server: ServerProcess, api: Api, connect: Connect) -> None:
    path = api.stream()
    large = b'"' + b"x" * 400_000 + b'"'
    for body in (b"1", large):
        wire = connect(server)
        answer = wire.append(path, body).half_close().answer()
        assert answer.status == 204
        assert wire.ended()
    for target in (path, "/v1/streams", f"{path}?offset=now"):
        wire = connect(server)
        assert wire.request("GET", target).half_close().answer().status == 200
        assert wire.ended()


def test_pipelined_requests_before_a_half_close_are_all_answered(
    server: ServerProcess, api: Api, connect: Connect
) -> None:
    path, wire = api.stream(), connect(server)
    for number in range(5):
        wire.append(path, b"%d" % number)
    wire.request("GET", path).half_close()
    assert [wire.answer().status for _ in range(5)] == [204] * 5
    assert json.loads(wire.answer().body) == list(range(5))
    assert wire.ended()


@pytest.mark.parametrize("mode", ["long-poll", "sse"])
@pytest.mark.parametrize("pipelined", [False, True])
def test_a_reader_that_leaves_is_not_waited_for(
    server: ServerProcess, api: Api, connect: Connect, eventually: Eventually, mode: str, pipelined: bool
) -> None:
    path, wire = api.stream(1), connect(server)
    if pipelined:
        wire.append(path, b"2")
    wire.request("GET", f"{path}?live={mode}&offset=now&timeout=30s")
    eventually(lambda: api.metric("headrace_watchers") == 1)
    wire.close()
    eventually(lambda: api.metric("headrace_watchers") == 0, 3)


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_reader_that_leaves_with_more_to_ask_is_forgotten_when_its_wait_ends(
    server: ServerProcess, api: Api, connect: Connect, eventually: Eventually, pipelined: bool
) -> None:
    path, wire = api.stream(1), connect(server)
    if pipelined:
        wire.append(path, b"2")
    wire.request("GET", f"{path}?live=long-poll&offset=now&timeout=1s").request("GET", path).request("GET", path)
    eventually(lambda: api.metric("headrace_watchers") == 1)
    wire.close()
    eventually(lambda: api.metric("headrace_watchers") == 0, 3)


def test_an_append_of_a_client_that_left_is_kept(
    server: ServerProcess, api: Api, connect: Connect, eventually: Eventually
) -> None:
    path, wire = api.stream(), connect(server)
    wire.append(path, b'"kept"').close()  # type: ignore[func-returns-value]
    eventually(lambda: api.get(path).json() == ["kept"])


def test_connections_that_went_leave_nothing_behind(
    server: ServerProcess, api: Api, connect: Connect, rss: Callable[[Any], int], eventually: Eventually
) -> None:
    path = api.stream(1)

    def visit(many: int) -> None:
        for number in range(many):
            wire = connect(server)
            if number % 3 == 0:
                wire.request("GET", path).answer()
            elif number % 3 == 1:
                wire.send(b"GET /v1/stream/half")
            else:
                wire.request("GET", f"{path}?live=sse&offset=now").head()
            wire.close()

    visit(300)
    before = rss(server)
    visit(900)
    eventually(lambda: api.metric("headrace_watchers") == 0)
    assert rss(server) - before < 8 * 1024 * 1024
    assert len(_sockets(server)) < 40


def _sockets(server: ServerProcess) -> list[str]:
    assert server.process is not None
    folder = f"/proc/{server.process.pid}/fd"
    links = []
    for entry in os.listdir(folder):
        try:
            links.append(os.readlink(f"{folder}/{entry}"))
        except OSError:
            continue
    return [link for link in links if link.startswith("socket:")]


# -- who is asked


@pytest.mark.parametrize("path", ["/v1/stream/none", "/v1/streams", "/health"])
def test_http_1_1_without_a_host_is_refused(server: ServerProcess, connect: Connect, path: str) -> None:
    wire = connect(server).send(f"GET {path} HTTP/1.1\r\nAccept: */*\r\n\r\n".encode())
    answer = wire.answer()
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["field"] == "Host"
    assert wire.ended()


@pytest.mark.parametrize("path", ["/v1/stream/none", "/v1/streams"])
def test_the_host_of_an_absolute_target_counts_and_the_header_does_not(
    server: ServerProcess, connect: Connect, path: str
) -> None:
    wire = connect(server)
    plain = wire.request("GET", path).answer()
    for host in (wire.host, "localhost", "LOCALHOST:1", "[::1]:4437"):
        assert wire.request("GET", f"http://{host}{path}").answer().body == plain.body
    for host in ("evil.example", "127.0.0.1@evil.example", "127.0.0.1.evil.example:4437", ""):
        answer = connect(server).request("GET", f"http://{host}{path}").answer()
        assert answer.status in (400, 403), host
        assert host != "evil.example" or answer.code() == "forbidden"
    foreign = connect(server).send(f"GET http://localhost{path} HTTP/1.1\r\nHost: evil.example\r\n\r\n".encode())
    assert foreign.answer().body == plain.body
    older = connect(server).send(f"GET http://evil.example{path} HTTP/1.0\r\n\r\n".encode())
    assert older.answer().code() == "forbidden"
