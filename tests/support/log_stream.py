"""Log events with eight search fields and a rollup, and a server that has them."""

from __future__ import annotations

import json
import random
import urllib.request
from typing import Any

WORDS = (
    "payment", "order", "user", "login", "cache", "retry", "queue", "database", "slow", "green", "Ärger", "naïve",
    "timeout",
)  # fmt: skip


def _field(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "bindings": [{"version": 1, "jsonPointer": f"/{name}"}], **more}


_NUMBER = {"exact": True, "column": True, "sortable": True, "aggregatable": True}
_TEXT = {"analyzer": "unicode_word_v1", "positions": True}

SEARCH: dict[str, Any] = {
    "primaryTimestampField": "ts",
    "defaultFields": [{"field": "message", "boost": 2}, {"field": "detail"}],
    "fields": {
        "ts": _field("date", "ts", exact=True, column=True, sortable=True),
        "service": _field("keyword", "service", exact=True, prefix=True, sortable=True),
        "tags": _field("keyword", "tags", exact=True, normalizer="lowercase_v1"),
        "status": _field("integer", "status", **_NUMBER),
        "duration": _field("float", "duration", **_NUMBER),
        "request": _field("keyword", "request", exact=True, prefix=True),
        "message": _field("text", "message", **_TEXT),
        "detail": _field("text", "detail", **_TEXT),
    },
    "rollups": {
        "requests": {
            "dimensions": ["service", "status"],
            "intervals": ["1m", "1h"],
            "measures": {
                "requests": {"kind": "count"},
                "failed": {"kind": "count", "include": "status:>=500"},
                "duration": {"kind": "summary", "field": "duration", "histogram": "log2_v1"},
                "spread": {"kind": "quantiles", "field": "duration"},
                "services": {"kind": "distinct", "field": "status"},
            },
        }
    },
}


def event(number: int) -> dict[str, Any]:
    """An event that depends on nothing but its number."""
    chance = random.Random(number)
    return {
        "ts": 1_760_000_000_000 + number * 997,
        "service": f"service-{chance.randrange(12)}",
        "tags": chance.sample(["Red", "green", "BLUE"], chance.randrange(3)),
        "status": chance.choice([200, 201, 404, 500, 503]),
        "duration": round(chance.random() * 900, 3),
        "request": f"r{number:06x}",
        "message": " ".join(chance.choices(WORDS, k=6)),
        "detail": f"{' '.join(chance.choices(WORDS, k=3))} number{number}",
    }


class Logs:
    """Speaks JSON to a server about streams of such events."""

    def __init__(self, url: str) -> None:
        self.url = url

    def create(self, stream: str, search: dict[str, Any] | None = None) -> None:
        """A stream with a schema and a search configuration."""
        self.ask("PUT", f"/v1/stream/{stream}")
        self.ask("POST", f"/v1/stream/{stream}/_schema", {"schema": {"type": "object"}})
        self.ask("POST", f"/v1/stream/{stream}/_schema", {"search": search or SEARCH})

    def append(self, stream: str, start: int, stop: int) -> None:
        """Events by number."""
        for first in range(start, stop, 500):
            self.ask("POST", f"/v1/stream/{stream}", [event(number) for number in range(first, min(stop, first + 500))])

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer as a value; raises for any status but success."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, method=method, data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read()
        return json.loads(content) if content else None

    def published(self, stream: str) -> int:
        """How many events are in segments."""
        found = self.ask("GET", f"/v1/stream/{stream}/_details")
        return int(found["stream"]["uploaded_through"]) + 1
