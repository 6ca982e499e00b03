"""The route table, readable top to bottom, and what every Starlette route has in common."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from time import monotonic

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.engine.runtime.computing import Computing
from headrace.errors import HeadraceError, MethodNotAllowed, NotFound, TimedOut, Unauthorized
from headrace.server.http import target
from headrace.server.http.auth import AdminRefused, Authenticator, is_for_admins, is_open, is_page_navigation
from headrace.server.http.bridge import DispatcherApplication
from headrace.server.http.byte_budgets import BodyReceiver
from headrace.server.http.common_headers import common_headers, request_id
from headrace.server.http.dispatch import refuse_repeated
from headrace.server.http.failures import unexpected_failure
from headrace.server.http.json_responses import failure_response
from headrace.server.http.quota import Quota
from headrace.server.http.request_log import RequestLog
from headrace.storage.damage import Damage

#: Of a request whose failure was logged.
_TOLD = "headrace.failed"


class AsgiApplication:
    """The ASGI application: streams go to the bridge, everything else to Starlette."""

    def __init__(
        self,
        routes: Iterable[BaseRoute],
        bridge: DispatcherApplication,
        authenticator: Authenticator,
        request_log: RequestLog,
        damage: Damage,
        computing: Computing,
        *,
        timeout_s: float,
    ) -> None:
        self._damage, self._computing = damage, computing
        self._bridge = bridge
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
        intake = BodyReceiver(self._bridge.arrivals, receive)

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
            async with asyncio.timeout(self._timeout_s) as intake.deadline:
                await self._app(scope, intake.receive, send_secured)
        except HeadraceError as refusal:
            if isinstance(refusal, Unauthorized) and is_for_admins(scope["path"]):
                self._request_log.refuse_admin(scope["method"], scope["raw_path"], None, headers)
            await failure_response(refusal)(scope, receive, send_secured)
        except TimeoutError:
            if not status:
                await failure_response(TimedOut("request timed out"))(scope, receive, send_secured)
        except Exception as reason:
            if not status:
                await failure_response(self._unexpected(scope, reason))(scope, receive, send_secured)
            elif not scope.get(_TOLD):
                self._unexpected(scope, reason)  # it is too late for another answer, but not for the log
        finally:
            if quota is not None:
                quota.spend(intake.held)
            intake.let_go()
        worked_s = monotonic() - started - intake.waited_s
        self._request_log.note(scope["method"], scope["raw_path"], status, worked_s, headers)

    async def _failed(self, request: Request, reason: Exception) -> Response:
        return failure_response(self._unexpected(request.scope, reason))

    def _unexpected(self, scope: Scope, reason: Exception) -> HeadraceError:
        scope[_TOLD] = True  # Starlette raises once more what it has answered
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
        state["computing"] = self._computing
        if is_open(path):
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
    found: set[str] = {"OPTIONS"}
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods
    return ", ".join(sorted(found))
