"""JSON on the Starlette side: bodies of requests, read whole up to a limit, and answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from headrace import decoding
from headrace.engine.runtime.gates import LONG_BYTES, ComputeThreads
from headrace.errors import HeadraceError, TooLarge, UnsupportedMedia
from headrace.schema.entries import checked_number
from headrace.server.http.exchange import JSON_HEADERS
from headrace.server.http.route import Route
from headrace.types import JSON, json_fault, media_type

Body = TypeVar("Body")
Endpoint = Callable[[Request], Awaitable[Response]]


def endpoint(route: Route, verb: Endpoint) -> Endpoint:
    """Wrap the handler of a route: check the scope and the parameters of a request before calling it."""

    async def answer(request: Request) -> Response:
        if route.scope.least == "admin":
            request.state.principal.require("admin")
        route.refuse_unknown_parameters(request.query_params)
        request.state.route = route
        return await verb(request)

    return answer


def declared_route(request: Request) -> Route:
    """The route that a request came to."""
    route: Route = request.state.route
    return route


def require_json(request: Request) -> None:
    """Refuse a body whose content type is not JSON."""
    if media_type(request.headers.get("content-type", "")) != JSON:
        raise UnsupportedMedia("the body of this request is application/json", field="Content-Type")


async def read_json(request: Request, kind: type[Body]) -> Body:
    """Decode the body as a document of this type, up to the size limit of the route; refuses unknown members."""
    refusal = declared_route(request).bad_request
    body = await read_body(request)
    decoder = decoding.make_decoder(kind, float_hook=checked_number)
    try:
        if len(body) > LONG_BYTES:
            computing: ComputeThreads = request.state.computing
            return await computing.run(len(body), decoder.decode, body)
        return decoder.decode(body)
    except (ValueError, RecursionError) as reason:
        raise refusal(f"the body cannot be read: {json_fault(reason, body)}", field="body") from reason


async def read_body(request: Request) -> bytes:
    """The body as it came, within the bounds of the route."""
    route = declared_route(request)
    assert route.body is not None
    limit = request.state.body_bytes if route.body.max_bytes is None else route.body.max_bytes
    if route.body.needs_type:
        require_json(request)
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMedia("the body of this request is not encoded", field="Content-Encoding")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise TooLarge(f"the body exceeds {limit} bytes", limit=limit)
    except ClientDisconnect as reason:
        raise route.bad_request("the body was cut short", field="body") from reason
    return bytes(body)


def json_response(content: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer, never cached."""
    every = {**JSON_HEADERS, **(headers or {})}
    return Response(msgspec.json.encode(content), status, every)


def failure_response(error: HeadraceError) -> Response:
    """What an error looks like on the wire."""
    return json_response(error.body(), status=error.status, headers=error.headers())
