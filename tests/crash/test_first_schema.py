"""SIGKILL while a first schema is installed on a stream that many append to: installed or not, never in between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from server.registries import TEXT, WHOLE, lens, rename, shape, stored

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

ROUNDS, WRITERS, BEFORE = 8, 4, 2_000
FIRST, SECOND = shape(who=TEXT, number=WHOLE), shape(who=TEXT, count=WHOLE)


class Round:
    """One stream that grows from all sides while it gets its first schema and its server is killed."""

    def __init__(self, server: Any, number: int, chance: random.Random) -> None:
        self.server, self.chance = server, chance
        self.name = f"growing-{number}"
        self.path = f"/v1/stream/{self.name}"
        self.acknowledged = BEFORE
        self.is_installed = False
        self.unfit_after_install = 0

    def _http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.server.url, timeout=20, trust_env=False)

    async def run(self) -> None:
        async with self._http() as http:
            assert (await http.put(self.path, headers={"content-type": "application/json"})).status_code == 201
            events = [{"who": "begin", "number": number} for number in range(BEFORE)]
            assert (await http.post(self.path, json=events)).status_code == 204
            work = [self._write(http, f"w{writer}") for writer in range(WRITERS)]
            tasks = [asyncio.create_task(self._until_killed(one)) for one in (*work, self._install(http))]
            await asyncio.sleep(self.chance.uniform(0.0, 0.25))
            await asyncio.to_thread(self.server.kill)
            await asyncio.gather(*tasks)

    async def _until_killed(self, work: Any) -> None:
        try:
            await work
        except httpx2.TransportError:
            pass

    async def _write(self, http: httpx2.AsyncClient, who: str) -> None:
        number = 0
        while True:
            answer = await http.post(self.path, json=[{"who": who, "number": number}])
            assert answer.status_code == 204, answer.text
            self.acknowledged += 1
            number += 1
            if self.is_installed:
                unfit = await http.post(self.path, json=[{"who": 1}])
                assert unfit.status_code == 400
                self.unfit_after_install += 1

    async def _install(self, http: httpx2.AsyncClient) -> None:
        answer = await http.post(f"{self.path}/_schema?first_on_data=true", json={"schema": FIRST})
        assert answer.status_code == 200, answer.text
        self.is_installed = True

    async def check(self) -> bool:
        """After a restart: whether the schema is there; the events are, and read as what they are."""
        async with self._http() as http:
            registry = (await http.get(f"{self.path}/_schema")).json()
            version = registry["currentVersion"]
            assert version == 1 or (version == 0 and not self.is_installed)
            events = [event for *_, entries in stored(self.server.data_dir, self.name) for event in entries]
            assert len(events) >= self.acknowledged
            assert all(jsonschema_rs.is_valid(FIRST, event) for event in events)
            if version == 0:
                assert (await http.post(self.path, json=[{"who": 1}])).status_code == 204
                refused = await http.post(f"{self.path}/_schema?first_on_data=true", json={"schema": FIRST})
                assert refused.status_code == 409
                assert [failure["seq"] for failure in refused.json()["error"]["failures"]] == [len(events)]
                return False
            assert (await http.post(self.path, json=[{"who": 1}])).status_code == 400
            change = {"schema": SECOND, "lens": lens(self.path, 1, rename("number", "count"))}
            assert (await http.post(f"{self.path}/_schema", json=change)).status_code == 200
            read = await self._read(http)
            assert read == [{"who": event["who"], "count": event["number"]} for event in events]
            return True

    async def _read(self, http: httpx2.AsyncClient) -> list[Any]:
        events: list[Any] = []
        offset = "-1"
        while True:
            page = await http.get(self.path, params={"offset": offset})
            assert page.status_code == 200, page.text
            events += page.json()
            offset = page.headers["stream-next-offset"]
            if "stream-up-to-date" in page.headers:
                return events


def test_first_schema_is_installed_whole_or_not_at_all(start_server: Callable[..., Any]) -> None:
    server = start_server()
    chance = random.Random(7)
    outcomes = []
    for number in range(ROUNDS):
        world = Round(server, number, chance)
        asyncio.run(world.run())
        server.start()
        outcomes.append(asyncio.run(world.check()))
    assert any(outcomes)
    print(f"installed in {sum(outcomes)} of {ROUNDS} rounds")
