"""What a stream of spans is searched and summed up by."""

from __future__ import annotations

from typing import Any

from headrace.profiles.definition import Defaults
from headrace.profiles.fields import keyword, text, typed
from headrace.profiles.otel_traces.span import SCHEMA

_LOWERED = {
    "service": "/service", "environment": "/environment", "kind": "/kind", "status.code": "/status/code",
    "http.method": "/http/method", "db.system": "/db/system", "db.operation": "/db/operation",
    "rpc.system": "/rpc/system", "messaging.system": "/messaging/system",
}  # fmt: skip
_AS_IS = {
    "traceId": "/traceId", "spanId": "/spanId", "parentSpanId": "/parentSpanId", "requestId": "/requestId",
    "name": "/name", "http.route": "/http/route", "http.path": "/http/path", "db.name": "/db/name",
    "rpc.service": "/rpc/service", "rpc.method": "/rpc/method",
    "messaging.destination": "/messaging/destination", "error.type": "/error/type",
}  # fmt: skip
_TEXTS = {
    "status.message": "/status/message", "error.message": "/error/message", "error.stacktrace": "/error/stacktrace",
    "db.statement": "/db/statement", "events.name": "/eventNames",
}  # fmt: skip
_TYPED = {
    "timestamp": ("date", "/timestamp"), "endTimestamp": ("date", "/endTimestamp"), "duration": ("float", "/duration"),
    "http.statusCode": ("integer", "/http/statusCode"), "error.isError": ("bool", "/error/isError"),
}  # fmt: skip
_MEASURES: dict[str, Any] = {
    "errors": {"kind": "count", "include": "error:true"},
    "latency": {"kind": "summary", "field": "duration", "histogram": "log2_v1"},
}

SEARCH: dict[str, Any] = {
    "profile": "otel-traces",
    "primaryTimestampField": "timestamp",
    "aliases": {
        "trace": "traceId", "span": "spanId", "parent": "parentSpanId", "req": "requestId", "svc": "service",
        "op": "name", "route": "http.route", "method": "http.method", "status": "http.statusCode",
        "error": "error.isError", "db": "db.system", "duration_ms": "duration", "time": "timestamp", "ts": "timestamp",
    },
    "defaultFields": [
        {"field": "error.message", "boost": 2},
        {"field": "status.message", "boost": 1.5},
        {"field": "events.name", "boost": 1},
        {"field": "name", "boost": 1},
    ],
    "fields": {
        **{name: keyword(pointer, lowercase=True, aggregatable=True) for name, pointer in _LOWERED.items()},
        **{name: keyword(pointer, aggregatable=True) for name, pointer in _AS_IS.items()},
        **{name: text(pointer) for name, pointer in _TEXTS.items()},
        **{name: typed(kind, pointer) for name, (kind, pointer) in _TYPED.items()},
    },
    "rollups": {
        "spans": {
            "dimensions": ["service", "kind", "status.code"],
            "intervals": ["1m", "5m", "1h"],
            "measures": {"spans": {"kind": "count"}, **_MEASURES},
        },
        "http_server": {
            "include": "kind:server",
            "dimensions": ["service", "http.method", "http.route", "http.statusCode"],
            "intervals": ["1m", "5m", "1h"],
            "measures": {"requests": {"kind": "count"}, **_MEASURES},
        },
    },
}  # fmt: skip

DEFAULTS = Defaults(schema=SCHEMA, search=SEARCH)
