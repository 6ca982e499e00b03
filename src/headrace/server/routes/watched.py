"""Documents about a stream: answered only where the caller has another one, and the wait until that is so."""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta

from headrace.engine.assembly import Engine
from headrace.engine.log.stream import Head, Stream
from headrace.errors import BadRequest, HeadraceError
from headrace.server.http import parameters
from headrace.server.http.exchange import JSON_TYPE, Reply
from headrace.server.http.request import Request
from headrace.server.http.route import Answer, Header, in_header, in_query
from headrace.server.http.wire import Wait
from headrace.server.routes.reads import matches
from headrace.server.routes.stream_headers import NAME, NOT_THERE
from headrace.storage.derived import Stamp

WAIT_S = 3.0
#: Appends wake who waits at once; other changes are found by looking.
POLL_S = 0.25
_LIVE = {"": False, "false": False, "0": False, "true": True, "1": True, "long-poll": True}


def watching(kind: str, document: type[msgspec.Struct]) -> dict[str, Any]:
    """The parts that the routes of all watchable documents declare."""
    tag = Annotated[str, Meta(extra_json_schema={"pattern": f'^W/"{kind}:'})]
    headers = (Header("ETag", tag, "names what is told"),)
    return {
        "answers": {
            200: Answer("as it is now", document, headers),
            304: Answer("the caller has this, also at the end of the wait", headers=headers),
        },
        "fails": NOT_THERE,
        "parameters": (
            NAME,
            in_query("live", Literal["", "false", "0", "true", "1", "long-poll"], "wait for a change"),
            in_query("timeout", Wait, "longest wait; 3 s if left out"),
            in_query("timeout_ms", Wait, "the same"),
            in_header("If-None-Match", str, "ETag of what the caller has"),
        ),
        "is_hot": True,
    }


class RenderedDocument(NamedTuple):
    """A document as of one head and some companions."""

    head: Head
    stamp: Stamp
    tag: str
    body: bytes

    def reply_to(self, request: Request) -> Reply:
        """The document, or 304 where the caller has it."""
        headers = {"cache-control": "no-store", "etag": self.tag}
        if matches(request.headers.get(b"if-none-match"), self.tag):
            return Reply(304, headers)
        return Reply(200, {"content-type": JSON_TYPE, **headers}, self.body)


class WatchableDocument(ABC):
    """Answers requests for one kind of document about a stream."""

    kind: ClassVar[str]

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._rendered: dict[Stream, RenderedDocument] = {}
        self._waiting: dict[DocumentWait, None] = {}
        self._is_scheduled = False
        self._newest = 0

    @abstractmethod
    def describe(self, stream: Stream) -> msgspec.Struct:
        """The document as it is now, which the ETag is computed from."""

    def completed(self, document: msgspec.Struct) -> msgspec.Struct:
        """The document with what is no part of the tag."""
        return document

    def answer(self, request: Request) -> None:
        """Answer at once, or with ``live`` when the caller's tag no longer fits."""
        stream = self.engine.log.find(request.target.name)
        request.principal.require("read", stream.name)
        live = _LIVE.get(request.query.get("live", ""))
        if live is None:
            raise BadRequest(f"live: {request.query['live']!r} is none of false, true, long-poll", field="live")
        wait_s = parameters.wait_s(request.query, WAIT_S, self.engine.config.server.max_long_poll_s)
        document = self.render(stream)
        reply = document.reply_to(request)
        if live and reply.status == 304:
            DocumentWait(self, stream, request, document).start(wait_s)
        else:
            request.exchange.reply(reply)

    def park(self, wait: DocumentWait) -> None:
        """Add a wait."""
        self._waiting[wait] = None
        if not self._is_scheduled:
            self._newest = -1  # a companion may have come since the wait began
            self._wake_changed_later()

    def release(self, wait: DocumentWait) -> None:
        """Remove a wait."""
        self._waiting.pop(wait, None)

    def _wake_changed(self) -> None:
        indexed = self._indexed()
        moved = [wait for wait in self._waiting if wait.stream.head is not wait.seen or wait in indexed]
        for wait in moved:
            wait.wake()
        self._wake_changed_later()

    def _indexed(self) -> set[DocumentWait]:
        """Waits whose streams have other companions now."""
        newest, indexes = self.engine.indexes.newest(), self.engine.indexes
        if newest == self._newest:
            return set()
        self._newest = newest
        stamps = {stream: indexes.stamp(stream) for stream in {wait.stream for wait in self._waiting}}
        return {wait for wait in self._waiting if stamps[wait.stream] != wait.stamp}

    def _wake_changed_later(self) -> None:
        self._is_scheduled = bool(self._waiting)
        if self._waiting:
            asyncio.get_running_loop().call_later(POLL_S, self._wake_changed)

    def render(self, stream: Stream) -> RenderedDocument:
        """The document as it is now; rendered once for all requests of one turn of the event loop."""
        rendered_before = self._rendered.get(stream)
        if rendered_before is not None and rendered_before.head is stream.head:
            return rendered_before
        if not self._rendered:
            asyncio.get_running_loop().call_soon(self._rendered.clear)
        head, stamp = stream.head, self.engine.indexes.stamp(stream)
        document = self.describe(stream)
        digest = hashlib.sha1(msgspec.json.encode(document), usedforsecurity=False).hexdigest()
        body = msgspec.json.encode(self.completed(document))
        rendered = RenderedDocument(head, stamp, f'W/"{self.kind}:{digest}"', body)
        self._rendered[stream] = rendered
        return rendered


class DocumentWait:
    """One GET that waits until a document differs from the one the caller has."""

    def __init__(self, watched: WatchableDocument, stream: Stream, request: Request, seen: RenderedDocument) -> None:
        self.stream = stream
        self.seen, self.stamp = seen.head, seen.stamp
        self._watched = watched
        self._request = request
        self._key_status = request.principal.key_status
        self._timer: asyncio.TimerHandle | None = None

    def start(self, wait_s: float) -> None:
        """Wait, unless too many do."""
        self._watched.engine.tail.watch(self.stream, self)
        self._watched.park(self)
        self._key_status.watch(self)
        self._request.exchange.parked = True
        self._request.exchange.on_gone = self._leave
        self._timer = asyncio.get_running_loop().call_later(wait_s, self.end)

    def wake(self) -> None:
        """The stream or its indexes moved, what is shown of them may not have; or the key does not hold any more."""
        reply = self._reply()
        if reply.status != 304:
            self._finish(reply)

    def end(self) -> None:
        """The time ran out, or the server stops."""
        self._finish(self._reply())

    def _reply(self) -> Reply:
        engine = self._watched.engine
        try:
            self._key_status.require()
            rendered = self._watched.render(engine.log.find(self._request.target.name))
        except HeadraceError as refusal:
            return Reply.failure(refusal)
        self.seen, self.stamp = rendered.head, rendered.stamp
        return rendered.reply_to(self._request)

    def _finish(self, reply: Reply) -> None:
        self._leave()
        self._request.exchange.reply(reply)

    def _leave(self) -> None:
        self._watched.engine.tail.leave(self.stream, self)
        self._watched.release(self)
        self._key_status.unwatch(self)
        self._request.exchange.on_gone = None
        if self._timer is not None:
            self._timer.cancel()
