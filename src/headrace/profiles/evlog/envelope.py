"""The canonical envelope of a request log: the members of every stored event, and their schema."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace.profiles.definition import Defaults, closed_object, keyword, text, typed

LEVELS = ("debug", "info", "warn", "error")
Level = Literal["debug", "info", "warn", "error"]


class Redaction(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The dotted paths of what was replaced."""

    keys: list[str]


class Envelope(msgspec.Struct, gc=False, forbid_unknown_fields=True, rename="camel"):
    """One event as it is stored; every member is always there, in this order."""

    timestamp: str
    level: Level
    service: str | None
    environment: str | None
    version: str | None
    region: str | None
    request_id: str | None
    trace_id: str | None
    span_id: str | None
    method: str | None
    path: str | None
    status: int | None
    duration: Any
    message: str | None
    why: str | None
    fix: str | None
    link: str | None
    sampling: dict[str, Any] | None
    redaction: Redaction
    context: dict[str, Any]


#: The names of the members, as events have them.
KEYS: tuple[str, ...] = Envelope.__struct_encode_fields__

_TEXT = {"type": ["string", "null"]}
_OTHERS: dict[str, Any] = {
    "timestamp": {"type": "string"},
    "level": {"type": "string", "enum": list(LEVELS)},
    "status": {"type": ["integer", "null"]},
    "duration": {"type": ["number", "null"]},
    "sampling": {"type": ["object", "null"]},
    "redaction": closed_object({"keys": {"type": "array", "items": {"type": "string"}}}),
    "context": {"type": "object"},
}
SCHEMA = closed_object({name: _OTHERS.get(name, _TEXT) for name in KEYS})


_CLASSES = {f"{first}xx": f"status:>={first}00 status:<{first + 1}00" for first in range(1, 6)}

_FIELDS: dict[str, Any] = {
    "timestamp": typed("date", "/timestamp"),
    **{
        name: keyword(f"/{name}", lowercase=True, aggregatable=True)
        for name in ("level", "service", "environment", "method")
    },
    "path": keyword("/path", aggregatable=True),
    **{name: keyword(f"/{name}") for name in ("requestId", "traceId", "spanId")},
    "status": typed("integer", "/status"),
    "duration": typed("float", "/duration"),
    **{name: text(f"/{name}") for name in ("message", "why", "fix")},
    "error.message": text("/context/error/message"),
}

SEARCH: dict[str, Any] = {
    "profile": "evlog",
    "primaryTimestampField": "timestamp",
    "aliases": {
        "env": "environment",
        "msg": "message",
        "req": "requestId",
        "span": "spanId",
        "time": "timestamp",
        "trace": "traceId",
        "ts": "timestamp",
    },
    "defaultFields": [
        {"field": "message", "boost": 2},
        {"field": "why", "boost": 1.5},
        {"field": "fix", "boost": 1.25},
        {"field": "error.message", "boost": 2},
    ],
    "fields": _FIELDS,
    "rollups": {
        "requests": {
            "dimensions": ["service", "level", "environment"],
            "intervals": ["1m", "5m", "1h"],
            "measures": {
                "requests": {"kind": "count"},
                "errors": {"kind": "count", "include": "level:error"},
                **{name: {"kind": "count", "include": query} for name, query in _CLASSES.items()},
                "latency": {"kind": "summary", "field": "duration", "histogram": "log2_v1"},
            },
        },
    },
}

DEFAULTS = Defaults(schema=SCHEMA, search=SEARCH)
