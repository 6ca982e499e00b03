"""Many register, push and get at once: no half pipeline, no lost feature, no row of two generations."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

if TYPE_CHECKING:
    from tests.conftest import StartServer

pytestmark = pytest.mark.timeout(120)

SHARERS, OWNERS, PUSHERS, GETTERS, TURNS = 4, 4, 8, 4, 4
USERS = [f"u{number}" for number in range(5)]
SETTINGS = {
    "storage__seal_rows": "50",
    "storage__seal_age_s": "0.2",
    "pipeline__min_rows": "20",
    "features__fold_rows": "1000",
}
Row = dict[str, Any]

FIELDS = {"user": "str", "one": "i64"}
EVENT = {"kind": "event", "name": "Order", "schema": FIELDS}


def table(name: str, upstream: str, features: list[str]) -> Row:
    """A table whose features all count the same: some count events, the others add ones up."""
    kinds: list[Row] = [{"op": "count", "params": {}}, {"op": "sum", "params": {"field": "one"}}]
    agg = {feature: kinds[number % 2] for number, feature in enumerate(features)}
    return {"kind": "table", "name": name, "key": ["user"], "upstreams": [upstream], "agg": agg}


def pipeline(owner: int, turn: int) -> list[Row]:
    """What one app has after some turns: a table over its own event, one over a derivation of somebody else's."""
    features = [f"f{number}" for number in range(turn + 2)]
    odd = {"op": "filter", "expr": "one == 1"}
    return [
        {**EVENT, "name": f"Own{owner}"},
        {"kind": "derivation", "name": f"Odd{owner}", "output_kind": "event", "upstreams": ["Order"], "ops": [odd]},
        table(f"OwnTable{owner}", f"Own{owner}", features),
        table(f"OddTable{owner}", f"Odd{owner}", features),
    ]


class Town:
    """Everybody at one server."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http
        self.chance = random.Random(8)
        self.shared = ["n", "ones"]
        self.pushed: dict[str, dict[str, int]] = {"Order": dict.fromkeys(USERS, 0)}
        self.features: dict[str, set[str]] = {"Shared": set(self.shared)}
        self.over = asyncio.Event()
        self.conflicts = self.looks = 0

    async def register(self, descriptors: list[Row], **terms: Any) -> httpx2.Response:
        return await self.http.post("/v1/register", json={"descriptors": descriptors, **terms})

    # -- those who register

    async def share(self, number: int) -> None:
        """Add features to a table that others add to, too: whoever comes second looks again."""
        for turn in range(TURNS):
            mine = f"s{number}_{turn}"
            while True:
                found = (await self.http.get("/v1/registry", params={"app": "default"})).json()
                nodes = found["descriptors"]
                [shared] = [node for node in nodes if node["kind"] == "table"]
                shared["agg"][mine] = {"op": "count", "params": {"where": "one == 1"}}
                answer = await self.register(nodes, expected_version=found["registry_version"])
                if answer.status_code == 200:
                    assert answer.json()["changed"] == [{"name": "Shared", "added_features": [mine]}]
                    break
                assert answer.json()["error"]["code"] == "version_conflict", answer.text
                self.conflicts += 1
            self.features["Shared"] |= {mine}

    async def own(self, number: int) -> None:
        """Let an app of one's own grow, whatever others do."""
        for turn in range(TURNS):
            descriptors = pipeline(number, turn)
            answer = await self.register(descriptors, app=f"app{number}")
            assert answer.status_code == 200, answer.text
            self.pushed.setdefault(f"Own{number}", dict.fromkeys(USERS, 0))
            for node in descriptors[2:]:
                self.features[node["name"]] = set(node["agg"])

    # -- those who push and look

    async def push(self) -> None:
        while not self.over.is_set():
            event = self.chance.choice(list(self.pushed))
            users = self.chance.choices(USERS, k=self.chance.randrange(1, 6))
            answer = await self.http.post(f"/v1/push/{event}", json=[{"user": user, "one": 1} for user in users])
            assert answer.status_code == 200, answer.text
            for user in users:
                self.pushed[event][user] += 1

    async def look(self) -> None:
        while not self.over.is_set():
            name, user = self.chance.choice(list(self.features)), self.chance.choice(USERS)
            features, least = set(self.features[name]), self.pushed[_root(name)][user]
            answer = await self.http.post("/v1/get", json={"table": name, "key": user})
            assert answer.status_code == 200, answer.text
            row = answer.json()
            _holds_together(row, answer.headers["headrace-coverage"])
            assert features <= row.keys() if least else True, (name, row)
            assert all(value is None or value >= least for value in row.values()), (name, row, least)
            self._is_whole((await self.http.get("/v1/registry")).json())
            self.looks += 1

    def _is_whole(self, registry: Row) -> None:
        """Every app is all there, as one of its registrations was."""
        nodes = {node["name"]: node for node in registry["descriptors"]}
        for owner in range(OWNERS):
            mine = [f"Own{owner}", f"Odd{owner}", f"OwnTable{owner}", f"OddTable{owner}"]
            there = [nodes[name] for name in mine if name in nodes]
            assert len(there) in (0, len(mine)), [node["name"] for node in there]
            assert not there or there[2]["agg"] == there[3]["agg"]
        assert {name: set(lives) for name, lives in registry["features"].items()} == {
            name: set(node["agg"]) for name, node in nodes.items() if node["kind"] == "table"
        }


def _root(name: str) -> str:
    return name.replace("Table", "") if name.startswith("OwnTable") else "Order"


def _holds_together(row: Row, coverage: str) -> None:
    """Whatever is said is said by all features alike."""
    told = set(row.values()) - {None}
    assert len(told) <= 1, row
    assert coverage == "backfilling" or None not in row.values(), row


async def _live(url: str) -> None:
    async with httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
        town = Town(http)
        assert (await town.register([EVENT, table("Shared", "Order", town.shared)])).status_code == 200
        others = [town.push() for _ in range(PUSHERS)] + [town.look() for _ in range(GETTERS)]
        tasks = [asyncio.create_task(one) for one in others]
        registrars = [town.share(number) for number in range(SHARERS)] + [town.own(number) for number in range(OWNERS)]
        try:
            await asyncio.gather(*registrars)
        finally:
            town.over.set()
        await asyncio.gather(*tasks)
        await _check(town)


async def _check(town: Town) -> None:
    """Everything that was registered is there, and counts everything that was pushed, before it too."""
    registry = (await town.http.get("/v1/registry")).json()
    assert registry["registry_version"] == 1 + (SHARERS + OWNERS) * TURNS
    assert {name: set(lives) for name, lives in registry["features"].items()} == town.features
    for (name, features), user in itertools.product(town.features.items(), USERS):
        while True:
            answer = await town.http.post("/v1/get", json={"table": name, "key": user})
            if answer.headers["headrace-coverage"] == "complete":
                break
            await asyncio.sleep(0.1)
        wanted = town.pushed[_root(name)][user]
        assert answer.json() == (dict.fromkeys(features, wanted) if wanted else {}), (name, user)
    assert town.conflicts and town.looks > 20


def test_nothing_is_torn_or_lost_when_many_register_push_and_get_at_once(start_server: StartServer) -> None:
    asyncio.run(_live(start_server(**SETTINGS).url))
