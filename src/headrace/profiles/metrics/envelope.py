"""One interval of one series: what every stored record of a metrics stream has, and the schema that says so."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.profiles.definition import Defaults, keyword, typed
from headrace.schema.registry import KeySetting

API_VERSION = "durable.streams/metrics/v1"


class Summary(msgspec.Struct, gc=False):
    """The numbers of an interval once more, as others write them."""

    count: Any
    sum: Any
    min: Any
    max: Any
    histogram: dict[str, Any]


class Interval(msgspec.Struct, gc=False, rename="camel"):
    """One record as it is stored; every member is always there, in this order."""

    api_version: str
    kind: str
    metric: str
    unit: str
    metric_kind: str
    temporality: str
    window_start: int
    window_end: int
    interval_ms: int
    instance: str | None
    stream: str | None
    tags: dict[str, str]
    attributes: dict[str, str]
    dimension_pairs: list[str]
    dimension_key: str | None
    series_key: str
    count: Any
    sum: Any
    min: Any
    max: Any
    avg: Any
    p50: Any
    p95: Any
    p99: Any
    buckets: dict[str, Any]
    summary: Summary


#: The names of the members, as records have them.
KEYS: tuple[str, ...] = Interval.__struct_encode_fields__

_NUMBER = {"type": "number"}
_MAYBE = {"type": ["number", "null"]}
_TEXT = {"type": ["string", "null"]}
_WORDS = {"type": "object", "additionalProperties": {"type": "string"}}
_COUNTS = {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}}
_COUNT = {"type": "number", "minimum": 0}

_SUMMARY: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["count", "sum", "min", "max", "histogram"],
    "properties": {"count": _COUNT, "sum": _NUMBER, "min": _MAYBE, "max": _MAYBE, "histogram": _COUNTS},
}
_PROPERTIES: dict[str, Any] = {
    "apiVersion": {"const": API_VERSION},
    "kind": {"const": "interval"},
    **{key: {"type": "string", "minLength": 1} for key in ("metric", "unit", "metricKind", "temporality", "seriesKey")},
    **{key: {"type": "integer"} for key in ("windowStart", "windowEnd", "intervalMs")},
    **dict.fromkeys(("instance", "stream", "dimensionKey"), _TEXT),
    **dict.fromkeys(("tags", "attributes"), _WORDS),
    "dimensionPairs": {"type": "array", "items": {"type": "string"}},
    "count": _COUNT,
    "sum": _NUMBER,
    **dict.fromkeys(("min", "max", "avg", "p50", "p95", "p99"), _MAYBE),
    "buckets": _COUNTS,
    "summary": _SUMMARY,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": list(KEYS),
    "properties": {name: _PROPERTIES[name] for name in KEYS},
}


_DIMENSIONS = ["metric", "unit", "stream", "instance", "dimensionKey", "metricKind", "temporality"]
_NUMBERS = ("count", "sum", "min", "max", "avg", "p50", "p95", "p99")

SEARCH: dict[str, Any] = {
    "profile": "metrics",
    "primaryTimestampField": "windowStart",
    "aliases": {
        "ts": "windowStart",
        "time": "windowStart",
        "name": "metric",
        "dims": "dimensionPairs",
        "series": "seriesKey",
    },
    "defaultFields": [
        {"field": "metric", "boost": 2},
        {"field": "stream", "boost": 1.25},
        {"field": "dimensionPairs", "boost": 1},
    ],
    "fields": {
        **{name: keyword(f"/{name}", aggregatable=True) for name in (*_DIMENSIONS, "dimensionPairs", "seriesKey")},
        "windowStart": typed("date", "/windowStart"),
        "windowEnd": typed("date", "/windowEnd"),
        "intervalMs": typed("integer", "/intervalMs"),
        **{name: typed("float", f"/{name}") for name in _NUMBERS},
    },
    "rollups": {
        "metrics": {
            "timestampField": "windowStart",
            "dimensions": _DIMENSIONS,
            "intervals": ["10s", "1m", "5m", "1h"],
            "measures": {
                "value": {
                    "kind": "summary_parts",
                    "countJsonPointer": "/count",
                    "sumJsonPointer": "/sum",
                    "minJsonPointer": "/min",
                    "maxJsonPointer": "/max",
                    "histogramJsonPointer": "/buckets",
                }
            },
        }
    },
}

DEFAULTS = Defaults(schema=SCHEMA, search=SEARCH, routing_key=KeySetting("/seriesKey", True))
