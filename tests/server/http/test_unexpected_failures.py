"""Failures that nobody expected are answered as JSON with a code and the id of the request, which the log has too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.config import ServerConfig
from headrace.engine.log.log import Counters
from headrace.engine.log.tiers import NeedsFetch
from headrace.engine.runtime.gates import Gate, Shortage
from headrace.server.http.asgi import AsgiApplication, DispatcherApplication
from headrace.server.http.auth import Authenticator
from headrace.server.http.background import BackgroundRequests
from headrace.server.http.byte_budgets import BodyBudget
from headrace.server.http.dispatch import Dispatcher
from headrace.server.http.exchange import Reply
from headrace.server.http.request import RequestHead
from headrace.server.http.request_log import RequestLog
from headrace.storage.keys import KeyStore
from headrace.storage.page_checksums import Damage
from server.callers import Caller
from support.engine_rig import Rig

MINE = [(b"x-request-id", b"mine-7"), (b"host", b"localhost")]


def error_of(status: int, body: bytes) -> dict[str, Any]:
    assert status == 500
    error: dict[str, Any] = json.loads(body)["error"]
    assert error["code"] == "internal"
    return error


async def asked(application: Any, path: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    """The error that an ASGI application answers a POST with."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if sent:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "scheme": "http", "path": path, "raw_path": path.encode()}
    try:
        await application({**scope, "query_string": b"", "headers": headers}, receive, send)
    except ZeroDivisionError:
        pass  # Starlette raises it once more for its server
    start, body = sent
    assert dict(start["headers"])[b"content-type"].startswith(b"application/json")
    return error_of(start["status"], body["body"])


def bug(*_: Any) -> Any:
    raise ZeroDivisionError("a bug")


@pytest.fixture
def authenticator(tmp_path: Path) -> Authenticator:
    return Authenticator(ServerConfig(), KeyStore(tmp_path / "keys.db"))


def test_a_route_that_fails_is_answered_with_the_id_of_the_request(
    authenticator: Authenticator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: Request) -> Response:
        bug()
        raise AssertionError

    computing: Any = None
    bridge: Any = SimpleNamespace(arrivals=BodyBudget(1000, Shortage()))
    routes = [Route("/v1/bug", fail, methods=["POST"])]
    front = AsgiApplication(
        routes, bridge, authenticator, RequestLog(Counters()), Damage(tmp_path), computing, timeout_s=5
    )
    assert asyncio.run(asked(front, "/v1/bug", MINE))["request_id"] == "mine-7"
    made = asyncio.run(asked(front, "/v1/bug", MINE[1:]))["request_id"]
    logged = [record for record in caplog.records if record.exc_info]
    assert [record.getMessage() for record in logged] == ["request mine-7 failed", f"request {made} failed"]


def test_a_body_that_cannot_be_read_is_answered_with_the_id_of_the_request(
    authenticator: Authenticator, tmp_path: Path
) -> None:
    async def ask() -> dict[str, Any]:
        dispatcher: Any = SimpleNamespace(
            authenticator=authenticator, arrivals=BodyBudget(1000, Shortage()), damage=Damage(tmp_path)
        )
        bridge = DispatcherApplication(dispatcher, Gate(1), RequestLog(Counters()), 1000, timeout_s=5)
        return await asked(_Failing(bridge), "/v1/stream/s", MINE)

    assert asyncio.run(ask())["request_id"] == "mine-7"


class _Failing:
    """A bridge to a client whose body fails to arrive."""

    def __init__(self, bridge: DispatcherApplication) -> None:
        self._bridge = bridge

    async def __call__(self, scope: Any, _: Callable[[], Any], send: Any) -> None:
        failures = iter([ZeroDivisionError("a bug")])

        async def receive() -> Any:
            for failure in failures:
                raise failure
            await asyncio.Event().wait()

        await self._bridge(scope, receive, send)


def test_verbs_of_streams_that_fail_are_answered_with_the_id_of_the_request(
    authenticator: Authenticator, tmp_path: Path
) -> None:
    def cold(_: Any) -> None:
        raise NeedsFetch(bug)

    async def ask(verb: Callable[[Any], None], path: bytes) -> Reply:
        dispatcher = Dispatcher(authenticator, rig.engine, {("GET", "_details"): verb}, Gate(1))
        caller = Caller()
        head = RequestHead("GET", path, [(b"host", b"localhost")], {b"host": b"localhost"})
        dispatcher.handle(head, b"", caller)
        return await caller.answered

    async def in_background() -> Reply:
        async def fail() -> None:
            bug()

        caller = Caller()
        await BackgroundRequests(Damage(tmp_path)).begin(caller, fail())
        return await caller.answered

    with Rig(tmp_path / "log") as rig:
        replies = [rig.run(ask(verb, b"/v1/stream/s/_details")) for verb in (bug, cold)]
        replies.append(rig.run(in_background()))
    for reply in replies:
        assert error_of(reply.status, reply.body)["request_id"] == "caller"
