"""Writing streams and reading them back whole, each under a running digest of all its events."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterator
from typing import Any

from bench.events import array, varied_event
from bench.reading import HttpReader, Reading
from bench.requests import numbered, stream_path
from bench.wire import HttpConnection, Tally, connect, http_request

ARRAY = 100
LONGEST = 1400.0
#: The events of one stream have numbers of their own.
APART = 100_000_000


class Writing:
    """The appends of one stream, one after the other, and the digest of all events they hold."""

    def __init__(self, stream: str, first: int, size: int) -> None:
        self.digest = hashlib.sha256()
        self.bytes = self.events = 0
        self._path = stream_path(stream)
        self._first, self._size = first, size

    def requests(self) -> Iterator[bytes]:
        """Appends of a hundred events until there are enough bytes."""
        while self.bytes < self._size:
            body = array(self._first + self.events, ARRAY, varied_event)
            self.digest.update(b"," + body[1:-1])
            self.bytes += len(body) - 1
            self.events += ARRAY
            yield http_request("POST", self._path, body)


class DigestingReader(HttpReader):
    """Reads a stream once; its digest is that of the events, wherever pages begin and end."""

    def __init__(self, reading: Reading, stream: str) -> None:
        super().__init__(reading, stream)
        self.digest = hashlib.sha256()
        self.size = 0
        self._held = b""

    def on_body(self, body: bytes) -> None:
        """Take a piece of a page; its last two bytes wait, since they may be the end."""
        if not body:
            return
        joined = self._held + body if self._held else b"," + body[1:]
        self.digest.update(memoryview(joined)[:-2])
        self.size += max(0, len(joined) - 2)
        self._held = joined[-2:]

    def on_message_complete(self) -> None:
        """A page is over: one bracket is left, and before it a byte of an event, or nothing."""
        if self._held != b",]":
            self.digest.update(self._held[:1])
            self.size += 1
        self._held = b""
        super().on_message_complete()


async def write_streams(port: int, prefix: str, streams: int, size: int) -> dict[str, Any]:
    """Fill streams side by side, one connection for each, with so many bytes in all."""
    tally = Tally(streams)
    writings = [Writing(numbered(prefix, number), number * APART, size // streams) for number in range(streams)]
    connections = [HttpConnection(tally, writing.requests()) for writing in writings]
    await connect(connections, port)
    began = time.perf_counter()
    for connection in connections:
        connection.send()
    await asyncio.wait_for(tally.at_rest.wait(), LONGEST)
    tally.stopping = True
    return {
        "taken": time.perf_counter() - began,
        "bytes": sum(writing.bytes for writing in writings),
        "events": [writing.events for writing in writings],
        "digests": [writing.digest.hexdigest() for writing in writings],
        "first_error": tally.first_error,
    }


async def read_back(port: int, prefix: str, streams: int) -> dict[str, Any]:
    """Read streams from start to end side by side, one connection for each."""
    reading = Reading(streams, once=True, counting=True)
    readers = [DigestingReader(reading, numbered(prefix, number)) for number in range(streams)]
    await connect(readers, port)
    began = time.perf_counter()
    for reader in readers:
        reader.begin()
    await asyncio.wait_for(reading.at_rest.wait(), LONGEST)
    return {
        "taken": time.perf_counter() - began,
        "bytes": sum(reader.size for reader in readers),
        "digests": [reader.digest.hexdigest() for reader in readers],
        "first_error": reading.error,
    }
