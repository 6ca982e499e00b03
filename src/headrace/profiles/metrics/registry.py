"""What a metrics stream is searched and summed up by."""

from __future__ import annotations

from typing import Any

from headrace.profiles.definition import Defaults
from headrace.profiles.fields import keyword, typed
from headrace.profiles.metrics.envelope import SCHEMA
from headrace.schema.registry import KeySetting

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
