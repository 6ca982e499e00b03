"""A search document with a rollup of every kind of measure."""

from __future__ import annotations

from typing import Any

from headrace.query import search_document
from headrace.query.search import Search

MINUTE, HOUR = 60_000, 3_600_000


def field(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "bindings": [{"version": 1, "jsonPointer": f"/{name}"}], **more}


DOCUMENT: dict[str, Any] = {
    "primaryTimestampField": "time",
    "fields": {
        "time": field("date", "time", column=True),
        "service": field("keyword", "service", normalizer="lowercase_v1", exact=True, aggregatable=True),
        "level": field("integer", "level", exact=True, aggregatable=True),
        "ratio": field("float", "ratio", exact=True, aggregatable=True),
        "ok": field("bool", "ok", exact=True, aggregatable=True),
        "bytes": field("integer", "bytes", column=True, aggregatable=True),
        "duration": field("float", "duration", column=True, aggregatable=True),
        "tags": field("keyword", "tags", exact=True, aggregatable=True),
        "seen": field("date", "seen", column=True, aggregatable=True),
        "message": field("text", "message", analyzer="unicode_word_v1"),
    },
    "rollups": {
        "all": {
            "dimensions": ["service", "level", "ratio", "ok"],
            "intervals": ["1m", "60s", "1h"],
            "measures": {
                "events": {"kind": "count"},
                "slow": {"kind": "count", "include": "duration:>=1 OR message:slow"},
                "bytes": {"kind": "summary", "field": "bytes", "histogram": "log2_v1"},
                "plain_bytes": {"kind": "summary", "field": "bytes"},
                "duration": {"kind": "summary", "field": "duration", "histogram": "log2_v1"},
                "given": {
                    "kind": "summary_parts",
                    "countJsonPointer": "/given/count",
                    "sumJsonPointer": "/given/sum",
                    "minJsonPointer": "/given/min",
                    "maxJsonPointer": "/given/max",
                    "histogramJsonPointer": "/given/histogram",
                },
                "spread": {"kind": "quantiles", "field": "duration"},
                "sizes": {"kind": "quantiles", "field": "bytes"},
                **{
                    f"different_{name}": {"kind": "distinct", "field": name}
                    for name in ("tags", "bytes", "duration", "ok", "seen")
                },
            },
        },
        "operators": {
            "dimensions": ["service"],
            "intervals": ["1m"],
            "measures": {
                **{
                    name: {"kind": name, "field": "duration"}
                    for name in ("sum", "mean", "min", "max", "n_unique", "entropy", "top_k")
                },
                "tags": {"kind": "top_k", "field": "tags", "k": 2, "include": "duration:>=1"},
                "levels": {"kind": "histogram", "field": "duration", "buckets": [-1, 0.5, 8]},
                "ratio": {"kind": "ratio", "include": "ok:true"},
                **{name: {"kind": name} for name in ("first_seen", "last_seen", "has_seen", "inter_arrival_stats")},
            },
        },
        "durations": {"intervals": ["1m"], "measures": {"duration": {"kind": "summary", "field": "duration"}}},
        "fast": {
            "timestampField": "seen",
            "include": "-duration:>=1 -message:slow*",
            "intervals": ["1m"],
            "measures": {"events": {"kind": "count"}},
        },
    },
}


def declared(document: dict[str, Any] = DOCUMENT) -> Search:
    search = search_document.parse_search_document(document, current_version=1)
    assert isinstance(search, Search), search
    return search


SEARCH = declared()
ROLLUP = SEARCH.rollups["all"]
