"""Answers as bytes: status lines, and the headers that every answer carries."""

from __future__ import annotations

import http
import re

from headrace.server.auth import Door
from headrace.server.exchange import Headers

_SAFE_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_NOSNIFF = (("x-content-type-options", "nosniff"),)
_READ = (*_NOSNIFF, ("cross-origin-resource-policy", "cross-origin"))

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in http.HTTPStatus}


def common_headers(method: str, headers: dict[bytes, bytes], door: Door) -> tuple[tuple[str, str], ...]:
    """What every answer carries: security, CORS for allowed origins, and the caller's request id."""
    common = _READ if method == "GET" else _NOSNIFF
    if b"origin" in headers or b"x-request-id" in headers or door.has_origins:
        request_id = headers.get(b"x-request-id", b"")
        if _SAFE_ID.fullmatch(request_id):
            common = (*common, ("x-request-id", request_id.decode()))
        return (*common, *door.cors_headers(headers.get(b"origin")))
    return common


def common_lines(method: str, headers: dict[bytes, bytes], door: Door) -> str:
    """The common headers as lines; the usual ones are rendered once."""
    if b"origin" in headers or b"x-request-id" in headers or door.has_origins:
        return _lines(common_headers(method, headers, door))
    return _READ_LINES if method == "GET" else NOSNIFF_LINES


def render_head(status: int, headers: Headers, lines: str) -> bytes:
    """Status line and headers, up to and with the empty line."""
    own = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    return f"{STATUS_LINES[status]}{own}{lines}\r\n".encode()


def _lines(headers: tuple[tuple[str, str], ...]) -> str:
    return "".join([f"{name}: {value}\r\n" for name, value in headers])


NOSNIFF_LINES = _lines(_NOSNIFF)
_READ_LINES = _lines(_READ)
