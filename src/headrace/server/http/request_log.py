"""The log: its format, and a line for requests that failed, were slow, or were refused for want of an admin key.

The others are only counted.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from time import monotonic
from typing import Any, TextIO

import structlog

from headrace.engine.log.log import Counters
from headrace.server.http.auth import Principal

SLOW_S = 1.0


def configure_logging(stream: TextIO | None = None, level: str = "INFO") -> None:
    """Send every log line of this process to a stream, as JSON unless it is a terminal."""
    stream = stream or sys.stderr
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        _rename_logger,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    lines = logging.StreamHandler(stream)
    lines.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(stream)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [lines]
    root.setLevel(level)
    logging.getLogger("httpx2").setLevel("WARNING")  # it would note every webhook


def _rename_logger(_: object, __: str, facts: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Name the logger of uvicorn's notes, errors or not, after the server."""
    if facts.get("logger") == "uvicorn.error":
        facts["logger"] = "headrace.server"
    return facts


def log_request(
    method: str, path: str, status: int, seconds: float, *, request_id: str | None = None, code: str | None = None
) -> None:
    """Log a request that failed or worked for longer than a second; the others are only counted."""
    if status < 500 and seconds <= SLOW_S:
        return
    facts = {"method": method, "path": path, "status": status, "ms": round(seconds * 1000, 1)}
    facts |= {name: value for name, value in (("request_id", request_id), ("code", code)) if value is not None}
    log = structlog.stdlib.get_logger("headrace.request")
    if status >= 500:
        log.error("request failed", **facts)
    else:
        log.warning("slow request", **facts)


def log_refused_admin(**facts: object) -> None:
    """Log that someone who is no admin asked for what takes one, or how many such requests had no line of their own."""
    structlog.stdlib.get_logger("headrace.audit").warning("admin request refused", **facts)


def _rendering(stream: TextIO) -> list[Any]:
    if stream.isatty():
        return [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    # Local variables hold bodies and keys, which belong in no log.
    traceback = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [structlog.processors.ExceptionRenderer(traceback), structlog.processors.JSONRenderer()]


#: Lines about refused callers in a minute, at most; they can ask as often as they like.
_REFUSALS_A_MINUTE = 120
_MINUTE_S = 60.0


class RequestLog:
    """Counts every answer, and notes those that failed or were slow."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._minute_ends_s = 0.0
        self._refusals = 0

    def note(self, method: str, url: bytes, status: int, took_s: float, headers: Mapping[bytes, bytes]) -> None:
        """An answer was given to a request with these headers."""
        responses = self._counters.responses
        responses[status] = responses.get(status, 0) + 1
        if status >= 500 or took_s > SLOW_S:
            self._counters.slow_requests += took_s > SLOW_S
            log_request(method, _path(url), status, took_s, request_id=_request_id(headers))

    def refuse_admin(
        self, method: str, url: bytes, principal: Principal | None, headers: Mapping[bytes, bytes]
    ) -> None:
        """Someone who is no admin asked for what takes one; None is a caller without a key that holds."""
        if monotonic() >= self._minute_ends_s:
            unlogged = max(0, self._refusals - _REFUSALS_A_MINUTE)
            self._minute_ends_s, self._refusals = monotonic() + _MINUTE_S, 0
            if unlogged:
                log_refused_admin(unlogged=unlogged)
        self._refusals += 1
        if self._refusals <= _REFUSALS_A_MINUTE:
            who = {} if principal is None else {"user_id": principal.user_id, "key": principal.key_id}
            facts = {"method": method, "path": _path(url), **who, "request_id": _request_id(headers)}
            log_refused_admin(**{name: fact for name, fact in facts.items() if fact is not None})


def _path(url: bytes) -> str:
    return url.decode("latin-1")[:200]


def _request_id(headers: Mapping[bytes, bytes]) -> str | None:
    return headers.get(b"x-request-id", b"").decode("latin-1")[:128] or None
