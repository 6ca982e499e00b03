"""Clients of entities: observations, snapshots, corrections, and data that goes for good."""

from __future__ import annotations

import itertools
from typing import Any

from bench.soak.load import BUSY, Client

PEOPLE = 300
_TYPE = "person"
_VERSION = {
    "entity_type": _TYPE,
    "schema_version": "1.0.0",
    "schema_definition": {
        "fields": {"email": {"type": "string"}, "score": {"type": "number"}, "tags": {"type": "array"}},
        "canonical_name_fields": ["email"],
    },
    "reducer_config": {"merge_policies": {"tags": {"strategy": "merge_array"}}},
    "activate": True,
}


class Observed:
    """How many observations of each person were acknowledged, and how many were sent."""

    def __init__(self, people: int = PEOPLE) -> None:
        self.acknowledged = [0] * people
        self.sent = [0] * people
        self.ids: dict[int, str] = {}
        self.numbers = itertools.count()
        self.erased: list[str] = []

    def person(self, client: Client) -> int | None:
        """Some person who has an entity."""
        return client.load.random.choice(list(self.ids)) if self.ids else None


async def register(client: Client) -> None:
    """Register the type of all people."""
    await client.insist("POST", "/v1/entity-types", _VERSION, expected=(200, 201))


class Observe:
    """Stores observations of people, some in a request."""

    def __init__(self, observed: Observed, size: int = 10, pause_s: float = 0.5) -> None:
        self._observed, self._size, self._pause_s = observed, size, pause_s

    async def __call__(self, client: Client) -> None:
        """Store until the load ends."""
        while client.load.running:
            people = client.load.random.sample(range(PEOPLE), self._size)
            await self._store(client, people)
            await client.load.pause(self._pause_s)

    async def _store(self, client: Client, people: list[int]) -> None:
        observed = self._observed
        entities = [
            {"entity_type": _TYPE, "email": f"u-{one}@example.com", "score": next(observed.numbers), "tags": ["a"]}
            for one in people
        ]
        for person in people:
            observed.sent[person] += 1
        answer = await client.ask("POST", "/v1/observations", {"entities": entities}, expected=(200, 201))
        stored = answer.json()["entities"] if answer.status not in BUSY else []
        for person, entity in zip(people, stored, strict=False):
            observed.acknowledged[person] += 1
            observed.ids[person] = entity["entity_id"]


class Read:
    """Reads snapshots, where values are from, and lists."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed

    async def __call__(self, client: Client) -> None:
        """Read until the load ends."""
        while client.load.running:
            person = self._observed.person(client)
            if person is not None:
                await check_person(client, self._observed, person)
                entity = self._observed.ids[person]
                for path in (f"/v1/entities/{entity}/observations?limit=5", "/v1/entities?limit=20"):
                    await client.ask("GET", path)
            await client.load.pause(0.5)


async def check_person(client: Client, observed: Observed, person: int) -> bool:
    """Hold a snapshot against what was observed; whether the server had the time."""
    least = observed.acknowledged[person]
    answer = await client.ask("GET", f"/v1/entities/{observed.ids[person]}")
    if answer.status == 200:
        count = answer.json()["observation_count"]
        right = least <= count <= observed.sent[person]
        client.check(right, lambda: f"person {person} has {count}, not {least} to {observed.sent[person]}")
    return answer.status == 200


class Correct:
    """An entity of its own that is observed, corrected, and has the corrected value whatever is observed."""

    def __init__(self, number: int, observed: Observed) -> None:
        self._email, self._observed = f"corrected-{number}@example.com", observed

    async def __call__(self, client: Client) -> None:
        """Correct until the load ends."""
        while client.load.running:
            entity = await store(client, self._observed, self._email)
            value = next(self._observed.numbers)
            if entity is not None:
                corrected = {"field": "score", "value": value}
                await client.insist("POST", f"/v1/entities/{entity}/correct", corrected, expected=(200, 201))
                await store(client, self._observed, self._email)
                found = await client.insist("GET", f"/v1/entities/{entity}")
                score = found.json()["snapshot"]["score"]
                client.check(score == value, lambda: f"{entity} was corrected to {value} and has {score}")  # noqa: B023
            await client.load.pause(2)


class Erase:
    """Entities that are stored and erased: from then on nobody reads them."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed

    async def __call__(self, client: Client) -> None:
        """Store and erase until the load ends."""
        while client.load.running:
            entity = await store(client, self._observed, f"gone-{next(self._observed.numbers)}@example.com")
            if entity is not None:
                await client.insist("POST", f"/v1/entities/{entity}/erase", {}, expected=(202, 404))
                self._observed.erased.append(entity)
                await check_erased(client, entity)
            await client.load.pause(10)


async def check_erased(client: Client, entity: str) -> None:
    """Nothing of it is read."""
    answer = await client.insist("GET", f"/v1/entities/{entity}", expected=(404,))
    client.check(answer.status == 404, str)


async def store(client: Client, observed: Observed, email: str) -> str | None:
    """Store an observation of one entity; answers its id, or nothing where the server was busy."""
    entity: dict[str, Any] = {"entity_type": _TYPE, "email": email, "score": next(observed.numbers)}
    answer = await client.ask("POST", "/v1/observations", {"entities": [entity]}, expected=(200, 201))
    return None if answer.status in BUSY else str(answer.json()["entities"][0]["entity_id"])
