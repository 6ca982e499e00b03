"""What requests about subscriptions say, and what is answered."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

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
from headrace.server.http.target import check_name
from headrace.server.http.wire import AlwaysTrue, NonNegative, Object, Offset, When

_MAX_NAME = 512

Text = Annotated[str, Meta(min_length=1, max_length=1024)]


class WebhookBody(Struct, forbid_unknown_fields=True):
    """Where wakes are posted to."""

    url: str


class PutBody(Struct, forbid_unknown_fields=True):
    """The definition of a subscription in a request."""

    type: Literal["webhook", "pull-wake"]
    pattern: str | None = None
    streams: list[str] | None = None
    webhook: WebhookBody | None = None
    wake_stream: str | None = None
    lease_ttl_ms: Annotated[int, Meta(ge=SHORTEST_LEASE_MS, le=LONGEST_LEASE_MS)] = DEFAULT_LEASE_MS
    description: Annotated[str, Meta(max_length=1024)] | None = None


class StreamsBody(Struct, forbid_unknown_fields=True):
    """Streams to link by name."""

    streams: Annotated[list[str], Meta(min_length=1)]


class ClaimBody(Struct, forbid_unknown_fields=True):
    """The worker that claims the lease."""

    worker: Text


class AckItem(Struct, forbid_unknown_fields=True):
    """How far one stream was processed; ``path`` is another word for ``stream``."""

    offset: str
    stream: str | None = None
    path: str | None = None


class AckBody(Struct, forbid_unknown_fields=True):
    """Progress of the wake that these two names belong to."""

    wake_id: str
    generation: int
    acks: list[AckItem] = []
    done: bool = False


class ClaimReleaseBody(Struct, forbid_unknown_fields=True):
    """The wake that is given back."""

    wake_id: str
    generation: int


class FollowedStream(Struct):
    """A stream that a subscription follows, and how far it was processed."""

    path: str
    link_type: Annotated[str, Meta(extra_json_schema={"enum": ["explicit", "glob"]})]
    acked_offset: Offset


class WebhookSigning(Struct):
    """How wakes that are posted are signed."""

    alg: Literal["ed25519"]
    kid: str
    jwks_url: str


class WebhookAnswer(Struct):
    """Where wakes are posted to."""

    url: str
    signing: WebhookSigning


class SubscriptionAnswer(Struct, kw_only=True):
    """A subscription; what does not apply to it is left out."""

    id: str
    subscription_id: str
    type: Literal["webhook", "pull-wake"]
    pattern: str | UnsetType = UNSET
    streams: list[FollowedStream]
    stream_limit_reached: bool | UnsetType = UNSET
    webhook: WebhookAnswer | UnsetType = UNSET
    wake_stream: str | UnsetType = UNSET
    lease_ttl_ms: NonNegative
    description: str | UnsetType = UNSET
    created_at: When
    status: Literal["active", "failed", "suspended"]
    last_error: str | UnsetType = UNSET
    next_attempt_at: When | UnsetType = UNSET
    generation: NonNegative
    current_holder: str | UnsetType = UNSET


class AckAnswer(Struct):
    """That progress was noted, and whether there is more to process."""

    ok: AlwaysTrue
    next_wake: bool


class KeySet(Struct):
    """A JSON Web Key Set."""

    keys: list[Object]


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
