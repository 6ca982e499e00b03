"""One request, however its bytes arrived: its head, where it goes, and who sent it.

The hot connection and the ASGI side both make a :class:`Request` with an :class:`~.exchange.Exchange`; everything
between them is written once.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.engine.log.append import Terms
from headrace.server.http.auth import LOCAL, Principal
from headrace.server.http.exchange import Exchange
from headrace.server.http.target import PREFIX, Target
from headrace.types import media_type


class ResolvedRoute(msgspec.Struct, frozen=True, gc=False):
    """Who asks what of which stream, as of one generation of the keys."""

    verb: Callable[[Request], None]
    target: Target
    query: dict[str, str]
    principal: Principal
    generation: int
    #: Whether it is of a stream that is there already, if it is of any.
    follows: bool = False

    def to(self, url: bytes) -> ResolvedRoute | None:
        """The same for another plain address; None where that takes a closer look."""
        name = url[len(PREFIX) :]
        if self.principal is not LOCAL or self.target.resource or b"/" in name:
            return None
        target = Target(name.decode(), "", None)
        return ResolvedRoute(self.verb, target, self.query, self.principal, self.generation, self.follows)


class RequestHead:
    """What the parser found in a head, and what was worked out from it; shared by every request that repeats it."""

    __slots__ = (
        "body_bytes", "chunked", "fields", "headers", "keep_alive", "lines", "media_type", "method", "path", "query",
        "route", "spelled", "terms", "url",
    )  # fmt: skip

    def __init__(
        self,
        method: str,
        url: bytes,
        headers: list[tuple[bytes, bytes]],
        fields: dict[bytes, bytes],
        *,
        keep_alive: bool = True,
        chunked: bool = True,
        body_bytes: int = 0,
    ) -> None:
        self.method = method
        self.url = url
        self.path, _, self.query = url.partition(b"?")
        self.headers = headers
        self.fields = fields
        self.keep_alive = keep_alive
        self.chunked = chunked
        self.body_bytes = body_bytes
        #: The bytes that were learnt; empty where they were not.
        self.spelled = b""
        self.lines: str | None = None
        self.route: ResolvedRoute | None = None
        self.terms: Terms | None = None
        content_type = fields.get(b"content-type")
        self.media_type = None if content_type is None else media_type(content_type.decode("latin-1"))

    def at(self, url: bytes) -> RequestHead:
        """The same head with another address, which has no query."""
        head = RequestHead.__new__(RequestHead)
        head.method, head.url, head.path, head.query = self.method, url, url, b""
        head.headers, head.fields, head.media_type = self.headers, self.fields, self.media_type
        head.keep_alive, head.chunked, head.body_bytes = self.keep_alive, self.chunked, self.body_bytes
        head.spelled, head.lines, head.terms = b"", self.lines, self.terms
        head.route = None if self.route is None else self.route.to(url)
        return head


class Request(msgspec.Struct):
    """A request that was already authorized."""

    head: RequestHead
    route: ResolvedRoute
    body: bytes
    exchange: Exchange

    @property
    def target(self) -> Target:
        """The stream and its resource that the address names."""
        return self.route.target

    @property
    def query(self) -> dict[str, str]:
        """The query parameters."""
        return self.route.query

    @property
    def principal(self) -> Principal:
        """Who asks."""
        return self.route.principal

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The headers by name."""
        return self.head.fields
