"""Asks a server about its streams, over connections that stay open."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from headrace.query.definition import decode_exact


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        return decode_exact(self.content)


class Caller:
    """Connections to a server, one for every thread that asks."""

    def __init__(self, url: str) -> None:
        self._place = urlsplit(url).netloc
        self._mine = threading.local()
        self._opened: list[http.client.HTTPConnection] = []

    @property
    def _connection(self) -> http.client.HTTPConnection:
        known: http.client.HTTPConnection | None = getattr(self._mine, "connection", None)
        if known is None:
            known = self._mine.connection = http.client.HTTPConnection(self._place, timeout=60)
            self._opened.append(known)
        return known

    def close(self) -> None:
        """Hang up."""
        for connection in self._opened:
            connection.close()

    def ask(self, method: str, path: str, body: Any = None, headers: Any = None, **query: str) -> Answer:
        """Ask, whatever the answer is."""
        target = f"/v1/stream/{path}" + (f"?{urlencode(query, quote_via=quote)}" if query else "")
        content = None if body is None else msgspec.json.encode(body)
        connection = self._connection
        connection.request(method, target, content, {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read())

    def done(self, method: str, path: str, body: Any = None, headers: Any = None, **query: str) -> Answer:
        """Ask for what must succeed."""
        answer = self.ask(method, path, body, headers, **query)
        assert answer.status < 300, (method, path, query, answer.status, answer.content)
        return answer

    def entries(self, path: str, **query: str) -> list[Any]:
        """Everything that a read finds, page by page; ends where an event has no form in the version asked for."""
        found: list[Any] = []
        while True:
            answer = self.ask("GET", path, **query)
            if answer.status == 409:
                return found
            assert answer.status == 200, (path, query, answer.status, answer.content)
            found += answer.json()
            if answer.headers.get("stream-up-to-date"):
                return found
            query["offset"] = answer.headers["stream-next-offset"]
