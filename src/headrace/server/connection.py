"""The hot path: a connection that answers stream requests itself, without a task or an ASGI call.

It is uvicorn's own protocol with one turn-off. A request for a stream that is whole and small, on a connection
with nothing else in flight, is handed to the dispatcher from the parser's callback, and the reply is written
straight to the transport. Everything else takes uvicorn's way and meets the same dispatcher behind ASGI.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.errors import BadRequest, HeadersTooLarge, HeadraceError, TimedOut, UriTooLong
from headrace.server.dispatch import Dispatcher
from headrace.server.exchange import Headers, Reply
from headrace.server.heads import Heads, RequestHead
from headrace.server.requestlog import RequestLog
from headrace.server.target import PREFIX
from headrace.server.wire import NOSNIFF_LINES, common_lines, render_head

HOT_BODY_BYTES = 256 * 1024
_RESERVED = PREFIX + b"__ds/"
_METHODS = {b"GET": "GET", b"POST": "POST", b"HEAD": "HEAD", b"PUT": "PUT", b"DELETE": "DELETE"}
_BODILESS = (204, 304)


class _HotCycle:
    """Stands where uvicorn keeps the running request, so that pipelined requests queue behind ours."""

    def __init__(self) -> None:
        self.response_complete = True
        self.disconnected = False
        self.keep_alive = True
        self.message_event = asyncio.Event()


class Connection(HttpToolsProtocol):
    """One client connection; it is the Exchange of the hot request in flight."""

    dispatcher: Dispatcher
    request_log: RequestLog
    heads: Heads
    header_bytes: int
    url_bytes: int
    max_connections: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_gone: Callable[[], None] | None = None
        self.on_drained: Callable[[], None] | None = None
        self.begun_s = 0.0
        self.seen_s = monotonic()
        self.stalled_s = 0.0
        self._unsent = 0
        self._hot = False
        self._hot_cycle = _HotCycle()
        self._in_headers = False
        self._header_size = 0
        self._alone = b""
        self._method = "GET"
        self._fields: dict[bytes, bytes] = {}
        self._body = b""
        self._started_s = 0.0
        self._chunked = True

    # -- the connection's life

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.write(_refusal(503, "unavailable", "too many connections", "retry-after: 1\r\n"))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._count_unsent(0)
        if self.on_gone is not None:
            self.on_gone()
        self.on_gone = self.on_drained = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stalled_s = monotonic()
        self._count_unsent(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stalled_s = 0.0
        self._count_unsent(0)
        if self.on_drained is not None:
            self.on_drained()

    def _count_unsent(self, size: int) -> None:
        self.dispatcher.unsent_bytes += size - self._unsent
        self._unsent = size

    def is_idle(self) -> bool:
        """Whether no request is in flight or arriving."""
        return not self.begun_s and (self.cycle is None or self.cycle.response_complete)

    def give_up(self) -> None:
        """The request did not arrive in time: say so and hang up."""
        self._refuse(TimedOut("the request did not arrive in time"))

    # -- what the parser finds

    def data_received(self, data: bytes) -> None:
        self.seen_s = monotonic()
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        if not self.begun_s and (self.cycle is None or self.cycle.response_complete):
            known = self.heads.find(data)
            if known is not None:
                self._answer(*known)
                return
            self._alone = data
        else:
            self._alone = b""
        if self._in_headers:
            self._header_size += len(data)
            if self._header_size > self.header_bytes + self.url_bytes:
                self._refuse(HeadersTooLarge(f"the headers exceed {self.header_bytes} bytes", limit=self.header_bytes))
                return
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(BadRequest("this server does not upgrade connections", field="Upgrade"))
        except httptools.HttpParserCallbackError as wrapped:
            self._refuse(_cause(wrapped))
        except httptools.HttpParserError as reason:
            self._refuse(BadRequest(f"this is not HTTP: {reason}", field="request"))

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self.begun_s = self.seen_s
        self._hot = False
        self._in_headers = True
        self._header_size = 0
        self._body = b""

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > self.url_bytes:
            raise UriTooLong(f"the address exceeds {self.url_bytes} bytes", limit=self.url_bytes)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        fields = self._fields = dict(self.headers)
        if self._header_size or len(self._alone) > self.header_bytes:
            self._measure_headers()
        if self._is_hot(fields):
            self._hot = True
        else:
            self._to_asgi()

    def _measure_headers(self) -> None:
        if sum(len(name) + len(value) for name, value in self.headers) > self.header_bytes:
            raise HeadersTooLarge(f"the headers exceed {self.header_bytes} bytes", limit=self.header_bytes)

    def _is_hot(self, fields: dict[bytes, bytes]) -> bool:
        if self.cycle is not None and not self.cycle.response_complete:
            return False
        method = _METHODS.get(self.parser.get_method())
        if method is None or not self.url.startswith(PREFIX) or self.url.startswith(_RESERVED):
            return False
        length = fields.get(b"content-length", b"0")
        if len(length) > 6 or int(length) > HOT_BODY_BYTES or self.parser.should_upgrade():
            return False
        if b"transfer-encoding" in fields or b"content-encoding" in fields or self.expect_100_continue:
            return False
        self._method = method
        return True

    def _to_asgi(self) -> None:
        """Take uvicorn's way: it wants the scope that its own on_message_begin makes."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._hot:
            self._body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self.begun_s = 0.0
        if not self._hot:
            super().on_message_complete()
            return
        body, self._body = self._body, b""
        path, _, query = self.url.partition(b"?")
        head = RequestHead(
            method=self._method,
            url=self.url,
            path=path,
            query=query,
            headers=self.headers,
            fields=self._fields,
            keep_alive=self.parser.should_keep_alive(),
            chunked=self.parser.get_http_version() != "1.0",
            body_bytes=len(body),
        )
        if self._alone:
            self.heads.learn(self._alone, head)
        self._answer(head, body)

    def _answer(self, head: RequestHead, body: bytes) -> None:
        """Hand a hot request over; pipelined ones queue behind it until it is answered."""
        method, self.url, path, query, headers, self._fields, keep_alive, self._chunked, _ = head
        self._method = method
        self._started_s = self.seen_s
        cycle = self._hot_cycle
        cycle.response_complete = False
        cycle.keep_alive = keep_alive
        self.cycle = cycle  # type: ignore[assignment]
        self.dispatcher.handle(method, path, query, headers, self._fields, body, self)

    # -- the way back

    @property
    def writable(self) -> bool:
        """Whether the client takes what was written."""
        return not self.flow.write_paused

    def reply(self, reply: Reply) -> None:
        """Write a whole answer and be ready for the next request."""
        if self.transport.is_closing():
            return
        status, body = reply.status, reply.body
        bodiless = status in _BODILESS or (self._method == "HEAD" and not body)
        extra = "" if bodiless else f"content-length: {len(body)}\r\n"
        head = self._head(status, reply.headers, extra)
        if body and self._method != "HEAD":
            self.transport.writelines([head, body])
        else:
            self.transport.write(head)
        self._answered(status)

    def open(self, headers: Headers) -> None:
        """Begin a chunked 200."""
        if self.transport.is_closing():
            return
        if not self._chunked:
            self._hot_cycle.keep_alive = False
        self.transport.write(self._head(200, headers, "transfer-encoding: chunked\r\n" if self._chunked else ""))

    def write(self, chunk: bytes) -> None:
        """Send one chunk."""
        if not self.transport.is_closing():
            self.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._chunked else chunk)

    def finish(self) -> None:
        """End a chunked answer."""
        if not self.transport.is_closing():
            if self._chunked:
                self.transport.write(b"0\r\n\r\n")
            self._answered(200)

    def _head(self, status: int, headers: Headers, extra: str) -> bytes:
        if not self._hot_cycle.keep_alive:
            extra += "connection: close\r\n"
        return render_head(status, headers, common_lines(self._method, self._fields, self.dispatcher.door) + extra)

    def _answered(self, status: int) -> None:
        self.request_log.note(self._method, self.url, status, self._working_s())
        self.on_gone = self.on_drained = None
        cycle = self._hot_cycle
        cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        elif self.pipeline or self.flow.read_paused:
            self.on_response_complete()

    def _working_s(self) -> float:
        """Time spent on the request; a parked reader's wait is its own business."""
        return 0.0 if self.on_gone is not None else monotonic() - self._started_s

    def _refuse(self, error: HeadraceError) -> None:
        """Answer a request that never became one, and hang up."""
        if not self.transport.is_closing():
            self.transport.write(_refusal(error.status, error.code, error.message))
            self.transport.close()


def _cause(wrapped: BaseException) -> HeadraceError:
    cause = wrapped.__context__ or wrapped.__cause__
    return cause if isinstance(cause, HeadraceError) else BadRequest("this is not HTTP", field="request")


def _refusal(status: int, code: str, message: str, extra: str = "") -> bytes:
    body = msgspec.json.encode({"error": {"code": code, "message": message}})
    headers = {"content-type": "application/json; charset=utf-8", "connection": "close"}
    return render_head(status, headers, f"{NOSNIFF_LINES}{extra}content-length: {len(body)}\r\n") + body
