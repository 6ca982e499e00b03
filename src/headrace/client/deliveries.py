"""The loop behind every producer: takes batches from the outbox, posts them, reports what became of them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from headrace.client import answers, requests
from headrace.client.errors import ClientError, ProducerClosed
from headrace.client.options import at_least, known
from headrace.client.outbox import Batching, OutBatch, Outbox, Settled
from headrace.client.transport import AsyncTransport, Settings
from headrace.errors import HeadraceError
from headrace.types import JSON, media_type


class ProducerOptions(TypedDict, total=False):
    """How a producer names itself, batches and waits; what is left out has a sensible value."""

    id: str
    epoch: int
    auto_claim: bool
    content_type: str
    linger_ms: float
    max_batch_events: int
    max_batch_bytes: int
    max_in_flight: int
    max_pending_bytes: int
    delivery_timeout: float


def check_numbers(options: Mapping[str, Any]) -> None:
    """Refuse numbers with which nothing would ever be sent."""
    at_least(1, options, "max_batch_events", "max_batch_bytes", "max_in_flight", "max_pending_bytes")
    at_least(0, options, "epoch", "linger_ms", "delivery_timeout")


class Deliveries:
    """Posts what it is given until it is stopped; belongs to one event loop."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        options: ProducerOptions,
        on_settled: Callable[[Sequence[Settled]], None],
    ) -> None:
        known(ProducerOptions, options)
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
        """Let run come to its end."""
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
            result = answers.appended(answer, by_producer=True)
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
