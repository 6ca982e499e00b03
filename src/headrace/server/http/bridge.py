"""The ASGI side of the stream resource: long bodies, encodings, pipelined requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from time import monotonic

from starlette.types import Message, Receive, Scope, Send

from headrace.engine.runtime.gates import Gate
from headrace.errors import BadRequest, HeadraceError, TimedOut, TooLarge
from headrace.server.http import compression
from headrace.server.http.auth import Principal
from headrace.server.http.byte_budgets import BodyReceiver
from headrace.server.http.common_headers import common_headers, request_id
from headrace.server.http.dispatch import Dispatcher
from headrace.server.http.exchange import JSON_HEADERS, Headers, Reply
from headrace.server.http.failures import unexpected_failure
from headrace.server.http.head_cache import RequestHead
from headrace.server.http.request_log import RequestLog

_WAITING_CHUNKS = 4


class DispatcherApplication:
    """An ASGI application that hands stream requests to the dispatcher."""

    def __init__(
        self, dispatcher: Dispatcher, gate: Gate, request_log: RequestLog, body_bytes: int, *, timeout_s: float
    ) -> None:
        self._dispatcher = dispatcher
        self.arrivals = dispatcher.arrivals
        self._gate = gate
        self._request_log = request_log
        self._body_bytes = body_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the whole body, dispatch, and send what comes back."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        common = common_headers(headers, self._dispatcher.authenticator)
        exchange = scope["headrace.exchange"] = AsgiExchange(scope, common)
        started, intake = monotonic(), BodyReceiver(self.arrivals, receive)
        try:
            principal = self._dispatcher.authenticator.admit(headers)  # before the body is read
            if principal.quota is not None:
                principal.quota.require()
            body = await self._read_body(headers, intake.receive)
            until = monotonic() + self._timeout_s
            body = await self._decode(body, headers.get(b"content-encoding", b""), until)
        except HeadraceError as refusal:
            exchange.reply(Reply.failure(refusal))
        except _ClientGoneError:
            return
        except Exception as reason:
            exchange.reply(Reply.failure(unexpected_failure(self._dispatcher.damage, reason, exchange.request_id)))
        else:
            query = scope["query_string"]
            url = scope["raw_path"] + b"?" + query if query else scope["raw_path"]
            self._dispatcher.handle(RequestHead(scope["method"], url, scope["headers"], headers), body, exchange, until)
        finally:
            intake.let_go()
        status = await exchange.run(receive, send)
        worked_s = exchange.working_s(started + intake.waited_s)
        if exchange.refused is not None:
            self._request_log.refuse_admin(scope["method"], scope["raw_path"], exchange.refused, headers)
        self._request_log.note(scope["method"], scope["raw_path"], status, worked_s, headers)

    async def _read_body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        announced, coding = headers.get(b"content-length", b"0"), headers.get(b"transfer-encoding", b"chunked")
        if announced.isdigit() and int(announced) > self._body_bytes:
            raise TooLarge(f"the body exceeds {self._body_bytes} bytes", limit=self._body_bytes)
        if coding.strip().lower() != b"chunked":
            raise BadRequest("the only transfer coding spoken here is chunked", field="Transfer-Encoding")
        body = bytearray()
        async for chunk in _chunks(receive):
            body += chunk
            if len(body) > self._body_bytes:
                raise TooLarge(f"the body exceeds {self._body_bytes} bytes", limit=self._body_bytes)
        return bytes(body)

    async def _decode(self, body: bytes, encodings: bytes, until: float) -> bytes:
        names = [name.strip() for name in encodings.decode("latin-1").lower().split(",") if name.strip()]
        if len(names) > 2:
            raise BadRequest("the body is encoded more than twice", field="Content-Encoding")
        try:
            async with asyncio.timeout(until - monotonic()):
                for name in reversed(names):
                    async with self._gate:
                        body = await asyncio.to_thread(compression.decompress, body, name, self._body_bytes, until)
        except TimeoutError:
            raise TimedOut("request timed out") from None
        return body


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGoneError
        yield message.get("body", b"")
        more = message.get("more_body", False)


class _ClientGoneError(Exception):
    """The client hung up before its body was whole."""


class AsgiExchange:
    """An Exchange whose answer is sent by an ASGI task."""

    def __init__(self, scope: Scope, common: tuple[tuple[str, str], ...]) -> None:
        self.scheme: str = scope["scheme"]
        self.parked = self.gone_at_eof = False
        self.on_gone: Callable[[], None] | None = None
        self.on_drained: Callable[[], None] | None = None
        self._answered_s = 0.0
        self._is_head = scope["method"] == "HEAD"
        self._common = common
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._messages: deque[Message] = deque()
        self._moved = asyncio.Event()
        self._gone = False
        #: Who was refused as no admin, if anybody was.
        self.refused: Principal | None = None

    @property
    def request_id(self) -> str:
        """The caller's id of the request, or a new one."""
        return request_id(self._headers)

    @property
    def writable(self) -> bool:
        """Whether the client takes what was written."""
        return not self._gone and len(self._messages) < _WAITING_CHUNKS

    def reply(self, reply: Reply) -> None:
        """Answer, whole."""
        headers = reply.headers
        self.refused = reply.refused
        if reply.status not in (204, 304) and not (self._is_head and not reply.body):
            headers = {**headers, "content-length": str(len(reply.body))}
        self._start(reply.status, headers)
        self._put({"type": "http.response.body", "body": reply.body, "more_body": False})

    def reply_appended(self, offset: str) -> None:
        """Answer a plain append."""
        self.reply(Reply(204, {"stream-next-offset": offset}))

    def reply_json(self, body: bytes, headers: Headers | None = None) -> None:
        """Answer with a short JSON document."""
        self.reply(Reply(200, {**JSON_HEADERS, **(headers or {})}, body))

    def open(self, headers: Headers) -> None:
        """Begin a 200 in chunks."""
        self._start(200, headers)

    def write(self, chunk: bytes) -> None:
        """Queue a chunk."""
        self._put({"type": "http.response.body", "body": chunk, "more_body": True})

    def finish(self) -> None:
        """End the chunks."""
        self._put({"type": "http.response.body", "body": b"", "more_body": False})

    def working_s(self, started_s: float) -> float:
        """Time spent on the answer; a parked reader's wait is its own business."""
        return 0.0 if self.parked else self._answered_s - started_s

    async def run(self, receive: Receive, send: Send) -> int:
        """Send what is written until the answer is whole or the client is gone; answers the status."""
        watch = asyncio.create_task(self._watch(receive))
        status: int = 499
        try:
            while not self._gone:
                await self._moved.wait()
                self._moved.clear()
                while self._messages:
                    message = self._messages.popleft()
                    status = message.get("status", status)
                    await send(message)
                    if message["type"] == "http.response.body" and not message["more_body"]:
                        return status
                    if self.on_drained is not None and len(self._messages) < _WAITING_CHUNKS:
                        self.on_drained()
            return status
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
            self._leave()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._leave()
        self._moved.set()

    def _leave(self) -> None:
        if self.on_gone is not None:
            self.on_gone()
        self.on_gone = self.on_drained = None

    def _start(self, status: int, headers: Headers) -> None:
        self._answered_s = monotonic()
        pairs = [*headers.items(), *self._common]
        raw = [(name.encode(), value.encode()) for name, value in pairs]
        self._put({"type": "http.response.start", "status": status, "headers": raw})

    def _put(self, message: Message) -> None:
        self._messages.append(message)
        self._moved.set()
