"""The canonical span: the members of every stored record of a stream of spans, and their schema."""

from __future__ import annotations

from typing import Any

from headrace.profiles.definition import Defaults, closed_object, keyword, text, typed

KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
CODES = ("unset", "ok", "error")

#: What is derived from attributes of a span: members of groups, and their attributes in order of preference.
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "http": {
        "method": ("http.request.method", "http.method"),
        "route": ("http.route",),
        "path": ("url.path", "http.target"),
        "url": ("url.full", "http.url"),
        "statusCode": ("http.response.status_code", "http.status_code"),
    },
    "db": {
        "system": ("db.system.name", "db.system"),
        "name": ("db.namespace", "db.name"),
        "operation": ("db.operation.name", "db.operation"),
        "collection": ("db.collection.name", "db.sql.table"),
        "statement": ("db.query.text", "db.statement"),
    },
    "rpc": {
        "system": ("rpc.system",),
        "service": ("rpc.service",),
        "method": ("rpc.method",),
        "statusCode": ("rpc.grpc.status_code",),
    },
    "messaging": {
        "system": ("messaging.system",),
        "destination": ("messaging.destination.name", "messaging.destination"),
        "operation": ("messaging.operation.type", "messaging.operation.name", "messaging.operation"),
    },
}
#: The same of attributes of its resource.
RESOURCE = {
    "service": ("service.name",),
    "serviceNamespace": ("service.namespace",),
    "serviceInstanceId": ("service.instance.id",),
    "environment": ("deployment.environment.name", "deployment.environment"),
    "version": ("service.version",),
    "region": ("cloud.region",),
}
#: Attributes that hold database statements, and those that hold addresses.
STATEMENTS = GROUPS["db"]["statement"]
ADDRESSES = ("url.full", "http.url", "http.target", "url.path")
QUERIES = ("url.query",)
#: Members that are whole numbers.
INTEGER_MEMBERS = frozenset({"statusCode"})

_DROPPED = ("attributes", "events", "links", "resourceAttributes", "scopeAttributes", "values")
DROPPED: dict[str, int] = dict.fromkeys(_DROPPED, 0)

_TEXT: dict[str, Any] = {"type": "string"}
_MAYBE: dict[str, Any] = {"type": ["string", "null"]}
_INTEGER_OR_NULL: dict[str, Any] = {"type": ["integer", "null"]}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_TRACE: dict[str, Any] = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_SPAN: dict[str, Any] = {"type": "string", "pattern": "^[0-9a-f]{16}$"}
_OPEN: dict[str, Any] = {"type": "object"}


def _group(members: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    return closed_object({name: _INTEGER_OR_NULL if name in INTEGER_MEMBERS else _MAYBE for name in members})


_EVENT = closed_object({"timeUnixNano": _MAYBE, "timestamp": _MAYBE, "name": _TEXT, "attributes": _OPEN})
_LINK = closed_object({"traceId": _MAYBE, "spanId": _MAYBE, "traceState": _MAYBE, "attributes": _OPEN})

SCHEMA = closed_object(
    {
        "schemaVersion": {"const": 1},
        "signal": {"const": "trace.span"},
        "traceId": _TRACE,
        "spanId": _SPAN,
        "parentSpanId": {"anyOf": [_SPAN, {"type": "null"}]},
        "traceState": _MAYBE,
        "traceFlags": _INTEGER_OR_NULL,
        "name": _TEXT,
        "kind": {"enum": list(KINDS)},
        "timestamp": _TEXT,
        "endTimestamp": _TEXT,
        "startUnixNano": _TEXT,
        "endUnixNano": _TEXT,
        "duration": {"type": "number", "minimum": 0},
        "status": closed_object({"code": {"enum": list(CODES)}, "message": _MAYBE}),
        **dict.fromkeys((*RESOURCE, "requestId"), _MAYBE),
        **{name: _group(members) for name, members in GROUPS.items()},
        "error": closed_object(
            {"isError": {"type": "boolean"}, "type": _MAYBE, "message": _MAYBE, "stacktrace": _MAYBE}
        ),
        "resource": closed_object({"attributes": _OPEN, "schemaUrl": _MAYBE}),
        "instrumentationScope": closed_object(
            {"name": _MAYBE, "version": _MAYBE, "schemaUrl": _MAYBE, "attributes": _OPEN}
        ),
        "attributes": _OPEN,
        "events": {"type": "array", "items": _EVENT},
        "eventNames": {"type": "array", "items": _TEXT},
        "links": {"type": "array", "items": _LINK},
        "dropped": closed_object({name: _COUNT for name in DROPPED}),
        "redaction": closed_object({"keys": {"type": "array", "items": _TEXT}}),
        "identity": closed_object({"spanKey": _TEXT}),
    }
)
#: The names of the members, in their order.
KEYS: tuple[str, ...] = tuple(SCHEMA["properties"])


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
