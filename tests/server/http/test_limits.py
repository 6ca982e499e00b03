from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api, Wire

MiB = 1024 * 1024
OCTETS = {"content-type": "application/octet-stream"}
Connect = Callable[..., "Wire"]
Code = Callable[[Any], str]
Eventually = Callable[..., None]

# -- sizes


def test_a_body_over_the_limit_is_413_as_soon_as_it_is_announced(
    server: ServerProcess, api: Api, connect: Connect
) -> None:
    path, wire = api.octets(), connect(server)
    answer = wire.begin(path, f"Content-Length: {10 * MiB + 1}").answer()
    assert answer.status == 413
    assert answer.code() == "payload_too_large"
    assert api.offset(path) == "0" * 26


@pytest.mark.parametrize("length", ["99999999999999999999", "18446744073709551615", "9223372036854775807"])
def test_a_body_of_absurd_length_is_refused(server: ServerProcess, api: Api, connect: Connect, length: str) -> None:
    path, wire = api.octets(), connect(server)
    answer = wire.begin(path, f"Content-Length: {length}").answer()
    assert answer.status in (400, 413)
    assert answer.code()


def test_a_chunked_body_over_the_limit_is_413(start_server: StartServer, api_of: Any, connect: Connect) -> None:
    server = start_server(limits__body_bytes="1000")
    path, wire = api_of(server).octets(), connect(server)
    chunk = b"%x\r\n%b\r\n" % (400, b"x" * 400)
    wire.begin(path, "Transfer-Encoding: chunked").send(chunk * 3)
    answer = wire.answer()
    assert answer.status == 413
    assert answer.code() == "payload_too_large"


@pytest.mark.parametrize("size", [999, 1000, 1001])
def test_the_body_limit_is_exact_on_both_ways_in(
    start_server: StartServer, api_of: Any, code_of: Code, size: int
) -> None:
    api = api_of(start_server(limits__body_bytes="1000"))
    path = api.octets()
    for way in ({}, {"content-encoding": "identity"}):
        answer = api.post(path, b"x" * size, {**OCTETS, **way})
        assert answer.status_code == (413 if size > 1000 else 204)
        created = api.put(api.name(), b"x" * size, {**OCTETS, **way})
        assert created.status_code == (413 if size > 1000 else 201)
        if size > 1000:
            assert code_of(answer) == code_of(created) == "payload_too_large"


@pytest.mark.parametrize("target", ["/v1/stream/none", "/v1/streams", "/nowhere"])
def test_an_address_over_the_limit_is_414(server: ServerProcess, connect: Connect, target: str) -> None:
    assert connect(server).request("GET", target + "?x=" + "a" * 8000).answer().status in (200, 400, 404)
    for size in (8192, 20_000, 200_000):
        answer = connect(server).request("GET", target + "?x=" + "a" * size).answer()
        assert answer.status == 414
        assert answer.code() == "uri_too_long"


@pytest.mark.parametrize("target", ["/v1/stream/none", "/v1/streams"])
def test_headers_over_the_limit_are_431(server: ServerProcess, connect: Connect, target: str) -> None:
    assert connect(server).request("GET", target, b"", "X-A: " + "a" * 30_000).answer().status in (200, 404)
    bombs: list[list[str]] = [
        ["X-A: " + "a" * 33_000],
        ["X-A: " + "a" * 60_000],
        ["X-A: " + "a" * 300_000],
        [f"X-{number}: {'b' * 100}" for number in range(400)],
        [f"X-{number}: b" for number in range(6000)],
        ["X-" + "n" * 40_000 + ": 1"],
        ["a:"] * 20_000,
    ]
    for lines in bombs:
        answer = connect(server).request("GET", target, b"", *lines).answer()
        assert answer.status == 431
        assert answer.code() == "headers_too_large"


def test_headers_without_end_are_cut_off(server: ServerProcess, connect: Connect) -> None:
    wire = connect(server)
    wire.send(f"GET / HTTP/1.1\r\nHost: {wire.host}\r\n".encode())
    with pytest.raises((ConnectionError, BrokenPipeError)):
        for number in range(100_000):
            wire.socket.sendall(b"X-%d: %s\r\n" % (number, b"x" * 1000))


ENDLESS = {
    "an extension": (b"1;a=", b"a" * 1000),
    "the first trailer": (b"0\r\n", b"a" * 1000),
    "the value of a trailer": (b"1\r\nx\r\n0\r\na:", b"a" * 1000),
    "trailers": (b"0\r\n", b"a:b\r\n" * 200),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_what_is_neither_head_nor_body_has_the_limit_of_headers(
    server: ServerProcess, api: Api, connect: Connect, kind: str
) -> None:
    path, wire = api.octets(), connect(server)
    first, then = ENDLESS[kind]
    wire.begin(path, "Transfer-Encoding: chunked", then=first)
    for _ in range(1000):  # more than a socket takes in at once
        wire.send(then)
    answer = wire.answer()
    assert answer.status == 431
    assert answer.code() == "headers_too_large"
    assert wire.ended()
    assert api.offset(path) == "0" * 26


def test_trailers_over_the_limit_are_431_also_where_they_end(server: ServerProcess, api: Api, connect: Connect) -> None:
    path = api.octets()
    for trailers in (b"a: " + b"a" * 33_000 + b"\r\n", b"a:b\r\n" * 7000):
        wire = connect(server).begin(path, "Transfer-Encoding: chunked", then=b"0\r\n" + trailers + b"\r\n")
        assert wire.answer().code() == "headers_too_large"
        assert wire.ended()


def test_trailers_and_extensions_within_the_limit_are_skipped(
    server: ServerProcess, api: Api, connect: Connect
) -> None:
    path, wire = api.octets(), connect(server)
    body = b"1;a=" + b"a" * 30_000 + b"\r\nx\r\n" + b"0\r\na: " + b"a" * 30_000 + b"\r\n\r\n"
    for _ in range(3):
        assert wire.begin(path, "Transfer-Encoding: chunked", then=body).answer().status == 204
    assert api.get(path).content == b"xxx"


@pytest.mark.parametrize("together", [1, 1000])
def test_a_body_in_tiny_chunks_is_not_counted_as_head(
    server: ServerProcess, api: Api, connect: Connect, together: int
) -> None:
    """Most of what arrives is neither head nor body, and all of that is more than a head may have."""
    path, wire, many = api.octets(), connect(server), 10_000
    wire.begin(path, "Transfer-Encoding: chunked")
    for _ in range(many // together):
        wire.send(b"1\r\nx\r\n" * together)
    assert wire.send(b"0\r\n\r\n").answer().status == 204
    assert api.get(path).content == b"x" * many


@pytest.mark.parametrize(
    ("sent", "fact"),
    [
        (b"GET /%b HTTP/1.1\r\n\r\n" % (b"a" * 9000), ("limit", 8192)),
        (b"GET / HTTP/1.1\r\nA: %b\r\n\r\n" % (b"a" * 33_000), ("limit", 32_768)),
        (b"garbage\r\n\r\n", ("field", "request")),
    ],
    ids=["address", "headers", "garbage"],
)
def test_what_is_refused_before_it_is_a_request_is_told_the_facts(
    server: ServerProcess, connect: Connect, sent: bytes, fact: tuple[str, Any]
) -> None:
    answer = connect(server).send(sent).answer()
    assert answer.code()
    assert fact in json.loads(answer.body)["error"].items()
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("name", ["stream-key", "stream-seq", "producer-id", "stream-forked-from"])
def test_a_long_value_is_refused_by_name(api: Api, code_of: Code, name: str) -> None:
    headers = {name: "x" * 1025}
    refused = api.put(api.name(), headers=headers) if "fork" in name else api.post(api.stream(), [1], headers)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (400, b'{"x": ', {}),
        (412, b"", {"if-match": "0000000000000000000M000000"}),
        (409, b"", {"producer-id": "p", "producer-epoch": "0", "producer-seq": "7"}),
        (409, b"", {"content-type": "text/plain"}),
    ],
)
def test_bodies_that_were_refused_are_not_kept(
    start_server: StartServer,
    api_of: Any,
    rss: Callable[[Any], int],
    status: int,
    body: bytes,
    headers: dict[str, str],
) -> None:
    server = start_server()
    api = api_of(server)
    path, body = api.stream(), body + b"1" * 500_000
    before = rss(server)
    for _ in range(200):
        answer = api.post(path, body, {"content-type": "application/json", **headers})
        assert answer.status_code == status
    assert rss(server) - before < 50 * MiB


# -- queues


def test_a_full_append_queue_is_429_with_a_time_to_come_back(
    start_server: StartServer, api_of: Any, connect: Connect, stopped_writer: Any
) -> None:
    server = start_server(limits__queue_requests="2")
    api = api_of(server)
    path = api.stream()
    wires = [connect(server) for _ in range(6)]
    with stopped_writer(server):
        for number, wire in enumerate(wires):
            wire.append(path, b"%d" % number)
        refused = [wire.answer() for wire in wires[2:]]
        assert [(answer.status, answer.code(), answer.headers["retry-after"]) for answer in refused] == [
            (429, "overloaded", "1")
        ] * 4
        assert connect(server).request("PUT", api.name()).answer().status == 429
        assert api.get(path).json() == []
    assert [wire.answer().status for wire in wires[:2]] == [204, 204]
    assert api.get(path).json() == [0, 1]
    assert wires[3].append(path, b'"again"').answer().status == 204


def test_a_queue_is_bounded_in_bytes_too(
    start_server: StartServer, api_of: Any, connect: Connect, stopped_writer: Any
) -> None:
    server = start_server(limits__queue_bytes="100000")
    api = api_of(server)
    path = api.octets()
    wires = [connect(server) for _ in range(4)]
    with stopped_writer(server):
        for wire in wires:
            wire.request("POST", path, b"x" * 60_000, "Content-Type: application/octet-stream")
        assert [wire.answer().status for wire in wires[2:]] == [429, 429]
    assert [wire.answer().status for wire in wires[:2]] == [204, 204]
    assert api.metric("headrace_append_queue_bytes") == 0


def test_under_overload_everything_is_answered_and_nothing_acknowledged_is_lost(
    start_server: StartServer, api_of: Any, connect: Connect
) -> None:
    server = start_server(limits__queue_requests="1")
    api = api_of(server)
    path = api.stream()
    wires = [connect(server) for _ in range(20)]
    taken = []
    for turn in range(30):
        for number, wire in enumerate(wires):
            wire.append(path, b"%d" % (turn * 100 + number))
        for number, wire in enumerate(wires):
            answer = wire.answer()
            assert answer.status in (204, 429)
            if answer.status == 204:
                taken.append(turn * 100 + number)
    assert 0 < len(taken) < 600
    assert sorted(api.get(path).json()) == taken


def test_too_many_waiting_readers_are_429(
    start_server: StartServer, api_of: Any, connect: Connect, eventually: Eventually
) -> None:
    server = start_server(limits__waiters="2")
    api = api_of(server)
    path = api.stream(1)
    waiting = [connect(server).request("GET", f"{path}?live=long-poll&offset=now&timeout=30s") for _ in range(2)]
    eventually(lambda: api.metric("headrace_watchers") == 2)
    for mode in ("long-poll", "sse"):
        refused = connect(server).request("GET", f"{path}?live={mode}&offset=now").answer()
        assert refused.status == 429
        assert refused.code() == "overloaded"
    assert api.get(path, live="long-poll", offset="-1").json() == [1]
    waiting[0].close()
    eventually(lambda: api.get(path, live="true", offset="now", timeout="1ms").status_code == 204)


def test_readers_that_do_not_read_hold_a_bounded_amount(
    start_server: StartServer, api_of: Any, connect: Connect, eventually: Eventually, code_of: Code
) -> None:
    server = start_server(limits__unsent_bytes=str(4 * MiB))
    api = api_of(server)
    path = api.octets(b"x" * (10 * MiB))
    small = api.stream(1)
    slow = [connect(server, receive_buffer=4096).request("GET", path) for _ in range(3)]
    eventually(lambda: api.get(small).status_code == 429)
    refused = api.get(small)
    assert code_of(refused) == "overloaded"
    assert refused.headers["retry-after"] == "2"
    assert api.post(small, [2]).status_code == 204  # writers are not punished
    for wire in slow:
        wire.close()
    eventually(lambda: api.get(small).status_code == 200)


def test_too_many_connections_are_told_so(start_server: StartServer, connect: Connect, eventually: Eventually) -> None:
    server = start_server(server__max_connections="3")
    first = [connect(server) for _ in range(3)]
    for wire in first:
        assert wire.request("GET", "/health").answer().status == 200
    answer = connect(server).request("GET", "/health").answer()
    assert answer.status == 503
    assert answer.code() == "unavailable"
    assert answer.headers["retry-after"] == "1"
    first[0].close()

    def served() -> bool:
        return bool(connect(server).request("GET", "/health").answer().status == 200)

    eventually(served)


def test_a_connection_may_be_reset_at_any_point(server: ServerProcess, api: Api, connect: Connect) -> None:
    path = api.octets(b"x" * MiB)
    for size in range(0, 60, 3):
        wire = connect(server)
        request = f"GET {path} HTTP/1.1\r\nHost: {wire.host}\r\n\r\n".encode()
        wire.send(request[:size] if size < 57 else request)
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        wire.close()
    assert api.get("/health").status_code == 200
