"""What engine tests share: coroutine tests, a clock to move, a log with subscriptions, a webhook receiver."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.config import Config, StorageConfig
from headrace.engine.assembly import Engine
from headrace.engine.log.append import Append
from headrace.engine.log.lifecycle import Create, Delete
from headrace.engine.log.stream import Stream
from headrace.engine.subscriptions.subscription_index import SubscriptionLimits
from headrace.engine.subscriptions.subscriptions import Subscriptions
from headrace.engine.subscriptions.webhook import Webhooks
from headrace.storage.streams import StreamRow

SECOND = 1_000_000
TEST_SECONDS = 60


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), TEST_SECONDS))
    return True


class FakeClock:
    """Time that stands still until it is told to move."""

    def __init__(self) -> None:
        self.us = 1_700_000_000 * SECOND

    def now_us(self) -> int:
        return self.us


class Receiver:
    """A webhook receiver: a real HTTP server whose answers are scripted; the last one is repeated."""

    def __init__(self, *answers: tuple[int, dict[str, Any]]) -> None:
        self.answers = list(answers)
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.before_answer: Callable[[dict[str, Any]], Awaitable[None]] | None = None

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.received]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:-2])
        signature = next(line.split(": ", 1)[1] for line in lines if line.lower().startswith("webhook-signature"))
        body = await reader.readexactly(int(headers["content-length"]))
        self.received.append(({**headers, "webhook-signature": signature}, body))
        if self.before_answer is not None:
            await self.before_answer(json.loads(body))
        status, answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        content = json.dumps(answer).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(content)) + content)
        await writer.drain()
        writer.close()


class World:
    """An engine and its subscriptions on one directory, which can be closed and opened again."""

    def __init__(self, directory: Path, limits: SubscriptionLimits, max_bytes: int) -> None:
        self.config = Config(storage=StorageConfig(data_dir=str(directory), max_database_bytes=max_bytes))
        self.limits = limits
        self.clock = FakeClock()
        self.engine: Engine
        self.subscriptions: Subscriptions

    async def open(self) -> None:
        self.engine = await Engine.open(self.config, self.clock)
        self.subscriptions = await Subscriptions.open(
            log=self.engine.log,
            clock=self.engine.clock,
            apply=self.engine.apply,
            webhook_timeout_s=self.engine.config.subscriptions.webhook_timeout_s,
            limits=self.limits,
            webhooks=Webhooks(),
        )
        await self.idle()

    async def close(self) -> None:
        await self.subscriptions.close()
        await self.engine.close()

    async def restart(self) -> None:
        await self.close()
        await self.open()

    async def idle(self) -> None:
        await self.subscriptions.delivery.idle()

    async def pass_time(self, seconds: float) -> None:
        self.clock.us += round(seconds * SECOND)
        await self.idle()

    async def create(
        self, name: str, body: bytes = b"", *, content_type: str = "application/json", **more: Any
    ) -> Stream:
        """A new stream; more are a fork, or the stream that it replaces."""
        row = StreamRow(name=name, content_type=content_type, created_us=self.clock.us, epochs="[]")
        settled: asyncio.Future[Create] = asyncio.get_running_loop().create_future()
        self.engine.log.create(row, settled.set_result, body=body, count=1 if body else 0, **more)
        await settled
        return self.engine.log.find(name)

    async def append(self, name: str, *, count: int = 1, entry: bytes = b"{}") -> str:
        """Append entries without waiting for what they set off; answers the new tail."""
        stream = self.engine.log.find(name)
        settled: asyncio.Future[Append] = asyncio.get_running_loop().create_future()

        def done(append: Append) -> None:
            self.engine.log.settled(append)
            settled.set_result(append)

        self.engine.log.append(Append(stream, b",".join([entry] * count), count, done))
        error = (await settled).error
        if error is not None:
            raise error
        return stream.tail_offset()

    async def delete(self, name: str) -> None:
        settled: asyncio.Future[Delete] = asyncio.get_running_loop().create_future()
        self.engine.log.delete(self.engine.log.find(name), settled.set_result)
        await settled

    def events(self, name: str = "wake/pool") -> list[dict[str, Any]]:
        stream = self.engine.log.find(name)
        parts = self.engine.log.read(stream, stream.head, 0, budget=1 << 20).parts
        found: list[dict[str, Any]] = msgspec.json.decode(b"[" + b",".join(parts) + b"]")
        return found

    def acked(self, id: str) -> dict[str, str]:
        return {link.path: link.acked for link in self.subscriptions.get(id).links.values()}


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., Any]:
    """Opens a log with subscriptions, each time in a fresh directory."""
    numbers = count()

    @asynccontextmanager
    async def opened(limits: SubscriptionLimits | None = None, max_bytes: int = 0) -> AsyncIterator[World]:
        made = World(tmp_path / str(next(numbers)), limits or SubscriptionLimits(), max_bytes)
        await made.open()
        try:
            yield made
        finally:
            await made.close()

    return opened


@pytest.fixture
def receiver() -> Callable[..., Any]:
    """Starts a webhook receiver that answers as it is told; without a word it answers 200."""

    @asynccontextmanager
    async def started(*answers: tuple[int, dict[str, Any]]) -> AsyncIterator[tuple[Receiver, str]]:
        made = Receiver(*(answers or ((200, {}),)))
        server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
        try:
            yield made, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        finally:
            server.close()

    return started
