"""``/v1/stream/__ds/…``: subscriptions over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.subscriptions.glob import ENTITIES, Glob
from headrace.engine.subscriptions.subscription import (
    Definition,
    InvalidOffset,
    InvalidRequest,
    NoPendingWork,
    Owner,
    Subscription,
    SubscriptionExists,
    SubscriptionNotFound,
    TokenInvalid,
    TooManyStreams,
    TooManySubscriptions,
)
from headrace.engine.subscriptions.subscriptions import Claim, Proof, Subscriptions
from headrace.engine.subscriptions.wakes import AlreadyClaimed, Fenced
from headrace.engine.subscriptions.webhook import WebhookUrlRejected
from headrace.errors import Conflict, Forbidden, HeadraceError
from headrace.server.http.auth import ENTITY_STREAM_PREFIX, Principal
from headrace.server.http.route import NO_KEY, READ, TOKEN, WRITE, Answer, Body, Scope, Verb, in_path, route
from headrace.server.http.starlette_json import json_response, read_json
from headrace.server.http.wire import NonEmpty
from headrace.server.routes.stream_headers import BAD_BODY
from headrace.server.routes.subscription_documents import (
    AckAnswer,
    AckBody,
    ClaimBody,
    ClaimReleaseBody,
    FollowedStream,
    KeySet,
    PutBody,
    StreamsBody,
    SubscriptionAnswer,
    WebhookAnswer,
    WebhookSigning,
    ack_of,
    definition_of,
    path_of,
)
from headrace.types import rfc3339

_MAX_BODY_BYTES = 1024 * 1024
_MAX_NAME = 512

ROOT = "/v1/stream/__ds"
_ONE = ROOT + "/subscriptions/{id}"
_MAX_ID = 256

_Id = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": _MAX_ID})]
_ID = in_path("id", _Id, "the subscription's name")
_PATH = in_path("path", NonEmpty, "the stream's name")
_PROOF_FAILS = (TokenInvalid, Conflict, InvalidOffset, Fenced)
_AFTER_CREATION = ("get_subscription", "link_subscription", "claim_subscription", "delete_subscription")


def _declare(
    method: str,
    at: str,
    name: str,
    doc: str,
    scope: Scope,
    answers: dict[int, Answer],
    *fails: type[HeadraceError],
    body: type[Struct] | None = None,
    **rest: Any,
) -> Callable[[Verb], Verb]:
    """A route of one subscription."""
    return route(
        method,
        f"{_ONE}{at}",
        name,
        doc,
        scope,
        answers,
        fails=fails if body is None else (*fails, *BAD_BODY),
        parameters=(_ID, _PATH) if "path" in at else (_ID,),
        body=None if body is None else Body(body, _MAX_BODY_BYTES, needs_type=False),
        bad_request=InvalidRequest,
        **rest,
    )


class SubscriptionRoutes:
    """One method per verb: reads the request, asks the engine, writes the answer."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions

    @route(
        "GET",
        f"{ROOT}/jwks.json",
        "sign_subscription",
        "The keys that webhooks are signed with",
        NO_KEY,
        {200: Answer("a JSON Web Key Set", media={"application/jwk-set+json": KeySet})},
        bad_request=InvalidRequest,
    )
    async def jwks(self, _: Request) -> Response:
        """The key that webhooks are signed with."""
        headers = {"content-type": "application/jwk-set+json", "cache-control": "public, max-age=300"}
        return json_response(KeySet(**self._subscriptions.keyring.jwks()), headers=headers)

    @_declare(
        "GET",
        "",
        "get_subscription",
        "Describe a subscription",
        READ,
        {200: Answer("it", SubscriptionAnswer)},
        SubscriptionNotFound,
    )
    async def get(self, request: Request) -> Response:
        """Describe a subscription."""
        return json_response(self._describe(request, self._open(request, "read")))

    @_declare(
        "PUT",
        "",
        "put_subscription",
        "Create a [subscription](#subscriptions), or confirm it",
        WRITE,
        {
            200: Answer("it exists just so", SubscriptionAnswer),
            201: Answer("it was created", SubscriptionAnswer, leads_to=_AFTER_CREATION),
        },
        Conflict,
        SubscriptionExists,
        TooManySubscriptions,
        WebhookUrlRejected,
        body=PutBody,
        recorded_as="subscription_created",
    )
    async def put(self, request: Request) -> Response:
        """Create a subscription, or confirm it."""
        id = _id(request)
        definition = definition_of(await read_json(request, PutBody))
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

    @_declare(
        "DELETE",
        "",
        "delete_subscription",
        "Forget a subscription",
        WRITE,
        {204: Answer("it is gone")},
        recorded_as="subscription_deleted",
    )
    async def delete(self, request: Request) -> Response:
        """Forget a subscription; one that is not there is forgotten already."""
        with suppress(SubscriptionNotFound):
            await self._subscriptions.delete(self._open(request, "write").id, _user_id(request))
        return Response(status_code=204)

    @_declare(
        "POST",
        "/streams",
        "link_subscription",
        "Follow more streams by name",
        WRITE,
        {204: Answer("they are followed")},
        SubscriptionNotFound,
        Conflict,
        TooManyStreams,
        body=StreamsBody,
        recorded_as="subscription_changed",
    )
    async def add_streams(self, request: Request) -> Response:
        """Link streams by name."""
        subscription = self._open(request, "write")
        body = await read_json(request, StreamsBody)
        paths = [path_of(path, "streams") for path in body.streams]
        if subscription.definition.wake_stream in paths:
            raise InvalidRequest("a subscription is not woken by its own wakes", field="streams")
        for path in paths:
            request.state.principal.require("write", path)
        await self._subscriptions.add_streams(subscription.id, paths, _user_id(request))
        return Response(status_code=204)

    @_declare(
        "DELETE",
        "/streams/{path:path}",
        "unlink_subscription",
        "Follow a stream no more",
        WRITE,
        {204: Answer("it is not named")},
        SubscriptionNotFound,
        recorded_as="subscription_changed",
    )
    async def remove_stream(self, request: Request) -> Response:
        """Undo the naming of a stream."""
        subscription = self._open(request, "write")
        await self._subscriptions.remove_stream(
            subscription.id, request.path_params["path"].strip("/"), _user_id(request)
        )
        return Response(status_code=204)

    @_declare(
        "POST",
        "/claim",
        "claim_subscription",
        "Take the wake that waits for a worker",
        WRITE,
        {200: Answer("it is yours", Claim)},
        SubscriptionNotFound,
        Conflict,
        NoPendingWork,
        AlreadyClaimed,
        body=ClaimBody,
    )
    async def claim(self, request: Request) -> Response:
        """Take the lease."""
        subscription = self._open(request, "write")
        body = await read_json(request, ClaimBody)
        return json_response(await self._subscriptions.claim(subscription.id, body.worker))

    @_declare(
        "POST",
        "/ack",
        "ack_subscription",
        "Report progress of a claimed wake",
        TOKEN,
        {200: Answer("noted", AckAnswer)},
        *_PROOF_FAILS,
        body=AckBody,
    )
    async def ack(self, request: Request) -> Response:
        """A pull-wake worker reports."""
        return await self._progress(request, "pull-wake")

    @_declare(
        "POST",
        "/callback",
        "callback_subscription",
        "Report progress of a webhook",
        TOKEN,
        {200: Answer("noted", AckAnswer)},
        *_PROOF_FAILS,
        body=AckBody,
    )
    async def callback(self, request: Request) -> Response:
        """A webhook's receiver reports."""
        return await self._progress(request, "webhook")

    @_declare(
        "POST",
        "/release",
        "release_subscription",
        "Give a wake back",
        TOKEN,
        {204: Answer("it is free")},
        *_PROOF_FAILS,
        body=ClaimReleaseBody,
    )
    async def release(self, request: Request) -> Response:
        """Give the lease back."""
        token = _token(request)
        body = await read_json(request, ClaimReleaseBody)
        await self._subscriptions.release(_id(request), Proof(token, body.wake_id, body.generation))
        return Response(status_code=204)

    async def _progress(self, request: Request, kind: str) -> Response:
        token = _token(request)
        body = await read_json(request, AckBody)
        acks = [ack_of(item) for item in body.acks]
        proof = Proof(token, body.wake_id, body.generation)
        next_wake = await self._subscriptions.ack(_id(request), kind, proof, acks, done=body.done)
        return json_response(AckAnswer(True, next_wake))

    def _open(self, request: Request, scope: str) -> Subscription:
        """The subscription that is meant; one that the key does not open is not there."""
        principal: Principal = request.state.principal
        principal.require(scope)
        subscription = self._subscriptions.get(_id(request))
        if not _opens(principal, scope, subscription):
            raise SubscriptionNotFound("there is no such subscription", subscription=subscription.id)
        return subscription

    def _describe(self, request: Request, subscription: Subscription) -> SubscriptionAnswer:
        definition, wakes = subscription.definition, subscription.wakes
        links = sorted(subscription.links.values(), key=lambda link: link.path)
        signing = WebhookSigning("ed25519", self._subscriptions.keyring.kid, f"{_base_url(request)}/jwks.json")
        return SubscriptionAnswer(
            id=subscription.id,
            subscription_id=subscription.id,
            type=definition.type,
            pattern=_or_unset(definition.pattern),
            streams=[FollowedStream(link.path, link.kind, link.acked) for link in links],
            stream_limit_reached=subscription.full or UNSET,
            webhook=WebhookAnswer(definition.webhook_url, signing) if definition.webhook_url else UNSET,
            wake_stream=_or_unset(definition.wake_stream),
            lease_ttl_ms=definition.lease_ttl_ms,
            description=_or_unset(definition.description),
            created_at=rfc3339(subscription.created_us),
            status=_status(subscription),
            last_error=_or_unset(_error(subscription)),
            next_attempt_at=rfc3339(wakes.deliver_at_us) if wakes.attempts and wakes.deliver_at_us else UNSET,
            generation=wakes.generation,
            current_holder=_or_unset(wakes.holder),
        )


def _or_unset(text: str | None) -> str | UnsetType:
    return UNSET if text is None else text


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


def _status(subscription: Subscription) -> Literal["active", "failed", "suspended"]:
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
