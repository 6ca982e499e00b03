"""The JSON documents of subscription requests, and what they mean."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from starlette.requests import Request

from headrace.engine.subscriptions.glob import Glob
from headrace.engine.subscriptions.subscription import (
    DEFAULT_LEASE_MS,
    LONGEST_LEASE_MS,
    SHORTEST_LEASE_MS,
    Ack,
    Definition,
    InvalidRequest,
)
from headrace.errors import BadRequest
from headrace.server.http import json_bodies
from headrace.server.http.json_bodies import Body
from headrace.server.http.target import check_name

_MAX_BODY = 1024 * 1024
_MAX_NAME = 512

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]


class WebhookBody(msgspec.Struct, forbid_unknown_fields=True):
    """Where wakes are posted to."""

    url: str


class PutBody(msgspec.Struct, forbid_unknown_fields=True):
    """A subscription as it is asked for."""

    type: Literal["webhook", "pull-wake"]
    pattern: str | None = None
    streams: list[str] | None = None
    webhook: WebhookBody | None = None
    wake_stream: str | None = None
    lease_ttl_ms: Annotated[int, msgspec.Meta(ge=SHORTEST_LEASE_MS, le=LONGEST_LEASE_MS)] = DEFAULT_LEASE_MS
    description: Annotated[str, msgspec.Meta(max_length=1024)] | None = None


class StreamsBody(msgspec.Struct, forbid_unknown_fields=True):
    """Streams to link by name."""

    streams: Annotated[list[str], msgspec.Meta(min_length=1)]


class ClaimBody(msgspec.Struct, forbid_unknown_fields=True):
    """Who wants the lease."""

    worker: Text


class AckItem(msgspec.Struct, forbid_unknown_fields=True):
    """How far one stream was processed; ``path`` is another word for ``stream``."""

    offset: str
    stream: str | None = None
    path: str | None = None


class AckBody(msgspec.Struct, forbid_unknown_fields=True):
    """Progress of the wake that these two names belong to."""

    wake_id: str
    generation: int
    acks: list[AckItem] = []
    done: bool = False


class ClaimReleaseBody(msgspec.Struct, forbid_unknown_fields=True):
    """The wake that is given back."""

    wake_id: str
    generation: int


async def read(request: Request, kind: type[Body]) -> Body:
    """The body as this kind of document; what it does not know is refused."""
    return await json_bodies.read_json(request, kind, limit=_MAX_BODY, refusal=InvalidRequest)


def definition_of(body: PutBody) -> Definition:
    """What a request asks for, in the form in which equal requests are equal."""
    streams = tuple(sorted({path_of(path, "streams") for path in body.streams or ()}))
    if not body.pattern and not streams:
        raise InvalidRequest("a pattern or streams must say what to subscribe to", field="pattern")
    if body.type == "webhook" and body.webhook is None:
        raise InvalidRequest("a webhook subscription needs webhook.url", field="webhook.url")
    wake_stream = path_of(body.wake_stream, "wake_stream") if body.wake_stream else None
    if body.type == "pull-wake" and wake_stream is None:
        raise InvalidRequest("a pull-wake subscription needs wake_stream", field="wake_stream")
    if wake_stream in streams:
        raise InvalidRequest("a subscription is not woken by its own wakes", field="streams")
    return Definition(
        type=body.type,
        pattern=_pattern(body.pattern) if body.pattern else None,
        streams=streams,
        webhook_url=body.webhook.url if body.webhook else None,
        wake_stream=wake_stream,
        lease_ttl_ms=body.lease_ttl_ms,
        description=body.description,
    )


def _pattern(text: str) -> str:
    try:
        Glob(text)
    except ValueError as reason:
        raise InvalidRequest(str(reason), field="pattern") from reason
    if len(text.encode()) > _MAX_NAME:
        raise InvalidRequest(f"a pattern has at most {_MAX_NAME} bytes", field="pattern")
    return text.strip("/")


def path_of(text: str, field: str) -> str:
    """A stream's name as it may stand in a request, with or without slashes around it."""
    path = text.strip("/")
    try:
        check_name(path, _MAX_NAME)
    except BadRequest as reason:
        raise InvalidRequest(f"{field}: {reason.message}", field=field) from reason
    return path


def ack_of(item: AckItem) -> Ack:
    """One stream's progress."""
    path = item.stream if item.stream is not None else item.path
    if path is None:
        raise InvalidRequest("an ack names its stream", field="acks")
    return Ack(path.strip("/"), item.offset)
