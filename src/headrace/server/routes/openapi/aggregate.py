"""The path of an aggregate."""

from __future__ import annotations

from headrace.server.routes.openapi.search import COVERAGE
from headrace.server.routes.openapi.streams import NAME
from headrace.server.routes.openapi.words import (
    NAMES,
    TEXT,
    WHOLE,
    Node,
    answer,
    answers,
    closed_record,
    content,
    either,
    operation,
    record,
)

_TIME: Node = {"anyOf": [TEXT, {"type": "number"}]}
_GROUP = record(key={"type": "object"}, measures={"type": "object"})
_BUCKET = record(start=TEXT, end=TEXT, groups={"type": "array", "items": _GROUP})
_RESULT = record(
    **{"from": TEXT},
    stream=TEXT,
    rollup=TEXT,
    to=TEXT,
    interval=TEXT,
    coverage=record(
        **COVERAGE,
        **dict.fromkeys(("indexed_segments", "scanned_segments", "scanned_tail_docs"), WHOLE),
        used_rollups={"type": "boolean"},
    ),
    buckets={"type": "array", "items": _BUCKET},
)
_BODY = closed_record(
    "rollup from to interval",
    **{"from": _TIME},
    rollup=TEXT,
    to=_TIME,
    interval=TEXT,
    q=either(TEXT),
    group_by=NAMES,
    measures={**NAMES, "minItems": 1},
)
_POST = operation(
    "query_aggregate",
    "Measure the events of a stream over time, the newest included",
    answers("404 408 410 413 415 429", s200=answer("the buckets that hold events", _RESULT)),
    body=content(_BODY),
)

AGGREGATE_PATHS: Node = {"/v1/stream/{name}/_aggregate": {"parameters": [NAME], "post": _POST}}
