"""``GET /v1/streams``: living streams in name order, a page at a time."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from headrace.engine.assembly import Engine
from headrace.engine.history.holdings import published_until
from headrace.engine.log.stream import Stream
from headrace.errors import BadRequest
from headrace.profiles import table
from headrace.server.http import parameters
from headrace.server.http.json_responses import json_response
from headrace.types import rfc3339

_DEFAULT, _MOST = 100, 1000


def routes(engine: Engine) -> list[Route]:
    """The route of the list."""

    async def streams(request: HttpRequest) -> Response:
        query = parameters.query(request.scope["query_string"])
        unknown = set(query) - {"prefix", "after", "limit"}
        if unknown:
            name = min(unknown)
            raise BadRequest(f"there is no parameter {name!r}; there are prefix, after and limit", field=name)
        limit = parameters.whole_number(query.get("limit", str(_DEFAULT)), "limit")
        if not 1 <= limit <= _MOST:
            raise BadRequest(f"limit lies between 1 and {_MOST}", field="limit")
        principal = request.state.principal
        principal.require("read")
        prefix = principal.narrow(query.get("prefix", ""))
        page = engine.log.page(prefix=prefix, after=query.get("after", ""), limit=limit, without=principal.hidden)
        headers = {}
        if len(page) == limit:
            following = urlencode({**query, "after": page[-1].name, "limit": str(limit)})
            headers["link"] = f'</v1/streams?{following}>; rel="next"'
        return json_response([descriptor(engine, stream) for stream in page], headers=headers)

    return [Route("/v1/streams", streams, methods=["GET"])]


def descriptor(engine: Engine, stream: Stream) -> dict[str, Any]:
    """A stream as the list shows it; sequence numbers are decimal text."""
    through = str(published_until(engine.published, stream) - 1)
    profile = table.load(stream.profile)
    observability = profile.observability(stream.name)
    return {
        "name": stream.name,
        "content_type": stream.content_type,
        "created_at": rfc3339(stream.created_us),
        "expires_at": None if stream.deadline_us is None else rfc3339(stream.deadline_us),
        "epoch": stream.epochs[-1][0],
        "next_offset": str(stream.head.next_seq),
        "sealed_through": through,
        "uploaded_through": through,
        "closed": stream.head.closed,
        "profile": profile.name,
        **({} if observability is None else {"observability": observability}),
    }
