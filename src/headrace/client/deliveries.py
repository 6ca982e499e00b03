"""The delivery of a producer's events: their handles, the ledger of pending and failed ones, and the posting loop."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import Any

from headrace.client import answers, requests
from headrace.client.errors import ClientError, ProducerClosed
from headrace.client.outbox import Batching, OutBatch, Outbox, Settled
from headrace.client.requests import ProducerOptions, check_numbers, check_options
from headrace.client.transport import AsyncTransport, Settings
from headrace.errors import HeadraceError
from headrace.types import JSON, media_type

#: The most failures that are kept apart; those of further batches count with the last one.
_MAX_FAILURES = 1000


class Failure:
    """Why some events could not be appended, the first of them, and how many of their handles are unseen."""

    def __init__(self, error: HeadraceError, number: int) -> None:
        self.error = error
        self.number = number
        self.unseen = 0
        self._lock = threading.Lock()

    def enter(self, handle: Delivery | AsyncDelivery) -> None:
        """The event of this handle is one of them."""
        handle.failure = self
        self.number = min(self.number, handle.number)
        with self._lock:
            self.unseen += 1

    def mark_seen(self, handle: Delivery | AsyncDelivery) -> None:
        """The failure of this handle was seen."""
        with self._lock:
            if handle.failure is self:
                handle.failure = None
                self.unseen -= 1


class _Signal:
    """The part of a condition that a future uses, at a tenth of the cost until a thread waits."""

    __slots__ = ("_condition", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._condition: threading.Condition | None = None

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def acquire(self) -> None:
        """Take the lock."""
        self._lock.acquire()

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified; False where that takes longer than so many seconds."""
        if self._condition is None:
            self._condition = threading.Condition(self._lock)
        return self._condition.wait(timeout)

    def notify_all(self) -> None:
        """Wake all waiters."""
        if self._condition is not None:
            self._condition.notify_all()


class Delivery(Future[str]):
    """The delivery of one event, for a caller that blocks."""

    #: What one costs besides the bytes of its event, as measured.
    overhead_bytes = 700
    number = 0
    failure: Failure | None = None

    def __init__(self) -> None:
        super().__init__()
        # There may be many thousands, and the condition would be three quarters of each.
        self._condition = _Signal()  # type: ignore[assignment]

    def result(self, timeout: float | None = None) -> str:
        """The offset after the event's batch; raises if it could not be appended."""
        self.exception(timeout)
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why the event could not be appended, or None."""
        error = super().exception(timeout)
        _mark_seen(self)
        return error

    def fail(self, error: HeadraceError) -> None:
        """The event could not be appended."""
        self.set_exception(error)


class AsyncDelivery(asyncio.Future[str]):
    """The delivery of one event, for a caller that awaits."""

    #: What one costs besides the bytes of its event, as measured with Python 3.11 to 3.13.
    overhead_bytes = 600
    number = 0
    failure: Failure | None = None

    def __await__(self) -> Generator[Any, None, str]:
        try:
            return (yield from super().__await__())
        finally:
            if self.done() and not self.cancelled():
                _mark_seen(self)

    def result(self) -> str:
        """The offset after the event's batch; raises if it could not be appended."""
        self.exception()
        return super().result()

    def exception(self) -> BaseException | None:
        """Why the event could not be appended, or None."""
        error = super().exception()
        _mark_seen(self)
        return error

    def fail(self, error: HeadraceError) -> None:
        """The event could not be appended."""
        self.set_exception(error)
        # Looked at here so that asyncio logs nothing: flush and close report what the caller does not ask for.
        super().exception()


def _mark_seen(handle: Delivery | AsyncDelivery) -> None:
    failure = handle.failure
    if failure is not None:
        failure.mark_seen(handle)


class Ledger:
    """What a producer holds: pending bytes, and failures that are unseen."""

    def __init__(self, max_pending_bytes: int, overhead_bytes: int) -> None:
        self._max_pending_bytes = max_pending_bytes
        self._overhead_bytes = overhead_bytes
        self._pending_bytes = 0
        self._entered = 0
        self._failures: list[Failure] = []

    def has_room(self, event: bytes) -> bool:
        """Whether the event fits; one always does."""
        size = len(event) + self._overhead_bytes
        return not self._pending_bytes or self._pending_bytes + size <= self._max_pending_bytes

    def enter(self, event: bytes, handle: Delivery | AsyncDelivery) -> None:
        """The event is pending now."""
        handle.number = self._entered
        self._entered += 1
        self._pending_bytes += len(event) + self._overhead_bytes

    def leave(self, settled: Sequence[Settled]) -> None:
        """These are pending no more; to be called before their handles know."""
        self._pending_bytes -= sum(event.event_bytes for event in settled) + self._overhead_bytes * len(settled)
        for handle, _, error, _ in settled:
            if error is not None:
                self._failure(error, handle.number).enter(handle)

    def raise_unseen(self) -> None:
        """Raise the first unseen failure in the order of sending; each is raised only once."""
        unseen = [failure for failure in self._failures if failure.unseen]
        self._failures = []
        if unseen:
            raise min(unseen, key=lambda failure: failure.number).error

    def _failure(self, error: HeadraceError, number: int) -> Failure:
        if not self._failures or self._failures[-1].error is not error:
            self._failures = [failure for failure in self._failures if failure.unseen]
            if len(self._failures) < _MAX_FAILURES:
                self._failures.append(Failure(error, number))
        return self._failures[-1]


def notify_handles(settled: Sequence[Settled]) -> None:
    """Set the result of each handle that is not cancelled."""
    for handle, offset, error, _ in settled:
        if handle.done():
            continue
        if error is None:
            handle.set_result(offset)
        else:
            handle.fail(error)


class Deliveries:
    """Posts events until it is stopped; belongs to one event loop."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        options: ProducerOptions,
        on_settled: Callable[[Sequence[Settled]], None],
    ) -> None:
        check_options(ProducerOptions, options)
        check_numbers(options)
        self.id = options.get("id", "") or uuid.uuid4().hex
        self.content_type = options.get("content_type", JSON)
        self._is_json = media_type(self.content_type) == JSON
        self._settings = settings
        self._name = name
        self._on_settled = on_settled
        self._outbox = Outbox(
            _batching(options, self._is_json),
            epoch=options.get("epoch", 0),
            auto_claim=options.get("auto_claim", False),
            id_is_new=not options.get("id"),
        )
        self._wake = asyncio.Event()
        self._posts: set[asyncio.Task[None]] = set()
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []
        self._stopping = False

    @property
    def epoch(self) -> int:
        """The epoch under which batches are sent now."""
        return self._outbox.epoch

    def add(self, event: bytes, key: str, handle: Any) -> None:
        """Take an event."""
        self._outbox.add(event, key, handle, _now())
        self._wake.set()

    async def flush(self) -> None:
        """Send what lingers and wait until everything taken so far is settled."""
        self._outbox.flush(_now())
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushes.append((self._outbox.taken, done))
        self._wake.set()
        await done

    def stop(self) -> None:
        """Let ``run`` return."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Post batches until stopped; what is left then fails."""
        transport = AsyncTransport(self._settings)
        try:
            while not self._stopping:
                self._wake.clear()
                while (batch := self._outbox.take(_now())) is not None:
                    self._post_soon(transport, batch)
                self._report()
                await self._sleep()
        finally:
            self._outbox.fail_all(ProducerClosed("the producer was closed before the event was sent"))
            self._report()
            for task in self._posts:
                task.cancel()
            await asyncio.gather(*self._posts, return_exceptions=True)
            await transport.close()

    def _report(self) -> None:
        if settled := self._outbox.collect():
            self._on_settled(settled)
        below = self._outbox.settled_below
        for target, done in self._flushes:
            if target <= below and not done.done():
                done.set_result(None)
        self._flushes = [flush for flush in self._flushes if not flush[1].done()]

    async def _sleep(self) -> None:
        try:
            async with asyncio.timeout_at(self._outbox.wake_at()):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _post_soon(self, transport: AsyncTransport, batch: OutBatch) -> None:
        task = asyncio.create_task(self._post(transport, batch))
        self._posts.add(task)
        task.add_done_callback(self._posts.discard)

    async def _post(self, transport: AsyncTransport, batch: OutBatch) -> None:
        try:
            answer = await transport.send(self._request(batch))
            result = answers.read_append_result(answer, by_producer=True)
        except HeadraceError as error:
            self._outbox.failed(batch, error, _now())
        except Exception as surprise:
            # Left alone it would keep the batch on its way for ever, and every flush waiting.
            self._outbox.failed(batch, ClientError(f"the batch cannot be sent: {surprise!r}"), _now())
        else:
            self._outbox.delivered(batch, result.next_offset, duplicate=result.duplicate)
        self._wake.set()

    def _request(self, batch: OutBatch) -> requests.Request:
        body = b"[" + b",".join(batch.events) + b"]" if self._is_json else batch.events[0]
        return requests.produce(
            self._name,
            body,
            self.content_type,
            key=batch.key,
            producer_id=self.id,
            epoch=batch.epoch,
            seq=batch.seq,
        )


def _now() -> float:
    return asyncio.get_running_loop().time()


def _batching(options: ProducerOptions, is_json: bool) -> Batching:
    """Only JSON streams know where one event ends; elsewhere each event is a request of its own."""
    defaults = Batching()
    return Batching(
        linger_s=options.get("linger_ms", defaults.linger_s * 1000) / 1000,
        max_batch_events=options.get("max_batch_events", defaults.max_batch_events) if is_json else 1,
        max_batch_bytes=options.get("max_batch_bytes", defaults.max_batch_bytes),
        max_in_flight=options.get("max_in_flight", defaults.max_in_flight),
        delivery_timeout_s=options.get("delivery_timeout", defaults.delivery_timeout_s),
    )
