"""One event per request of a real ASGI application, on a real server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

import headrace as hr

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.fixture
def logs(client: hr.Client, name: str) -> hr.Stream:
    """A stream of logs."""
    stream = client.stream(name)
    stream.create()
    stream.set_profile("evlog")
    return stream


@pytest.fixture
def sender(logs: hr.Stream) -> Iterator[hr.LogSender]:
    with hr.LogSender(logs, service="shop") as sender:
        yield sender


def ask(app: Any, path: str, **headers: str) -> list[Any]:
    """The messages that an application answers a request with."""
    sent: list[Any] = []
    told = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "path": path,
        "raw_path": path.encode(), "query_string": b"token=secret", "root_path": "", "scheme": "http",
        "headers": told, "server": ("test", 80), "client": ("127.0.0.1", 1),
    }  # fmt: skip

    async def receive() -> Any:
        await asyncio.sleep(3600)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent


def stored(stream: hr.Stream, sender: hr.LogSender) -> list[dict[str, Any]]:
    assert sender.flush(20)
    return [event for batch in stream.read() for event in batch.items]


async def order(request: Request) -> Response:
    hr.add_log_fields(user="ada", cart={"password": "x"})
    logging.getLogger("shop").warning("nearly sold out")
    return PlainTextResponse("tea")


async def broken(request: Request) -> Response:
    raise RuntimeError("no kettle")


async def chunks(request: Request) -> Response:
    return StreamingResponse(iter([b"ab", b"cde"]), status_code=404)


ROUTES = [Route("/orders/{id}", order), Route("/broken", broken), Route("/chunks", chunks), Route("/health", chunks)]


def test_a_request_is_one_wide_event(logs: hr.Stream, sender: hr.LogSender) -> None:
    app = hr.RequestLogs(Starlette(routes=ROUTES), sender)
    logger, handler = logging.getLogger("shop"), hr.LogHandler(sender)
    logger.addHandler(handler)
    try:
        sent = ask(app, "/orders/7", x_request_id="r1", traceparent=PARENT, user_agent="tests")
    finally:
        logger.removeHandler(handler)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    line, event = stored(logs, sender)
    assert (event["method"], event["path"], event["status"], event["level"]) == ("GET", "/orders/7", 200, "info")
    assert (event["requestId"], event["traceId"], event["spanId"]) == ("r1", "a" * 32, "b" * 16)
    assert event["service"] == "shop"
    assert event["duration"] >= 0
    context = event["context"]
    assert (context["user"], context["userAgent"], context["responseBytes"]) == ("ada", "tests", 3)
    assert context["cart"] == {"password": "[REDACTED]"}
    assert "secret" not in str(event)
    # What was logged meanwhile belongs to the same request.
    assert (line["message"], line["level"]) == ("nearly sold out", "warn")
    assert (line["requestId"], line["traceId"], line["context"]["user"]) == ("r1", "a" * 32, "ada")


def test_a_request_without_an_id_gets_one(logs: hr.Stream, sender: hr.LogSender) -> None:
    app = hr.RequestLogs(Starlette(routes=ROUTES), sender)
    for _ in range(2):
        ask(app, "/orders/7")
    first, second = stored(logs, sender)
    assert len(first["requestId"]) == 32
    assert first["requestId"] != second["requestId"]


def test_an_error_reaches_whoever_called_and_is_told(logs: hr.Stream, sender: hr.LogSender) -> None:
    app = hr.RequestLogs(Starlette(routes=ROUTES), sender)
    with pytest.raises(RuntimeError, match="no kettle"):
        ask(app, "/broken")
    [event] = stored(logs, sender)
    assert (event["status"], event["level"]) == (500, "error")
    assert event["context"]["error"]["message"] == "no kettle"


def test_an_error_before_the_answer_is_a_500(logs: hr.Stream, sender: hr.LogSender) -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise OSError("at once")

    with pytest.raises(OSError, match="at once"):
        ask(hr.RequestLogs(fails, sender), "/")
    [event] = stored(logs, sender)
    assert event["status"] == 500


def test_a_request_that_is_given_up_is_told(logs: hr.Stream, sender: hr.LogSender) -> None:
    async def endless(scope: Any, receive: Any, send: Any) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        ask(hr.RequestLogs(endless, sender), "/")
    [event] = stored(logs, sender)
    assert (event["status"], event["level"], event["context"]["error"]["type"]) == (None, "warn", "CancelledError")


def test_the_level_follows_from_the_status(logs: hr.Stream, sender: hr.LogSender) -> None:
    ask(hr.RequestLogs(Starlette(routes=ROUTES), sender), "/chunks")
    [event] = stored(logs, sender)
    assert (event["status"], event["level"], event["context"]["responseBytes"]) == (404, "warn", 5)


def test_paths_can_be_left_out(logs: hr.Stream, sender: hr.LogSender) -> None:
    sent = ask(hr.RequestLogs(Starlette(routes=ROUTES), sender, skip=["/health"]), "/health")
    assert sent[0]["status"] == 404
    assert stored(logs, sender) == []


def test_what_is_left_is_sent_before_the_application_ends(logs: hr.Stream) -> None:
    sender = hr.LogSender(logs, linger_ms=200)
    app = hr.RequestLogs(Starlette(routes=ROUTES), sender)
    ask(app, "/orders/7")
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[str] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message["type"])
        assert message["type"] != "lifespan.shutdown.complete" or (sender.sent, sender.pending) == (1, 0)

    asyncio.run(app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    sender.close()


def test_other_connections_pass(sender: hr.LogSender) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async def nothing(*_: Any) -> Any:
        return None

    asyncio.run(hr.RequestLogs(app, sender)({"type": "websocket", "path": "/"}, nothing, nothing))
    assert seen == ["websocket"]
    assert sender.pending == 0
