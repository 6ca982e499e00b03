"""The paths of subscriptions."""

from __future__ import annotations

from headrace.server.routes.openapi.words import (
    MINTED,
    NAMES,
    TEXT,
    WHOLE,
    Node,
    answer,
    answers,
    closed_record,
    content,
    either,
    get_only,
    leading_to,
    operation,
    path,
    plain,
    record,
)

ID = path("id", {"type": "string", "minLength": 1, "maxLength": 256}, "the subscription's name")
FOLLOWED = record(path=TEXT, link_type={"enum": ["explicit", "glob"]}, acked_offset=MINTED)
SUBSCRIPTION: Node = record(
    id=TEXT,
    type={"enum": ["webhook", "pull-wake"]},
    streams={"type": "array", "items": FOLLOWED},
    lease_ttl_ms=WHOLE,
    created_at={"type": "string", "format": "date-time"},
    status={"enum": ["active", "failed", "suspended"]},
    generation=WHOLE,
)
SUBSCRIBED: Node = {"$ref": "#/components/schemas/Subscription"}
WISH = closed_record(
    "type",
    type={"enum": ["webhook", "pull-wake"]},
    pattern=either(TEXT),
    streams=either(NAMES),
    webhook=either(closed_record("url", url=TEXT)),
    wake_stream=either(TEXT),
    lease_ttl_ms={"type": "integer", "minimum": 1_000, "maximum": 600_000, "default": 30_000},
    description=either({"type": "string", "maxLength": 1024}),
)
WAKE = {"wake_id": TEXT, "generation": {"type": "integer"}}
PROGRESS = closed_record(
    "wake_id generation",
    **WAKE,
    acks={"type": "array", "items": closed_record("offset", offset=TEXT, stream=either(TEXT), path=either(TEXT))},
    done={"type": "boolean", "default": False},
)
CLAIMED = record(
    wake_id=TEXT,
    generation=WHOLE,
    token=TEXT,
    streams={"type": "array", "items": record(path=TEXT, acked_offset=MINTED, tail_offset=MINTED)},
)
JWKS: Node = {
    "description": "a JSON Web Key Set",
    "content": {"application/jwk-set+json": {"schema": record(keys={"type": "array", "items": {"type": "object"}})}},
}
ACKED = answer("noted", record(ok={"const": True}, next_wake={"type": "boolean"}))


def _subscribing(name: str, text: str, failures: str, body: Node | None = None, **successes: Node) -> Node:
    found = answers(f"{failures} 413 415 429" if body else f"{failures} 429", keyed=True, **successes)
    return operation(name, text, found, body=content(body) if body else None)


def reporting(operation: str, text: str, body: Node, **successes: Node) -> Node:
    """A call of the worker that holds a wake: proven by the token that came with it."""
    return {"post": {**_subscribing(operation, text, "409", body, **successes), "security": [{"token": []}]}}


ONE = "/v1/stream/__ds/subscriptions/{id}"
SUBSCRIPTION_PATHS: Node = {
    "/v1/stream/__ds/jwks.json": get_only(
        "sign_subscription", "The keys that webhooks are signed with", JWKS, keyed=False
    ),
    ONE: {
        "get": _subscribing("get_subscription", "Describe a subscription", "404", s200=answer("it", SUBSCRIBED)),
        "put": _subscribing(
            "put_subscription",
            "Create a subscription, or confirm it",
            "409",
            WISH,
            s200=answer("it exists just so", SUBSCRIBED),
            s201=leading_to(
                "get_subscription link_subscription claim_subscription delete_subscription",
                "id",
                answer("it was created", SUBSCRIBED),
            ),
        ),
        "delete": _subscribing("delete_subscription", "Forget a subscription", "", s204=plain("it is gone")),
    },
    f"{ONE}/streams": {
        "post": _subscribing(
            "link_subscription",
            "Follow more streams by name",
            "404 409",
            closed_record("streams", streams={**NAMES, "minItems": 1}),
            s204=plain("they are followed"),
        )
    },
    f"{ONE}/streams/{{path}}": {
        "parameters": [path("path", {"type": "string", "minLength": 1}, "the stream's name")],
        "delete": _subscribing("unlink_subscription", "Follow a stream no more", "404", s204=plain("it is not named")),
    },
    f"{ONE}/claim": {
        "post": _subscribing(
            "claim_subscription",
            "Take the wake that waits for a worker",
            "404 409",
            closed_record("worker", worker={"type": "string", "minLength": 1, "maxLength": 1024}),
            s200=answer("it is yours", CLAIMED),
        )
    },
    f"{ONE}/ack": reporting("ack_subscription", "Report progress of a claimed wake", PROGRESS, s200=ACKED),
    f"{ONE}/callback": reporting("callback_subscription", "Report progress of a webhook", PROGRESS, s200=ACKED),
    f"{ONE}/release": reporting(
        "release_subscription",
        "Give a wake back",
        closed_record("wake_id generation", **WAKE),
        s204=plain("it is free"),
    ),
}
for _where, _verbs in SUBSCRIPTION_PATHS.items():
    if "{id}" in _where:
        _verbs["parameters"] = [ID, *_verbs.get("parameters", ())]
