"""JSON answers of the Starlette side."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from headrace.errors import HeadraceError
from headrace.server.http.exchange import JSON_HEADERS


def json_response(content: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer, never cached."""
    every = {**JSON_HEADERS, **(headers or {})}
    return Response(msgspec.json.encode(content), status, every)


def failure_response(error: HeadraceError) -> Response:
    """What an error looks like on the wire."""
    return json_response(error.body(), status=error.status, headers=error.headers())
