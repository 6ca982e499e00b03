"""``/v1/stream/__ds/…``: subscriptions over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.engine.subscriptions.glob import ENTITIES, Glob
from headrace.engine.subscriptions.subscription import (
    DEFAULT_LEASE_MS,
    LONGEST_LEASE_MS,
    SHORTEST_LEASE_MS,
    Ack,
    Definition,
    InvalidRequest,
    Owner,
    Subscription,
    SubscriptionNotFound,
    TokenInvalid,
)
from headrace.engine.subscriptions.subscriptions import Proof, Subscriptions
from headrace.errors import BadRequest, Forbidden
from headrace.server.http import starlette_json
from headrace.server.http.auth import ENTITY_STREAM_PREFIX, Principal
from headrace.server.http.starlette_json import Body, json_response
from headrace.server.http.target import check_name
from headrace.types import rfc3339

_MAX_BODY = 1024 * 1024
_MAX_NAME = 512

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]


class WebhookBody(msgspec.Struct, forbid_unknown_fields=True):
    """Where wakes are posted to."""

    url: str


class PutBody(msgspec.Struct, forbid_unknown_fields=True):
    """The definition of a subscription in a request."""

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
    """The worker that claims the lease."""

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
    return await starlette_json.read_json(request, kind, limit=_MAX_BODY, refusal=InvalidRequest)


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


ROOT = "/v1/stream/__ds"
_ONE = ROOT + "/subscriptions/{id}"
_MAX_ID = 256

Endpoint = Callable[[Request], Awaitable[Response]]


def routes(subscriptions: Subscriptions) -> list[Route]:
    """Every route of this file. Callers with a token need no key; others need the streams that are concerned."""
    api = SubscriptionRoutes(subscriptions)
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


class SubscriptionRoutes:
    """One method per verb: reads the request, asks the engine, writes the answer."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions

    async def jwks(self, _: Request) -> Response:
        """The key that webhooks are signed with."""
        headers = {"content-type": "application/jwk-set+json", "cache-control": "public, max-age=300"}
        return json_response(self._subscriptions.keyring.jwks(), headers=headers)

    async def get(self, request: Request) -> Response:
        """Describe a subscription."""
        return json_response(self._describe(request, self._open(request, "read")))

    async def put(self, request: Request) -> Response:
        """Create a subscription, or confirm it."""
        id = _id(request)
        definition = definition_of(await read(request, PutBody))
        principal: Principal = request.state.principal
        owner = Owner(principal.key_id, principal.prefix)
        _require(principal, "write", definition, owner)
        principal.key_status.require()
        subscription, created = await self._subscriptions.put(
            id, definition, _base_url(request), _user_id(request), owner, partial(_opens, principal, "write")
        )
        if not principal.key_status.is_valid:
            self._subscriptions.revoke_key(principal.key_id)  # it ended meanwhile
        return json_response(self._describe(request, subscription), status=201 if created else 200)

    async def delete(self, request: Request) -> Response:
        """Forget a subscription; one that is not there is forgotten already."""
        with suppress(SubscriptionNotFound):
            await self._subscriptions.delete(self._open(request, "write").id, _user_id(request))
        return Response(status_code=204)

    async def add_streams(self, request: Request) -> Response:
        """Link streams by name."""
        subscription = self._open(request, "write")
        body = await read(request, StreamsBody)
        paths = [path_of(path, "streams") for path in body.streams]
        if subscription.definition.wake_stream in paths:
            raise InvalidRequest("a subscription is not woken by its own wakes", field="streams")
        for path in paths:
            request.state.principal.require("write", path)
        await self._subscriptions.add_streams(subscription.id, paths, _user_id(request))
        return Response(status_code=204)

    async def remove_stream(self, request: Request) -> Response:
        """Undo the naming of a stream."""
        subscription = self._open(request, "write")
        await self._subscriptions.remove_stream(
            subscription.id, request.path_params["path"].strip("/"), _user_id(request)
        )
        return Response(status_code=204)

    async def claim(self, request: Request) -> Response:
        """Take the lease."""
        subscription = self._open(request, "write")
        body = await read(request, ClaimBody)
        return json_response(await self._subscriptions.claim(subscription.id, body.worker))

    async def ack(self, request: Request) -> Response:
        """A pull-wake worker reports."""
        return await self._progress(request, "pull-wake")

    async def callback(self, request: Request) -> Response:
        """A webhook's receiver reports."""
        return await self._progress(request, "webhook")

    async def release(self, request: Request) -> Response:
        """Give the lease back."""
        token = _token(request)
        body = await read(request, ClaimReleaseBody)
        await self._subscriptions.release(_id(request), Proof(token, body.wake_id, body.generation))
        return Response(status_code=204)

    async def _progress(self, request: Request, kind: str) -> Response:
        token = _token(request)
        body = await read(request, AckBody)
        acks = [ack_of(item) for item in body.acks]
        proof = Proof(token, body.wake_id, body.generation)
        next_wake = await self._subscriptions.ack(_id(request), kind, proof, acks, done=body.done)
        return json_response({"ok": True, "next_wake": next_wake})

    def _open(self, request: Request, scope: str) -> Subscription:
        """The subscription that is meant; one that the key does not open is not there."""
        principal: Principal = request.state.principal
        principal.require(scope)
        subscription = self._subscriptions.get(_id(request))
        if not _opens(principal, scope, subscription):
            raise SubscriptionNotFound("there is no such subscription", subscription=subscription.id)
        return subscription

    def _describe(self, request: Request, subscription: Subscription) -> dict[str, Any]:
        definition, wakes = subscription.definition, subscription.wakes
        links = sorted(subscription.links.values(), key=lambda link: link.path)
        kid, keys = self._subscriptions.keyring.kid, f"{_base_url(request)}/jwks.json"
        facts = {
            "id": subscription.id,
            "subscription_id": subscription.id,
            "type": definition.type,
            "pattern": definition.pattern,
            "streams": [{"path": x.path, "link_type": x.kind, "acked_offset": x.acked} for x in links],
            "stream_limit_reached": subscription.full or None,
            "webhook": definition.webhook_url
            and {"url": definition.webhook_url, "signing": {"alg": "ed25519", "kid": kid, "jwks_url": keys}},
            "wake_stream": definition.wake_stream,
            "lease_ttl_ms": definition.lease_ttl_ms,
            "description": definition.description,
            "created_at": rfc3339(subscription.created_us),
            "status": _status(subscription),
            "last_error": _error(subscription),
            "next_attempt_at": rfc3339(wakes.deliver_at_us) if wakes.attempts and wakes.deliver_at_us else None,
            "generation": wakes.generation,
            "current_holder": wakes.holder,
        }
        return {name: value for name, value in facts.items() if value is not None}


def _route(path: str, **verbs: Endpoint) -> Route:
    """One route per path, so that a wrong method is answered with every allowed one."""

    async def endpoint(request: Request) -> Response:
        for name in request.query_params:
            raise InvalidRequest(f"there is no parameter {name!r} here", field=name)
        return await verbs["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, endpoint, methods=list(verbs))


def _id(request: Request) -> str:
    id: str = request.path_params["id"]
    if len(id.encode()) > _MAX_ID:
        raise InvalidRequest(f"a subscription's name has at most {_MAX_ID} bytes", field="id")
    return id


def _user_id(request: Request) -> str:
    principal: Principal = request.state.principal
    return principal.user_id


def _token(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise TokenInvalid("send the token of the wake: Authorization: Bearer <token>")
    return token.strip()


def _status(subscription: Subscription) -> str:
    if subscription.suspended:
        return "suspended"
    return "failed" if subscription.wakes.attempts else "active"


def _error(subscription: Subscription) -> str | None:
    """Why nothing is delivered; says nothing of the receiver, which would disclose open ports."""
    if subscription.suspended:
        return "the key that it was made with does not hold any more: put it again with another key"
    if subscription.is_webhook and subscription.wakes.last_error is not None:
        return "the receiver did not confirm the wake; the log of the server says why"
    return subscription.wakes.last_error


def _opens(principal: Principal, scope: str, subscription: Subscription) -> bool:
    """Whether the key opens every stream of a subscription."""
    try:
        _require(principal, scope, subscription.definition, subscription.owner, subscription.links)
    except Forbidden:
        return False
    return True


def _require(principal: Principal, scope: str, definition: Definition, owner: Owner, paths: Iterable[str] = ()) -> None:
    """Refuse a caller whose key does not open every stream that is concerned."""
    if definition.pattern is not None:
        principal.require(scope, _covered_prefix(Glob(definition.pattern), owner))
    if definition.wake_stream is not None:
        principal.require(scope, definition.wake_stream)
    for path in (*definition.streams, *paths):
        principal.require(scope, path)


def _covered_prefix(glob: Glob, owner: Owner) -> str:
    """What the names of all streams begin with that a pattern takes for its owner."""
    if glob.takes_all_below and owner.prefix == glob.prefix + "/":
        return owner.prefix
    return ENTITY_STREAM_PREFIX if glob.prefix == ENTITIES else glob.prefix


def _base_url(request: Request) -> str:
    """This resource's root as the caller addressed it."""
    return str(request.base_url).rstrip("/") + ROOT
