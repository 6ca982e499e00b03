"""Answers as bytes: status lines, and the headers that every answer carries."""

from __future__ import annotations

import http
import re
from collections.abc import Iterable, Mapping
from uuid import uuid4

from headrace.server.http.auth import Authenticator
from headrace.server.http.exchange import Headers

_SAFE_ID = re.compile(rb"[\x21-\x7e]{1,128}")
#: A browser that shows an answer runs nothing of it, and gives it no part in our origin.
_SECURITY = (("x-content-type-options", "nosniff"), ("content-security-policy", "sandbox; default-src 'none'"))
_SAME_ORIGIN = (*_SECURITY, ("cross-origin-resource-policy", "same-origin"))
_CROSS_ORIGIN = (*_SECURITY, ("cross-origin-resource-policy", "cross-origin"))

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in http.HTTPStatus}


def common_headers(headers: dict[bytes, bytes], authenticator: Authenticator) -> tuple[tuple[str, str], ...]:
    """What every answer carries: security, CORS for allowed origins, and the caller's request id."""
    if b"x-request-id" not in headers and not authenticator.has_origins:
        return _SAME_ORIGIN
    origin, request_id = headers.get(b"origin"), headers.get(b"x-request-id", b"")
    common: tuple[tuple[str, str], ...] = _CROSS_ORIGIN if authenticator.allows(origin) else _SAME_ORIGIN
    if _SAFE_ID.fullmatch(request_id):
        common = (*common, ("x-request-id", request_id.decode()))
    return (*common, *authenticator.cors_headers(origin))


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """The caller's request id where it is a token, else a new one."""
    sent_id = headers.get(b"x-request-id", b"")
    return sent_id.decode() if _SAFE_ID.fullmatch(sent_id) else uuid4().hex


def common_lines(headers: dict[bytes, bytes], authenticator: Authenticator) -> str:
    """The common headers as lines; the usual ones are rendered once."""
    common = common_headers(headers, authenticator)
    return SECURITY_LINES if common is _SAME_ORIGIN else header_lines(common)


def render_head(status: int, headers: Headers, lines: str) -> bytes:
    """Status line and headers, up to and with the empty line."""
    return f"{STATUS_LINES[status]}{header_lines(headers.items())}{lines}\r\n".encode()


def header_lines(headers: Iterable[tuple[str, str]]) -> str:
    """Headers as the lines that are sent."""
    return "".join([f"{name}: {value}\r\n" for name, value in headers])


class ServerLines:
    """The header lines of the server itself: the date, which uvicorn renews every second; rendered once for each."""

    def __init__(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._lines = ""

    def render(self, headers: list[tuple[bytes, bytes]]) -> str:
        """The headers that uvicorn adds to its own answers, as lines."""
        if headers is not self._headers:
            self._headers = headers
            self._lines = header_lines((name.decode(), value.decode()) for name, value in headers)
        return self._lines


SECURITY_LINES = header_lines(_SAME_ORIGIN)
