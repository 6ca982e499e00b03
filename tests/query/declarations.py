"""A search document that uses everything, and short ways to ask it."""

from __future__ import annotations

from typing import Any

from headrace.query import predicate, search_document, syntax
from headrace.query.check import Mode, check
from headrace.query.search import Search
from headrace.query.tree import Fault

DOCUMENT: dict[str, Any] = {
    "profile": "evlog",
    "primaryTimestampField": "time",
    "defaultFields": [{"field": "message", "boost": 2}, {"field": "why"}, {"field": "request"}],
    "containsDefaultFields": ["message", "path"],
    "aliases": {"ts": "time", "msg": "message"},
    "fields": {
        "time": {
            "kind": "date",
            "bindings": [{"version": 1, "jsonPointer": "/time"}],
            "column": True,
            "sortable": True,
        },
        "service": {
            "kind": "keyword",
            "bindings": [{"version": 1, "jsonPointer": "/service"}],
            "normalizer": "lowercase_v1",
            "exact": True,
            "prefix": True,
            "aggregatable": True,
        },
        "path": {"kind": "keyword", "bindings": [{"version": 1, "jsonPointer": "/path"}], "contains": True},
        "request": {"kind": "keyword", "bindings": [{"version": 1, "jsonPointer": "/request"}], "column": True},
        "tags": {
            "kind": "keyword",
            "bindings": [{"version": 1, "jsonPointer": "/tags"}],
            "exact": True,
            "exists": True,
        },
        "status": {
            "kind": "integer",
            "bindings": [{"version": 1, "jsonPointer": "/code"}, {"version": 3, "jsonPointer": "/http/status"}],
            "exact": True,
            "column": True,
        },
        "level": {"kind": "integer", "bindings": [{"version": 1, "jsonPointer": "/level"}], "exact": True},
        "duration": {
            "kind": "float",
            "bindings": [{"version": 1, "jsonPointer": "/duration"}],
            "column": True,
            "aggregatable": True,
        },
        "error": {"kind": "bool", "bindings": [{"version": 1, "jsonPointer": "/error"}], "column": True},
        "message": {
            "kind": "text",
            "bindings": [{"version": 1, "jsonPointer": "/message"}],
            "analyzer": "unicode_word_v1",
            "positions": True,
            "contains": True,
        },
        "why": {"kind": "text", "bindings": [{"version": 1, "jsonPointer": "/why"}], "analyzer": "unicode_word_v1"},
        "mute": {"kind": "keyword", "bindings": [{"version": 2, "jsonPointer": "/mute"}], "sortable": True},
    },
    "rollups": {
        "requests": {
            "include": "has:status -service:health*",
            "dimensions": ["service", "status"],
            "intervals": ["1m", "60s", "1h30m"],
            "measures": {
                "all": {"kind": "count"},
                "failed": {"kind": "count", "include": "status:>=500"},
                "latency": {"kind": "summary", "field": "duration", "histogram": "log2_v1"},
                "spread": {"kind": "quantiles", "field": "duration"},
                "services": {"kind": "distinct", "field": "service"},
                "given": {
                    "kind": "summary_parts",
                    "countJsonPointer": "/count",
                    "sumJsonPointer": "/sum",
                    "minJsonPointer": "/min",
                    "maxJsonPointer": "/max",
                },
            },
        }
    },
}


def declared(document: dict[str, Any] = DOCUMENT, *, version: int = 3) -> Search:
    search = search_document.parse_search_document(document, current_version=version)
    assert isinstance(search, Search), search
    return search


SEARCH = declared()


def faults(query: str, mode: Mode = "search", search: Search = SEARCH) -> list[Fault]:
    return check(syntax.parse(query), search, mode=mode)


def matches(query: str, document: Any, search: Search = SEARCH) -> bool:
    tree = syntax.parse(query)
    assert check(tree, search, mode="search") == []
    return predicate.compile(tree, search)(document)
