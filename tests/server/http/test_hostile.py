"""Bytes that no honest client sends: never a 5xx, never a hang, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.format import offset as offsets

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api, Wire

MiB = 1024 * 1024
JSON = {"content-type": "application/json"}
Connect = Callable[..., "Wire"]
EXAMPLES = 2000 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 150


@pytest.fixture(autouse=True)
def healthy(api: Api, eventually: Callable[..., None]) -> Iterator[None]:
    """After every test the server serves, and no reader is left waiting once it has seen who went away."""
    yield
    assert api.get("/health/ready").json()["ready"] is True
    eventually(lambda: api.metric("headrace_watchers") == 0)
    eventually(lambda: api.metric("headrace_append_queue_requests") == 0)


@pytest.fixture(scope="module")
def visit(server: ServerProcess) -> Iterator[Callable[[bytes], list[int]]]:
    """Send bytes, say goodbye, and answer the statuses of everything that came back."""
    host, port = server.url.removeprefix("http://").split(":")

    def send(data: bytes) -> list[int]:
        with socket.create_connection((host, int(port)), timeout=8) as connection:
            received = b""
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while part := connection.recv(65536):
                    received += part
        assert not received or received.startswith(b"HTTP/1.1 ")
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]

    yield send


GARBAGE = [
    b"\x00",
    b"\x00" * 10_000,
    b"\xff\xfe\xfd",
    b"\r\n" * 1000,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.0\r\n",
    b"GET\r\n\r\n",
    b"GET /\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1 extra\r\n\r\n",
    b"get / HTTP/1.1\r\n\r\n",
    b" GET / HTTP/1.1\r\n\r\n",
    b"G\x00T / HTTP/1.1\r\n\r\n",
    b"GET  /  HTTP/1.1\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/stream/a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET v1/stream/a HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET ? HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET # HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http:// HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http://localhost:99999999/v1/stream/a HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET //v1/stream/a HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/stream/%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/stream/a?%zz=%zz&&&==&offset HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/stream/\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/streams?prefix=\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"CONNECT /v1/stream/a HTTP/1.1\r\nHost: localhost\r\n\r\nbytes of a tunnel",
    b"OPTIONS * HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\n: nothing\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\n Folded: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\nX: a\n\n",
    b"GET / HTTP/1.1\rHost: localhost\r\r",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\x01\x02b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX\x7f: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nH\xc3\xa9: localhost\r\n\r\n",
    b"POST /v1/stream/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/stream/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1e3\r\n\r\n",
    b"POST /v1/stream/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: +5\r\n\r\nhello",
    b"POST /v1/stream/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5, 5\r\n\r\nhello",
    b"POST /v1/stream/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    b"POST /v1/stream/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /v1/stream/a HTTP/1.1\r\nHost: localhost\r\nContent-Length:\r\n\r\n",
    b"POST /v1/stream/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0x5\r\n\r\nhello",
    b"POST /v1/stream/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n",
    b"POST /v1/stream/a HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"POST /v1/stream/a HTTP/1.1\r\nHost: localhost\r\nExpect: 200-maybe\r\nContent-Length: 1\r\n\r\nx",
    b"POST /v1/stream/a HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    b"PUT /v1/stream/a HTTP/1.1\r\nHost: localhost\r\nStream-Forked-From: /v1/stream/%zz\r\n\r\n",
    b"X" * 100_000,
    b"GET /" + b"%41" * 2700 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
]


@pytest.mark.parametrize("data", GARBAGE, ids=[repr(data[:50]) for data in GARBAGE])
def test_garbage_is_refused_or_hung_up_on(visit: Callable[[bytes], list[int]], data: bytes) -> None:
    statuses = visit(data)
    assert all(status < 500 for status in statuses)
    assert len(statuses) <= 2


@settings(max_examples=EXAMPLES)
@given(st.binary(max_size=400))
def test_any_bytes_are_refused_or_hung_up_on(visit: Callable[[bytes], list[int]], data: bytes) -> None:
    assert all(400 <= status < 500 for status in visit(data))


VALID = [
    b'GET /v1/stream/fuzzed?offset=-1&live=long-poll&timeout=1 HTTP/1.1\r\nHost: localhost\r\nIf-Match: "a"\r\n\r\n',
    b"PUT /v1/stream/fuzzed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nStream-TTL: 60\r\n"
    b"Content-Length: 5\r\n\r\n[1,2]",
    b"POST /v1/stream/fuzzed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nProducer-Id: p\r\n"
    b"Producer-Epoch: 0\r\nProducer-Seq: 0\r\nStream-Seq: a\r\nIf-Match: 00000000000000000004000000\r\n"
    b'Stream-Timestamp: 2020-01-01T00:00:00Z\r\nContent-Length: 7\r\n\r\n{"a":1}',
    b"POST /v1/stream/fuzzed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n2\r\n2]\r\n0\r\nTrailer: x\r\n\r\n",
    b"PUT /v1/stream/forked HTTP/1.1\r\nHost: localhost\r\nStream-Forked-From: /v1/stream/fuzzed\r\n"
    b"Stream-Fork-Offset: 00000000000000000004000000\r\nStream-Fork-Sub-Offset: 1\r\n\r\n",
    b"DELETE /v1/stream/fuzzed HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /v1/stream/fuzzed/_retention HTTP/1.1\r\nHost: localhost\r\nContent-Length: 24\r\n\r\n"
    b'{"age":"1h","bytes":100}',
    b"GET /v1/streams?prefix=f&after=a&limit=10 HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: 1\r\n\r\n",
]


@settings(max_examples=EXAMPLES)
@given(
    st.lists(st.sampled_from(VALID), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(["cut", "drop", "flip", "twice"]), st.integers(0, 255))),
)
def test_requests_with_errors_in_transmission_are_answered_or_refused(
    visit: Callable[[bytes], list[int]], requests: list[bytes], faults: list[tuple[int, str, int]]
) -> None:
    data = bytearray(b"".join(requests))
    for place, kind, value in faults:
        at = place % (len(data) or 1)
        if kind == "cut":
            del data[at:]
        elif kind == "drop":
            del data[at : at + 1 + value % 4]
        elif kind == "flip" and data:
            data[at] = value
        else:
            data[at:at] = data[at : at + value]
    assert all(status < 500 for status in visit(bytes(data)))


# -- headers


NAMES = [
    "Stream-Key", "Stream-Seq", "Stream-TTL", "Stream-Expires-At", "Stream-Timestamp", "Stream-Closed",
    "Stream-Retention-Age", "Stream-Retention-Bytes", "Stream-Forked-From", "Stream-Fork-Offset",
    "Stream-Fork-Sub-Offset", "Producer-Id", "Producer-Epoch", "Producer-Seq", "If-Match", "If-None-Match",
    "Content-Type", "Content-Encoding", "Accept-Encoding", "Accept", "Authorization", "Origin", "X-Request-Id",
    "Expect", "Connection", "Upgrade", "Range", "Cookie", "Forwarded", "X-Forwarded-For", "TE", "Date",
]  # fmt: skip
VALUES = [
    b"", b" ", b"\xff\xfe", b"\xc3\xa9", "٣".encode(), b"\t", b"a\tb", b"0", b"-1", b"1e400", b"9" * 40, b"NaN",
    b"null", b"*", b'"', b",,,", b";;;", b"=?utf-8?q?x?=", b"%00", b"../../..", b"{}", b"[]", b"a" * 1025, b"a" * 9000,
    b"W/\"\"", b"Bearer ", b"Basic Og==", b"bytes=0-", b"close, keep-alive", b"chunked", b"now", b"true",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_no_header_value_breaks_anything(server: ServerProcess, api: Api, connect: Connect, name: str) -> None:
    path, fresh = api.stream(1), api.name()
    for value in VALUES:
        line = f"{name}: {value.decode('latin-1')}"
        for method, target, body in (
            ("POST", path, b"[2]"),
            ("PUT", fresh, b""),
            ("GET", path, b""),
            ("HEAD", path, b""),
        ):
            kind = [] if name == "Content-Type" or not body else ["Content-Type: application/json"]
            answer = connect(server).request(method, target, body, line, *kind).answer(method)
            assert answer.status < 500, (method, line)
            if answer.status >= 400 and method != "HEAD":
                assert answer.code()
        api.delete(fresh)


# -- JSON


BROKEN = [
    b"{", b"}", b"[", b"]", b"[1,]", b"[,1]", b"[1 2]", b'{"a"}', b'{"a":}', b'{"a":1,}', b"{a:1}", b"{'a':1}",
    b"{1:2}", b"nul", b"tru", b"True", b"None", b"undefined", b"NaN", b"-NaN", b"Infinity", b"-Infinity", b"01", b"-",
    b"+1", b"1.", b".5", b"1e", b"0x10", b"1_000", b'"', b'"\\"', b'"\\x41"', b'"\\u12"', b'"\\u12G4"',
    b'"\n"', b'"\x00"', b'"\x1f"', b"1 2", b"1,2", b"{}{}", b'"a""b"', b"//c\n1", b"/**/1",
    b"\xef\xbb\xbf1", b"\x00", b"\x0c1", b"\xc2\xa01",
    b'"\xff"', b'"\xc3"', b'"\xed\xa0\x80"', b'"\xf5\x80\x80\x80"', b'"\xc0\xaf"', b'{"\xff":1}',
    b"\xff\xfe[\x001\x00]\x00",
    b'"\\ud800"', b'"\\udc00"', b'"\\ud800\\ud800"', b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000, b'{"a":' * 20_000 + b"1" + b"}" * 20_000, b"[1]" + b" " * 1000 + b"x",
]  # fmt: skip


@pytest.mark.parametrize("body", BROKEN, ids=[repr(body[:20]) for body in BROKEN])
def test_what_is_not_json_is_refused(api: Api, code_of: Callable[[Any], str], body: bytes) -> None:
    path = api.stream()
    for bodies in (body, b"[1," + body + b"]"):
        refused = api.post(path, bodies, JSON)
        if bodies is not body and refused.status_code == 204:
            assert api.get(path).json() == json.loads(bodies)  # what is broken alone may complete an array
            break
        assert refused.status_code == 400
        assert code_of(refused) == "bad_request"


def readable(api: Api, path: str) -> list[bytes]:
    """What every way of reading answers; all of them must work."""
    whole = api.get(path)
    assert whole.status_code == 200
    first = api.get(path, {"accept-encoding": "gzip"})
    raw, keyed = api.get(path, format="raw"), api.get(path, key="k")
    bridged = api.call("GET", path, b"x" * 300_000, format="raw")
    for answer in (first, raw, keyed, bridged):
        assert answer.status_code == 200, answer.text
    assert first.content == whole.content
    assert raw.content == bridged.content
    return [whole.content, raw.content]


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_an_accepted_depth_can_be_read_in_every_way(api: Api, opening: str) -> None:
    """Whatever is let in must come out again, however deep the reading code stands."""
    closing = "]" if opening == "[" else "}"

    def nested(depth: int) -> bytes:
        return (opening * depth + "1" + closing * depth).encode()

    def accepted(depth: int, *way: tuple[str, str]) -> str | None:
        path = api.stream()
        body = b"[0," + nested(depth) + b",2]"
        answer = api.post(path, body, {**JSON, "stream-key": "k", **dict(way)})
        assert answer.status_code in (204, 400)
        return path if answer.status_code == 204 else None

    assert accepted(60)
    low, high = 60, 20_000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepted(middle) else (low, middle)
    for depth in range(low - 25, low + 2):
        for way in ((), (("content-encoding", "identity"),)):
            path = accepted(depth, *way)
            if path is not None:
                whole, _ = readable(api, path)
                assert whole == b"[0," + nested(depth) + b",2]"
                after_first = offsets.encode(offsets.decode(api.offset(path)).epoch, 1)
                assert api.get(path, offset=after_first).status_code == 200
                forked = api.put(
                    api.name(),
                    headers={"stream-forked-from": path, "stream-fork-offset": "-1", "stream-fork-sub-offset": "2"},
                )
                assert forked.status_code == 201


def python_reads(body: bytes) -> bool:
    def refuse(_: str) -> None:
        raise ValueError

    try:
        json.loads(body.decode(), parse_constant=refuse, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        return False
    return True


JSON_TEXT = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
).map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


@settings(max_examples=EXAMPLES)
@given(JSON_TEXT, st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=3), st.booleans()), max_size=2))
def test_the_server_and_python_agree_on_what_is_json(
    api: Api, text: bytes, edits: list[tuple[int, bytes, bool]]
) -> None:
    body = bytearray(text)
    for place, inserted, replaces in edits:
        at = place % (len(body) + 1)
        body[at : at + (1 if replaces else 0)] = inserted
    path = api.stream()
    answer = api.post(path, bytes(body), JSON)
    if answer.status_code == 204:
        assert python_reads(bytes(body))
        served = api.get(path).content
        stripped = bytes(body).strip(b" \t\r\n")
        assert served == (stripped if stripped[:1] == b"[" else b"[" + stripped + b"]")
    else:
        assert answer.status_code == 400
        empty = not body.strip(b" \t\r\n") or re.fullmatch(rb"\s*\[\s*\]\s*", bytes(body))
        assert empty or not python_reads(bytes(body)) or b"\\ud" in bytes(body).lower()


@pytest.mark.parametrize("size", [1_000, 100_000, 1_000_000])
def test_a_number_of_any_length_is_kept(api: Api, size: int) -> None:
    path = api.stream()
    number = b"1" * size
    assert api.post(path, b"[" + number + b"]", JSON).status_code == 204
    assert api.get(path).content == b"[" + number + b"]"


def test_an_array_of_very_many_entries_is_taken_and_read(api: Api) -> None:
    path, many = api.stream(), 1_000_000
    assert api.post(path, b"[" + b",".join([b"1"] * many) + b"]", JSON).status_code == 204
    count, offset = 0, "-1"
    while True:
        page = api.get(path, offset=offset)
        count += len(page.json())
        offset = page.headers["stream-next-offset"]
        if "stream-up-to-date" in page.headers:
            break
    assert count == many


# -- a storm


def test_a_storm_of_bad_clients_leaves_nothing_behind(
    start_server: StartServer,
    api_of: Any,
    connect: Connect,
    rss: Callable[[Any], int],
    eventually: Callable[..., None],
) -> None:
    # Sealing would load what reads and writes segments, which is another matter.
    server = start_server(storage__seal_bytes="1000000000")
    api = api_of(server)
    dice = random.Random(7)
    path = api.stream(1)

    def storm(many: int) -> None:
        for _ in range(many):
            wire = connect(server)
            kind = dice.randrange(6)
            if kind == 0:
                wire.send(dice.choice(GARBAGE)[:2000])
            elif kind == 1:
                wire.send(dice.choice(VALID)[: dice.randrange(100)])
            elif kind == 2:
                wire.request("GET", f"{path}?live=sse&offset=now")
            elif kind == 3:
                wire.request("GET", f"{path}?live=long-poll&offset=now&timeout=60s")
            elif kind == 4:
                wire.append(path, b"1" * dice.randrange(1, 5000)).append(path, b"[1").request("GET", path)
            else:
                wire.begin(path, "Content-Length: 500000").send(b"x" * dice.randrange(100_000))
            wire.close()

    def handles() -> int:
        assert server.process is not None
        return len(os.listdir(f"/proc/{server.process.pid}/fd"))

    storm(300)
    eventually(lambda: api.metric("headrace_watchers") == 0)
    before, open_before = rss(server), handles()
    storm(900)
    eventually(lambda: api.metric("headrace_watchers") == 0)
    eventually(lambda: handles() <= open_before + 5)
    assert rss(server) - before < 24 * MiB
