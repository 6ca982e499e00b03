"""What goes over the wire: prebuilt requests, and connections that keep one of them in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from typing import cast

PAUSE_AFTER_ERROR = 0.01


def http_request(method: str, path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """A whole HTTP/1.1 request on a connection that stays open."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    if body or method in ("POST", "PUT"):
        head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def redis_command(*words: bytes) -> bytes:
    """One command in Redis's own protocol."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


async def connect(connections: Iterable[asyncio.BaseProtocol], port: int) -> None:
    """Connect each of them to a server on this machine."""
    for connection in connections:
        await asyncio.get_running_loop().create_connection(partial(_itself, connection), "127.0.0.1", port)


def _itself(connection: asyncio.BaseProtocol) -> asyncio.BaseProtocol:
    return connection


class Tally:
    """Counts what was acknowledged and knows when every connection has come to rest."""

    def __init__(self, connections: int) -> None:
        self.acked = 0
        self.errors = 0
        self.first_error = ""
        self.stopping = False
        self.moving = connections
        self.at_rest = asyncio.Event()

    def acknowledged(self) -> None:
        """One request was answered with success."""
        self.acked += 1

    def failed(self, reason: str) -> None:
        """One request was answered with an error, or its connection broke."""
        self.errors += 1
        self.first_error = self.first_error or reason

    def parked(self) -> None:
        """A connection has nothing in flight and sends no more."""
        self.moving -= 1
        if self.moving <= 0:
            self.at_rest.set()


class Connection(asyncio.Protocol):
    """Sends the next request as soon as the last one is answered."""

    def __init__(self, tally: Tally, requests: Iterator[bytes]) -> None:
        self.tally = tally
        self.requests = requests
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if not self.tally.stopping:
            self.tally.failed(f"connection lost: {exc!r}")
            self.tally.parked()

    def send(self) -> None:
        """Put the next request in flight, or park when there is none."""
        request = None if self.tally.stopping else next(self.requests, None)
        if request is None or self.transport is None:
            self.tally.parked()
        else:
            self.transport.write(request)

    def succeed(self) -> None:
        """Count the answer and go on."""
        self.tally.acknowledged()
        self.send()

    def fail(self, reason: str) -> None:
        """Count the error and go on after a short rest, so that a refusing server is not stormed."""
        self.tally.failed(reason)
        asyncio.get_running_loop().call_later(PAUSE_AFTER_ERROR, self.send)


class HttpConnection(Connection):
    """A connection whose answers are HTTP responses; only 2xx is success."""

    def __init__(self, tally: Tally, requests: Iterator[bytes]) -> None:
        super().__init__(tally, requests)
        self.partial = b""
        #: The last one that came whole, unless it was empty.
        self.answer = b""

    def data_received(self, data: bytes) -> None:
        if not self.partial and data.startswith(b"HTTP/1.1 204") and data.endswith(b"\r\n\r\n"):
            self.succeed()
            return
        self.partial += data
        if response_complete(self.partial):
            self.answer, self.partial = self.partial, b""
            if self.answer.startswith(b"HTTP/1.1 2"):
                self.succeed()
            else:
                self.fail(self.answer[:300].decode("latin-1"))


class RedisConnection(Connection):
    """A connection whose requests are XADD commands, `batch` of them in one write."""

    def __init__(self, tally: Tally, requests: Iterator[bytes], batch: int) -> None:
        super().__init__(tally, requests)
        self.batch = batch
        self.replies = 0

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"-") or b"\n-" in data:
            self.fail(data[:300].decode("latin-1"))
            return
        self.replies += data.count(b"$")
        if self.replies >= self.batch:
            self.replies -= self.batch
            self.succeed()


def response_complete(data: bytes) -> bool:
    """Whether these bytes hold one whole HTTP response."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = data[:end].lower()
    if head[9:12] in (b"204", b"304"):
        return True
    at = head.find(b"\r\ncontent-length:")
    if at >= 0:
        return len(data) >= end + 4 + int(head[at + 17 :].split(b"\r\n", 1)[0])
    return data.endswith(b"\r\n0\r\n\r\n")
