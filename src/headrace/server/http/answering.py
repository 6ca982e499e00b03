"""The way back on a hot connection: replies and chunks written straight to the transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from headrace.server.http.common_headers import STATUS_LINES, common_lines, render_head, request_id
from headrace.server.http.dispatch import Dispatcher
from headrace.server.http.exchange import JSON_TYPE, Headers, Reply
from headrace.server.http.head_cache import RequestHead
from headrace.server.http.request_log import RequestLog
from headrace.server.http.uvicorn_adapter import HotCycle, SharedState

_BODILESS = (204, 304)
_NO_CONTENT = STATUS_LINES[204]
_JSON = f"{STATUS_LINES[200]}content-type: {JSON_TYPE}\r\ncache-control: no-store\r\n"
_NO_HEAD = RequestHead("GET", b"", [], {})


class Answering:
    """The Exchange of the one hot request in flight."""

    dispatcher: Dispatcher
    request_log: RequestLog
    server_state: SharedState
    transport: asyncio.Transport

    def __init__(self) -> None:
        self.on_gone: Callable[[], None] | None = None
        self.on_drained: Callable[[], None] | None = None
        self.parked = self.gone_at_eof = False
        self._cycle = HotCycle()
        self._head = _NO_HEAD
        self._started_s = 0.0
        self._defaults: list[tuple[bytes, bytes]] = []
        self._default_lines = ""

    @property
    def request_id(self) -> str:
        """The caller's id of the request, or a new one."""
        return request_id(self._head.fields)

    def reply(self, reply: Reply) -> None:
        """Write a whole answer and be ready for the next request."""
        if self.transport.is_closing():
            return
        status, body = reply.status, reply.body
        if reply.refused is not None:
            self.request_log.refuse_admin(self._head.method, self._head.url, reply.refused, self._head.fields)
        is_head = self._head.method == "HEAD"
        bodiless = status in _BODILESS or (is_head and not body)
        head = self._lines(status, reply.headers, "" if bodiless else f"content-length: {len(body)}\r\n")
        if body and not is_head:
            self.transport.writelines([head, body])
        else:
            self.transport.write(head)
        self._answered(status)

    def appended(self, offset: str) -> None:
        """Answer a plain append."""
        transport = self.transport
        if not self._cycle.keep_alive:
            self.reply(Reply(204, {"stream-next-offset": offset}))
        elif not transport.is_closing():
            lines = self._head.lines or self._common()
            dated = self._dated()
            transport.write(f"{_NO_CONTENT}stream-next-offset: {offset}\r\n{lines}{dated}\r\n".encode())
            self._answered(204)

    def told(self, body: bytes, lines: str = "") -> None:
        """Answer with a short JSON document."""
        transport = self.transport
        if not transport.is_closing():
            common = self._head.lines or self._common()
            ends = "" if self._cycle.keep_alive else "connection: close\r\n"
            head = f"{_JSON}{lines}{common}{self._dated()}{ends}content-length: {len(body)}\r\n\r\n"
            transport.write(head.encode() if self._head.method == "HEAD" else head.encode() + body)
            self._answered(200)

    def open(self, headers: Headers) -> None:
        """Begin a chunked 200."""
        if self.transport.is_closing():
            return
        chunked = self._head.chunked
        if not chunked:
            self._cycle.keep_alive = False
        self.transport.write(self._lines(200, headers, "transfer-encoding: chunked\r\n" if chunked else ""))

    def write(self, chunk: bytes) -> None:
        """Send one chunk."""
        if not self.transport.is_closing():
            self.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._head.chunked else chunk)

    def finish(self) -> None:
        """End a chunked answer."""
        if not self.transport.is_closing():
            if self._head.chunked:
                self.transport.write(b"0\r\n\r\n")
            self._answered(200)

    def _lines(self, status: int, headers: Headers, extra: str) -> bytes:
        if not self._cycle.keep_alive:
            extra += "connection: close\r\n"
        return render_head(status, headers, (self._head.lines or self._common()) + self._dated() + extra)

    def _dated(self) -> str:
        """What uvicorn adds to each of its own answers: the date, which it renews every second."""
        defaults = self.server_state.default_headers
        if defaults is not self._defaults:
            self._defaults = defaults
            self._default_lines = "".join([f"{name.decode()}: {value.decode()}\r\n" for name, value in defaults])
        return self._default_lines

    def _common(self) -> str:
        head = self._head
        head.lines = common_lines(head.fields, self.dispatcher.door)
        return head.lines

    def _answered(self, status: int) -> None:
        working_s = 0.0 if self.parked else monotonic() - self._started_s
        self.request_log.note(self._head.method, self._head.url, status, working_s, self._head.fields)
        self.on_gone = self.on_drained = None
        cycle = self._cycle
        cycle.response_complete = True
        if cycle.keep_alive:
            self._next()
        else:
            self.transport.close()

    def _next(self) -> None:
        """Go on with what queued behind this answer."""
        raise NotImplementedError
