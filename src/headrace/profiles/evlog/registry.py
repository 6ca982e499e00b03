"""What an evlog stream is searched and summed up by."""

from __future__ import annotations

from typing import Any

from headrace.profiles.definition import Defaults
from headrace.profiles.evlog.envelope import SCHEMA
from headrace.profiles.fields import keyword, text, typed

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
