"""Bytes to the server and back: the only module that knows the HTTP library."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from typing import Any, NamedTuple

import httpx2
import msgspec

from headrace.client.answers import Answer
from headrace.client.errors import BadAnswer, Unreachable
from headrace.client.requests import Request
from headrace.errors import BadRequest

_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
_DISTRUST = "CERTIFICATE_VERIFY_FAILED"


class Settings(msgspec.Struct, frozen=True):
    """Which server, with which key, and how patiently."""

    url: str
    key: str | None
    timeout_s: float
    retry_for_s: float
    ca_file: str | None


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
        self._settings = settings
        self._http = httpx2.Client(**_options(settings))

    def send(self, request: Request) -> Answer:
        """The whole answer to a request, whatever its status."""
        with _translated(self._settings.url):
            response = self._http.request(**_arguments(self._settings, request))
            return Answer(response.status_code, response.headers, response.content)

    @contextmanager
    def open(self, request: Request) -> Iterator[Arriving]:
        """An answer that is read while it comes."""
        with _translated(self._settings.url), self._http.stream(**_arguments(self._settings, request)) as response:
            yield Arriving(response.status_code, response.headers, response.iter_bytes())

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()


class AsyncTransport:
    """Sends requests and awaits the answers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._http = httpx2.AsyncClient(**_options(settings))

    async def send(self, request: Request) -> Answer:
        """The whole answer to a request, whatever its status."""
        with _translated(self._settings.url):
            response = await self._http.request(**_arguments(self._settings, request))
            return Answer(response.status_code, response.headers, response.content)

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[ArrivingAsync]:
        """An answer that is read while it comes."""
        with _translated(self._settings.url):
            async with self._http.stream(**_arguments(self._settings, request)) as response:
                yield ArrivingAsync(response.status_code, response.headers, response.aiter_bytes())

    async def close(self) -> None:
        """Let go of the connections."""
        await self._http.aclose()


def _options(settings: Settings) -> dict[str, Any]:
    headers = {"user-agent": f"headrace-python/{version('headrace')}"}
    if settings.key:
        headers["authorization"] = f"Bearer {settings.key}"
    options = {"headers": headers, "timeout": settings.timeout_s}
    if settings.url.startswith("http://"):
        # Loading certificates costs more than a whole request, and here there is nothing to verify.
        return {**options, "verify": False}
    return {**options, "verify": _trusting(settings.ca_file)} if settings.ca_file else options


def _trusting(ca_file: str) -> ssl.SSLContext:
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
        "timeout": httpx2.Timeout(settings.timeout_s, read=wait_s),
    }


@contextmanager
def _translated(url: str) -> Iterator[None]:
    try:
        yield
    except _NEVER_SENT as reason:
        hint = "; ca_file (--ca-file) names certificates to trust" if _DISTRUST in str(reason) else ""
        raise Unreachable(f"no server answers at {url}: {reason}{hint}", sent=False) from reason
    except httpx2.LocalProtocolError as reason:
        raise BadRequest(f"the request cannot be written: {reason}") from reason
    except httpx2.DecodingError as reason:
        raise BadAnswer(f"the answer cannot be decoded: {reason}") from reason
    except httpx2.TimeoutException as reason:
        raise Unreachable(f"{url} did not answer in time") from reason
    except httpx2.TransportError as reason:
        raise Unreachable(f"the connection to {url} was lost: {reason}") from reason
