"""``/v1/stream/__ds/…``: subscriptions over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.engine.glob import Glob
from headrace.engine.subscription import (
    DEFAULT_LEASE_MS,
    LONGEST_LEASE_MS,
    SHORTEST_LEASE_MS,
    Ack,
    Definition,
    InvalidRequest,
    Subscription,
    TokenInvalid,
)
from headrace.engine.subscriptions import Proof, Subscriptions
from headrace.errors import BadRequest, TooLarge, UnsupportedMedia
from headrace.server.answer import json_response
from headrace.server.target import check_name
from headrace.types import rfc3339

ROOT = "/v1/stream/__ds"
_ONE = ROOT + "/subscriptions/{id}"
_MAX_BODY = 1024 * 1024
_MAX_ID = 256
_MAX_NAME = 512

Endpoint = Callable[[Request], Awaitable[Response]]
Body = TypeVar("Body")
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


class ReleaseBody(msgspec.Struct, forbid_unknown_fields=True):
    """The wake that is given back."""

    wake_id: str
    generation: int


def routes(subscriptions: Subscriptions) -> list[Route]:
    """Every route of this file. Callers with a token need no key; others need the streams that are concerned."""
    api = Api(subscriptions)
    return [
        _route(f"{ROOT}/jwks.json", GET=api.jwks),
        _route(_ONE, GET=api.get, PUT=api.put, DELETE=api.delete),
        _route(f"{_ONE}/streams", POST=api.add_streams),
        _route(f"{_ONE}/streams/{{path:path}}", DELETE=api.remove_stream),
        _route(f"{_ONE}/claim", POST=api.claim),
        _route(f"{_ONE}/ack", POST=api.ack),
        _route(f"{_ONE}/callback", POST=api.callback),
        _route(f"{_ONE}/release", POST=api.release),
    ]


class Api:
    """One method per verb: reads the request, asks the engine, writes the answer."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions

    async def jwks(self, _: Request) -> Response:
        """The key that webhooks are signed with."""
        headers = {"content-type": "application/jwk-set+json", "cache-control": "public, max-age=300"}
        return json_response(self._subscriptions.keyring.jwks(), headers=headers)

    async def get(self, request: Request) -> Response:
        """Describe a subscription."""
        found = self._subscriptions.get(_id(request))
        _require(request, "read", found.definition, found.links)
        return json_response(self._describe(request, found))

    async def put(self, request: Request) -> Response:
        """Create a subscription, or confirm it."""
        id = _id(request)
        definition = _definition(await _read(request, PutBody))
        _require(request, "write", definition)
        found, created = await self._subscriptions.put(id, definition, _base_url(request))
        return json_response(self._describe(request, found), status=201 if created else 200)

    async def delete(self, request: Request) -> Response:
        """Forget a subscription; one that is not there is forgotten already."""
        found = self._subscriptions.find(_id(request))
        if found is not None:
            _require(request, "write", found.definition, found.links)
            await self._subscriptions.delete(found.id)
        return Response(status_code=204)

    async def add_streams(self, request: Request) -> Response:
        """Link streams by name."""
        found = self._subscriptions.get(_id(request))
        body = await _read(request, StreamsBody)
        paths = [_path(path, "streams") for path in body.streams]
        if found.definition.wake_stream in paths:
            raise InvalidRequest("a subscription is not woken by its own wakes", field="streams")
        _require(request, "write", found.definition, (*found.links, *paths))
        await self._subscriptions.add_streams(found.id, paths)
        return Response(status_code=204)

    async def remove_stream(self, request: Request) -> Response:
        """Undo the naming of a stream."""
        found = self._subscriptions.get(_id(request))
        _require(request, "write", found.definition, found.links)
        await self._subscriptions.remove_stream(found.id, request.path_params["path"].strip("/"))
        return Response(status_code=204)

    async def claim(self, request: Request) -> Response:
        """Take the lease."""
        found = self._subscriptions.get(_id(request))
        _require(request, "write", found.definition, found.links)
        body = await _read(request, ClaimBody)
        return json_response(await self._subscriptions.claim(found.id, body.worker))

    async def ack(self, request: Request) -> Response:
        """A pull-wake worker reports."""
        return await self._progress(request, "pull-wake")

    async def callback(self, request: Request) -> Response:
        """A webhook's receiver reports."""
        return await self._progress(request, "webhook")

    async def release(self, request: Request) -> Response:
        """Give the lease back."""
        token = _token(request)
        body = await _read(request, ReleaseBody)
        await self._subscriptions.release(_id(request), Proof(token, body.wake_id, body.generation))
        return Response(status_code=204)

    async def _progress(self, request: Request, kind: str) -> Response:
        token = _token(request)
        body = await _read(request, AckBody)
        acks = [_ack(item) for item in body.acks]
        proof = Proof(token, body.wake_id, body.generation)
        next_wake = await self._subscriptions.ack(_id(request), kind, proof, acks, done=body.done)
        return json_response({"ok": True, "next_wake": next_wake})

    def _describe(self, request: Request, found: Subscription) -> dict[str, Any]:
        definition, wakes = found.definition, found.wakes
        links = sorted(found.links.values(), key=lambda link: link.path)
        kid, keys = self._subscriptions.keyring.kid, f"{_base_url(request)}/jwks.json"
        facts = {
            "id": found.id,
            "subscription_id": found.id,
            "type": definition.type,
            "pattern": definition.pattern,
            "streams": [{"path": x.path, "link_type": x.kind, "acked_offset": x.acked} for x in links],
            "stream_limit_reached": found.full or None,
            "webhook": definition.webhook_url
            and {"url": definition.webhook_url, "signing": {"alg": "ed25519", "kid": kid, "jwks_url": keys}},
            "wake_stream": definition.wake_stream,
            "lease_ttl_ms": definition.lease_ttl_ms,
            "description": definition.description,
            "created_at": rfc3339(found.created_us),
            "status": "failed" if wakes.attempts else "active",
            "last_error": wakes.last_error,
            "next_attempt_at": rfc3339(wakes.deliver_at_us) if wakes.attempts and wakes.deliver_at_us else None,
            "generation": wakes.generation,
            "current_holder": wakes.holder,
        }
        return {name: value for name, value in facts.items() if value is not None}


def _route(path: str, **verbs: Endpoint) -> Route:
    """One route per path, so that a wrong verb is told all the right ones."""

    async def endpoint(request: Request) -> Response:
        for name in request.query_params:
            raise InvalidRequest(f"there is no parameter {name!r} here", field=name)
        return await verbs["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, endpoint, methods=list(verbs))


async def _read(request: Request, kind: type[Body]) -> Body:
    """The body as this kind of document; what it does not know is refused."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMedia("subscription requests are not encoded", field="Content-Encoding")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_BODY:
                raise TooLarge(f"the body exceeds {_MAX_BODY} bytes", limit=_MAX_BODY)
        return msgspec.json.decode(bytes(body), type=kind)
    except ClientDisconnect as reason:
        raise InvalidRequest("the body was cut short", field="body") from reason
    except (ValueError, RecursionError) as reason:
        raise InvalidRequest(f"the body cannot be read: {reason}", field="body") from reason


def _definition(body: PutBody) -> Definition:
    """What a request asks for, in the form in which equal requests are equal."""
    streams = tuple(sorted({_path(path, "streams") for path in body.streams or ()}))
    if not body.pattern and not streams:
        raise InvalidRequest("a pattern or streams must say what to subscribe to", field="pattern")
    if body.type == "webhook" and body.webhook is None:
        raise InvalidRequest("a webhook subscription needs webhook.url", field="webhook.url")
    wake_stream = _path(body.wake_stream, "wake_stream") if body.wake_stream else None
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


def _path(text: str, field: str) -> str:
    path = text.strip("/")
    try:
        check_name(path, _MAX_NAME)
    except BadRequest as reason:
        raise InvalidRequest(f"{field}: {reason.message}", field=field) from reason
    return path


def _ack(item: AckItem) -> Ack:
    path = item.stream if item.stream is not None else item.path
    if path is None:
        raise InvalidRequest("an ack names its stream", field="acks")
    return Ack(path.strip("/"), item.offset)


def _id(request: Request) -> str:
    id: str = request.path_params["id"]
    if len(id.encode()) > _MAX_ID:
        raise InvalidRequest(f"a subscription's name has at most {_MAX_ID} bytes", field="id")
    return id


def _token(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise TokenInvalid("send the token of the wake: Authorization: Bearer <token>")
    return token.strip()


def _require(request: Request, scope: str, definition: Definition, paths: Iterable[str] = ()) -> None:
    """Refuse a caller whose key does not open every stream that is concerned."""
    principal = request.state.principal
    if definition.pattern is not None:
        principal.require(scope, Glob(definition.pattern).prefix)
    if definition.wake_stream is not None:
        principal.require(scope, definition.wake_stream)
    for path in (*definition.streams, *paths):
        principal.require(scope, path)


def _base_url(request: Request) -> str:
    """This resource's root as the caller addressed it."""
    return str(request.base_url).rstrip("/") + ROOT
