"""The schema and the search configuration that every server gets: eight fields, two of them text, and one rollup."""

from __future__ import annotations

from typing import Any

STREAM = "searched"
ROLLUP = "requests"

_TEXT = {"kind": "text", "analyzer": "unicode_word_v1", "positions": True}
_FIELDS: dict[str, dict[str, Any]] = {
    "at": {"kind": "date", "exact": True, "column": True, "sortable": True},
    "service": {"kind": "keyword", "exact": True, "prefix": True, "sortable": True},
    "level": {"kind": "keyword", "exact": True},
    "request": {"kind": "keyword", "exact": True, "prefix": True},
    "status": {"kind": "integer", "exact": True, "column": True, "sortable": True},
    "ms": {"kind": "float", "column": True, "sortable": True, "aggregatable": True},
    "title": _TEXT,
    "message": _TEXT,
}

UPDATE: dict[str, Any] = {
    "schema": {"type": "object", "additionalProperties": True},
    "search": {
        "primaryTimestampField": "at",
        "defaultFields": [{"field": "title", "boost": 2}, {"field": "message"}],
        "fields": {
            name: {**field, "exists": True, "bindings": [{"version": 1, "jsonPointer": f"/{name}"}]}
            for name, field in _FIELDS.items()
        },
        "rollups": {
            ROLLUP: {
                "dimensions": ["level", "status"],
                "intervals": ["1h"],
                "measures": {
                    "requests": {"kind": "count"},
                    "latency": {"kind": "summary", "field": "ms", "histogram": "log2_v1"},
                },
            }
        },
    },
}
