"""SIGKILL while types grow by themselves and fragments are moved: every field once, every value once, nothing lost."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any

import httpx2
import pytest

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

ROUNDS, BATCH = 4, 1_000
ONE = "/v1/entity-types/person"
SCHEMA = {
    "entity_type": "person",
    "schema_version": "1.0.0",
    "schema_definition": {"fields": {"email": {"type": "string"}}, "canonical_name_fields": ["email"]},
    "reducer_config": {"merge_policies": {}},
    "activate": True,
}


class World:
    """What was given over many lives of a server."""

    def __init__(self, server: Any) -> None:
        self.server, self.chance = server, random.Random(11)
        self.number = 0
        #: Requests come in another order than what they say was observed.
        self.moments = self.chance.sample(range(600), 600)
        #: What an entity was said to have under a key last, by the time it was observed.
        self.said: dict[tuple[str, str], tuple[int, str]] = {}

    def http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.server.url, timeout=20, trust_env=False)

    async def begin(self) -> None:
        async with self.http() as http:
            assert (await http.post("/v1/entity-types", json=SCHEMA)).status_code == 200
            settings = {"scope": "global", "enabled": True}
            assert (await http.post(f"{ONE}/enhancement", json=settings)).status_code == 200

    async def round(self, number: int) -> None:
        """Store values under a key that nobody knows, promote it from all sides, and kill the server meanwhile."""
        key = f"key_{number}"
        async with self.http() as http:
            for _ in range(4):
                await self._store(http, key)
            clients = (self._grow(http), self._more(http)) if number % 2 else (self._look(http),)
            tasks = [asyncio.create_task(self._until_it_dies(one)) for one in clients]
            await asyncio.sleep(self.chance.uniform(0.02, 1.5))
            await asyncio.to_thread(self.server.kill)
            await asyncio.gather(*tasks)
        await asyncio.to_thread(self.server.start)

    async def _until_it_dies(self, client: Any) -> None:
        try:
            await client
        except httpx2.TransportError:
            pass

    async def _store(self, http: httpx2.AsyncClient, key: str) -> None:
        self.number += 1
        moment = self.moments.pop() * BATCH
        entities = [
            {"entity_type": "person", "email": f"{self.chance.randrange(60)}@x.y", key: f"v{self.number}.{n}"}
            for n in range(BATCH)
        ]
        for at, entity in enumerate(entities):
            entity["_meta"] = {"observed_at": f"2024-01-01T00:00:00.{moment + at:06}Z"}
        request = {"entities": entities, "idempotency_key": f"k{self.number}", "source_id": f"s{self.number}"}
        answer = await http.post("/v1/observations", json=request)
        assert answer.status_code == 200, answer.text
        for at, (entity, told) in enumerate(zip(entities, answer.json()["entities"], strict=True)):
            mark, value = (told["entity_id"], key), (moment + at, str(entity[key]))
            self.said[mark] = max(self.said.get(mark, value), value)

    async def _look(self, http: httpx2.AsyncClient) -> None:
        """Leave all of it to the type itself."""
        while True:
            assert (await http.get(f"{ONE}/candidates", params={"scope": "global"})).status_code == 200
            await asyncio.sleep(0.05)

    async def _grow(self, http: httpx2.AsyncClient) -> None:
        """Promote by hand too, while the type does it by itself."""
        while True:
            wish = {"scope": "global", "dry_run": False, "migrate_existing": True}
            answer = await http.post(f"{ONE}/enhance", json=wish)
            assert answer.status_code == 200, answer.text
            await asyncio.sleep(0.05)

    async def _more(self, http: httpx2.AsyncClient) -> None:
        """Move what is moved already."""
        while True:
            fields = list((await http.get(ONE)).json()["schema_definition"]["fields"])
            answer = await http.post(f"{ONE}/migrate", json={"scope": "global", "fields": fields})
            assert answer.status_code == 200, answer.text

    async def settle(self, rounds: int) -> None:
        """Wait until every key is a field, and nothing is left to be moved."""
        deadline = time.monotonic() + 40
        async with self.http() as http:
            while True:
                fields = (await http.get(ONE)).json()["schema_definition"]["fields"]
                runs = (await http.get(f"{ONE}/migrations", params={"scope": "global"})).json()["migrations"]
                if len(fields) == 1 + rounds and all(run["state"] == "completed" for run in runs):
                    return
                assert time.monotonic() < deadline, (list(fields), runs)
                await asyncio.sleep(0.1)

    async def check(self, rounds: int) -> None:
        """Every key is a field once, and every value that was there before it was moved once."""
        async with self.http() as http:
            versions = (await http.get(f"{ONE}/versions")).json()["versions"]
            assert [one["active"] for one in versions].count(True) == 1
            grown = [len(one["schema_definition"]["fields"]) for one in versions]
            assert grown == sorted(set(grown), reverse=True)  # no version adds nothing
            decided = (await http.get(f"{ONE}/recommendations", params={"scope": "global"})).json()["recommendations"]
            assert Counter(one["field"] for one in decided) == Counter(f"key_{n}" for n in range(rounds))
            assert {one["status"] for one in decided} <= {"applied", "auto_applied"}
            await self._check_observations(http)
            for (entity_id, key), (_, value) in self.said.items():
                snapshot = (await http.get(f"/v1/entities/{entity_id}")).json()["snapshot"]
                assert snapshot[key] == value

    async def _check_observations(self, http: httpx2.AsyncClient) -> None:
        stored = await self._observations(http)
        ids = [one["id"] for one in stored]
        assert len(ids) == len(set(ids))
        said = [one for one in stored if one["kind"] == "observation"]
        fragments = {(one["id"], fragment["key"]) for one in said for fragment in one.get("fragments", ())}
        moved = [(one["details"]["of"], next(iter(one["fields"]))) for one in stored if one["kind"] == "migration"]
        assert len(moved) == len(set(moved)) and set(moved) == fragments
        times = {one["id"]: one["observed_at_us"] for one in stored}
        assert all(times[one["details"]["of"]] == one["observed_at_us"] for one in stored if one["kind"] == "migration")

    async def _observations(self, http: httpx2.AsyncClient) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        offset = "-1"
        while True:
            answer = await http.get("/v1/stream/entities/person", params={"offset": offset})
            found += answer.json()
            offset = answer.headers["stream-next-offset"]
            if "stream-up-to-date" in answer.headers:
                return found


def test_types_grow_and_values_are_moved_once_whenever_the_server_is_killed(start_server: Any) -> None:
    async def scenario() -> None:
        world = World(start_server())
        await world.begin()
        for number in range(ROUNDS):
            await world.round(number)
        await world.settle(ROUNDS)
        await world.check(ROUNDS)

    asyncio.run(scenario())
