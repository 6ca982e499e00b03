"""Producers: events go in one by one, batches go out in the background, each appended once.

``send`` gives a handle whose result is the offset after the event's batch. Where the answer to a batch was lost
and the batch was sent again, that offset may lie further on, at what was then the tail. An event that a JSON
stream refuses takes its whole batch with it. ``flush`` and ``close`` raise the first failure whose handle nobody
has looked at, so nothing is lost in silence.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, Self, Unpack

from headrace.client import requests
from headrace.client.deliveries import AsyncDelivery, Deliveries, Delivery, Ledger, notify_handles
from headrace.client.errors import ProducerClosed
from headrace.client.outbox import Settled
from headrace.client.requests import ProducerOptions
from headrace.client.transport import Settings
from headrace.errors import HeadraceError

_MAX_PENDING_BYTES = 32 * 1024 * 1024
_DRAIN_EVERY_S = 0.001
#: How the names of threads begin that send.
THREAD_NAME = "headrace-producer-"
#: Exceptions after which a block ends without waiting.
_IMMEDIATE_ENDS = (asyncio.CancelledError, KeyboardInterrupt)


class AsyncProducer:
    """Batches in the background of the running loop; use it in an ``async with`` block."""

    def __init__(self, settings: Settings, name: str, **options: Unpack[ProducerOptions]) -> None:
        self._ledger = Ledger(options.get("max_pending_bytes", _MAX_PENDING_BYTES), AsyncDelivery.overhead_bytes)
        self._deliveries = Deliveries(settings, name, options, self._on_settled)
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._deliveries.run())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await self.close(_close_timeout_s(kind))
        except HeadraceError:
            if kind is None:
                raise

    @property
    def id(self) -> str:
        """The name under which the server remembers this producer."""
        return self._deliveries.id

    @property
    def epoch(self) -> int:
        """The epoch under which batches are sent now."""
        return self._deliveries.epoch

    async def send(self, event: Any, *, key: str = "") -> AsyncDelivery:
        """Take an event, waiting for room first; the handle is done when the event is on disk."""
        body = requests.encode(event, self._deliveries.content_type)
        while not self._ledger.has_room(body):
            self._room.clear()
            await self._room.wait()
        return self._take(body, key)

    def offer(self, event: Any, *, key: str = "") -> AsyncDelivery | None:
        """Take an event if there is room for it, without waiting; None where there is not."""
        body = requests.encode(event, self._deliveries.content_type)
        return self._take(body, key) if self._ledger.has_room(body) else None

    async def flush(self) -> None:
        """Wait until everything sent so far is settled."""
        self._check_running()
        await self._deliveries.flush()
        self._ledger.raise_unseen()

    async def close(self, timeout: float | None = None) -> None:
        """Send what is left, then stop; what is not settled within so many seconds, or until cancelled, fails."""
        if self._task is None or self._task.done():
            return
        try:
            if timeout != 0:
                async with asyncio.timeout(timeout):
                    await self._deliveries.flush()
        except TimeoutError:
            pass  # What is left learns of it when the task ends.
        finally:
            self._deliveries.stop()
            await self._task
        self._ledger.raise_unseen()

    def _take(self, body: bytes, key: str) -> AsyncDelivery:
        self._check_running()
        handle = AsyncDelivery(loop=asyncio.get_running_loop())
        self._ledger.enter(body, handle)
        self._deliveries.add(body, key, handle)
        return handle

    def _check_running(self) -> None:
        if self._task is None or self._task.done():
            raise ProducerClosed("the producer is not running; use it in an `async with` block")

    def _on_settled(self, settled: Sequence[Settled]) -> None:
        self._ledger.leave(settled)
        notify_handles(settled)
        self._room.set()


class Producer:
    """Batches in a thread of its own; may be used from several threads; use it in a ``with`` block."""

    def __init__(self, settings: Settings, name: str, **options: Unpack[ProducerOptions]) -> None:
        self._ledger = Ledger(options.get("max_pending_bytes", _MAX_PENDING_BYTES), Delivery.overhead_bytes)
        self._deliveries = Deliveries(settings, name, options, self._on_settled)
        self._changed = threading.Condition()
        self._inbox: list[tuple[bytes, str, Delivery]] = []
        self._draining = False
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name=f"{THREAD_NAME}{name}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close(_close_timeout_s(kind))
        except HeadraceError:
            if kind is None:
                raise

    @property
    def id(self) -> str:
        """The name under which the server remembers this producer."""
        return self._deliveries.id

    @property
    def epoch(self) -> int:
        """The epoch under which batches are sent now."""
        return self._deliveries.epoch

    def send(self, event: Any, *, key: str = "") -> Delivery:
        """Take an event, waiting for room first; the handle is done when the event is on disk."""
        body = requests.encode(event, self._deliveries.content_type)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._ledger.has_room(body))
            return self._take(body, key)

    def offer(self, event: Any, *, key: str = "") -> Delivery | None:
        """Take an event if there is room for it, without waiting; None where there is not."""
        body = requests.encode(event, self._deliveries.content_type)
        with self._changed:
            return self._take(body, key) if self._ledger.has_room(body) else None

    def flush(self) -> None:
        """Wait until everything sent so far is settled."""
        with self._changed:
            if self._closed:
                raise ProducerClosed("the producer is closed")
        self._await(self._flush())
        self._complain()

    def close(self, timeout: float | None = None) -> None:
        """Send what is left, then stop; what is not settled within so many seconds, or until interrupted, fails."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        try:
            if timeout != 0:
                self._await(self._flush(), timeout)
        except TimeoutError:
            pass  # What is left learns of it when the loop stops.
        finally:
            self._loop.call_soon_threadsafe(self._stop)
            self._thread.join()
            self._loop.close()
        self._complain()

    def _take(self, body: bytes, key: str) -> Delivery:
        if self._closed:
            raise ProducerClosed("the producer is closed")
        handle = Delivery()
        handle.set_running_or_notify_cancel()
        self._ledger.enter(body, handle)
        self._inbox.append((body, key, handle))
        if not self._draining:
            self._draining = True
            self._loop.call_soon_threadsafe(self._keep_draining)
        return handle

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._deliveries.run())

    async def _flush(self) -> None:
        self._drain()
        await self._deliveries.flush()

    def _stop(self) -> None:
        self._drain()
        self._deliveries.stop()

    def _await(self, work: Coroutine[Any, Any, None], timeout: float | None = None) -> None:
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            waiting.result(timeout)
        finally:
            waiting.cancel()

    def _complain(self) -> None:
        with self._changed:
            self._ledger.raise_unseen()

    def _keep_draining(self) -> None:
        """Empty the inbox periodically while events arrive, instead of once for each event."""
        with self._changed:
            self._draining = bool(self._inbox)
        if self._draining:
            self._drain()
            self._loop.call_later(_DRAIN_EVERY_S, self._keep_draining)

    def _drain(self) -> None:
        with self._changed:
            inbox, self._inbox = self._inbox, []
        for event, key, handle in inbox:
            self._deliveries.add(event, key, handle)

    def _on_settled(self, settled: Sequence[Settled]) -> None:
        with self._changed:
            self._ledger.leave(settled)
            self._changed.notify_all()
        notify_handles(settled)


def _close_timeout_s(kind: type[BaseException] | None) -> float | None:
    """How long the end of a block waits for pending events; None: without a limit."""
    return 0.0 if kind is not None and issubclass(kind, _IMMEDIATE_ENDS) else None
