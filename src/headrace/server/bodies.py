"""Bodies of requests on the Starlette side: read whole up to a limit, as one kind of document."""

from __future__ import annotations

from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from headrace import decoding
from headrace.engine.runtime.computing import LONG_BYTES, Computing
from headrace.errors import BadRequest, TooLarge, UnsupportedMedia
from headrace.schema.entries import checked_number
from headrace.types import JSON, json_fault, media_type

Body = TypeVar("Body")


def require_json(request: Request) -> None:
    """Refuse a body that does not say that it is JSON."""
    if media_type(request.headers.get("content-type", "")) != JSON:
        raise UnsupportedMedia("the body of this request is application/json", field="Content-Type")


async def read(request: Request, kind: type[Body], *, limit: int, refusal: type[BadRequest] = BadRequest) -> Body:
    """The body as this kind of document; what it does not know is refused."""
    body = await body_of(request, limit=limit, refusal=refusal)
    decoder = decoding.make_decoder(kind, float_hook=checked_number)
    try:
        if len(body) > LONG_BYTES:
            computing: Computing = request.state.computing
            return await computing.run(len(body), decoder.decode, body)
        return decoder.decode(body)
    except (ValueError, RecursionError) as reason:
        raise refusal(f"the body cannot be read: {json_fault(reason, body)}", field="body") from reason


async def body_of(request: Request, *, limit: int, refusal: type[BadRequest] = BadRequest) -> bytes:
    """The body as it came."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMedia("the body of this request is not encoded", field="Content-Encoding")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise TooLarge(f"the body exceeds {limit} bytes", limit=limit)
    except ClientDisconnect as reason:
        raise refusal("the body was cut short", field="body") from reason
    return bytes(body)
