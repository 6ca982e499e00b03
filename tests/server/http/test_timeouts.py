from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from support.certificates import write_certificate

if TYPE_CHECKING:
    from tests.conftest import StartServer
    from tests.server.conftest import Api, Wire

MiB = 1024 * 1024
Connect = Callable[..., "Wire"]
Eventually = Callable[..., None]

UNKNOWN_OUTCOME = {
    "error": {
        "code": "append_timeout",
        "message": "append timed out; append outcome is unknown, check Stream-Next-Offset before retrying",
    }
}


def lasted(api: Api, path: str, **query: str) -> float:
    started = time.monotonic()
    assert api.get(path, live="long-poll", offset="now", **query).status_code == 204
    return time.monotonic() - started


# -- long-polls


@pytest.mark.parametrize("query", [{"timeout": "200"}, {"timeout": "200ms"}, {"timeout_ms": "200"}])
def test_a_wait_lasts_as_long_as_was_asked(api: Api, query: dict[str, str]) -> None:
    assert 0.19 < lasted(api, api.stream(1), **query) < 1.5


def test_a_wait_of_nothing_answers_at_once(api: Api) -> None:
    assert lasted(api, api.stream(1), timeout="0") < 0.2


def test_a_wait_has_a_default_and_a_most(start_server: StartServer, api_of: Any) -> None:
    api = api_of(start_server(server__long_poll_s="0.3", server__max_long_poll_s="0.6"))
    path = api.stream(1)
    assert 0.29 < lasted(api, path) < 0.58
    assert 0.59 < lasted(api, path, timeout="60s") < 2
    assert 0.59 < lasted(api, path, timeout="9" * 18) < 2


@pytest.mark.parametrize("given", ["x", "-1", "1.5s", "", "5 s"])
def test_a_wait_that_is_none_is_refused(api: Api, code_of: Callable[[Any], str], given: str) -> None:
    refused = api.get(api.stream(1), live="true", offset="now", timeout=given)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"


def test_a_parked_wait_is_not_working_time(start_server: StartServer, api_of: Any) -> None:
    api = api_of(start_server(server__resolver_timeout_s="0.2", server__append_timeout_s="0.2"))
    assert 0.9 < lasted(api, api.stream(1), timeout="1s") < 3


# -- work that takes too long


def test_an_append_that_takes_too_long_has_an_unknown_outcome(
    start_server: StartServer, api_of: Any, connect: Connect, stopped_writer: Any, eventually: Eventually
) -> None:
    server = start_server(server__append_timeout_s="0.2")
    api = api_of(server)
    path, hot, bridged, created = api.stream(), connect(server), connect(server), api.name()
    creating, closing = connect(server), connect(server)
    with stopped_writer(server):
        hot.append(path, b"1")
        bridged.append(path, b"2", "Content-Encoding: identity")
        creating.request("PUT", created, b"3", "Content-Type: application/json")
        closing.request("PUT", created + "closed", b"", "Stream-Closed: true")
        for wire in (hot, bridged, creating, closing):
            answer = wire.answer()
            assert answer.status == 408
            assert answer.code() == "append_timeout"
            assert json.loads(answer.body) == UNKNOWN_OUTCOME
    eventually(lambda: len(api.get(path).json()) == 2)
    eventually(lambda: api.get(created).status_code == 200 and api.get(created).json() == [3])
    eventually(lambda: api.head(created + "closed").headers.get("stream-closed") == "true")
    assert hot.append(path, b"4").answer().status == 204  # the connection goes on
    assert bridged.request("GET", path).answer().status == 200


def test_other_work_that_takes_too_long_is_a_plain_timeout(
    start_server: StartServer, api_of: Any, connect: Connect, stopped_writer: Any, eventually: Eventually
) -> None:
    server = start_server(server__append_timeout_s="0.2", server__resolver_timeout_s="0.5")
    api = api_of(server)
    path, fresh = api.stream(1), api.name()
    requests: list[tuple[str, str, bytes]] = [
        ("PUT", fresh, b""), ("POST", path + "/_retention", b'{"bytes":5}'), ("DELETE", path, b"")
    ]  # fmt: skip
    wires = [connect(server) for _ in requests]
    with stopped_writer(server):
        for wire, (method, target, body) in zip(wires, requests, strict=True):
            wire.request(method, target, body, "Content-Type: application/json" if body else "X-None: 1")
        for wire in wires:
            answer = wire.answer()
            assert answer.status == 408
            assert answer.code() == "request_timeout"
            assert json.loads(answer.body)["error"]["message"] == "request timed out"
    eventually(lambda: api.head(fresh).status_code == 200)
    eventually(lambda: api.head(path).status_code == 404)


def test_reads_go_on_while_the_writer_waits(
    start_server: StartServer, api_of: Any, connect: Connect, stopped_writer: Any
) -> None:
    server = start_server()
    api = api_of(server)
    path = api.stream(1)
    with stopped_writer(server):
        waiting = connect(server).append(path, b"2")
        for _ in range(20):
            assert api.get(path).json() == [1]
            assert api.head(path).status_code == 200
    assert waiting.answer().status == 204
    assert api.get(path).json() == [1, 2]


# -- clients that take too long

BEGUN = [
    b"G",
    b"GET /v1/stream/x",
    b"GET / HTTP/1.1\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nX-A: b",
    b"POST /v1/stream/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc",
    b"POST /v1/stream/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999\r\n\r\nabc",
    b"POST /v1/stream/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    b"POST /v1/streams HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
]


def test_a_request_that_does_not_arrive_is_given_up(start_server: StartServer, connect: Connect) -> None:
    server = start_server(server__request_timeout_s="0.5")
    begun = [(text, connect(server).send(text)) for text in BEGUN]
    for text, wire in begun:
        answer = wire.answer()
        assert (answer.status, answer.code()) in ((408, "request_timeout"), (405, "method_not_allowed")), text
        assert wire.ended(), text


def test_a_request_that_trickles_is_given_up_too(start_server: StartServer, api_of: Any, connect: Connect) -> None:
    server = start_server(server__request_timeout_s="0.5")
    api = api_of(server)
    path, wire, started = api.octets(), connect(server), time.monotonic()
    wire.begin(path, "Content-Length: 1000")
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        while time.monotonic() - started < 5:
            wire.socket.sendall(b"x")
            time.sleep(0.05)
    assert 0.4 < time.monotonic() - started < 2.5
    assert api.get(path).content == b""


def test_a_request_that_is_slow_but_in_time_is_served(start_server: StartServer, api_of: Any, connect: Connect) -> None:
    server = start_server(server__request_timeout_s="3")
    api = api_of(server)
    path, wire = api.octets(), connect(server)
    for part in (f"POST {path} HT", f"TP/1.1\r\nHost: {wire.host}\r\n", "Content-Type: application/octet-stream\r\n"):
        wire.send(part.encode())
        time.sleep(0.1)
    for part in ("Content-Length: 5\r\n\r\n", "he", "llo"):
        wire.send(part.encode())
        time.sleep(0.1)
    assert wire.answer().status == 204


def test_an_unfinished_request_behind_a_waiting_one_does_not_get_its_answer(
    start_server: StartServer, api_of: Any, connect: Connect
) -> None:
    server = start_server(server__request_timeout_s="0.3")
    api = api_of(server)
    path, wire = api.stream(1), connect(server)
    wire.request("GET", f"{path}?live=long-poll&offset=now&timeout=1s").send(b"GET /v1/str")
    first = wire.answer()
    assert first.status == 204
    assert first.headers["stream-next-offset"] == api.offset(path)


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(
    start_server: StartServer, api_of: Any, connect: Connect
) -> None:
    server = start_server(server__idle_timeout_s="1", server__request_timeout_s="5")
    api = api_of(server)
    path = api.stream(1)
    silent, used, waiting = connect(server), connect(server), connect(server)
    assert used.request("GET", path).answer().status == 200
    waiting.request("GET", f"{path}?live=long-poll&offset=now&timeout=2500ms")
    started = time.monotonic()
    assert silent.ended() and used.ended()
    assert 0.5 < time.monotonic() - started < 2.4
    assert waiting.answer().status == 204


def test_a_handshake_that_does_not_begin_is_cut_off(
    start_server: StartServer, connect: Connect, tmp_path: Path
) -> None:
    cert_file, key_file = write_certificate(tmp_path)
    tls = {"server__tls_cert": str(cert_file), "server__tls_key": str(key_file)}
    server = start_server(**tls, server__request_timeout_s="0.5")
    silent, started = connect(server), time.monotonic()
    assert silent.socket.recv(1) == b""
    assert time.monotonic() - started > 0.4
    trusting = ssl.create_default_context(cafile=cert_file)
    assert httpx2.get(f"{server.url}/health", verify=trusting, trust_env=False).status_code == 200


def test_a_reader_that_takes_nothing_is_cut_off(start_server: StartServer, api_of: Any, connect: Connect) -> None:
    server = start_server(server__write_timeout_s="0.5", limits__read_bytes=str(8 * MiB))
    api = api_of(server)
    path = api.octets(b"x" * (8 * MiB))
    wire = connect(server, receive_buffer=4096).request("GET", path)
    time.sleep(1.5)
    with pytest.raises((AssertionError, ConnectionError)):
        wire.answer()


def test_a_reader_that_takes_a_little_at_a_time_gets_everything(
    start_server: StartServer, api_of: Any, connect: Connect
) -> None:
    server = start_server(server__write_timeout_s="1", limits__read_bytes=str(16 * MiB))
    api = api_of(server)
    path = api.octets(b"x" * (8 * MiB), b"y" * (8 * MiB))
    wire = connect(server, receive_buffer=128 * 1024).request("GET", path)
    taken = 0
    started = time.monotonic()
    while taken < 16 * MiB:
        part = wire.socket.recv(256 * 1024)
        assert part, f"cut off after {taken} bytes and {time.monotonic() - started:.1f} s"
        taken += len(part)
        time.sleep(max(0.0, started + taken * 3 / (16 * MiB) - time.monotonic()))
