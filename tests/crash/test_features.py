"""SIGKILL while many push and the pipeline changes: what was confirmed is there, whole, and once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx2
import pytest

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

ROUNDS, WRITERS = 6, 8


def descriptors(version: int) -> list[dict[str, Any]]:
    """A pipeline whose event gets a field, and whose table a feature, with every version."""
    extra = {f"v{number}": {"type": "i64", "default": number} for number in range(version)}
    windows = {f"w{number}": {"op": "count", "params": {"window": f"{number + 1}h"}} for number in range(version)}
    return [
        {"kind": "event", "name": "Txn", "schema": {"who": "str", "id": "str", **extra}, "dedupe_key": "id"},
        {
            "kind": "table",
            "name": "Writers",
            "key": ["who"],
            "upstreams": ["Txn"],
            "agg": {"count": {"op": "count", "params": {}}, **windows},
        },
    ]


class World:
    """What was asked over many lives of a server, and what was confirmed."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.chance = random.Random(6)
        self.asked = self.confirmed = 0
        self.pushed: set[str] = set()
        self.acknowledged: dict[str, str] = {}
        self.number = 0

    async def round(self) -> None:
        """Push and register from all sides, and kill the server at some moment."""
        async with self._http() as http:
            clients = [self._push(http, f"w{writer}") for writer in range(WRITERS)]
            tasks = [asyncio.create_task(self._until_it_dies(one)) for one in (*clients, self._evolve(http))]
            await asyncio.sleep(self.chance.uniform(0.05, 0.4))
            await asyncio.to_thread(self.server.kill)
            await asyncio.gather(*tasks)
        await asyncio.to_thread(self.server.start)

    def _http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.server.url, timeout=20, trust_env=False)

    async def _until_it_dies(self, client: Any) -> None:
        try:
            await client
        except httpx2.TransportError:
            pass

    async def register(self, http: httpx2.AsyncClient) -> None:
        self.asked = max(self.asked, self.confirmed + 1)
        answer = await http.post("/v1/register", json={"descriptors": descriptors(self.asked)})
        assert answer.status_code == 200, answer.text
        self.confirmed = self.asked

    async def _evolve(self, http: httpx2.AsyncClient) -> None:
        while True:
            await self.register(http)

    async def _push(self, http: httpx2.AsyncClient, who: str) -> None:
        while True:
            self.number += 1
            events = [{"who": who, "id": f"{self.number}.{part}"} for part in range(3)]
            self.pushed |= {event["id"] for event in events}
            answer = await http.post("/v1/push/Txn", json=events)
            assert answer.status_code == 200, answer.text
            for event, result in zip(events, answer.json()["results"], strict=True):
                assert result["ack"], result
                self.acknowledged[event["id"]] = result["offset"]

    async def check(self) -> None:
        """The registry is one that was asked for, and every acknowledged event is there once, also when repeated."""
        async with self._http() as http:
            registry = (await http.get("/v1/registry")).json()
            assert registry["registry_version"] in range(self.confirmed, self.asked + 1)
            source = next(node for node in registry["descriptors"] if node["kind"] == "event")
            table = next(node for node in registry["descriptors"] if node["kind"] == "table")
            version = len(source["schema"]) - 2
            assert len(table["agg"]) - 1 == version == registry["registry_version"]
            schema = (await http.get("/v1/stream/events/Txn/_schema")).json()
            assert schema["currentVersion"] == version
            events = await self._events(http)
            ids = [event["id"] for event in events]
            assert len(ids) == len(set(ids))
            assert self.acknowledged.keys() <= set(ids) <= self.pushed
            assert all(event[f"v{number}"] == number for event in events for number in range(version))
            for who in sorted({event["who"] for event in events}):
                row = (await http.post("/v1/get", json={"table": "Writers", "key": who})).json()
                assert set(row.values()) == {sum(event["who"] == who for event in events)}
            await self._repeat(http)
            self.confirmed = version

    async def _events(self, http: httpx2.AsyncClient) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        offset = "-1"
        while True:
            answer = await http.get("/v1/stream/events/Txn", params={"offset": offset})
            found += answer.json()
            offset = answer.headers["stream-next-offset"]
            if "stream-up-to-date" in answer.headers:
                return found

    async def _repeat(self, http: httpx2.AsyncClient) -> None:
        for id in self.chance.sample(sorted(self.acknowledged), min(5, len(self.acknowledged))):
            answer = (await http.post("/v1/push/Txn", json={"who": "w0", "id": id})).json()
            assert answer["idempotent_replay"] is True
            assert answer["offset"] == self.acknowledged[id]


def test_what_was_confirmed_is_there_once_after_every_kill(start_server: Any) -> None:
    async def scenario() -> None:
        world = World(start_server())
        async with world._http() as http:
            await world.register(http)
        for _ in range(ROUNDS):
            await world.round()
            await world.check()
        assert world.confirmed > 1 and world.acknowledged

    asyncio.run(scenario())
