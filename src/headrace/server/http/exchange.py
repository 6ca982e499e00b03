"""The way back to a caller: the answer to one request, whether a hot connection sends it or ASGI does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from headrace.errors import HeadraceError
from headrace.server.http.auth import AdminRefused, Principal
from headrace.storage.page_checksums import Damage

log = logging.getLogger("headrace.server")

Headers = dict[str, str]

JSON_TYPE = "application/json; charset=utf-8"
#: The headers of every JSON answer: its type, and that it is never cached.
JSON_HEADERS: Headers = {"content-type": JSON_TYPE, "cache-control": "no-store"}


class Reply:
    """A whole answer."""

    __slots__ = ("body", "headers", "refused", "status")

    def __init__(self, status: int, headers: Headers | None = None, body: bytes = b"") -> None:
        self.status = status
        self.headers = headers if headers is not None else {}
        self.body = body
        #: Who is no admin, where the answer refuses what takes one.
        self.refused: Principal | None = None

    @classmethod
    def json(cls, status: int, content: object, headers: Headers | None = None) -> Reply:
        """A JSON answer, never cached."""
        return cls(status, {**JSON_HEADERS, **(headers or {})}, msgspec.json.encode(content))

    @classmethod
    def failure(cls, error: HeadraceError) -> Reply:
        """The answer for an error, whose traceback is dropped with all that its frames hold."""
        # The frames of a traceback hold the body, and often the error itself: the collector comes too rarely for that.
        error.__traceback__ = error.__cause__ = error.__context__ = None
        reply = cls.json(error.status, error.body(), error.headers())
        reply.refused = error.principal if isinstance(error, AdminRefused) else None
        return reply


class Exchange(Protocol):
    """The way back to the caller: one whole reply, or an opened stream of chunks."""

    #: Set by readers that wait at the tail: their time is not working time, and their goodbye is final.
    parked: bool
    #: Whether a client that sends no more is gone: nothing more is worked out for it.
    gone_at_eof: bool
    on_gone: Callable[[], None] | None
    on_drained: Callable[[], None] | None

    @property
    def scheme(self) -> str | None:
        """http or https."""

    @property
    def request_id(self) -> str:
        """The caller's id of the request, or a new one."""

    @property
    def writable(self) -> bool:
        """Whether the caller takes what was written, or lets it pile up."""

    def reply(self, reply: Reply) -> None:
        """Answer, whole."""

    def reply_appended(self, offset: str) -> None:
        """Answer a plain append, the most frequent reply of all: 204 and the new tail."""

    def reply_json(self, body: bytes, headers: Headers | None = None) -> None:
        """Answer 200 with a short JSON document, which is not cached; ``headers`` are further ones."""

    def open(self, headers: Headers) -> None:
        """Begin a 200 whose body is written in chunks."""

    def write(self, chunk: bytes) -> None:
        """Send a chunk."""

    def finish(self) -> None:
        """End the chunks."""


def unexpected_failure(damage: Damage, reason: Exception, request_id: str) -> HeadraceError:
    """Log a failure with its traceback, and give the error that tells the caller where to look for it."""
    log.error("request %s failed", request_id, exc_info=reason)
    error = damage.note(reason) or HeadraceError("the server failed; its log has the details under this request_id")
    error.facts["request_id"] = request_id
    return error
