"""From append to subscriber: how long after the request is sent has each subscriber the event."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

from bench.events import event, mark_of
from bench.wire import http_request, redis_command

SLOWEST_START = 30.0
SLOWEST_EVENT = 10.0
REST_BETWEEN_EVENTS = 0.01
WARM_EVENTS = 5


class Board:
    """The event in flight, and the moments at which subscribers received it."""

    def __init__(self, subscribers: int) -> None:
        self.subscribers = subscribers
        self.listening = 0
        self.all_listening = asyncio.Event()
        self.number = -1
        self.mark = b"nothing sent yet"
        self.sent_at = 0.0
        self.waiting = 0
        self.all_received = asyncio.Event()
        self.seconds: list[float] = []
        self.lost = 0

    def listens(self) -> None:
        """One more subscriber is at the end of the stream."""
        self.listening += 1
        if self.listening == self.subscribers:
            self.all_listening.set()

    def sending(self, number: int) -> None:
        """This event goes out now."""
        self.number, self.mark, self.waiting = number, mark_of(number), self.subscribers
        self.all_received.clear()
        self.sent_at = time.perf_counter()

    def received(self) -> None:
        """One subscriber has the event."""
        self.seconds.append(time.perf_counter() - self.sent_at)
        self.waiting -= 1
        if self.waiting == 0:
            self.all_received.set()


class Subscriber(asyncio.Protocol):
    """Watches one live connection for the event in flight."""

    def __init__(self, board: Board, stream: str) -> None:
        self.board = board
        self.stream = stream
        self.transport: asyncio.Transport | None = None
        self.seen = -1
        self.tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self.opening())

    def connection_lost(self, exc: Exception | None) -> None:
        self.board.lost += 1

    def opening(self) -> bytes:
        """The request that starts the subscription."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        board = self.board
        if self.seen == board.number:
            return
        data = self.tail + data
        if board.mark in data:
            board.received()
            self.seen, self.tail = board.number, b""
        else:
            self.tail = data[-200:]


class SseSubscriber(Subscriber):
    """Server-sent events from the end of the stream; the first control event says it is listening."""

    started = False

    def opening(self) -> bytes:
        """The request that starts the subscription."""
        return http_request("GET", f"/v1/stream/{self.stream}?live=sse&offset=now")

    def data_received(self, data: bytes) -> None:
        if self.started:
            super().data_received(data)
            return
        self.tail += data
        if b"event: control" in self.tail:
            self.started, self.tail = True, b""
            self.board.listens()


class RedisSubscriber(Subscriber):
    """XREAD BLOCK, asked again from the last entry received."""

    def opening(self) -> bytes:
        """The request that starts the subscription."""
        self.board.listens()
        return self._ask(b"$")

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.seen == self.board.number and self.transport:
            last = data[: data.rfind(b"\r\n*2\r\n$1\r\nd\r\n")].rsplit(b"\n", 1)[-1]
            self.transport.write(self._ask(last))

    def _ask(self, after: bytes) -> bytes:
        return redis_command(b"XREAD", b"BLOCK", b"0", b"STREAMS", self.stream.encode(), after)


class Poster(asyncio.Protocol):
    """The connection that appends; it only checks that answers are successes."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.errors = 0
        self.first_error = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not data.startswith((b"HTTP/1.1 2", b"$")):
            self.errors += 1
            self.first_error = self.first_error or data[:300].decode("latin-1")

    def append(self, stream: str, number: int, redis: bool) -> None:
        """Send one event."""
        assert self.transport
        self.transport.write(
            redis_command(b"XADD", stream.encode(), b"*", b"d", event(number))
            if redis
            else http_request("POST", f"/v1/stream/{stream}", event(number))
        )


async def measure_live(
    *, port: int, redis: bool, stream: str, subscribers: int, events: int, seconds: float
) -> dict[str, Any]:
    """Latency from sending an append to its receipt, over all subscribers and as many events as there is time for."""
    loop = asyncio.get_running_loop()
    board, poster = Board(subscribers), Poster()
    await loop.create_connection(lambda: poster, "127.0.0.1", port)
    kind = RedisSubscriber if redis else SseSubscriber
    for _ in range(subscribers):
        await loop.create_connection(lambda: kind(board, stream), "127.0.0.1", port)
    await asyncio.wait_for(board.all_listening.wait(), SLOWEST_START)
    await asyncio.sleep(0.3)
    missed = 0
    deadline = time.perf_counter() + seconds
    for number in range(WARM_EVENTS + events):
        if number == WARM_EVENTS:
            board.seconds.clear()
        elif number > WARM_EVENTS and time.perf_counter() > deadline:
            break
        missed += await _one_event(board, poster, stream, number, redis)
    return {
        **_quantiles(board.seconds),
        "samples": len(board.seconds),
        "errors": poster.errors + missed + board.lost,
        "first_error": poster.first_error or (f"{missed} not received, {board.lost} lost" if missed else ""),
    }


async def _one_event(board: Board, poster: Poster, stream: str, number: int, redis: bool) -> int:
    board.sending(number)
    poster.append(stream, number, redis)
    try:
        await asyncio.wait_for(board.all_received.wait(), SLOWEST_EVENT)
    except TimeoutError:
        pass
    await asyncio.sleep(REST_BETWEEN_EVENTS)
    return board.waiting


def _quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds) or [float("nan")]
    return {f"p{q}": ordered[min(len(ordered) - 1, len(ordered) * q // 100)] for q in (50, 99)}
