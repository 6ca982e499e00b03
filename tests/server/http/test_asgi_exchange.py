from __future__ import annotations

import asyncio
import gzip
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from headrace.config import ServerConfig
from headrace.engine.log.log import Counters
from headrace.engine.runtime.gates import Gate, Shortage
from headrace.errors import Unavailable
from headrace.server.http import compression
from headrace.server.http.asgi import DispatcherApplication
from headrace.server.http.auth import Authenticator
from headrace.server.http.byte_budgets import BodyBudget
from headrace.server.http.request_log import RequestLog
from headrace.storage.keys import KeyStore

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api, Wire

MiB = 1024 * 1024
Connect = Callable[..., "Wire"]


def chunked(wire: Wire, path: str, body: bytes, kind: str = "application/octet-stream") -> Wire:
    """Write a POST whose body is already in chunks."""
    return wire.begin(path, "Transfer-Encoding: chunked", kind=kind, then=body)


@pytest.mark.parametrize(
    "body",
    [
        b"5\r\nhello\r\n0\r\n\r\n",
        b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        b"5;name=value\r\nhello\r\n0;last\r\n\r\n",
        b'5;q="a;b"\r\nhello\r\n0\r\n\r\n',
        b"005\r\nhello\r\n000\r\n\r\n",
        b"5\r\nhello\r\n0\r\nTrailer: x\r\nStream-Closed: true\r\n\r\n",
    ],
)
def test_chunks_make_one_body(server: ServerProcess, api: Api, connect: Connect, body: bytes) -> None:
    path, wire = api.octets(), connect(server)
    assert chunked(wire, path, body).answer().status == 204
    assert api.get(path).content == b"hello"
    assert "stream-closed" not in api.head(path).headers
    assert wire.request("GET", path).answer().body == b"hello"


@pytest.mark.parametrize(
    "body",
    [b"x\r\nhello\r\n0\r\n\r\n", b"-5\r\nhello\r\n0\r\n\r\n", b"0x5\r\nhello\r\n0\r\n\r\n", b"5\r\nhelloX\r\n0\r\n\r\n",
     b"ffffffffffffffffff\r\nhello\r\n", b" 5\r\nhello\r\n0\r\n\r\n", b"5\nhello\n0\n\n", b"\r\n"],
)  # fmt: skip
def test_broken_chunks_are_refused(server: ServerProcess, api: Api, connect: Connect, body: bytes) -> None:
    path, wire = api.octets(), connect(server)
    answer = chunked(wire, path, body).answer()
    assert answer.status == 400
    assert answer.code() == "bad_request"
    assert wire.ended()
    assert api.get(path).content == b""


def test_length_and_chunks_together_are_refused(server: ServerProcess, api: Api, connect: Connect) -> None:
    path, wire = api.octets(), connect(server)
    wire.begin(path, "Content-Length: 5", "Transfer-Encoding: chunked", then=b"5\r\nhello\r\n0\r\n\r\n")
    answer = wire.answer()
    assert answer.status == 400
    assert answer.code() == "bad_request"
    assert wire.ended()
    assert api.get(path).content == b""


@pytest.mark.parametrize(
    "coding", ["gzip, chunked", "gzip", "identity", "chunked, chunked", "xchunked", "deflate,chunked"]
)
def test_a_transfer_coding_that_is_not_undone_is_refused(
    server: ServerProcess, api: Api, connect: Connect, coding: str
) -> None:
    path, wire = api.octets(), connect(server)
    answer = wire.begin(path, f"Transfer-Encoding: {coding}", then=b"5\r\nhello\r\n0\r\n\r\n").answer()
    assert answer.status in (400, 501)
    assert answer.code()
    assert api.get(path).content == b""


def test_an_empty_chunked_body_is_an_empty_body(server: ServerProcess, api: Api, connect: Connect) -> None:
    path = api.octets(b"x")
    answer = chunked(connect(server), path, b"0\r\n\r\n").answer()
    assert answer.status == 400
    assert answer.code() == "bad_request"


def test_json_in_chunks_is_json(server: ServerProcess, api: Api, connect: Connect) -> None:
    path = api.stream()
    body = b"3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n"
    assert chunked(connect(server), path, body, "application/json").answer().status == 204
    assert api.get(path).json() == [1, 2]


@pytest.mark.parametrize("size", [256 * 1024 - 1, 256 * 1024, 256 * 1024 + 1, 999_999, 1_000_000, 5 * MiB, 10 * MiB])
def test_bodies_of_all_sizes_are_kept_whole(api: Api, size: int) -> None:
    data = os.urandom(1000) * (size // 1000) + b"x" * (size % 1000)
    path = api.octets(data)
    assert api.get(path).content == data


def test_who_may_not_call_is_told_before_the_body_arrives(server: ServerProcess, api: Api, connect: Connect) -> None:
    path, wire = api.octets(), connect(server)
    head = f"POST {path} HTTP/1.1\r\nHost: elsewhere.example\r\nContent-Type: application/octet-stream\r\n"
    answer = wire.send(f"{head}Content-Length: 5000000\r\n\r\n".encode()).answer()
    assert answer.status == 403
    assert answer.code() == "forbidden"


def test_a_client_that_leaves_within_its_body_appends_nothing(
    server: ServerProcess, api: Api, connect: Connect
) -> None:
    path = api.octets()
    for headers in ("Content-Length: 900000", "Transfer-Encoding: chunked"):
        wire = connect(server)
        wire.begin(path, headers).send(b"2000\r\n" + b"x" * 5000)
        wire.close()
    time.sleep(0.1)
    assert api.get(path).content == b""


def test_bodies_that_arrive_slowly_do_not_hold_all_memory(
    start_server: StartServer, api_of: Any, connect: Connect, rss: Callable[[Any], int]
) -> None:
    server = start_server()
    path, before = api_of(server).octets(), rss(server)
    arrived = 9 * MiB
    for _ in range(40):
        wire = connect(server)
        wire.socket.settimeout(0.5)
        wire.begin(path, f"Content-Length: {10 * MiB}")
        try:
            wire.socket.sendall(bytes(arrived))
        except (TimeoutError, ConnectionError):
            continue  # the server took no more, which is one way
    time.sleep(0.3)
    assert rss(server) - before < 200 * MiB


# -- the time that decoding takes


class Behind:
    """A dispatcher that answers 204 at once, the bridge before it, and a client with a gzipped body."""

    def __init__(self, keys: Path, gate: Gate, timeout_s: float) -> None:
        self.handled: list[tuple[bytes, float]] = []
        self.counters = Counters()
        self.arrivals = BodyBudget(MiB, Shortage())
        authenticator = Authenticator(ServerConfig(), KeyStore(keys))
        dispatcher: Any = SimpleNamespace(authenticator=authenticator, arrivals=self.arrivals, handle=self._handle)
        self._bridge = DispatcherApplication(dispatcher, gate, RequestLog(self.counters), MiB, timeout_s=timeout_s)
        self.before_body: Callable[[], None] = lambda: None

    async def ask(self) -> tuple[int, bytes]:
        """Post a body; the answer."""
        sent: list[Any] = []
        body = [gzip.compress(b"x")]

        async def receive() -> dict[str, Any]:
            if not body:
                await asyncio.Event().wait()
            self.before_body()
            return {"type": "http.request", "body": body.pop()}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"method": "POST", "scheme": "http", "raw_path": b"/v1/stream/x", "query_string": b""}
        await self._bridge({**scope, "headers": [(b"content-encoding", b"gzip")]}, receive, send)
        return sent[0]["status"], sent[1]["body"]

    def _handle(self, _: Any, body: bytes, exchange: Any, until: float) -> None:
        self.handled.append((body, until))
        exchange.reply_appended("0")


def test_a_body_that_is_not_decoded_in_time_is_given_up(tmp_path: Path) -> None:
    async def story() -> None:
        gate = Gate(1)
        behind = Behind(tmp_path / "keys.db", gate, timeout_s=0.05)
        async with gate:  # somebody else is at work
            status, body = await asyncio.wait_for(behind.ask(), 5)
        assert status == 408
        assert json.loads(body)["error"]["code"] == "request_timeout"
        assert gate.active == 0
        assert gate.queued == 0
        assert behind.arrivals.held == 0
        assert behind.handled == []

    asyncio.run(story())


@pytest.mark.parametrize(("decoding_s", "slow"), [(2.0, 1), (0.5, 0)])
def test_decoding_is_working_time_and_arriving_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoding_s: float, slow: int
) -> None:
    now = SimpleNamespace(s=1000.0)

    def arrive() -> None:
        now.s += 20.0

    def decode(body: bytes, name: str, limit: int, until: float) -> bytes:
        now.s += decoding_s
        return b"decoded until %d" % until

    for module in ("asgi", "byte_budgets"):
        monkeypatch.setattr(f"headrace.server.http.{module}.monotonic", lambda: now.s)
    monkeypatch.setattr(compression, "decompress", decode)
    behind = Behind(tmp_path / "keys.db", Gate(1), timeout_s=5.0)
    behind.before_body = arrive
    assert asyncio.run(behind.ask())[0] == 204
    assert behind.handled == [(b"decoded until 1025", 1025.0)]
    assert behind.counters.slow_requests == slow


def test_bodies_are_refused_while_memory_is_short() -> None:
    shortage = Shortage()
    arrivals = BodyBudget(MiB, shortage)
    arrivals.take(10)
    shortage.is_on = True
    with pytest.raises(Unavailable) as refused:
        arrivals.take(1)
    assert refused.value.facts["reason"] == "memory"
    assert arrivals.held == 10
    shortage.is_on = False
    arrivals.take(1)
    assert arrivals.held == 11
