"""SIGKILL while entities are imported and their types change: what was confirmed is there, whole, and once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx2
import pytest

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

ROUNDS, WRITERS, BATCH = 6, 6, 40
TYPES = ("person", "firm")


def schema(entity_type: str, version: int) -> dict[str, Any]:
    """A version of a type that has a field for each version before it."""
    fields = {"email": {"type": "string"}, **{f"f{number}": {"type": "number"} for number in range(version)}}
    return {
        "entity_type": entity_type,
        "schema_version": f"1.{version}.0",
        "schema_definition": {"fields": fields, "canonical_name_fields": ["email"]},
        "reducer_config": {"merge_policies": {}},
        "activate": True,
    }


class World:
    """What was asked over many lives of a server, and what was confirmed."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.chance = random.Random(7)
        self.version = self.number = 0
        #: Requests by key, and the answers to those that were confirmed.
        self.asked: dict[str, dict[str, Any]] = {}
        self.confirmed: dict[str, bytes] = {}
        self.corrected: set[str] = set()

    def _http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.server.url, timeout=20, trust_env=False)

    async def round(self) -> None:
        """Import, replay, correct and change types from all sides, and kill the server at some moment."""
        async with self._http() as http:
            clients = [self._import(http, writer) for writer in range(WRITERS)]
            others = [self._evolve(http), self._correct(http)]
            tasks = [asyncio.create_task(self._until_it_dies(one)) for one in (*clients, *others)]
            await asyncio.sleep(self.chance.uniform(0.1, 0.6))
            await asyncio.to_thread(self.server.kill)
            await asyncio.gather(*tasks)
        await asyncio.to_thread(self.server.start)

    async def _until_it_dies(self, client: Any) -> None:
        try:
            await client
        except httpx2.TransportError:
            pass

    async def register(self, http: httpx2.AsyncClient) -> None:
        self.version += 1
        for entity_type in TYPES:
            answer = await http.post("/v1/entity-types", json=schema(entity_type, self.version))
            assert answer.status_code in (200, 409), answer.text

    async def _evolve(self, http: httpx2.AsyncClient) -> None:
        while True:
            await self.register(http)
            await asyncio.sleep(0.02)

    async def _import(self, http: httpx2.AsyncClient, writer: int) -> None:
        while True:
            unsure = [key for key in self.asked if key not in self.confirmed and key.startswith(f"{writer}.")]
            if unsure:
                key = unsure[0]
            elif self.confirmed and self.chance.random() < 0.2:
                key = self.chance.choice(list(self.confirmed))
            else:
                self.number += 1
                key = f"{writer}.{self.number}"
                self.asked[key] = self._request(key)
            await self._store(http, key)

    def _request(self, key: str) -> dict[str, Any]:
        entities = [
            {
                "entity_type": self.chance.choice(TYPES),
                "email": f"{self.chance.randrange(200)}@x.y",
                "f0": n,
                "odd": key,
            }
            for n in range(BATCH)
        ]
        return {"entities": entities, "idempotency_key": key}

    async def _store(self, http: httpx2.AsyncClient, key: str) -> None:
        answer = await http.post("/v1/observations", json=self.asked[key])
        assert answer.status_code == 200, answer.text
        assert self.confirmed.setdefault(key, answer.content) == answer.content

    async def _correct(self, http: httpx2.AsyncClient) -> None:
        number = 0
        while True:
            await asyncio.sleep(0.01)
            if self.confirmed:
                number += 1
                entity = httpx2.Response(200, content=next(iter(self.confirmed.values()))).json()["entities"][0]
                said = {"field": "note", "value": number}
                answer = await http.post(f"/v1/entities/{entity['entity_id']}/correct", json=said)
                assert answer.status_code == 200, answer.text
                self.corrected.add(answer.json()["observation_id"])

    async def check(self) -> None:
        """Every confirmed observation is there once, as it was asked for, under a version that was registered."""
        async with self._http() as http:
            for key in [key for key in self.asked if key not in self.confirmed]:
                await self._store(http, key)
            stored = {entity_type: await self._observations(http, entity_type) for entity_type in TYPES}
            every = [one for found in stored.values() for one in found]
            ids = [one["id"] for one in every]
            assert len(ids) == len(set(ids)) and self.corrected <= set(ids)
            said = [one for one in every if one["kind"] == "observation"]
            told = [
                one for body in self.confirmed.values() for one in httpx2.Response(200, content=body).json()["entities"]
            ]
            assert {one["observation_id"] for one in told} == {one["id"] for one in said}
            versions = {one["id"]: one["schema_version"] for one in said}
            assert all(versions[one["observation_id"]] == one["schema_version"] for one in told)
            for entity_type in TYPES:
                known = (await http.get(f"/v1/entity-types/{entity_type}/versions")).json()["versions"]
                assert {one["schema_version"] for one in stored[entity_type]} <= {
                    one["schema_version"] for one in known
                }
            await self._check_sources(http)

    async def _check_sources(self, http: httpx2.AsyncClient) -> None:
        for key in self.chance.sample(sorted(self.confirmed), min(4, len(self.confirmed))):
            source_id = httpx2.Response(200, content=self.confirmed[key]).json()["source_id"]
            source = (await http.get(f"/v1/sources/{source_id}")).json()
            assert source["complete"] and source["entities"] == self.asked[key]["entities"]
            again = await http.post("/v1/observations", json=self.asked[key])
            assert again.content == self.confirmed[key]

    async def _observations(self, http: httpx2.AsyncClient, entity_type: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        offset = "-1"
        while True:
            answer = await http.get(f"/v1/stream/entities/{entity_type}", params={"offset": offset})
            found += answer.json()
            offset = answer.headers["stream-next-offset"]
            if "stream-up-to-date" in answer.headers:
                return found


def test_what_was_confirmed_is_there_once_after_every_kill(start_server: Any) -> None:
    async def scenario() -> None:
        world = World(start_server())
        async with world._http() as http:
            await world.register(http)
        for _ in range(ROUNDS):
            await world.round()
            await world.check()
        assert len(world.confirmed) > ROUNDS and world.version > 2 and world.corrected

    asyncio.run(scenario())
