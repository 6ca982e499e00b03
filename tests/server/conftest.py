"""Two ways to talk to a real server: ``Api`` for well-formed requests, ``Wire`` for bytes of any kind."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import sqlite3
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import httpx2
import pytest

if TYPE_CHECKING:
    from tests.conftest import ServerProcess

PATIENCE_S = 8.0
START = "0" * 26
JSON = {"content-type": "application/json"}
_numbers = itertools.count(1)


class Api:
    """Well-formed requests to one server."""

    def __init__(self, url: str, trusted: ssl.SSLContext | None = None) -> None:
        """``trusted`` holds the certificate of a server with TLS."""
        self.url = url
        limits = httpx2.Limits(max_connections=200, max_keepalive_connections=100)
        plain = {"accept-encoding": "identity"}
        self.client = httpx2.Client(
            base_url=url, timeout=PATIENCE_S, trust_env=False, headers=plain, limits=limits, verify=trusted or True
        )

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, **query: Any
    ) -> httpx2.Response:
        """Any request; a body that is not bytes is sent as JSON."""
        headers = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body, headers = json.dumps(body).encode(), {**JSON, **headers}
        return self.client.request(method, path, content=body, headers=headers, params=query or None)

    def put(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> httpx2.Response:
        return self.call("PUT", path, body, headers)

    def post(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> httpx2.Response:
        return self.call("POST", path, body, headers)

    def get(self, path: str, headers: dict[str, str] | None = None, **query: Any) -> httpx2.Response:
        return self.call("GET", path, None, headers, **query)

    def head(self, path: str) -> httpx2.Response:
        return self.call("HEAD", path)

    def delete(self, path: str) -> httpx2.Response:
        return self.call("DELETE", path)

    @staticmethod
    def name() -> str:
        """A path that nobody else uses."""
        return f"/v1/stream/s{next(_numbers)}"

    def stream(self, *entries: Any, headers: dict[str, str] | None = None) -> str:
        """A new JSON stream that holds these entries, one append each."""
        path = self.name()
        assert self.put(path, headers={**JSON, **(headers or {})}).status_code == 201
        for entry in entries:
            assert self.post(path, [entry]).status_code == 204
        return path

    def octets(self, *entries: bytes, kind: str = "application/octet-stream") -> str:
        """A new byte stream that holds these entries."""
        path = self.name()
        assert self.put(path, headers={"content-type": kind}).status_code == 201
        for entry in entries:
            assert self.post(path, entry, {"content-type": kind}).status_code == 204
        return path

    def offset(self, path: str) -> str:
        """The tail of a stream."""
        return str(self.head(path).headers["stream-next-offset"])

    def metric(self, name: str) -> float:
        """One number of ``/metrics``; labelled ones are added up."""
        text = self.get("/metrics").text
        found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        assert found, f"there is no metric {name}"
        return sum(map(float, found))


class Answer(NamedTuple):
    """A response as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    def code(self) -> str:
        """The code of an error answer, whose shape is checked."""
        return error_code(self.status, self.headers, self.body)


class Event(NamedTuple):
    """A server-sent event as a standard parser understands it."""

    kind: str
    data: str

    @property
    def json(self) -> Any:
        return json.loads(self.data)


class Wire:
    """A connection on which anything may be written."""

    def __init__(self, url: str, *, receive_buffer: int | None = None) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self.host = f"{parts.hostname}:{parts.port}"
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect((parts.hostname, parts.port))
        self._file = self.socket.makefile("rb")
        self._events = b""

    def send(self, data: bytes) -> Wire:
        """Write bytes as they are; a server that hung up is the reader's business."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)
        return self

    def request(self, method: str, target: str, body: bytes = b"", *lines: str, version: str = "1.1") -> Wire:
        """Write a request with these further header lines; its length is added where it has a body."""
        length = [f"Content-Length: {len(body)}"] if body else []
        head = [f"{method} {target} HTTP/{version}", f"Host: {self.host}", *lines, *length]
        return self.send("\r\n".join([*head, "", ""]).encode("latin-1") + body)

    def begin(self, path: str, *lines: str, kind: str = "application/octet-stream", then: bytes = b"") -> Wire:
        """Write the head of a POST, and what follows it as it is."""
        head = [f"POST {path} HTTP/1.1", f"Host: {self.host}", f"Content-Type: {kind}", *lines]
        return self.send("\r\n".join([*head, "", ""]).encode("latin-1") + then)

    def append(self, path: str, body: bytes, *lines: str) -> Wire:
        """Write a JSON append."""
        return self.request("POST", path, body, "Content-Type: application/json", *lines)

    def half_close(self) -> Wire:
        """Say that nothing more will be sent."""
        self.socket.shutdown(socket.SHUT_WR)
        return self

    def answer(self, method: str = "GET") -> Answer:
        """Read one whole response."""
        status, headers = self.head()
        if method == "HEAD" or status in (204, 304) or status < 200:
            return Answer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return Answer(status, headers, b"".join(iter(self.chunk, b"")))
        if "content-length" in headers:
            size = int(headers["content-length"])
            body = self._file.read(size)
            assert len(body) == size, "the body ended too early"
            return Answer(status, headers, body)
        return Answer(status, headers, self._file.read())

    def head(self) -> tuple[int, dict[str, str]]:
        """Read a status line and headers; repeated headers are joined."""
        line = self._file.readline()
        assert line, "the connection was closed without an answer"
        found = re.fullmatch(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n", line)
        assert found, f"not a status line: {line!r}"
        headers: dict[str, str] = {}
        while (line := self._file.readline()) != b"\r\n":
            assert line.endswith(b"\r\n"), f"a broken header: {line!r}"
            name, colon, value = line[:-2].decode().partition(": ")
            assert colon, f"a broken header: {line!r}"
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return int(found[1]), headers

    def chunk(self) -> bytes:
        """Read one chunk of a chunked body; the last one is empty."""
        size = int(self._file.readline().strip(), 16)
        data = self._file.read(size + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]

    def event(self) -> Event | None:
        """Read one server-sent event; None is the end of the response."""
        while b"\n\n" not in self._events:
            chunk = self.chunk()
            if not chunk:
                return None
            self._events += chunk
        block, _, self._events = self._events.partition(b"\n\n")
        kind, data = "message", []
        for line in block.decode().split("\n"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            kind = value if field == "event" else kind
            if field == "data":
                data.append(value)
        return Event(kind, "\n".join(data))

    def ended(self) -> bool:
        """Whether the server hangs up, in time and without another byte."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._file.close()
        self.socket.close()


def failures(server: ServerProcess) -> list[str]:
    """What a server logged as errors."""
    return [line for line in server.log().splitlines() if '"level": "error"' in line]


def error_code(status: int, headers: Any, body: bytes) -> str:
    """The code of an error answer; asserts that it looks like every error looks."""
    assert status >= 400
    assert headers["content-type"] == "application/json; charset=utf-8"
    assert headers["x-content-type-options"] == "nosniff"
    document = json.loads(body)
    assert list(document) == ["error"]
    error = document["error"]
    assert isinstance(error["message"], str) and error["message"]
    assert re.fullmatch("[a-z_]+|[A-Z_]+", error["code"])
    if status in (429, 503):
        assert int(headers["retry-after"]) >= 1
    return str(error["code"])


@pytest.fixture(scope="module")
def api(server: ServerProcess) -> Iterator[Api]:
    """Requests to the module's server, which must not have failed inside when the module is done."""
    api = Api(server.url)
    yield api
    api.client.close()
    assert failures(server) == []


@pytest.fixture
def api_of() -> Iterator[Callable[[ServerProcess], Api]]:
    """Requests to a server started by the test."""
    with contextlib.ExitStack() as stack:

        def make(server: ServerProcess) -> Api:
            api = Api(server.url)
            stack.callback(api.client.close)
            return api

        yield make


@pytest.fixture
def connect() -> Iterator[Callable[..., Wire]]:
    """Connections to any server, closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(server: ServerProcess, **options: Any) -> Wire:
            wire = Wire(server.url, **options)
            stack.callback(wire.close)
            return wire

        yield make


@pytest.fixture(scope="session")
def code_of() -> Callable[[httpx2.Response], str]:
    """The code of an error answer, after checking its shape."""
    return lambda response: error_code(response.status_code, response.headers, response.content)


@pytest.fixture(scope="session")
def eventually() -> Callable[..., None]:
    """Wait until something becomes true."""

    def wait(holds: Callable[[], Any], within_s: float = PATIENCE_S) -> None:
        until = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < until, "it did not happen in time"
            time.sleep(0.02)

    return wait


@pytest.fixture(scope="session")
def rss() -> Callable[[ServerProcess], int]:
    """Resident memory of a server in bytes."""

    def read(server: ServerProcess) -> int:
        assert server.process is not None
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    return read


@pytest.fixture(scope="session")
def stopped_writer() -> Callable[[ServerProcess], contextlib.AbstractContextManager[None]]:
    """Keep a server's writer from committing, for less than its five seconds of patience with SQLite."""

    @contextlib.contextmanager
    def hold(server: ServerProcess) -> Iterator[None]:
        lock = sqlite3.connect(server.data_dir / "headrace.db", isolation_level=None)
        try:
            lock.execute("BEGIN IMMEDIATE")
            yield
        finally:
            lock.close()

    return hold
