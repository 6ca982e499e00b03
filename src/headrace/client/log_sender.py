"""Sending log events to a stream in the background, without blocking or failing the caller.

Events are encoded where they are logged and sent by a producer in the background. There is room for so many bytes on
the way; what does not fit, what cannot be encoded and what the server does not take is dropped and counted, and a
warning on the logger ``headrace.logs`` says how many, once a minute at most.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from headrace.client.deliveries import check_numbers
from headrace.client.log_fields import encoded, moment, trace_ids
from headrace.client.options import known
from headrace.client.producer import THREAD_NAME
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from headrace.client.client import Stream
    from headrace.client.ledger import Delivery
    from headrace.client.producer import Producer

LOGGER = logging.getLogger("headrace.logs")

_MAX_PENDING_BYTES = 8 * 1024 * 1024
_LINGER_MS = 100.0
_DELIVERY_TIMEOUT_S = 30.0
_CLOSE_S = 5.0
_TELL_EVERY_S = 60.0

#: What every event of the request that is being handled has.
CURRENT: ContextVar[dict[str, Any] | None] = ContextVar("headrace_request", default=None)


class LogOptions(TypedDict, total=False):
    """What every event says, and how much may be on its way for how long."""

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
        known(LogOptions, options)
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
            os.register_at_fork(after_in_child=_forgetting(weakref.ref(self)))

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
            body = encoded({**now, **self._base, **trace_ids(), **(CURRENT.get() or {}), **event})
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
        self._tell(late=True)

    def forget(self) -> None:
        """Begin anew in a process that was forked: what was on its way is the parent's."""
        self._running = None
        self._begin()

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._pending = self._sent = self._dropped = self._told = 0
        self._told_at = -_TELL_EVERY_S
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
        self._tell()

    def _tell(self, *, late: bool = False) -> None:
        """Say how many were lost since it was last said, unless that was a moment ago."""
        now = time.monotonic()
        with self._changed:
            lost = self._dropped - self._told
            if not lost or (not late and now < self._told_at + _TELL_EVERY_S):
                return
            self._told, self._told_at = self._dropped, now
            reason = self._reason
        LOGGER.warning("%d log events for the stream %s were lost: %s", lost, self._stream.name, reason)


def is_own_thread() -> bool:
    """Whether a producer is what logs here: its own requests must not become events in turn."""
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


def _forgetting(sender: weakref.ref[LogSender]) -> Callable[[], None]:
    def forget() -> None:
        log_sender = sender()
        if log_sender is not None:
            log_sender.forget()

    return forget
