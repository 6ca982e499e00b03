"""Clients that ask until they are told to stop, and what came of it: answers by status, and what is wrong."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from bench.soak.calling import Answer, Caller

#: A server under load may answer so to anything: its time is over, a queue is full, it cannot just now.
BUSY = (408, 429, 503)
MOST_TROUBLES = 50
_REST_S = 0.5


class Unexpected(Exception):
    """An answer that is wrong, or that no client expects."""


class Load:
    """What all clients share."""

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.random = random.Random(seed)
        self.stopping = asyncio.Event()
        #: How often a kind of client was answered with a status and a code.
        self.answers: Counter[tuple[str, int, str]] = Counter()
        #: How often a kind of client held an answer against what was acknowledged.
        self.checks: Counter[str] = Counter()
        self.troubles: list[str] = []

    @property
    def running(self) -> bool:
        """Whether clients go on."""
        return not self.stopping.is_set()

    async def pause(self, seconds: float) -> None:
        """Wait about so long, or until the load ends."""
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds * self.random.uniform(0.5, 1.5))
        except TimeoutError:
            pass

    def trouble(self, text: str) -> None:
        """Note something that must not happen."""
        if len(self.troubles) < MOST_TROUBLES:
            self.troubles.append(text)

    @asynccontextmanager
    async def client(self, kind: str) -> AsyncIterator[Client]:
        """A client of a kind, for a while."""
        client = Client(self, kind)
        try:
            yield client
        finally:
            await client.hang_up()

    async def keep(self, kind: str, client: Callable[[Client], Awaitable[None]]) -> None:
        """Let one client work until the load ends; what it finds wrong is noted, and it begins again."""
        while self.running:
            try:
                async with self.client(kind) as caller:
                    await client(caller)
            except Unexpected as wrong:
                self.trouble(f"{kind}: {wrong}")
            except Exception as error:  # no answer, or one that cannot be read
                self.trouble(f"{kind}: {error!r}")
            await self.pause(_REST_S)


class Client:
    """One connection of one kind of client."""

    def __init__(self, load: Load, kind: str) -> None:
        self.load = load
        self.kind = kind
        self._caller = Caller(load.port)

    async def ask(
        self, method: str, path: str, body: Any = None, *, expected: tuple[int, ...] = (200, 204), **headers: str
    ) -> Answer:
        """The answer to a request, which is expected or says that the server is busy."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self._caller.ask(method, path, body, fields)
        self.note(answer.status, answer.code)
        if answer.status not in expected and answer.status not in BUSY:
            raise Unexpected(f"{method} {path}: {answer.status} {answer.body[:300]!r}")
        return answer

    async def insist(self, method: str, path: str, body: Any = None, **terms: Any) -> Answer:
        """The same, asked again while the server is busy: for what may be repeated."""
        for _ in range(60):
            answer = await self.ask(method, path, body, **terms)
            if answer.status not in BUSY:
                return answer
            await asyncio.sleep(_REST_S)
        raise Unexpected(f"{method} {path}: busy for half a minute: {answer.status} {answer.code}")

    def another(self) -> Caller:
        """A connection more, for an answer that is streamed."""
        return Caller(self.load.port)

    def note(self, status: int, code: str = "") -> None:
        """Count an answer."""
        self.load.answers[self.kind, status, code] += 1

    def check(self, holds: bool, text: Callable[[], str]) -> None:
        """Hold something against what is known to be true."""
        self.load.checks[self.kind] += 1
        if not holds:
            raise Unexpected(text())

    async def hang_up(self) -> None:
        """Close the connection."""
        await self._caller.close()
