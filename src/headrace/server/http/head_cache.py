"""Request heads that were parsed before.

A client that appends in a loop sends the same head again and again. The parser has judged those bytes once; the
memo spares it, and seven callbacks, every further time. One that appends to many streams repeats all but the address,
so what was found in the other lines serves every plain address of a stream.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from headrace.engine.log.append import Terms
from headrace.server.http.auth import LOCAL, Principal
from headrace.server.http.target import PREFIX, Target
from headrace.types import media_type

if TYPE_CHECKING:
    from headrace.server.http.exchange import Request

_HEADS = 4096
_HEAD_BYTES = 2048
#: Longer bodies may be nested so deep that it counts how many calls lie between them and their decoder.
_FLAT_BYTES = 1024
END = b"\r\n\r\n"
#: Up to the end of an address that any parser takes as it is: nothing in it is escaped, and no query follows.
_PLAIN = re.compile(rb"([A-Z]+ )(/v1/stream/[0-9A-Za-z][\w.~/-]*)(?= )")


class Route(msgspec.Struct, frozen=True, gc=False):
    """Who asks what of which stream, as of one generation of the keys."""

    verb: Callable[[Request], None]
    target: Target
    query: dict[str, str]
    principal: Principal
    generation: int
    #: Whether it is of a stream that is there already, if it is of any.
    follows: bool = False

    def to(self, url: bytes) -> Route | None:
        """The same for another plain address; None where that takes a closer look."""
        name = url[len(PREFIX) :]
        if self.principal is not LOCAL or self.target.resource or b"/" in name:
            return None
        target = Target(name.decode(), "", None)
        return Route(self.verb, target, self.query, self.principal, self.generation, self.follows)


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
        self.route: Route | None = None
        self.terms: Terms | None = None
        given = fields.get(b"content-type")
        self.media_type = None if given is None else media_type(given.decode("latin-1"))

    def at(self, url: bytes) -> RequestHead:
        """The same head with another address, which has no query."""
        head = RequestHead.__new__(RequestHead)
        head.method, head.url, head.path, head.query = self.method, url, url, b""
        head.headers, head.fields, head.media_type = self.headers, self.fields, self.media_type
        head.keep_alive, head.chunked, head.body_bytes = self.keep_alive, self.chunked, self.body_bytes
        head.spelled, head.lines, head.terms = b"", self.lines, self.terms
        head.route = None if self.route is None else self.route.to(url)
        return head


class RequestHeadCache:
    """A bounded memo from the bytes of a head to what they say."""

    def __init__(self) -> None:
        self._known: dict[bytes, RequestHead] = {}
        #: One head for each spelling of everything but a plain address, and the longest such that the parser took.
        self._elsewhere: dict[bytes, RequestHead] = {}
        self._longest = 0

    def find(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """The head and the body, where data is exactly one request whose head is known."""
        end = data.find(END) + 4
        spelled = data[:end]
        head = self._known.get(spelled) or self._find_elsewhere(spelled)
        if head is None or len(data) - end != head.body_bytes:
            return None
        return head, data[end:]

    def learn(self, data: bytes, head: RequestHead) -> None:
        """Remember the head of a request that arrived alone and whole."""
        end = data.find(END) + 4
        if end <= _HEAD_BYTES and len(data) - end == head.body_bytes:
            self._keep(data[:end], head)
            plain = _PLAIN.match(head.spelled)
            if plain is not None and head.body_bytes <= _FLAT_BYTES:
                if len(self._elsewhere) >= _HEADS:
                    self._elsewhere.clear()
                self._elsewhere[plain[1] + head.spelled[plain.end() :]] = head
                self._longest = max(self._longest, len(head.url))

    def _find_elsewhere(self, spelled: bytes) -> RequestHead | None:
        """The head that differs from a known one only in its address."""
        plain = _PLAIN.match(spelled)
        if plain is None or len(plain[2]) > self._longest:
            return None
        known = self._elsewhere.get(plain[1] + spelled[plain.end() :])
        return None if known is None else self._keep(spelled, known.at(plain[2]))

    def _keep(self, spelled: bytes, head: RequestHead) -> RequestHead:
        if len(self._known) >= _HEADS:
            self._known.clear()
        head.spelled = spelled
        self._known[spelled] = head
        return head
