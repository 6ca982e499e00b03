"""Events from Python's ``logging`` and from structlog, on a real server."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

import headrace as hr

if TYPE_CHECKING:
    from tests.conftest import ServerProcess


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


@pytest.fixture
def logger(sender: hr.LogSender, name: str) -> Iterator[logging.Logger]:
    """A logger whose records are sent."""
    logger, handler = logging.getLogger(name), hr.LogHandler(sender)
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)
    handler.close()


def stored(stream: hr.Stream, sender: hr.LogSender) -> list[dict[str, Any]]:
    assert sender.flush(20)
    return [event for batch in stream.read() for event in batch.items]


def test_a_record_is_an_event_with_what_it_says(logger: logging.Logger, logs: hr.Stream, sender: hr.LogSender) -> None:
    logger.info("%d items for %s", 3, "ada", extra={"requestId": "r1", "status": 201, "cart": {"token": "secret"}})
    [event] = stored(logs, sender)
    assert event["message"] == "3 items for ada"
    assert event["level"] == "info"
    assert event["service"] == "shop"
    assert event["requestId"] == "r1"
    assert event["status"] == 201
    assert event["context"]["logger"] == logger.name
    assert event["context"]["source"].startswith("test_log_sources.py:")
    assert event["context"]["cart"] == {"token": "[REDACTED]"}
    assert event["redaction"]["keys"] == ["cart.token"]


def test_levels_of_records_are_those_of_events(logger: logging.Logger, logs: hr.Stream, sender: hr.LogSender) -> None:
    for level in (5, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        logger.setLevel(1)
        logger.log(level, "level %d", level)
    assert [event["level"] for event in stored(logs, sender)] == ["debug", "debug", "info", "warn", "error", "error"]


def test_the_message_of_an_error_is_searched(logger: logging.Logger, logs: hr.Stream, sender: hr.LogSender) -> None:
    try:
        raise ValueError("the basket is upside down")
    except ValueError:
        logger.exception("it failed")
    assert sender.flush(20)
    [hit] = logs.search("upside level:error").hits
    assert hit.source["context"]["error"]["type"] == "ValueError"
    assert "raise ValueError" in hit.source["context"]["error"]["stack"]


def test_a_record_that_cannot_be_spelled_stays_out_of_the_way(
    logger: logging.Logger, logs: hr.Stream, sender: hr.LogSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger.info("%d items", "three")
    logger.info("after")
    assert [event["message"] for event in stored(logs, sender)] == ["after"]


def test_what_is_logged_about_sending_is_not_sent(logs: hr.Stream) -> None:
    root = logging.getLogger()
    level = root.level
    with hr.LogSender(logs) as sender:
        handler = hr.LogHandler(sender)
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)
        try:
            root.info("once")
            assert sender.flush(20)
            # The lock of the handler, which shutdown holds while it flushes, is not waited for by whoever sends.
            with handler.lock or pytest.fail("a handler has a lock"):
                sender.send({"message": "twice"})
                assert sender.flush(20)
            logging.getLogger("headrace.logs").warning("lost")
        finally:
            root.removeHandler(handler)
            root.setLevel(level)
    told = [event["message"] for batch in logs.read() for event in batch.items]
    assert told == ["once", "twice"]
    assert sender.dropped == 0


def test_a_program_that_ends_has_sent_everything(server: ServerProcess, logs: hr.Stream) -> None:
    program = f"""
import logging, headrace as hr
sender = hr.LogSender(hr.Client({server.url!r}).stream({logs.name!r}), linger_ms=60000)
logging.basicConfig(level="INFO", handlers=[hr.LogHandler(sender)])
logging.info("the last words")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    assert [event["message"] for batch in logs.read() for event in batch.items] == ["the last words"]


def test_events_of_structlog_are_sent_and_handed_on(logs: hr.Stream, sender: hr.LogSender) -> None:
    seen: list[Any] = []

    def keep(logger: Any, method: str, event: Any) -> str:
        seen.append(dict(event))
        raise structlog.DropEvent

    bare = [structlog.contextvars.merge_contextvars, hr.LogProcessor(sender), keep]
    named = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt=None),
        hr.LogProcessor(sender),
        keep,
    ]
    log = structlog.wrap_logger(None, processors=bare, wrapper_class=structlog.make_filtering_bound_logger(0))
    with structlog.contextvars.bound_contextvars(requestId="r7"):
        log.warning("slow", path="/a", duration=12.5)
    log = structlog.wrap_logger(None, processors=named, wrapper_class=structlog.make_filtering_bound_logger(0))
    try:
        raise KeyError("cart")
    except KeyError:
        log.exception("broken", fix="restart it")
    slow, broken = stored(logs, sender)
    assert slow["message"] == "slow"
    assert slow["level"] == "warn"
    assert slow["requestId"] == "r7"
    assert slow["path"] == "/a"
    assert slow["duration"] == 12.5
    assert broken["level"] == "error"
    assert broken["fix"] == "restart it"
    assert broken["context"]["error"]["type"] == "KeyError"
    assert broken["timestamp"].startswith("20")
    assert seen[0] == {"event": "slow", "path": "/a", "duration": 12.5, "requestId": "r7"}
    assert seen[1]["exc_info"]


def test_a_broken_event_of_structlog_is_handed_on(sender: hr.LogSender, caplog: pytest.LogCaptureFixture) -> None:
    class Hostile:
        def __str__(self) -> str:
            raise OSError("no text")

    event = {"event": "x", "level": Hostile()}
    assert hr.LogProcessor(sender)(None, "info", event) is event
    assert caplog.records[0].name == "headrace.logs"


PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


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
    assert event["method"] == "GET"
    assert event["path"] == "/orders/7"
    assert event["status"] == 200
    assert event["level"] == "info"
    assert event["requestId"] == "r1"
    assert event["traceId"] == "a" * 32
    assert event["spanId"] == "b" * 16
    assert event["service"] == "shop"
    assert event["duration"] >= 0
    context = event["context"]
    assert context["user"] == "ada"
    assert context["userAgent"] == "tests"
    assert context["responseBytes"] == 3
    assert context["cart"] == {"password": "[REDACTED]"}
    assert "secret" not in str(event)
    # What was logged meanwhile belongs to the same request.
    assert line["message"] == "nearly sold out"
    assert line["level"] == "warn"
    assert line["requestId"] == "r1"
    assert line["traceId"] == "a" * 32
    assert line["context"]["user"] == "ada"


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
    assert event["status"] == 500
    assert event["level"] == "error"
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
    assert event["status"] is None
    assert event["level"] == "warn"
    assert event["context"]["error"]["type"] == "CancelledError"


def test_the_level_follows_from_the_status(logs: hr.Stream, sender: hr.LogSender) -> None:
    ask(hr.RequestLogs(Starlette(routes=ROUTES), sender), "/chunks")
    [event] = stored(logs, sender)
    assert event["status"] == 404
    assert event["level"] == "warn"
    assert event["context"]["responseBytes"] == 5


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
