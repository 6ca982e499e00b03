"""The ASGI side: Starlette routes, and hot requests with long bodies, encodings or pipelining."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from time import monotonic

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.engine.runtime.gates import ComputeThreads, Gate
from headrace.errors import BadRequest, HeadraceError, MethodNotAllowed, NotFound, TimedOut, TooLarge, Unauthorized
from headrace.server.http import compression, target
from headrace.server.http.auth import AdminRefused, Authenticator, Principal, is_page_navigation
from headrace.server.http.byte_budgets import BodyReceiver
from headrace.server.http.common_headers import common_headers, request_id
from headrace.server.http.dispatch import Dispatcher, refuse_repeated
from headrace.server.http.exchange import JSON_HEADERS, Headers, Reply, unexpected_failure
from headrace.server.http.quota import Quota
from headrace.server.http.request import RequestHead
from headrace.server.http.request_log import RequestLog
from headrace.server.http.route import Access
from headrace.server.http.starlette_json import failure_response
from headrace.storage.page_checksums import Damage

#: Of a request whose failure was logged.
_FAILURE_LOGGED = "headrace.failed"


class AsgiApplication:
    """The ASGI application: streams go to the bridge, everything else to Starlette."""

    def __init__(
        self,
        routes: Iterable[BaseRoute],
        bridge: DispatcherApplication,
        authenticator: Authenticator,
        request_log: RequestLog,
        damage: Damage,
        computing: ComputeThreads,
        *,
        timeout_s: float,
        access: Access | None = None,
    ) -> None:
        self._damage, self._computing = damage, computing
        self._bridge, self._access = bridge, access or Access(())
        self._authenticator = authenticator
        self._request_log = request_log
        self._timeout_s = timeout_s
        # Starlette would answer with a text, before this class learns of the failure.
        handlers = {HeadraceError: self._refused, HTTPException: _unrouted, Exception: self._failed}
        app = Starlette(routes=list(routes), exception_handlers=handlers)
        app.router.redirect_slashes = False
        self._app: ASGIApp = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        if scope["method"] == "OPTIONS":
            await self._preflight(scope, receive, send)
        elif target.is_hot(scope["method"], scope["raw_path"]):
            await self._bridge(scope, receive, send)
        else:
            await self._serve(scope, receive, send)

    async def _preflight(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        every = dict(self._authenticator.preflight(headers)) | dict(common_headers(headers, self._authenticator))
        await Response(status_code=204, headers=every)(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        common = [(k.encode(), v.encode()) for k, v in common_headers(headers, self._authenticator)]
        started, status, quota = monotonic(), 0, None
        receiver = BodyReceiver(self._bridge.arrivals, receive)

        async def send_secured(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *common]
            elif quota is not None:
                quota.spend(len(message.get("body", b"")))
            await send(message)

        try:
            quota = self._admit(scope, headers)
            async with asyncio.timeout(self._timeout_s) as receiver.deadline:
                await self._app(scope, receiver.receive, send_secured)
        except HeadraceError as refusal:
            if isinstance(refusal, Unauthorized) and self._access.is_for_admins(scope["path"]):
                self._request_log.refuse_admin(scope["method"], scope["raw_path"], None, headers)
            await failure_response(refusal)(scope, receive, send_secured)
        except TimeoutError:
            if not status:
                await failure_response(TimedOut("request timed out"))(scope, receive, send_secured)
        except Exception as reason:
            if not status:
                await failure_response(self._unexpected(scope, reason))(scope, receive, send_secured)
            elif not scope.get(_FAILURE_LOGGED):
                self._unexpected(scope, reason)  # it is too late for another answer, but not for the log
        finally:
            if quota is not None:
                quota.spend(receiver.held)
            receiver.release()
        worked_s = monotonic() - started - receiver.waited_s
        self._request_log.note(scope["method"], scope["raw_path"], status, worked_s, headers)

    async def _failed(self, request: Request, reason: Exception) -> Response:
        return failure_response(self._unexpected(request.scope, reason))

    def _unexpected(self, scope: Scope, reason: Exception) -> HeadraceError:
        scope[_FAILURE_LOGGED] = True  # Starlette raises once more what it has answered
        return unexpected_failure(self._damage, reason, request_id(dict(scope["headers"])))

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HeadraceError)
        if isinstance(error, AdminRefused):
            scope = request.scope
            self._request_log.refuse_admin(scope["method"], scope["raw_path"], error.principal, dict(scope["headers"]))
        return failure_response(error)

    def _admit(self, scope: Scope, headers: dict[bytes, bytes]) -> Quota | None:
        """Refuse callers who may not ask, and requests that could be read in two ways; answers the caller's quota."""
        path, quota, state = scope["path"], None, scope.setdefault("state", {})
        state["computing"], state["body_bytes"] = self._computing, self._bridge.body_bytes
        if self._access.is_open(path):
            self._authenticator.refuse_other_sites(headers)
        else:
            from_any_site = is_page_navigation(scope["method"], path, headers)
            principal = state["principal"] = self._authenticator.admit(headers, from_any_site=from_any_site)
            if (quota := principal.quota) is not None:
                quota.take()
        refuse_repeated(scope["headers"], headers)
        target.text(scope["raw_path"])  # Starlette would take what is not UTF-8 for something else
        return quota


async def _unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allow = _allowed(request)
        return failure_response(MethodNotAllowed(f"{request.method} is not among {allow}", allow=allow))
    return failure_response(NotFound("there is nothing at this address", path=request.url.path))


def _allowed(request: Request) -> str:
    """The verbs of every route at this address: some have one route per verb."""
    methods: set[str] = {"OPTIONS"}
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods
    return ", ".join(sorted(methods))


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
        self.body_bytes = body_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the whole body, dispatch, and send what comes back."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        common = common_headers(headers, self._dispatcher.authenticator)
        exchange = scope["headrace.exchange"] = AsgiExchange(scope, common)
        started, receiver = monotonic(), BodyReceiver(self.arrivals, receive)
        try:
            principal = self._dispatcher.authenticator.admit(headers)  # before the body is read
            if principal.quota is not None:
                principal.quota.require()
            body = await self._read_body(headers, receiver.receive)
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
            receiver.release()
        status = await exchange.run(receive, send)
        worked_s = exchange.working_s(started + receiver.waited_s)
        if exchange.refused is not None:
            self._request_log.refuse_admin(scope["method"], scope["raw_path"], exchange.refused, headers)
        self._request_log.note(scope["method"], scope["raw_path"], status, worked_s, headers)

    async def _read_body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        announced, coding = headers.get(b"content-length", b"0"), headers.get(b"transfer-encoding", b"chunked")
        if announced.isdigit() and int(announced) > self.body_bytes:
            raise TooLarge(f"the body exceeds {self.body_bytes} bytes", limit=self.body_bytes)
        if coding.strip().lower() != b"chunked":
            raise BadRequest("the only transfer coding spoken here is chunked", field="Transfer-Encoding")
        body = bytearray()
        async for chunk in _chunks(receive):
            body += chunk
            if len(body) > self.body_bytes:
                raise TooLarge(f"the body exceeds {self.body_bytes} bytes", limit=self.body_bytes)
        return bytes(body)

    async def _decode(self, body: bytes, encodings: bytes, until: float) -> bytes:
        names = [name.strip() for name in encodings.decode("latin-1").lower().split(",") if name.strip()]
        if len(names) > 2:
            raise BadRequest("the body is encoded more than twice", field="Content-Encoding")
        try:
            async with asyncio.timeout(until - monotonic()):
                for name in reversed(names):
                    async with self._gate:
                        body = await asyncio.to_thread(compression.decompress, body, name, self.body_bytes, until)
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
