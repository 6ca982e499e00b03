"""``GET /v1/streams``: the streams that a caller sees, in name order."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.assembly import Engine
from headrace.engine.holdings import published_until
from headrace.engine.log.stream import Stream
from headrace.errors import BadRequest
from headrace.profiles import table
from headrace.server.http import parameters
from headrace.server.http.route import READ, Answer, Header, in_query, route
from headrace.server.http.starlette_json import json_response
from headrace.server.http.wire import Digits, NonNegative, When
from headrace.types import rfc3339

_DEFAULT, _MAX = 100, 1000

#: The number of an entry, or -1.
Through = Annotated[str, Meta(extra_json_schema={"pattern": "^(-1|[0-9]+)$"})]


class StreamDescriptor(Struct, kw_only=True):
    """A stream as the list shows it; sequence numbers are decimal text."""

    name: str
    content_type: str
    created_at: When
    expires_at: When | None
    epoch: NonNegative
    next_offset: Digits
    sealed_through: Through
    uploaded_through: Through
    closed: bool
    profile: str
    observability: dict[str, Any] | UnsetType = UNSET


class StreamListRoutes:
    """Answers requests for the list."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @route(
        "GET",
        "/v1/streams",
        "list_streams",
        "[Streams](#list) in name order, a page at a time",
        READ,
        {
            200: Answer(
                "a page",
                Annotated[list[StreamDescriptor], Meta(max_length=_MAX)],
                (Header("Link", str, 'the next page, as rel="next"'),),
            )
        },
        parameters=(
            in_query("prefix", str, "only names that begin so"),
            in_query("after", str, "only names that come later"),
            in_query("limit", Annotated[int, Meta(ge=1, le=_MAX)], "length of the page", default=_DEFAULT),
        ),
    )
    async def page(self, request: Request) -> Response:
        """A page of streams, and where the next one is."""
        query = parameters.query(request.scope["query_string"])
        limit = parameters.non_negative_integer(query.get("limit", str(_DEFAULT)), "limit")
        if not 1 <= limit <= _MAX:
            raise BadRequest(f"limit lies between 1 and {_MAX}", field="limit")
        principal = request.state.principal
        principal.require("read")
        prefix = principal.narrow(query.get("prefix", ""))
        page = self._engine.log.page(prefix=prefix, after=query.get("after", ""), limit=limit, without=principal.hidden)
        headers = {}
        if len(page) == limit:
            following = urlencode({**query, "after": page[-1].name, "limit": str(limit)})
            headers["link"] = f'</v1/streams?{following}>; rel="next"'
        return json_response([self._descriptor(stream) for stream in page], headers=headers)

    def _descriptor(self, stream: Stream) -> StreamDescriptor:
        through = str(published_until(self._engine.published, stream) - 1)
        profile = table.load(stream.profile)
        observability = profile.observability(stream.name)
        return StreamDescriptor(
            name=stream.name,
            content_type=stream.content_type,
            created_at=rfc3339(stream.created_us),
            expires_at=None if stream.deadline_us is None else rfc3339(stream.deadline_us),
            epoch=stream.epochs[-1][0],
            next_offset=str(stream.head.next_seq),
            sealed_through=through,
            uploaded_through=through,
            closed=stream.head.closed,
            profile=profile.name,
            observability=UNSET if observability is None else observability,
        )
