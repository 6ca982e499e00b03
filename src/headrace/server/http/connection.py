"""The hot path: a connection that answers stream requests itself, without a task or an ASGI call.

It is uvicorn's own protocol with one turn-off. A request for a stream that is whole and small, on a connection
with nothing else in flight, is handed to the dispatcher from the parser's callback, and the reply is written
straight to the transport. Everything else goes to ASGI and meets the same dispatcher behind ASGI.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

from headrace.errors import BadRequest, HeadersTooLarge, HeadraceError, TimedOut, Unavailable, UriTooLong
from headrace.server.http.byte_budgets import UnsentAnswers
from headrace.server.http.common_headers import (
    SECURITY_LINES,
    STATUS_LINES,
    ServerLines,
    common_lines,
    header_lines,
    render_head,
    request_id,
)
from headrace.server.http.dispatch import Dispatcher
from headrace.server.http.exchange import JSON_HEADERS, Headers, Reply
from headrace.server.http.head_cache import RequestHeadCache
from headrace.server.http.request import RequestHead
from headrace.server.http.request_log import RequestLog
from headrace.server.http.target import is_hot
from headrace.server.http.uvicorn_adapter import CallbackFailed, HotCycle, HttpProtocol, ParserFailed, UpgradeOffered

HOT_BODY_BYTES = 256 * 1024
#: What a header line has besides its name and its value.
_LINE_BYTES = len(": \r\n")
#: An address with a scheme and a host, which clients send to proxies.
_ABSOLUTE = re.compile(rb"[a-zA-Z][a-zA-Z0-9+.-]*://([^/?#]*)")
_UPGRADE = (b"upgrade", b"connection", b"http2-settings")
_BODILESS = (204, 304)
_NO_CONTENT = STATUS_LINES[204]
_JSON = STATUS_LINES[200] + header_lines(JSON_HEADERS.items())
_NO_HEAD = RequestHead("GET", b"", [], {})
_METHODS = {b"GET": "GET", b"POST": "POST", b"HEAD": "HEAD", b"PUT": "PUT", b"DELETE": "DELETE"}


class Connection(HttpProtocol):
    """One client connection; it is the Exchange of the hot request in flight."""

    dispatcher: Dispatcher
    request_log: RequestLog
    server_lines: ServerLines
    head_cache: RequestHeadCache
    header_bytes: int
    url_bytes: int
    hot_body_bytes: int
    max_connections: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.arriving_since_s = 0.0
        self.last_data_s = monotonic()
        self._unsent = UnsentAnswers(self.dispatcher.unsent)
        self._half_closed = False
        self._stopping = False
        self._refusal_answer = b""
        # Bytes since the parser last found a head, a part of a body or an end; those right after it are not counted.
        self._unparsed_bytes = 0
        # The request that is arriving:
        self._is_hot_request = False
        self._is_asgi_request = False
        self._in_headers = False
        self._oversized = False
        self._trailer_size = 0
        self._complete_request = b""
        self._arriving_method = "GET"
        self._arriving_fields: dict[bytes, bytes] = {}
        self._body = b""
        # The hot request that is being answered, of which this is the Exchange:
        self.on_gone: Callable[[], None] | None = None
        self.on_drained: Callable[[], None] | None = None
        self.parked = self.gone_at_eof = False
        self._cycle = HotCycle()
        self._head = _NO_HEAD
        self._started_s = 0.0

    # -- connecting and closing

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.write(self._refusal(Unavailable("too many connections", retry_after=1)))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up, while others are served where many hang up at once."""
        self.dispatcher.slices.run_or_queue(partial(self._clean_up, exc))

    def _clean_up(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unsent.resume()
        self._release_body()
        if self.on_gone is not None:
            self.on_gone()
        self.on_gone = self.on_drained = None

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection for an answer on its way, unless its request waits for a client that is gone."""
        self._half_closed = True
        self._abandon_arriving_request()
        return not self.is_free() and not self._is_client_gone_at_eof()

    def shutdown(self) -> None:
        """Hang up, once a request that is in flight or arriving is answered."""
        self._stopping = True
        if self.running is not None and not self.running.response_complete:
            self.running.keep_alive = False
        elif not self.arriving_since_s or self._is_answered_before_complete():
            self.transport.close()

    def is_idle(self) -> bool:
        """Whether no request is in flight or arriving."""
        return not self.arriving_since_s and self.is_free()

    def _is_client_gone_at_eof(self) -> bool:
        if self.running is self._cycle:
            return self.parked or self.gone_at_eof
        exchange = self.asgi_scope().get("headrace.exchange")
        return bool(getattr(exchange, "parked", False) or getattr(exchange, "gone_at_eof", False))

    # -- how fast the client takes its answers

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent.pause(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unsent.resume()
        if self.on_drained is not None:
            self.on_drained()

    @property
    def writable(self) -> bool:
        """Whether the client takes what was written."""
        return not self.flow.write_paused

    def is_stalled(self, now_s: float, timeout_s: float) -> bool:
        """Whether the client has taken nothing for too long."""
        return self._unsent.is_stalled(now_s, timeout_s, self.transport.get_write_buffer_size)

    # -- what the parser finds

    def data_received(self, data: bytes) -> None:
        self.last_data_s = monotonic()
        if self.timeout_keep_alive_task is not None:
            self.stop_keep_alive_timer()
        if self._refusal_answer:
            return
        self._complete_request = b""
        running = self.running
        if not self.arriving_since_s and (running is None or running.response_complete):
            head = self._head  # most requests repeat the last one
            size = len(head.spelled)
            if size and len(data) == size + head.body_bytes and data.startswith(head.spelled):
                self._answer(head, data[size:])
                return
            repeated = self.head_cache.find(data)
            if repeated is not None:
                self._answer(*repeated)
                return
            self._complete_request = data
        self._oversized = self._in_headers or len(data) > self.header_bytes
        self._unparsed_bytes += len(data)
        self._parse(data)
        if self._unparsed_bytes > self.header_bytes + (self.url_bytes if self._in_headers else 0):
            self._refuse(self._headers_too_large())

    def _parse(self, data: bytes, *, ignores_upgrade: bool = False) -> None:
        try:
            self.parser.feed_data(data)
        except UpgradeOffered as offer:
            if ignores_upgrade:
                self._refuse(BadRequest("this server does not upgrade connections", field="Upgrade"))
            else:
                self._parse(self._without_upgrade(data[offer.args[0] :]), ignores_upgrade=True)
        except CallbackFailed as wrapped:
            self._refuse(_cause(wrapped))
        except ParserFailed as reason:
            self._refuse(BadRequest(f"this is not HTTP: {reason}", field="request"))

    def _without_upgrade(self, rest: bytes) -> bytes:
        """The request without its upgrade headers, with which the parser would not read its body."""
        headers = [b"%b: %b\r\n" % pair for pair in self.headers if pair[0] not in _UPGRADE]
        first = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        self.renew_parser()
        return b"".join([first, *headers, b"\r\n", rest])

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self.arriving_since_s = self.last_data_s
        self._is_hot_request = False
        self._in_headers = True
        self._unparsed_bytes = 0
        self._body = b""

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > self.url_bytes:
            raise UriTooLong(f"the address exceeds {self.url_bytes} bytes", limit=self.url_bytes)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:
            super().on_header(name, value.rstrip(b" \t"))  # the parser leaves the blanks after a value
        else:
            self._skip_trailer(len(name) + len(value) + _LINE_BYTES)

    def _skip_trailer(self, size: int) -> None:
        self._trailer_size += size
        if self._trailer_size > self.header_bytes:
            raise self._headers_too_large()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._unparsed_bytes = self._trailer_size = 0
        if self._oversized and sum(len(k) + len(v) + _LINE_BYTES for k, v in self.headers) > self.header_bytes:
            raise self._headers_too_large()
        if self.parser.should_upgrade():
            return
        fields = dict(self.headers)
        if b"host" not in fields and self.parser.get_http_version() != "1.0":
            raise BadRequest("a request of HTTP/1.1 says in Host whom it asks", field="Host")
        if not self.url.startswith(b"/"):
            self._use_host_of_url()
        if self._is_hot(fields):
            self._is_hot_request = True
            self._arriving_fields = fields
        else:
            self._give_to_asgi()

    def _use_host_of_url(self) -> None:
        """Use the host of an absolute URL instead of the header."""
        absolute = _ABSOLUTE.match(self.url)
        if absolute is not None:
            names = [name for name, _ in self.headers]
            if b"host" not in names:
                self.headers.append((b"host", absolute[1]))
            self.headers[:] = [(name, absolute[1] if name == b"host" else value) for name, value in self.headers]

    def _is_hot(self, fields: dict[bytes, bytes]) -> bool:
        if not self.is_free():
            return False
        method = _METHODS.get(self.parser.get_method())
        if method is None or not is_hot(method, self.url):
            return False
        length = fields.get(b"content-length", b"0")
        if len(length) > 6 or int(length) > self.hot_body_bytes:
            return False
        if b"transfer-encoding" in fields or b"content-encoding" in fields or self.expect_100_continue:
            return False
        self._arriving_method = method
        return True

    def _give_to_asgi(self) -> None:
        self.start_asgi()
        self._is_asgi_request = True
        if self._stopping:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        if self._is_hot_request:
            self.dispatcher.arrivals.take(len(body))
            self._body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self.arriving_since_s = 0.0
        self._unparsed_bytes = 0
        self._is_asgi_request = False
        if not self._is_hot_request:
            super().on_message_complete()
            return
        body = self._release_body()
        head = RequestHead(
            self._arriving_method,
            self.url,
            self.headers,
            self._arriving_fields,
            keep_alive=self.parser.should_keep_alive() and not self._stopping,
            chunked=self.parser.get_http_version() != "1.0",
            body_bytes=len(body),
        )
        if self._complete_request:
            self.head_cache.learn(self._complete_request, head)
        self._answer(head, body)

    def _release_body(self) -> bytes:
        body, self._body = self._body, b""
        self.dispatcher.arrivals.give(len(body))
        return body

    def _answer(self, head: RequestHead, body: bytes) -> None:
        """Hand a hot request over; pipelined ones queue behind it until it is answered."""
        self._head = head
        self._started_s = self.last_data_s
        self.parked = self.gone_at_eof = False
        cycle = self._cycle
        cycle.response_complete = False
        cycle.keep_alive = head.keep_alive
        self.cycle = self.running = cycle
        self.dispatcher.handle(head, body, self)

    # -- the answer to the hot request

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
        head = self._head_bytes(status, reply.headers, "" if bodiless else f"content-length: {len(body)}\r\n")
        if body and not is_head:
            self.transport.writelines([head, body])
        else:
            self.transport.write(head)
        self._finish_answer(status)

    def reply_appended(self, offset: str) -> None:
        """Answer a plain append."""
        transport = self.transport
        if not self._cycle.keep_alive:
            self.reply(Reply(204, {"stream-next-offset": offset}))
        elif not transport.is_closing():
            lines = self._common_lines()
            transport.write(f"{_NO_CONTENT}stream-next-offset: {offset}\r\n{lines}\r\n".encode())
            self._finish_answer(204)

    def reply_json(self, body: bytes, headers: Headers | None = None) -> None:
        """Answer with a short JSON document."""
        transport = self.transport
        if not transport.is_closing():
            own = "" if headers is None else header_lines(headers.items())
            ends = "" if self._cycle.keep_alive else "connection: close\r\n"
            head = f"{_JSON}{own}{self._common_lines()}{ends}content-length: {len(body)}\r\n\r\n"
            transport.write(head.encode() if self._head.method == "HEAD" else head.encode() + body)
            self._finish_answer(200)

    def open(self, headers: Headers) -> None:
        """Begin a chunked 200."""
        if self.transport.is_closing():
            return
        chunked = self._head.chunked
        if not chunked:
            self._cycle.keep_alive = False
        self.transport.write(self._head_bytes(200, headers, "transfer-encoding: chunked\r\n" if chunked else ""))

    def write(self, chunk: bytes) -> None:
        """Send one chunk."""
        if not self.transport.is_closing():
            self.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._head.chunked else chunk)

    def finish(self) -> None:
        """End a chunked answer."""
        if not self.transport.is_closing():
            if self._head.chunked:
                self.transport.write(b"0\r\n\r\n")
            self._finish_answer(200)

    def _head_bytes(self, status: int, headers: Headers, extra: str) -> bytes:
        if not self._cycle.keep_alive:
            extra += "connection: close\r\n"
        return render_head(status, headers, self._common_lines() + extra)

    def _common_lines(self) -> str:
        """What every answer carries: the lines that the request calls for, and those of the server."""
        head = self._head
        if head.lines is None:
            head.lines = common_lines(head.fields, self.dispatcher.authenticator)
        return head.lines + self.server_lines.render(self.server_state.default_headers)

    def _finish_answer(self, status: int) -> None:
        working_s = 0.0 if self.parked else monotonic() - self._started_s
        self.request_log.note(self._head.method, self._head.url, status, working_s, self._head.fields)
        self.on_gone = self.on_drained = None
        cycle = self._cycle
        cycle.response_complete = True
        if cycle.keep_alive:
            self._start_next_request()
        else:
            self.transport.close()

    # -- what comes after an answer

    def _start_next_request(self) -> None:
        if self.pipeline or self.flow.read_paused or self._refusal_answer or self._half_closed:
            self.on_response_complete()

    def on_response_complete(self) -> None:
        if self.pipeline or not (self._refusal_answer or self._half_closed):
            super().on_response_complete()
        elif not self.transport.is_closing():
            self.transport.write(self._refusal_answer)
            self.transport.close()

    def time_out_request(self) -> None:
        """Refuse the arriving request, which took too long, and close the connection."""
        self._refuse(TimedOut("the request did not arrive in time"))

    def _refuse(self, error: HeadraceError) -> None:
        """Refuse the arriving request and close the connection, once the requests before it are answered."""
        if self._refusal_answer or self.transport.is_closing():
            return
        if self._is_answered_before_complete():
            self.transport.close()
            return
        self._refusal_answer = self._refusal(error)
        self._abandon_arriving_request()
        if self.is_free():
            self.transport.write(self._refusal_answer)
            self.transport.close()

    def _is_answered_before_complete(self) -> bool:
        """Whether the request that is arriving has its answer already."""
        return self._is_asgi_request and self.is_newest_answered()

    def _abandon_arriving_request(self) -> None:
        """Stop waiting for the rest of a request."""
        self._release_body()
        if self._is_asgi_request:
            self.abandon_newest()

    def _refusal(self, error: HeadraceError) -> bytes:
        reply = Reply.failure(error)
        headers = {**reply.headers, "connection": "close", "content-length": str(len(reply.body))}
        lines = SECURITY_LINES + self.server_lines.render(self.server_state.default_headers)
        return render_head(reply.status, headers, lines) + reply.body

    def _headers_too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(f"the headers exceed {self.header_bytes} bytes", limit=self.header_bytes)


def _cause(wrapped: BaseException) -> HeadraceError:
    cause = wrapped.__context__ or wrapped.__cause__
    return cause if isinstance(cause, HeadraceError) else BadRequest("this is not HTTP", field="request")
