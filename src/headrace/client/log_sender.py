"""Sending log events to a stream in the background, without blocking or failing the caller.

Events are encoded where they are logged and sent by a producer in the background. There is room for so many bytes on
the way; what does not fit, what cannot be encoded and what the server does not take is dropped and counted, and a
warning on the logger ``headrace.logs`` says how many, once a minute at most.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import msgspec

from headrace.client.producer import THREAD_NAME
from headrace.client.requests import check_numbers, check_options
from headrace.errors import HeadraceError
from headrace.types import rfc3339

if TYPE_CHECKING:
    from concurrent.futures import Future

    from headrace.client.client import Stream
    from headrace.client.deliveries import Delivery
    from headrace.client.producer import Producer

_DEEPEST = 16
_LONGEST_STACK = 16_000
_ENCODER = msgspec.json.Encoder(enc_hook=str)
#: Whole numbers that every JSON reader takes as they are.
_SAFE = 2**53


def encode_event(event: Mapping[str, Any]) -> bytes:
    """An event as JSON; values without a JSON form become text."""
    try:
        return _ENCODER.encode(event)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return _ENCODER.encode(_plain(event, _DEEPEST))


def moment(seconds: float) -> str:
    """A moment in seconds since 1970 as the protocol writes it."""
    return rfc3339(int(seconds * 1_000_000))


def error(exception: BaseException) -> dict[str, str]:
    """An error as a member of an event."""
    stack = "".join(traceback.format_exception(exception))
    return {"type": type(exception).__qualname__, "message": str(exception), "stack": stack[-_LONGEST_STACK:]}


def find_error(exc_info: Any) -> dict[str, str] | None:
    """The error that ``exc_info`` stands for: an error, what ``sys.exc_info`` gives, or a flag to look there."""
    if isinstance(exc_info, tuple):
        exc_info = exc_info[1] if len(exc_info) == 3 else None
    elif exc_info and not isinstance(exc_info, BaseException):
        exc_info = sys.exc_info()[1]
    return error(exc_info) if isinstance(exc_info, BaseException) else None


def trace_ids() -> dict[str, str]:
    """The trace and the span that OpenTelemetry has open here; nothing where it is not loaded."""
    get_span = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    context = None if get_span is None else get_span().get_span_context()
    if context is None or not context.is_valid:
        return {}
    return {"traceId": f"{context.trace_id:032x}", "spanId": f"{context.span_id:016x}"}


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < _SAFE else str(value)
    if depth and isinstance(value, Mapping):
        return {_plain(str(name), 0): _plain(member, depth - 1) for name, member in value.items()}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [_plain(member, depth - 1) for member in value]
    return _plain("..." if isinstance(value, Mapping | list | tuple) else str(value), 0)


LOGGER = logging.getLogger("headrace.logs")

_MAX_PENDING_BYTES = 8 * 1024 * 1024
_LINGER_MS = 100.0
_DELIVERY_TIMEOUT_S = 30.0
_CLOSE_S = 5.0
_REPORT_EVERY_S = 60.0

#: What every event of the request that is being handled has.
CURRENT: ContextVar[dict[str, Any] | None] = ContextVar("headrace_request", default=None)


class LogOptions(TypedDict, total=False):
    """Members of every event, and limits of what is pending."""

    service: str
    environment: str
    version: str
    region: str
    max_pending_bytes: int
    linger_ms: float
    delivery_timeout: float


class LogSender:
    """Sends log events to a stream with the profile ``evlog``; safe to use from several threads and after a fork."""

    def __init__(self, stream: Stream, **options: Unpack[LogOptions]) -> None:
        """Times are in seconds, but ``linger_ms``: how long an event waits for others to travel with."""
        check_options(LogOptions, options)
        check_numbers(options)
        self._stream = stream
        self._options = options
        names = ("service", "environment", "version", "region")
        self._base = {name: value for name, value in options.items() if name in names}
        self._running: Producer | None = None
        self._closed = False
        self._begin()
        atexit.register(_close, weakref.ref(self))
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_make_fork_hook(weakref.ref(self)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def sent(self) -> int:
        """How many events are stored."""
        return self._sent

    @property
    def dropped(self) -> int:
        """How many events are lost: there was no room, or they could not be delivered."""
        return self._dropped

    @property
    def pending(self) -> int:
        """How many events are on their way."""
        return self._pending

    def send(self, event: Mapping[str, Any]) -> None:
        """Take an event, or drop it; never waits, never fails."""
        if is_own_thread():
            return
        try:
            now = {"timestamp": moment(time.time())}
            body = encode_event({**now, **self._base, **trace_ids(), **(CURRENT.get() or {}), **event})
            with self._changed:
                if self._taking:
                    return  # What is logged while an event is taken tells of sending.
                delivery = self._take(body)
        except Exception as surprise:
            self._drop(1, f"{type(surprise).__name__}: {surprise}")
            return
        if delivery is None:
            self._drop(1, "the sender is closed" if self._closed else "too many are on their way")
        else:
            delivery.add_done_callback(self._on_settled)

    def flush(self, timeout: float = _CLOSE_S) -> bool:
        """Wait until everything taken so far is stored or lost; False where that takes longer than so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, timeout)

    def close(self, timeout: float = _CLOSE_S) -> None:
        """Send what is left for so many seconds, then stop; what comes later is dropped."""
        with self._changed:
            self._closed = True
            producer, self._running = self._running, None
        if producer is not None:
            try:
                producer.close(timeout)
            except HeadraceError:
                pass  # It is counted, and told below.
        self._report_losses(late=True)

    def reset_after_fork(self) -> None:
        """Start afresh in a forked process: pending events belong to the parent."""
        self._running = None
        self._begin()

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._pending = self._sent = self._dropped = self._reported = 0
        self._reported_at = -_REPORT_EVERY_S
        self._reason = ""
        self._taking = False

    def _take(self, body: bytes) -> Delivery | None:
        self._taking = True
        try:
            delivery = None if self._closed else self._producer().offer(body)
            self._pending += delivery is not None
            return delivery
        finally:
            self._taking = False

    def _producer(self) -> Producer:
        if self._running is None:
            self._running = self._stream.producer(
                max_pending_bytes=self._options.get("max_pending_bytes", _MAX_PENDING_BYTES),
                linger_ms=self._options.get("linger_ms", _LINGER_MS),
                delivery_timeout=self._options.get("delivery_timeout", _DELIVERY_TIMEOUT_S),
            )
        return self._running

    def _on_settled(self, delivery: Future[str]) -> None:
        error = delivery.exception()
        with self._changed:
            self._pending -= 1
            self._sent += error is None
            self._changed.notify_all()
        if error is not None:
            self._drop(1, str(error))

    def _drop(self, count: int, reason: str) -> None:
        with self._changed:
            self._dropped += count
            self._reason = reason
        self._report_losses()

    def _report_losses(self, *, late: bool = False) -> None:
        """Log how many events were lost since the last report, at most once a minute."""
        now = time.monotonic()
        with self._changed:
            lost = self._dropped - self._reported
            if not lost or (not late and now < self._reported_at + _REPORT_EVERY_S):
                return
            self._reported, self._reported_at = self._dropped, now
            reason = self._reason
        LOGGER.warning("%d log events for the stream %s were lost: %s", lost, self._stream.name, reason)


def is_own_thread() -> bool:
    """Whether this thread is a producer's own: what it logs must not become events in turn."""
    return threading.current_thread().name.startswith(THREAD_NAME)


def add_log_fields(**fields: Any) -> None:
    """Put fields into every further event of the request that is being handled, and into the event of the request."""
    current = CURRENT.get()
    if current is not None:
        current.update(fields)


def _close(sender: weakref.ref[LogSender]) -> None:
    log_sender = sender()
    if log_sender is not None:
        log_sender.close()


def _make_fork_hook(sender: weakref.ref[LogSender]) -> Callable[[], None]:
    def reset_after_fork() -> None:
        log_sender = sender()
        if log_sender is not None:
            log_sender.reset_after_fork()

    return reset_after_fork
