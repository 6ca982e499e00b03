"""The OpenAPI document: every route, its parameters, and every status it answers with, written as data."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

Node = dict[str, Any]

_CROCKFORD = "[0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]"
_OFFSET = rf"[0-7]{_CROCKFORD}{{18}}[048CGMRWcgmrw]0{{6}}"
_DURATION = r"((0|[1-9][0-9]{0,11})(ms|s|m|h|d))+"

_TEXT: Node = {"type": "string"}
_WHOLE: Node = {"type": "integer", "minimum": 0}
_DIGITS: Node = {"type": "string", "pattern": r"^(0|[1-9][0-9]{0,17})$"}
_COUNTER: Node = {"type": "integer", "minimum": 0, "maximum": 2**53 - 1}
_MOMENT: Node = {
    "description": "an RFC 3339 time, or Unix nanoseconds",
    "anyOf": [{"type": "string", "format": "date-time"}, {"type": "string", "pattern": "^[0-9]{1,20}$"}],
}
_AGE: Node = {"type": "string", "pattern": f"^(?=.*[1-9]){_DURATION}$"}
_TRUE: Node = {"type": "string", "enum": ["true"]}
_MINTED: Node = {"type": "string", "pattern": f"^{_OFFSET}$"}


def _either(schema: Node) -> Node:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(required: str = "", /, **properties: Node) -> Node:
    """An object with these properties; the names in ``required`` without a schema may hold anything."""
    names = [*required.split(), *properties]
    return {"type": "object", "required": names, "properties": properties}


def _closed(required: str = "", **properties: Node) -> Node:
    """A request body that may hold these properties and no others."""
    return {"type": "object", "additionalProperties": False, "required": required.split(), "properties": properties}


def _header(name: str, schema: Node, text: str) -> Node:
    return {"name": name, "in": "header", "description": text, "schema": schema}


def _query(name: str, schema: Node, text: str) -> Node:
    return {"name": name, "in": "query", "description": text, "schema": schema}


def _path(name: str, schema: Node, text: str) -> Node:
    return {"name": name, "in": "path", "required": True, "description": text, "schema": schema}


def _json(text: str, schema: Node, headers: Node | None = None) -> Node:
    return {"description": text, "headers": headers or {}, "content": {"application/json": {"schema": schema}}}


def _plain(text: str, headers: Node | None = None) -> Node:
    return {"description": text, "headers": headers or {}}


def _failure(text: str) -> Node:
    return _json(text, {"$ref": "#/components/schemas/Error"})


_FAILURES: dict[int, str] = {
    400: "a value is wrong; `field` says which",
    401: "no key, or a wrong one",
    403: "the caller may not do this",
    404: "there is no such thing",
    408: "working time ran out; of an append the outcome is unknown",
    409: "the state of the thing forbids it",
    410: "it was there once",
    412: "If-Match names another tail",
    413: "the body is too large",
    414: "the address is too long",
    415: "an encoding we do not speak",
    429: "a queue is full; see Retry-After",
    431: "the headers are too large",
    503: "starting, stopping or out of disk; see Retry-After",
}
_ANYWHERE = (400, 408, 414, 431, 503)
_KEYED = (*_ANYWHERE, 401, 403)


def _answers(failures: str = "", *, keyed: bool = True, **successes: Node) -> Node:
    """Responses by status: successes as ``s200=…``, and failures by number."""
    answers = {status[1:]: answer for status, answer in successes.items()}
    every = sorted({*map(int, failures.split()), *(_KEYED if keyed else _ANYWHERE)})
    return answers | {str(status): _failure(_FAILURES[status]) for status in every}


def _operation(operation: str, text: str, responses: Node, *parameters: Node, body: Node | None = None) -> Node:
    named: Node = {"operationId": operation, "tags": [operation.rpartition("_")[2]], "summary": text}
    content: Node = {} if body is None else {"requestBody": body}
    return {**named, "parameters": list(parameters), **content, "responses": responses}


def _leading_to(operations: str, parameter: str, answer: Node) -> Node:
    """An answer after which these operations make sense on the same thing."""
    same = {parameter: f"$request.path.{parameter}"}
    return answer | {"links": {name: {"operationId": name, "parameters": same} for name in operations.split()}}


def _body(schema: Node) -> Node:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


# -- streams

_NAME = _path(
    "name",
    {"type": "string", "minLength": 1, "maxLength": 512, "pattern": r"^[^\x00-\x1f\x7f]+$"},
    "the stream's name; its slashes may be written as they are",
)
_NEXT = {"Stream-Next-Offset": {"description": "where to read on", "schema": _MINTED}}
_END = {"Stream-End-Offset": {"description": "the end of the stream", "schema": _MINTED}}
_CLOSED = {"Stream-Closed": {"description": "the stream is closed, and this is its end", "schema": _TRUE}}
_EXPIRES = {"Stream-Expires-At": {"description": "when the stream is gone", "schema": _TEXT}}
_TTL = {"Stream-TTL": {"description": "the sliding window in seconds", "schema": _WHOLE}}
_UP_TO_DATE = {"Stream-Up-To-Date": {"description": "the answer reaches the end", "schema": _TRUE}}
_CURSOR = {"Stream-Cursor": {"description": "to be sent back with the next live read", "schema": _TEXT}}
_LOCATION = {"Location": {"description": "the stream's address", "schema": _TEXT}}
_ETAG = {"ETag": {"description": "names this slice", "schema": _TEXT}}
_PRODUCED = {
    "Producer-Epoch": {"description": "the producer's epoch", "schema": _COUNTER},
    "Producer-Seq": {"description": "the highest sequence number accepted", "schema": _COUNTER},
}
_SLICE = {**_NEXT, **_END, **_UP_TO_DATE, **_CLOSED, **_EXPIRES}

_CLOSING = _header("Stream-Closed", _TEXT, "`true` closes the stream; anything else is as if absent")
_KEYING = _header("Stream-Key", {"type": "string", "maxLength": 1024}, "the key of the entries")
_PAYLOAD: Node = {
    "description": "entries; the body may be encoded as gzip or zstd",
    "required": False,
    "content": {
        "application/json": {"schema": {}},
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        "text/plain": {"schema": _TEXT},
    },
}

_CREATED = _plain("it was created", {**_NEXT, **_CLOSED, **_EXPIRES, **_LOCATION})
_CREATE = _operation(
    "create_stream",
    "Create a stream, or confirm that it exists as described",
    _answers(
        "404 409 410 413 415 429",
        s200=_CREATED | {"description": "it exists just so"},
        s201=_leading_to(
            "append_stream read_stream head_stream delete_stream retain_stream read_key_of_stream", "name", _CREATED
        ),
    ),
    _header("Stream-TTL", {"type": "string", "pattern": f"^(0|[1-9][0-9]*|{_DURATION})$"}, "sliding lifetime"),
    _header("Stream-Expires-At", _MOMENT, "fixed end of life, instead of a sliding one"),
    _header("Stream-Retention-Age", _AGE, "how long entries are kept"),
    _header("Stream-Retention-Bytes", _DIGITS, "how much is kept"),
    _header("Stream-Forked-From", _TEXT, "the path of the stream to fork"),
    _header("Stream-Fork-Offset", _TEXT, "where the fork leaves its source; its tail by default"),
    _header("Stream-Fork-Sub-Offset", _DIGITS, "bytes or messages past the fork offset"),
    _CLOSING,
    _KEYING,
    body=_PAYLOAD,
)
_APPEND = _operation(
    "append_stream",
    "Append entries, close the stream, or both at once",
    _answers(
        "404 409 410 412 413 415 429",
        s200=_plain("the producer's entries are on disk", {**_NEXT, **_CLOSED, **_PRODUCED}),
        s204=_plain("the entries are on disk", {**_NEXT, **_CLOSED, **_PRODUCED}),
    ),
    _header("Stream-Timestamp", _MOMENT, "append time; raised to that of the last entry"),
    _header("Stream-Seq", {"type": "string", "minLength": 1, "maxLength": 1024}, "must grow, byte by byte"),
    _header("Producer-Id", {"type": "string", "minLength": 1, "maxLength": 1024}, "goes with the next two"),
    _header("Producer-Epoch", _COUNTER, "a higher epoch takes over from a lower one"),
    _header("Producer-Seq", _COUNTER, "grows by one with each request"),
    _header("If-Match", _TEXT, "append only while this offset is the tail; `*` always matches"),
    _CLOSING,
    _KEYING,
    body=_PAYLOAD,
)
_READING = (
    _query("offset", {"type": "string", "pattern": f"^(-1|now|{_OFFSET})$"}, "read after it; live reads need one"),
    _query("since", _MOMENT, "without an offset: read from this moment on"),
    _query("format", {"type": "string", "enum": ["raw", "json"]}, "json: an array; raw: entries joined"),
    _query(
        "live", {"type": "string", "enum": ["", "false", "0", "true", "1", "long-poll", "sse"]}, "wait for new entries"
    ),
    _query(
        "timeout",
        {"type": "string", "pattern": f"^((0|[1-9][0-9]{{0,17}})|{_DURATION})$"},
        "longest wait of a long-poll",
    ),
    _query("cursor", _TEXT, "Stream-Cursor of the last live answer"),
    _header("If-None-Match", _TEXT, "ETag of a slice the caller has"),
)
_READ_ANSWERS = _answers(
    "404 410 429",
    s200={
        "description": "entries as the stream's own type, or events with live=sse",
        "headers": {**_SLICE, **_CURSOR, **_ETAG},
        "content": {"*/*": {"schema": {}}},
    },
    s204=_plain("no entries came in time, or the stream is closed", {**_SLICE, **_CURSOR}),
    s304=_plain("the caller has this slice", {**_SLICE, **_ETAG}),
)
_READ = _operation(
    "read_stream",
    "Read entries: once, when they come, or as they come",
    _READ_ANSWERS,
    *_READING,
    _query("key", _TEXT, "only entries of this key"),
)
_READ_KEY = _operation("read_key_of_stream", "Read the entries of one key", _READ_ANSWERS, *_READING)
_HEAD = _operation(
    "head_stream",
    "Where the stream stands; not an access",
    {
        status: {**answer, "content": {}}
        for status, answer in _answers(
            "404 410", s200=_plain("it exists", {**_NEXT, **_END, **_CLOSED, **_TTL, **_EXPIRES})
        ).items()
    },
)
_DELETE = _operation(
    "delete_stream",
    "Delete the stream; its forks stay readable",
    _answers("404 410 413 429", s204=_plain("it is gone")),
)
_RETAIN = _operation(
    "retain_stream",
    "Change how much the stream keeps; what is left out is no limit",
    _answers("404 410 413 415 429", s204=_plain("the rule is set")),
    body=_body(_closed(age=_either(_AGE), bytes=_either({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}))),
)
_DESCRIPTOR = _object(
    name=_TEXT,
    content_type=_TEXT,
    created_at={"type": "string", "format": "date-time"},
    expires_at=_either({"type": "string", "format": "date-time"}),
    epoch=_WHOLE,
    next_offset=_DIGITS,
    sealed_through={"type": "string", "pattern": "^(-1|[0-9]+)$"},
    uploaded_through={"type": "string", "pattern": "^(-1|[0-9]+)$"},
    closed={"type": "boolean"},
    profile=_TEXT,
)
_LIST = _operation(
    "list_streams",
    "Streams in name order, a page at a time",
    _answers(
        s200=_json(
            "a page",
            {"type": "array", "maxItems": 1000, "items": {"$ref": "#/components/schemas/Stream"}},
            {"Link": {"description": 'the next page, as rel="next"', "schema": _TEXT}},
        )
    ),
    _query("prefix", _TEXT, "only names that begin so"),
    _query("after", _TEXT, "only names that come later"),
    _query("limit", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}, "length of the page"),
)

_STREAM_PATHS: Node = {
    "/v1/streams": {"get": _LIST},
    "/v1/stream/{name}": {
        "parameters": [_NAME],
        "put": _CREATE,
        "post": _APPEND,
        "get": _READ,
        "head": _HEAD,
        "delete": _DELETE,
    },
    "/v1/stream/{name}/pk/{key}": {
        "parameters": [_NAME, _path("key", {"type": "string", "minLength": 1}, "the key")],
        "get": _READ_KEY,
    },
    "/v1/stream/{name}/_retention": {"parameters": [_NAME], "post": _RETAIN},
}

# -- operations

_LEAF = {"anyOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "string"}, {"type": "null"}]}
_LEAVES: Node = {"type": "object", "additionalProperties": _LEAF}
_GROUPS: Node = {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": _WHOLE}}
_TOTALS: Node = {"type": "object", "additionalProperties": _WHOLE}
_TOP = _object(
    **{
        name: {"type": "array", "maxItems": 5, "items": _LEAVES}
        for name in ("local_storage_bytes", "pending_wal_bytes", "touch_journal_filter_bytes", "notifier_waiters")
    }
)
_GATE = _object(configured_limit=_WHOLE, current_limit=_WHOLE, active=_WHOLE, queued=_WHOLE)
_WATER: Node = {"type": "object", "additionalProperties": {"type": "object"}}
_PROCESS = {"process": _LEAVES, "process_breakdown": _LEAVES, "sqlite": _LEAVES, "gc": _LEAVES, "high_water": _WATER}
_MEMORY = _object(
    **_PROCESS,
    ts={"type": "string", "format": "date-time"},
    counters=_TOTALS,
    runtime_counts=_TOTALS,
    runtime_bytes=_GROUPS,
    runtime_totals=_TOTALS,
    top_streams=_TOP,
)
_DETAILS = _object(
    auto_tune=_LEAVES,
    configured_limits=_object(
        **dict.fromkeys(("caches", "concurrency", "ingest", "search", "segmenting", "timeouts", "memory"), _LEAVES)
    ),
    runtime=_object(
        memory=_object(
            **_PROCESS,
            pressure_active={"type": "boolean"},
            pressure_limit_bytes=_either(_WHOLE),
            last_rss_bytes=_either(_WHOLE),
            max_rss_bytes=_either(_WHOLE),
            subsystems=_GROUPS,
            totals=_TOTALS,
        ),
        ingest_queue=_object(requests=_WHOLE, bytes=_WHOLE, full={"type": "boolean"}),
        local_backpressure=_LEAVES,
        uploads=_object(pending_segments=_WHOLE),
        concurrency=_object(ingest=_GATE, read=_GATE, search=_GATE, async_index=_GATE),
        top_streams=_TOP,
    ),
)
_LIVE = _json("it runs", _object(ok={"const": True}))
_READY = _object(ready={"const": True}, recovered=_TEXT, serving=_TEXT, writes=_TEXT, pipeline=_TEXT)
_METRICS: Node = {
    "description": "numbers, in the format the Accept header asks for",
    "content": {"text/plain": {"schema": _TEXT}, "application/openmetrics-text": {"schema": _TEXT}},
}


def _get(operation: str, text: str, answer: Node, *, keyed: bool = True) -> Node:
    return {"get": _operation(operation, text, _answers(keyed=keyed, s200=answer))}


_SERVER_PATHS: Node = {
    "/health": _get("check_health", "Whether the process runs", _LIVE, keyed=False),
    "/health/live": _get("check_live_health", "Whether the process runs", _LIVE, keyed=False),
    "/health/ready": _get(
        "check_ready_health", "Whether requests should come here", _json("it serves and writes", _READY), keyed=False
    ),
    "/metrics": _get("scrape_server", "Prometheus metrics", _METRICS),
    "/openapi.json": _get("describe_server", "This document", _json("the document", {"type": "object"})),
    "/v1/server/_details": _get("detail_server", "Settings and state", _json("as it is now", _DETAILS)),
    "/v1/server/_mem": _get("measure_server", "Memory of the process", _json("as it is now", _MEMORY)),
}


# -- subscriptions

_ID = _path("id", {"type": "string", "minLength": 1, "maxLength": 256}, "the subscription's name")
_NAMES: Node = {"type": "array", "items": _TEXT}
_FOLLOWED = _object(path=_TEXT, link_type={"enum": ["explicit", "glob"]}, acked_offset=_MINTED)
_SUBSCRIPTION: Node = _object(
    id=_TEXT,
    type={"enum": ["webhook", "pull-wake"]},
    streams={"type": "array", "items": _FOLLOWED},
    lease_ttl_ms=_WHOLE,
    created_at={"type": "string", "format": "date-time"},
    status={"enum": ["active", "failed"]},
    generation=_WHOLE,
)
_SUBSCRIBED: Node = {"$ref": "#/components/schemas/Subscription"}
_WISH = _closed(
    "type",
    type={"enum": ["webhook", "pull-wake"]},
    pattern=_either(_TEXT),
    streams=_either(_NAMES),
    webhook=_either(_closed("url", url=_TEXT)),
    wake_stream=_either(_TEXT),
    lease_ttl_ms={"type": "integer", "minimum": 1_000, "maximum": 600_000, "default": 30_000},
    description=_either({"type": "string", "maxLength": 1024}),
)
_WAKE = {"wake_id": _TEXT, "generation": {"type": "integer"}}
_PROGRESS = _closed(
    "wake_id generation",
    **_WAKE,
    acks={"type": "array", "items": _closed("offset", offset=_TEXT, stream=_either(_TEXT), path=_either(_TEXT))},
    done={"type": "boolean", "default": False},
)
_CLAIMED = _object(
    wake_id=_TEXT,
    generation=_WHOLE,
    token=_TEXT,
    streams={"type": "array", "items": _object(path=_TEXT, acked_offset=_MINTED, tail_offset=_MINTED)},
)
_JWKS: Node = {
    "description": "a JSON Web Key Set",
    "content": {"application/jwk-set+json": {"schema": _object(keys={"type": "array", "items": {"type": "object"}})}},
}
_ACKED = _json("noted", _object(ok={"const": True}, next_wake={"type": "boolean"}))


def _subscribing(operation: str, text: str, failures: str, body: Node | None = None, **successes: Node) -> Node:
    answers = _answers(f"{failures} 413 415 429" if body else f"{failures} 429", keyed=True, **successes)
    return _operation(operation, text, answers, body=_body(body) if body else None)


def _reporting(operation: str, text: str, body: Node, **successes: Node) -> Node:
    """A call of the worker that holds a wake: proven by the token that came with it."""
    return {"post": {**_subscribing(operation, text, "404 409", body, **successes), "security": [{"token": []}]}}


_ONE = "/v1/stream/__ds/subscriptions/{id}"
_SUBSCRIPTION_PATHS: Node = {
    "/v1/stream/__ds/jwks.json": _get(
        "sign_subscription", "The keys that webhooks are signed with", _JWKS, keyed=False
    ),
    _ONE: {
        "get": _subscribing("get_subscription", "Describe a subscription", "404", s200=_json("it", _SUBSCRIBED)),
        "put": _subscribing(
            "put_subscription",
            "Create a subscription, or confirm it",
            "409",
            _WISH,
            s200=_json("it exists just so", _SUBSCRIBED),
            s201=_leading_to(
                "get_subscription link_subscription claim_subscription delete_subscription",
                "id",
                _json("it was created", _SUBSCRIBED),
            ),
        ),
        "delete": _subscribing("delete_subscription", "Forget a subscription", "", s204=_plain("it is gone")),
    },
    f"{_ONE}/streams": {
        "post": _subscribing(
            "link_subscription",
            "Follow more streams by name",
            "404 409",
            _closed("streams", streams={**_NAMES, "minItems": 1}),
            s204=_plain("they are followed"),
        )
    },
    f"{_ONE}/streams/{{path}}": {
        "parameters": [_path("path", {"type": "string", "minLength": 1}, "the stream's name")],
        "delete": _subscribing("unlink_subscription", "Follow a stream no more", "404", s204=_plain("it is not named")),
    },
    f"{_ONE}/claim": {
        "post": _subscribing(
            "claim_subscription",
            "Take the wake that waits for a worker",
            "404 409",
            _closed("worker", worker={"type": "string", "minLength": 1, "maxLength": 1024}),
            s200=_json("it is yours", _CLAIMED),
        )
    },
    f"{_ONE}/ack": _reporting("ack_subscription", "Report progress of a claimed wake", _PROGRESS, s200=_ACKED),
    f"{_ONE}/callback": _reporting("callback_subscription", "Report progress of a webhook", _PROGRESS, s200=_ACKED),
    f"{_ONE}/release": _reporting(
        "release_subscription", "Give a wake back", _closed("wake_id generation", **_WAKE), s204=_plain("it is free")
    ),
}
for _where, _verbs in _SUBSCRIPTION_PATHS.items():
    if "{id}" in _where:
        _verbs["parameters"] = [_ID, *_verbs.get("parameters", ())]


def document(*, subscriptions: bool = True) -> Node:
    """The whole document, with subscriptions where they are served."""
    error = _object(error=_object(code=_TEXT, message=_TEXT))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": version("headrace"),
            "description": "Durable event streams over HTTP. Errors have a stable `code`.",
        },
        "paths": {**_SERVER_PATHS, **_STREAM_PATHS, **(_SUBSCRIPTION_PATHS if subscriptions else {})},
        "components": {
            "schemas": {"Error": error, "Stream": _DESCRIPTOR, "Subscription": _SUBSCRIPTION},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "token": {"type": "http", "scheme": "bearer", "description": "the token of a wake"},
            },
        },
        "security": [{}, {"key": []}],
    }
