"""Requests without a socket: a resource is asked on the event loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from headrace.engine.log.stream import Stream
from headrace.server.http.auth import LOCAL, Principal
from headrace.server.http.exchange import Headers, Reply
from headrace.server.http.request import Request, RequestHead, ResolvedRoute
from headrace.server.http.target import Target


class Resource(Protocol):
    """Whoever answers GET."""

    def get(self, request: Request) -> None: ...


class Caller:
    """Someone who asks without a socket, and keeps the answer."""

    def __init__(self, principal: Principal = LOCAL) -> None:
        self._principal = principal
        self.parked = self.gone_at_eof = False
        self.on_gone: Callable[[], None] | None = None
        self.on_drained: Callable[[], None] | None = None
        self.scheme, self.writable, self.request_id = "http", True, "caller"
        self.answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def reply(self, reply: Reply) -> None:
        self.answered.set_result(reply)

    def reply_appended(self, offset: str) -> None:
        raise NotImplementedError

    def reply_json(self, body: bytes, headers: Headers | None = None) -> None:
        raise NotImplementedError

    def open(self, headers: Headers) -> None:
        raise NotImplementedError

    def write(self, chunk: bytes) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    def ask(self, resource: Resource, stream: Stream, tag: str = "", **query: str) -> Caller:
        """Ask a resource for what it has to say about a stream."""
        head = RequestHead("GET", b"", [], {b"if-none-match": tag.encode()} if tag else {})
        return self.send(resource.get, stream, head, b"", **query)

    def send(
        self, verb: Callable[[Request], None], stream: Stream, head: RequestHead, body: bytes, **query: str
    ) -> Caller:
        """Send any request to a verb."""
        verb(Request(head, ResolvedRoute(verb, Target(stream.name, "", None), query, self._principal, 0), body, self))
        return self
