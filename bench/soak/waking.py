"""Clients that are woken: by touches of the rows they wait for, and by webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from bench.requests import stream_path
from bench.soak.load import Client
from headrace.profiles.state_protocol import keys

_STREAM = stream_path("changes")
_ENTITY, _FIELD = "todos", "user"
_WAIT_MS = 5_000
#: A change that is this much older than the end of a wait must have ended it.
_LATE_S = 3.0
ROWS = 50


async def follow_rows(client: Client) -> None:
    """Make a stream whose touches are told, also of its rows."""
    await client.insist("PUT", _STREAM, expected=(200, 201))
    profile = {"kind": "state-protocol", "touch": {"enabled": True}}
    await client.insist("POST", f"{_STREAM}/_profile", {"profile": profile})
    template = {"entity": _ENTITY, "fields": [{"name": _FIELD, "encoding": "string"}]}
    await client.insist("POST", f"{_STREAM}/touch/templates/activate", {"templates": [template]})


class Changes:
    """When the last change of each row was sent, and when it was acknowledged."""

    def __init__(self) -> None:
        self.sent_at = [0.0] * ROWS
        self.acknowledged_at = [0.0] * ROWS

    def is_missed(self, row: int, since: float) -> bool:
        """Whether a row was changed since a moment, and long enough ago to be told by now."""
        now = asyncio.get_running_loop().time()
        return self.sent_at[row] > since and 0 < self.acknowledged_at[row] < now - _LATE_S


class Change:
    """Changes rows of a stream whose touches are told."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    async def __call__(self, client: Client) -> None:
        """Change rows until the load ends."""
        while client.load.running:
            row = client.load.random.randrange(ROWS)
            change = {"type": _ENTITY, "key": str(row), "value": {_FIELD: f"user-{row}"}}
            loop = asyncio.get_running_loop()
            self._changes.sent_at[row], self._changes.acknowledged_at[row] = loop.time(), 0.0
            answer = await client.ask("POST", _STREAM, [{**change, "headers": {"operation": "insert"}}])
            if answer.status == 204:
                self._changes.acknowledged_at[row] = loop.time()
            await client.load.pause(0.05)


class Wait:
    """Waits for one row, again and again, from the cursor it was told."""

    def __init__(self, changes: Changes, row: int) -> None:
        self._changes, self._row = changes, row

    async def __call__(self, client: Client) -> None:
        """Wait until the load ends."""
        template = keys.template_id(_ENTITY, [_FIELD])
        key = keys.format_key(keys.watch_key(template, [f"user-{self._row}"]))
        cursor: str | None = None
        loop = asyncio.get_running_loop()
        while client.load.running:
            if cursor is None:
                began = loop.time()
                cursor = (await client.insist("GET", f"{_STREAM}/touch/meta")).json()["cursor"]
            body = {"cursor": cursor, "keys": [key], "timeoutMs": _WAIT_MS}
            answer = await client.ask("POST", f"{_STREAM}/touch/wait", body)
            if answer.status != 200:
                await client.load.pause(0.5)
                continue
            found = answer.json()
            if not found["touched"] and not found.get("stale"):
                missed = self._changes.is_missed(self._row, began)
                client.check(not missed, lambda: f"row {self._row} was changed, and its wait was not ended")
            began, cursor = loop.time(), None if found.get("stale") else found["cursor"]


class Hooks:
    """A receiver of webhooks: what it was told, by subscription, acknowledging all of it."""

    def __init__(self) -> None:
        self.url = ""
        self.woken: dict[str, int] = {}
        self.wrong: list[str] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Hooks]:
        """Take webhooks while the block runs."""
        server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with server:
            yield self

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = int(head.partition("content-length:")[2].split("\r\n", 1)[0])
                wake: dict[str, Any] = msgspec.json.decode(await reader.readexactly(length))
                name, generation = wake["subscription_id"], wake["generation"]
                if generation < self.woken.get(name, 0):
                    self.wrong.append(f"{name} was woken with generation {generation} after {self.woken[name]}")
                self.woken[name] = generation
                body = b'{"done":true}'
                head_sent = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head_sent.encode() + body)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()


class Subscribe:
    """Subscriptions that come and go, each woken by what is appended meanwhile."""

    def __init__(self, hooks: Hooks, pattern: str, number: int) -> None:
        self._hooks, self._pattern, self._name, self._round = hooks, pattern, f"soak-{number}", 0

    async def __call__(self, client: Client) -> None:
        """Subscribe and forget until the load ends."""
        while client.load.running:
            self._round += 1
            name = f"{self._name}-{self._round}"
            path = f"/v1/stream/__ds/subscriptions/{name}"
            body = {"type": "webhook", "pattern": self._pattern, "webhook": {"url": self._hooks.url}}
            await client.insist("PUT", path, body, expected=(200, 201))
            began = asyncio.get_running_loop().time()
            while client.load.running and asyncio.get_running_loop().time() < began + 20:
                await client.load.pause(1)
            told = await client.insist("GET", path)
            woken = self._hooks.woken.pop(name, 0)
            if client.load.running:
                client.check(woken > 0, lambda: f"{name} was never woken: {told.body[:300]!r}")  # noqa: B023
            client.check(not self._hooks.wrong, lambda: self._hooks.wrong[0])
            await client.insist("DELETE", path)
