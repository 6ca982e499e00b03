"""The structured log: JSON lines for machines, colours on a terminal.

The libraries below us log through the standard library; both ways end in the same lines.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog

SLOW_S = 1.0


def configure_logging(stream: TextIO | None = None, level: str = "INFO") -> None:
    """Send every log line of this process to a stream, as JSON unless it is a terminal."""
    stream = stream or sys.stderr
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
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
