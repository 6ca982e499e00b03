"""SIGKILL while many append and the schema changes: boundaries and events agree, and nothing confirmed is undone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from headrace.format import offset as offsets
from server.registries import TEXT, WHOLE, lens, rename, shape, stored, version_at

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

ROUNDS, WRITERS = 6, 8
PATH = "/v1/stream/evolving"


def form(version: int) -> dict[str, Any]:
    """The schema of a version; no event fits two of them."""
    return shape(who=TEXT, number=WHOLE, **{f"v{version}": WHOLE})


def event(version: int, who: str, number: int) -> dict[str, Any]:
    return {"who": who, "number": number, f"v{version}": number}


class World:
    """What was asked of one stream over many lives of its server, and what was confirmed."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.chance = random.Random(3)
        self.asked = self.confirmed = 1
        self.keyed = self.maybe_keyed = False
        self.number = 0
        self.acknowledged: dict[tuple[str, int], int] = {}
        self.sent: set[tuple[str, int]] = set()
        self.refused = self.cut_off = self.found_by_key = 0

    async def begin(self) -> None:
        async with self._http() as http:
            assert (await http.put(PATH, headers={"content-type": "application/json"})).status_code == 201
            assert (await http.post(f"{PATH}/_schema", json={"schema": form(1)})).status_code == 200

    async def round(self) -> None:
        """Write and evolve from all sides, and kill the server at some moment."""
        async with self._http() as http:
            clients = [self._write(http, f"w{writer}") for writer in range(WRITERS)]
            tasks = [asyncio.create_task(self._until_it_dies(client)) for client in (*clients, self._evolve(http))]
            await asyncio.sleep(self.chance.uniform(0.05, 0.4))
            await asyncio.to_thread(self.server.kill)
            await asyncio.gather(*tasks)

    async def _until_it_dies(self, client: Any) -> None:
        try:
            await client
        except httpx2.TransportError:
            self.cut_off += 1

    def _http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.server.url, timeout=20, trust_env=False)

    async def _write(self, http: httpx2.AsyncClient, who: str) -> None:
        while True:
            version, first = self.confirmed, self.number
            count = 1 + first % 3
            self.number += count
            self.sent |= {(who, first + later) for later in range(count)}
            events = [event(version, who, first + later) for later in range(count)]
            answer = await http.post(PATH, json=events)
            if answer.status_code == 400:
                assert version < self.asked
                self.sent -= {(who, first + later) for later in range(count)}
                self.refused += 1
                continue
            assert answer.status_code == 204, answer.text
            end = offsets.decode(answer.headers["stream-next-offset"]).position
            self.acknowledged |= {(who, first + later): end - count + later for later in range(count)}

    async def _evolve(self, http: httpx2.AsyncClient) -> None:
        while True:
            if not self.keyed:
                self.maybe_keyed = True
                body = {"routingKey": {"jsonPointer": "/who", "required": True}}
                assert (await http.post(f"{PATH}/_schema", json=body)).status_code == 200
                self.keyed = True
            version = self.confirmed
            self.asked = version + 1
            carrier = lens(PATH, version, rename(f"v{version}", f"v{version + 1}"))
            body = {"schema": form(version + 1), "lens": carrier}
            answer = await http.post(f"{PATH}/_schema", json=body)
            assert answer.status_code == 200, answer.text
            self.confirmed = version + 1
            await asyncio.sleep(self.chance.uniform(0, 0.05))

    async def check(self) -> None:
        """After a restart: the registry, the rows and the reads tell one story, and it has all that was confirmed."""
        async with self._http() as http:
            registry = (await http.get(f"{PATH}/_schema")).json()
            newest = registry["currentVersion"]
            assert self.confirmed <= newest <= self.asked
            assert self.maybe_keyed or "routingKey" not in registry
            assert "routingKey" in registry or not self.keyed
            self.confirmed = self.asked = newest
            appends = stored(self.server.data_dir, "evolving")
            for seq, count, version, events in appends:
                assert version == version_at(registry, seq) == version_at(registry, seq + count - 1)
                assert len(events) == count
                assert all(jsonschema_rs.is_valid(registry["schemas"][str(version)], entry) for entry in events)
            order = [(entry["who"], entry["number"]) for _, _, _, events in appends for entry in events]
            places = {who: place for place, who in enumerate(order)}
            assert len(places) == len(order), "an event is there twice"
            assert self.acknowledged.items() <= places.items() and places.keys() <= self.sent
            for version in {1, newest}:
                assert await self._read(http, schema_version=version) == [event(version, *who) for who in order]
            assert await self._read(http) == [event(newest, *who) for who in order]
            await self._check_history(http, registry)
            if self.keyed:
                await self._check_keys(http, order)

    async def _check_history(self, http: httpx2.AsyncClient, registry: dict[str, Any]) -> None:
        revisions = (await http.get(f"{PATH}/_schema/history")).json()["revisions"]
        assert [entry["revision"] for entry in revisions] == list(range(1, len(revisions) + 1))
        assert revisions[-1]["registry"] == registry

    async def _check_keys(self, http: httpx2.AsyncClient, order: list[tuple[str, int]]) -> None:
        """Whatever is found under a key is of that key, and what came after the setting is found."""
        for writer in range(WRITERS):
            who = f"w{writer}"
            found = [entry["number"] for entry in await self._read(http, key=who)]
            mine = [number for name, number in order if name == who]
            assert found == mine[len(mine) - len(found) :]
            self.found_by_key += len(found)

    async def _read(self, http: httpx2.AsyncClient, **query: Any) -> list[Any]:
        found: list[Any] = []
        offset = "-1"
        while True:
            page = await http.get(PATH, params={"offset": offset, **query})
            assert page.status_code == 200, page.text
            found += page.json()
            offset = page.headers["stream-next-offset"]
            if "stream-up-to-date" in page.headers:
                return found


def test_registry_and_events_agree_after_kills(start_server: Callable[..., Any]) -> None:
    server = start_server()
    world = World(server)
    asyncio.run(world.begin())
    for _ in range(ROUNDS):
        asyncio.run(world.round())
        server.start()
        asyncio.run(world.check())
    assert world.confirmed > ROUNDS and len(world.acknowledged) > 20 * ROUNDS and world.found_by_key > 0
    assert world.refused > 0 and world.cut_off > 0, "the kills came at the wrong moments"
    print(f"{len(world.acknowledged)} events, {world.confirmed} versions, {world.cut_off} requests cut off")
