"""The paths of profiles, and of what belongs to one of them."""

from __future__ import annotations

from headrace.profiles.table import PROFILES
from headrace.server.routes.openapi.schemas import FLAG, PLAN
from headrace.server.routes.openapi.streams import NAME
from headrace.server.routes.openapi.words import (
    MINTED,
    TEXT,
    WHOLE,
    Node,
    answer,
    answers,
    closed_record,
    content,
    either,
    operation,
    query,
    record,
)

_API_VERSION: Node = {"const": "durable.streams/profile/v1"}
_PROFILE = record(kind={"enum": list(PROFILES)})
PROFILE = record(apiVersion=_API_VERSION, profile=_PROFILE)
_FOUND: Node = {"$ref": "#/components/schemas/Profile"}

_GET = operation("show_profile", "What the stream means", answers("404 410", s200=answer("found", _FOUND)))
_POST = operation(
    "change_profile",
    "Change what the stream means; what it holds stays, and a schema that it has",
    answers(
        "404 409 410 413 415 429",
        s200=answer("the profile; of a dry run the plan as well", {"anyOf": [_FOUND, {"allOf": [PLAN, _FOUND]}]}),
    ),
    query("dry_run", FLAG, "only say what would change"),
    body=content(closed_record("profile", apiVersion=_API_VERSION, profile=_PROFILE)),
)

_BYTES: Node = {"schema": {"type": "string", "format": "binary"}}
_EXPORT: Node = {
    "required": True,
    "content": {
        "application/json": {"schema": {"type": "object", "properties": {"resourceSpans": {"type": "array"}}}},
        "application/x-protobuf": _BYTES,
    },
}
_PARTIAL: Node = {
    "type": "object",
    "properties": {"partialSuccess": record(rejectedSpans=WHOLE, errorMessage=TEXT)},
}
_TAKEN = answer(
    "the spans are stored; those that were not are counted",
    _PARTIAL,
    {"Stream-Next-Offset": {"description": "the tail", "schema": MINTED}},
)
_TAKEN["content"] |= {"application/x-protobuf": _BYTES}
_FAILURES = "404 409 410 413 415 429"
_TO_STREAM = operation(
    "export_spans", "Spans as OTLP exporters send them, for this stream", answers(_FAILURES, s200=_TAKEN), body=_EXPORT
)
_TO_SERVER = operation(
    "export_traces",
    "The same, for the stream that the server is configured with",
    answers(_FAILURES, s200=_TAKEN),
    body=_EXPORT,
)

_SOME: Node = {"type": "array"}
_OBSERVED = record(
    "summary",
    lookup=record("requestId traceId spanId"),
    evlog=either(record("primary", stream=TEXT, matches=_SOME)),
    trace=either(record("traceId rootSpanId serviceMap", stream=TEXT, spans=_SOME, tree=_SOME, criticalPath=_SOME)),
    timeline=either(_SOME),
    coverage=record("events traces", warnings={"type": "array", "items": TEXT}),
)
_FLAGS = {name: {"type": "boolean"} for name in ("events", "trace", "timeline", "raw")}
_MOMENT: Node = {"type": "string", "format": "date-time"}
_LETTERS: Node = {"type": "string", "minLength": 1, "maxLength": 512}
_OBSERVE = operation(
    "observe_request",
    "The events and the spans of one request, joined",
    answers("404 410 413 415", s200=answer("what was found, and what it covers", _OBSERVED)),
    body=content(
        closed_record(
            "streams lookup",
            streams=closed_record(events=TEXT, traces=TEXT),
            lookup={
                **closed_record(requestId=_LETTERS, traceId=_LETTERS, spanId=_LETTERS),
                "minProperties": 1,
                "maxProperties": 1,
            },
            time=closed_record(
                **{
                    "from": _MOMENT,
                    "to": _MOMENT,
                    "paddingMs": {"type": "integer", "minimum": 0, "maximum": 86_400_000},
                }
            ),
            include=closed_record(**_FLAGS),
            limits=closed_record(
                events={"type": "integer", "minimum": 1, "maximum": 500},
                spans={"type": "integer", "minimum": 1, "maximum": 10_000},
            ),
        )
    ),
)

PROFILE_PATHS: Node = {
    "/v1/stream/{name}/_profile": {"parameters": [NAME], "get": _GET, "post": _POST},
    "/v1/stream/{name}/_otlp/v1/traces": {"parameters": [NAME], "post": _TO_STREAM},
    "/v1/traces": {"post": _TO_SERVER},
    "/v1/observe/request": {"post": _OBSERVE},
}
