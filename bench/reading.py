"""Catch-up reads: follow a stream from its start to its end, again and again, and count the bytes."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import httptools

from bench.events import EVENT_BYTES, MARK
from bench.wire import http_request, redis_command

PAGE = 1000
BUFFER = 1 << 20
SLOWEST_COUNT = 300.0


class Reading:
    """What all readers of one measurement have read, and when they may stop."""

    def __init__(self, readers: int, once: bool) -> None:
        self.bytes = 0
        self.events = 0
        self.requests = 0
        self.once = once
        self.stopping = False
        self.error = ""
        self.moving = readers
        self.at_rest = asyncio.Event()

    def parked(self, error: str = "") -> None:
        """A reader has stopped."""
        self.error = self.error or error
        self.moving -= 1
        if self.moving <= 0:
            self.at_rest.set()


class Reader(asyncio.BufferedProtocol):
    """One connection reading one stream page by page, into one buffer of its own."""

    def __init__(self, reading: Reading, stream: str) -> None:
        self.reading = reading
        self.stream = stream
        self.buffer = bytearray(BUFFER)
        self.view = memoryview(self.buffer)
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.transport and self.reading.moving > 0:
            self.reading.parked(f"connection lost: {exc!r}")
        self.transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.view

    def begin(self) -> None:
        """Ask for the first page."""
        raise NotImplementedError

    def goes_on(self, at_end: bool) -> bool:
        """Whether to ask again, after a page that did or did not reach the end."""
        self.reading.requests += 1
        if self.reading.stopping or (at_end and self.reading.once):
            self.reading.parked()
            return False
        return True


class HttpReader(Reader):
    """Follows `Stream-Next-Offset` until the server says up to date, then starts over."""

    def __init__(self, reading: Reading, stream: str) -> None:
        super().__init__(reading, stream)
        self.offset = b"-1"
        self.head = b""
        self.left = 0
        self.chunks: Any = None
        self.tail = b""

    def begin(self) -> None:
        """Ask for the first page."""
        self._ask(b"-1")

    def buffer_updated(self, nbytes: int) -> None:
        if self.left:
            self._take(nbytes)
        elif self.chunks:
            self.chunks.feed_data(self.view[:nbytes])
        else:
            self._take_head(nbytes)

    def on_body(self, body: bytes) -> None:
        """Count a piece of body, and its events when this is a count."""
        self.reading.bytes += len(body)
        if self.reading.once:
            joined = self.tail + body
            self.reading.events += joined.count(MARK)
            self.tail = joined[1 - len(MARK) :]

    def on_message_complete(self) -> None:
        """Ask for the next page, or for the first one again."""
        up_to_date = self._header(b"stream-up-to-date") == b"true"
        next_offset = self._header(b"stream-next-offset")
        if not self.head.startswith(b"HTTP/1.1 200") or (next_offset == self.offset and not up_to_date):
            self.reading.parked(self.head[:300].decode("latin-1"))
        elif self.goes_on(up_to_date):
            self._ask(b"-1" if up_to_date else next_offset)

    def _take(self, nbytes: int) -> None:
        if self.reading.once:
            self.on_body(bytes(self.view[:nbytes]))
        else:
            self.reading.bytes += nbytes
        self.left -= nbytes
        if not self.left:
            self.on_message_complete()

    def _take_head(self, nbytes: int) -> None:
        self.head += self.view[:nbytes]
        head, line_break, body = self.head.partition(b"\r\n\r\n")
        if not line_break:
            return
        whole, self.head = self.head, head + b"\r\n"
        if self._header(b"transfer-encoding") == b"chunked":
            self.chunks = httptools.HttpResponseParser(self)
            self.chunks.feed_data(whole)
            return
        self.left = int(self._header(b"content-length")) - len(body)
        self.on_body(body)
        if not self.left:
            self.on_message_complete()

    def _header(self, name: bytes) -> bytes:
        field = b"\r\n" + name + b": "
        at = self.head.lower().find(field)
        return self.head[at + len(field) :].partition(b"\r\n")[0] if at >= 0 else b""

    def _ask(self, offset: bytes) -> None:
        self.offset, self.head, self.left, self.chunks, self.tail = offset, b"", 0, None, b""
        assert self.transport
        self.transport.write(http_request("GET", f"/v1/stream/{self.stream}?offset={offset.decode()}"))


class RedisReader(Reader):
    """Pages through the stream with XRANGE, 1000 entries at a time.

    An entry is 8 lines of the protocol and no event holds a line break, so counting lines is enough.
    """

    lines_per_entry = 8
    after_id = b"\r\n*2\r\n$1\r\nd\r\n"

    def __init__(self, reading: Reading, stream: str) -> None:
        super().__init__(reading, stream)
        self.lines = 0
        self.entries = -1
        self.tail = b""

    def begin(self) -> None:
        """Ask for the first page."""
        self._ask(b"-")

    def buffer_updated(self, nbytes: int) -> None:
        self.lines += self.buffer.count(b"\n", 0, nbytes)
        self.tail = (self.tail + self.view[max(0, nbytes - 400) : nbytes])[-400:]
        if self.entries < 0 and self.lines:
            first = self.tail if nbytes <= 400 else self.buffer[:20]
            self.entries = int(first.partition(b"\r\n")[0][1:])
        if self.entries >= 0 and self.lines > self.entries * self.lines_per_entry:
            self._page_complete()

    def _page_complete(self) -> None:
        self.reading.events += self.entries
        self.reading.bytes += self.entries * (EVENT_BYTES + 1)
        at_end = self.entries < PAGE
        last = self.tail[: self.tail.rfind(self.after_id)].rsplit(b"\n", 1)[-1]
        if self.goes_on(at_end):
            self._ask(b"-" if at_end else b"(" + last)

    def _ask(self, start: bytes) -> None:
        self.lines, self.entries, self.tail = 0, -1, b""
        assert self.transport
        self.transport.write(redis_command(b"XRANGE", self.stream.encode(), start, b"+", b"COUNT", b"%d" % PAGE))


async def read_whole_streams(
    *, port: int, redis: bool, stream: str, connections: int, seconds: float | None
) -> dict[str, Any]:
    """Bytes per second over `seconds`; without them, one pass that counts every event."""
    reading = Reading(connections, once=seconds is None)
    loop = asyncio.get_running_loop()
    readers: list[Reader] = []
    for _ in range(connections):
        reader: Reader = RedisReader(reading, stream) if redis else HttpReader(reading, stream)
        await loop.create_connection(lambda made=reader: made, "127.0.0.1", port)  # type: ignore[misc]
        readers.append(reader)
    began = time.perf_counter()
    for reader in readers:
        reader.begin()
    await asyncio.sleep(seconds or 0)
    reading.stopping = seconds is not None
    rate = reading.bytes / (time.perf_counter() - began)
    await asyncio.wait_for(reading.at_rest.wait(), SLOWEST_COUNT)
    return {
        "per_second": rate,
        "events": reading.events,
        "bytes": reading.bytes,
        "requests": reading.requests,
        "errors": int(bool(reading.error)),
        "first_error": reading.error,
    }
