"""Bytes to the server and back: the only module that knows the HTTP library."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from weakref import WeakSet

import httpx2
import msgspec

from headrace.client.answers import Answer
from headrace.client.errors import BadAnswer, ClientError, Unreachable
from headrace.client.requests import Request, check_at_least
from headrace.errors import BadRequest, HeadraceError

#: The steps of a request that bring a new socket.
_CONNECTED = ("connection.connect_tcp.complete", "connection.start_tls.complete")
#: Whoever follows many streams has many connections; only idle ones are few.
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
_CLOSED = "the client is closed: make another"
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"


class Settings(msgspec.Struct, frozen=True):
    """The server, the key, and the limits of time."""

    url: str
    key: str | None
    timeout_s: float
    retry_for_s: float
    ca_file: str | None


def make_settings(url: str, key: str | None, timeout_s: float, retry_for_s: float, ca_file: str | None) -> Settings:
    """Checked settings; the URL may have a path."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{url!r} is not the URL of a server, such as http://127.0.0.1:4437")
    check_at_least(0, {"timeout": timeout_s, "retry_for": retry_for_s}, "timeout", "retry_for")
    return Settings(url.rstrip("/"), key, timeout_s, retry_for_s, ca_file)


class Arriving(NamedTuple):
    """An answer whose body is still coming."""

    status: int
    headers: Mapping[str, str]
    chunks: Iterator[bytes]


class ArrivingAsync(NamedTuple):
    """An answer whose body is still coming, to be awaited."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


class Transport:
    """Sends requests and waits for the answers; safe to use from several threads."""

    def __init__(self, settings: Settings) -> None:
        self.closed = False
        self.settings = settings
        self._http = httpx2.Client(**_options(settings))
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._lock = threading.Lock()

    def send(self, request: Request) -> Answer:
        """The whole answer to a request, whatever its status."""
        with _translate_errors(self):
            response = self._http.request(**_arguments(self.settings, request), extensions={"trace": self._on_step})
            return Answer(response.status_code, response.headers, response.content)

    @contextmanager
    def open(self, request: Request) -> Iterator[Arriving]:
        """An answer that is read while it comes."""
        arguments = _arguments(self.settings, request)
        with _translate_errors(self), self._http.stream(**arguments, extensions={"trace": self._on_step}) as response:
            yield Arriving(response.status_code, response.headers, response.iter_bytes())

    def close(self) -> None:
        """Close the connections; requests that wait in other threads fail."""
        with self._lock:
            self.closed = True
            for connected in self._sockets:
                _shut_down(connected)
        self._http.close()

    def _on_step(self, step: str, facts: Mapping[str, Any]) -> None:
        if step in _CONNECTED:
            connected = facts["return_value"].get_extra_info("socket")
            with self._lock:
                self._sockets.add(connected)
                if self.closed:
                    _shut_down(connected)


class AsyncTransport:
    """Sends requests and awaits the answers."""

    def __init__(self, settings: Settings) -> None:
        self.closed = False
        self.settings = settings
        self._http = httpx2.AsyncClient(**_options(settings))

    async def send(self, request: Request) -> Answer:
        """The whole answer to a request, whatever its status."""
        with _translate_errors(self):
            response = await self._http.request(**_arguments(self.settings, request))
            return Answer(response.status_code, response.headers, response.content)

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[ArrivingAsync]:
        """An answer that is read while it comes."""
        with _translate_errors(self):
            async with self._http.stream(**_arguments(self.settings, request)) as response:
                yield ArrivingAsync(response.status_code, response.headers, response.aiter_bytes())

    async def close(self) -> None:
        """Close the connections."""
        self.closed = True
        await self._http.aclose()


def _options(settings: Settings) -> dict[str, Any]:
    headers = {"user-agent": f"headrace-python/{version('headrace')}"}
    if settings.key:
        headers["authorization"] = f"Bearer {settings.key}"
    options = {"headers": headers, "timeout": settings.timeout_s, "limits": _LIMITS}
    if settings.url.startswith("http://"):
        # Loading certificates costs more than a whole request, and here there is nothing to verify.
        return {**options, "verify": False}
    return {**options, "verify": _make_ssl_context(settings.ca_file)} if settings.ca_file else options


def _make_ssl_context(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as reason:  # an SSLError is one
        raise ValueError(f"{ca_file} is not a file with certificates in PEM: {reason}") from reason


def _arguments(settings: Settings, request: Request) -> dict[str, Any]:
    wait_s = max(settings.timeout_s, request.wait_s)
    return {
        "method": request.method,
        "url": settings.url + request.target,
        "headers": {name: value.encode() for name, value in request.headers.items()},
        "content": request.body or None,
        "timeout": httpx2.Timeout(settings.timeout_s, read=wait_s, pool=None),
    }


def _shut_down(connected: socket.socket) -> None:
    try:
        # Not the method of a TLS socket, which would speak without TLS from then on.
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
    except OSError:
        pass  # It is closed already.


@contextmanager
def _translate_errors(transport: Transport | AsyncTransport) -> Iterator[None]:
    if transport.closed:
        raise ClientError(_CLOSED)
    try:
        yield
    except httpx2.HTTPError as reason:
        if transport.closed:
            raise ClientError(_CLOSED) from reason
        raise _error(transport.settings.url, reason) from reason


def _error(url: str, reason: httpx2.HTTPError) -> HeadraceError:
    match reason:
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.UnsupportedProtocol():
            hint = "; ca_file (--ca-file) names certificates to trust" if _UNTRUSTED in str(reason) else ""
            return Unreachable(f"no server answers at {url}: {reason}{hint}", sent=False)
        case httpx2.LocalProtocolError():
            return BadRequest(f"the request cannot be written: {reason}")
        case httpx2.DecodingError():
            return BadAnswer(f"the answer cannot be decoded: {reason}")
        case httpx2.TimeoutException():
            return Unreachable(f"{url} did not answer in time")
    return Unreachable(f"the connection to {url} was lost: {reason}")
