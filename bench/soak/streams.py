"""Clients of plain streams: they append in every way, and read in every way what others append."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import msgspec

from bench.soak.load import BUSY, Client, Unexpected
from bench.soak.written import Written, event

START = "-1"
RETENTION = {"Stream_Retention_Bytes": "2000000"}
_WAIT_S = 20
#: A reader begins so often with the oldest event; else where it was a while ago.
_FROM_START = 0.2
_FORKED = 60


async def create(client: Client, written: Written, **headers: str) -> None:
    """Make an empty JSON stream."""
    await client.insist("PUT", written.path, expected=(200, 201), Content_Type="application/json", **headers)


async def append(client: Client, written: Written, count: int, **headers: str) -> int:
    """Append the next events in one request; answers its status."""
    first = written.send(count)
    events = [event(number) for number in range(first, first + count)]
    status = 408
    try:
        answer = await client.ask("POST", written.path, events if count > 1 else events[0], **headers)
        status = answer.status
    finally:
        written.settle(status)
    return status


class Singles:
    """One event per request."""

    def __init__(self, written: Written, pause_s: float = 0.02) -> None:
        self._written, self._pause_s = written, pause_s

    async def __call__(self, client: Client) -> None:
        """Append until the load ends."""
        while client.load.running:
            await append(client, self._written, 1, Stream_Key=f"key-{self._written.acknowledged % 7}")
            await client.load.pause(self._pause_s)


class Arrays:
    """Many events per request."""

    def __init__(self, written: Written, size: int = 100, pause_s: float = 0.25) -> None:
        self._written, self._size, self._pause_s = written, size, pause_s

    async def __call__(self, client: Client) -> None:
        """Append until the load ends."""
        while client.load.running:
            await append(client, self._written, self._size)
            await client.load.pause(self._pause_s)


class Producer:
    """A producer that numbers its requests, and sends many of them twice."""

    def __init__(self, written: Written) -> None:
        self._written = written
        self._epoch = 0

    async def __call__(self, client: Client) -> None:
        """Append until the load ends; who begins again does so with a new epoch."""
        number = 0
        while client.load.running:
            names = {"Producer_Id": "soak", "Producer_Epoch": str(self._epoch), "Producer_Seq": str(number)}
            first = self._written.send(10)
            events = [event(one) for one in range(first, first + 10)]
            try:
                await client.insist("POST", self._written.path, events, **names)
                if number % 3 == 0:
                    again = await client.insist("POST", self._written.path, events, **names)
                    client.check(again.status == 204, lambda: "a repeated request was appended twice")
            except BaseException:
                self._written.settle(408)
                self._epoch += 1
                raise
            self._written.settle(200)
            number += 1
            await client.load.pause(0.2)


class CatchUp:
    """Reads streams from anywhere to their ends."""

    def __init__(self, streams: Sequence[Written]) -> None:
        self._streams = streams
        self._places: dict[str, tuple[str, int]] = {}

    async def __call__(self, client: Client) -> None:
        """Read until the load ends."""
        while client.load.running:
            written = client.load.random.choice(self._streams)
            offset, number = self._places.get(written.name, (START, 0))
            if client.load.random.random() < _FROM_START:
                offset, number = START, 0
            self._places[written.name] = await read_on(client, written, offset, number)
            await client.load.pause(0.2)


async def read_on(client: Client, written: Written, offset: str, number: int, pages: int = 30) -> tuple[str, int]:
    """Read a stream to its end, at most so many pages; answers where to go on, and with which event."""
    for _ in range(pages):
        least = written.acknowledged
        answer = await client.ask("GET", f"{written.path}?offset={offset}")
        if answer.status != 200:
            return offset, number
        following = written.follow(number, answer.json())
        assert following is not None
        offset, number = answer.headers["stream-next-offset"], following
        client.check(True, str)
        if "stream-up-to-date" in answer.headers:
            ended = number >= least or written.may_follow(number, least)
            client.check(ended, lambda: f"{written.name} ends at {number} and {least} are acknowledged")  # noqa: B023
            break
    return offset, number


class LongPoll:
    """Follows a stream by long-polls."""

    def __init__(self, written: Written) -> None:
        self._written = written

    async def __call__(self, client: Client) -> None:
        """Follow until the load ends."""
        offset, number = START, 0
        while client.load.running:
            path = f"{self._written.path}?offset={offset}&live=long-poll&timeout={_WAIT_S}s"
            answer = await client.ask("GET", path)
            if answer.status == 200:
                number = self._written.follow(number, answer.json()) or number
                client.check(True, str)
            if answer.status in (200, 204):
                offset = answer.headers["stream-next-offset"]
            else:
                await client.load.pause(1)


class Events:
    """Follows a stream by server-sent events."""

    def __init__(self, written: Written) -> None:
        self._written = written
        self._offset, self._number = START, 0

    async def __call__(self, client: Client) -> None:
        """Follow until the load ends; a response that ends is asked for again."""
        self._offset, self._number = START, 0
        while client.load.running:
            path = f"{self._written.path}?offset={self._offset}&live=sse"
            async with aclosing(client.another().stream(path)) as chunks:
                await self._take(client, chunks)

    async def _take(self, client: Client, chunks: AsyncIterator[tuple[int, bytes]]) -> None:
        buffer = b""
        async for status, chunk in chunks:
            if status != 200:
                return await self._refused(client, status)
            *whole, buffer = (buffer + chunk).split(b"\n\n")
            for part in whole:
                kind, data = _parsed(part)
                if kind == "data":
                    self._number = self._written.follow(self._number, data) or self._number
                    client.check(True, str)
                elif kind == "control":
                    self._offset = data["streamNextOffset"]
            if not client.load.running:
                break
        client.note(200)

    @staticmethod
    async def _refused(client: Client, status: int) -> None:
        client.note(status)
        if status not in BUSY:
            raise Unexpected(f"server-sent events answer {status}")
        await client.load.pause(1)


def _parsed(part: bytes) -> tuple[str, Any]:
    kind, lines = "", []
    for line in part.decode().splitlines():
        name, _, value = line.partition(":")
        if name == "event":
            kind = value.strip()
        elif name == "data":
            lines.append(value)
    return kind, msgspec.json.decode("\n".join(lines)) if lines else None


class Keys:
    """Reads the events of one key."""

    def __init__(self, written: Written) -> None:
        self._written = written

    async def __call__(self, client: Client) -> None:
        """Read until the load ends."""
        while client.load.running:
            key, offset = f"key-{client.load.random.randrange(7)}", START
            while client.load.running:
                path = f"{self._written.path}/pk/{quote(key)}?offset={offset}"
                answer = await client.ask("GET", path)
                if answer.status != 200:
                    break
                right = all(found == event(found["n"]) for found in answer.json())
                client.check(right, lambda: f"a read of {key} has wrong events")  # noqa: B023
                offset = answer.headers["stream-next-offset"]
                if "stream-up-to-date" in answer.headers:
                    break
            await client.load.pause(2)


class Forks:
    """Streams that are made, forked and deleted: a fork keeps what it has of a source that is gone."""

    def __init__(self, number: int) -> None:
        self._name, self._round = f"forked-{number}", 0

    async def __call__(self, client: Client) -> None:
        """Make and delete until the load ends."""
        while client.load.running:
            self._round += 1
            source = Written(f"{self._name}-{self._round}")
            fork = Written(f"{self._name}-{self._round}-fork")
            await create(client, source)
            while source.least < _FORKED:
                await append(client, source, 10)
            terms = {"Stream_Forked_From": source.path, "Content_Type": "application/json"}
            await client.insist("PUT", fork.path, expected=(200, 201), **terms)
            fork.acknowledged = fork.sent = source.acknowledged
            fork.unknown = list(source.unknown)
            await append(client, fork, 10)
            await append(client, source, 10)
            await client.insist("DELETE", source.path, expected=(204, 404))
            await read_on(client, fork, START, 0)
            await client.insist("DELETE", fork.path, expected=(204, 404))
            answer = await client.ask("GET", fork.path, expected=(404, 410))
            client.check(answer.status in (404, 410, *BUSY), lambda: "a deleted stream is read")
            await client.load.pause(1)


class Retained:
    """A stream whose old events go, with a reader that is overtaken now and then."""

    def __init__(self, written: Written) -> None:
        self._written = written

    async def __call__(self, client: Client) -> None:
        """Read until the load ends, from the earliest event that is left."""
        offset: str = START
        expected: int | None = None
        while client.load.running:
            answer = await client.ask("GET", f"{self._written.path}?offset={offset}", expected=(200, 410))
            if answer.status == 410:
                offset, expected = answer.headers["stream-earliest-offset"], None
            elif answer.status == 200:
                expected = self._written.follow(expected, answer.json())
                client.check(True, str)
                offset = answer.headers["stream-next-offset"]
                if "stream-up-to-date" in answer.headers:
                    await client.load.pause(5)
            else:
                await asyncio.sleep(0.5)
