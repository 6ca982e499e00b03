"""Sources of log events: Python's ``logging``, structlog, and the requests of an ASGI application."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any

from headrace.client.log_sender import CURRENT, LOGGER, LogSender, error, find_error, moment
from headrace.client.producer import THREAD_NAME

#: Attributes of every record; the others were passed as ``extra``.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_LEVELS = ((logging.ERROR, "error"), (logging.WARNING, "warn"), (logging.INFO, "info"))
_METHODS = {"warning": "warn", "exception": "error", "critical": "error", "fatal": "error", "notset": "debug"}


class LogHandler(logging.Handler):
    """Sends every record as an event; what is given as ``extra`` becomes members of it."""

    def __init__(self, sender: LogSender, level: int | str = logging.NOTSET) -> None:
        super().__init__(level)
        self._sender = sender

    def filter(self, record: logging.LogRecord) -> Any:
        """Whether a record is sent; records about sending are not."""
        # Here and not in emit: whoever flushes holds the lock of the handler, and waits for the thread that sends.
        if record.name == LOGGER.name or (record.threadName or "").startswith(THREAD_NAME):
            return False
        return super().filter(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        try:
            self._sender.send(record_event(record))
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Wait a while until what was taken is stored."""
        self._sender.flush()


class LogProcessor:
    """Sends every event of structlog, and hands it on as it is; put it before whatever renders."""

    def __init__(self, sender: LogSender) -> None:
        self._sender = sender

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Send an event as it is at this place among the processors."""
        try:
            self._sender.send(structlog_event(method, event))
        except Exception:
            LOGGER.exception("an event could not be sent")
        return event


def record_event(record: logging.LogRecord) -> dict[str, Any]:
    """A record as an event."""
    level = next((name for least, name in _LEVELS if record.levelno >= least), "debug")
    event: dict[str, Any] = {
        "timestamp": moment(record.created),
        "level": level,
        "message": record.getMessage(),
        "logger": record.name,
        "source": f"{record.filename}:{record.lineno}",
    }
    if (exception := find_error(record.exc_info)) is not None:
        event["error"] = exception
    return event | {name: value for name, value in vars(record).items() if name not in _OWN}


def structlog_event(method: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """An event of structlog as ours: its text is the message, and its level may be the name of the method."""
    event = {name: value for name, value in record.items() if not name.startswith("_")}
    event["message"] = event.pop("event", None)
    if isinstance(event.get("timestamp"), float):
        event["timestamp"] = moment(event["timestamp"])
    level = str(event.get("level", method)).lower()
    event["level"] = _METHODS.get(level, level)
    if (exception := find_error(event.pop("exc_info", None))) is not None:
        event["error"] = exception
    return event


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_LONGEST_ID = 256


class RequestLogs:
    """Middleware that sends an event for every request; answers and errors of the application pass as they are.

    What the application logs meanwhile has the same ``requestId``. It is the header ``X-Request-Id``, or made here.
    """

    def __init__(self, app: App, sender: LogSender, *, skip: Collection[str] = ()) -> None:
        """``skip`` are paths whose requests are not logged, such as health checks."""
        self._app = app
        self._sender = sender
        self._skip = frozenset(skip)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle a connection of the application."""
        if scope["type"] == "lifespan":
            await self._handle_lifespan(scope, receive, send)
        elif scope["type"] != "http" or scope["path"] in self._skip:
            await self._app(scope, receive, send)
        else:
            await self._handle(scope, receive, send)

    async def _handle(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        request = _Request(scope)
        token = CURRENT.set(request.fields)
        try:
            await self._app(scope, receive, request.wrap_send(send))
        except BaseException as reason:
            request.failed(reason)
            raise
        finally:
            self._sender.send(request.event())
            CURRENT.reset(token)

    async def _handle_lifespan(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Flush pending events before the server shuts down."""

        async def forward(message: Message) -> None:
            if message["type"] == "lifespan.shutdown.complete":
                await asyncio.to_thread(self._sender.flush)
            await send(message)

        await self._app(scope, receive, forward)


class _Request:
    """The state of one request."""

    def __init__(self, scope: MutableMapping[str, Any]) -> None:
        self._scope = scope
        self._began, self._at = time.perf_counter(), time.time()
        self._status: int | None = None
        self._bytes = 0
        headers = {bytes(name).lower(): bytes(value).decode("latin-1") for name, value in scope.get("headers", ())}
        self._agent = headers.get(b"user-agent")
        #: What everything that is logged meanwhile has.
        self.fields: dict[str, Any] = {"requestId": headers.get(b"x-request-id", "")[:_LONGEST_ID] or uuid.uuid4().hex}
        if b"traceparent" in headers:
            self.fields["traceparent"] = headers[b"traceparent"]
        self._error: BaseException | None = None

    def wrap_send(self, send: Send) -> Send:
        async def forward(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._status = message["status"]
            elif message["type"] == "http.response.body":
                self._bytes += len(message.get("body", b""))
            await send(message)

        return forward

    def failed(self, reason: BaseException) -> None:
        """The application did not answer, or not to the end."""
        self._error = reason
        if self._status is None and isinstance(reason, Exception):
            self._status = 500

    def event(self) -> dict[str, Any]:
        """The event of the request, with what was added to it."""
        scope = self._scope
        event: dict[str, Any] = {
            "timestamp": moment(self._at),
            "method": scope["method"],
            "path": scope["path"],
            "status": self._status,
            "duration": round((time.perf_counter() - self._began) * 1000, 3),
            "message": f"{scope['method']} {scope['path']}",
            "route": getattr(scope.get("route"), "path", None),
            "userAgent": self._agent,
            "responseBytes": self._bytes,
        }
        if self._error is not None:
            event |= {"level": "error" if isinstance(self._error, Exception) else "warn", "error": error(self._error)}
        return {name: value for name, value in event.items() if value is not None} | self.fields
