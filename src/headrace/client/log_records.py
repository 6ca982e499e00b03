"""Events from Python's ``logging`` and from structlog."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from typing import Any

from headrace.client.log_fields import error_of, moment
from headrace.client.log_sender import LOGGER, LogSender
from headrace.client.producer import THREAD_NAME

#: What every record has of its own; the rest was given as ``extra``.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_LEVELS = ((logging.ERROR, "error"), (logging.WARNING, "warn"), (logging.INFO, "info"))
_METHODS = {"warning": "warn", "exception": "error", "critical": "error", "fatal": "error", "notset": "debug"}


class LogHandler(logging.Handler):
    """Sends every record as an event; what is given as ``extra`` becomes members of it."""

    def __init__(self, sender: LogSender, level: int | str = logging.NOTSET) -> None:
        super().__init__(level)
        self._sender = sender

    def filter(self, record: logging.LogRecord) -> Any:
        """Whether a record is sent; one that tells of sending is not."""
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
    if (exception := error_of(record.exc_info)) is not None:
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
    if (exception := error_of(event.pop("exc_info", None))) is not None:
        event["error"] = exception
    return event
