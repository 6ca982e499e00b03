"""Many change the same entity types, store and read at once: every moment has one version, and every answer is of one.

Of ``person`` versions with two sets of policies take turns. Whatever is said of a person says the same in two fields,
later and with less priority each time: by one set of policies both show what was said last, by the other what was said
first, and if an answer mixed the two, they would differ. Of ``firm`` fields are added and nothing is taken back.
"""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx2
import pytest

if TYPE_CHECKING:
    from tests.conftest import StartServer

pytestmark = pytest.mark.timeout(120)

TURNS, STORERS, LOOKERS = 12, 6, 4
KEYS = [f"k{number}" for number in range(5)]
SETTINGS = {
    "storage__seal_rows": "40",
    "storage__seal_age_s": "0.2",
    "pipeline__min_rows": "20",
    "features__fold_rows": "100",
}
TYPES = "/v1/entity-types"
SINCE = datetime(2024, 1, 1, tzinfo=UTC)
FIRST_WINS = {field: {"strategy": "highest_priority"} for field in ("a", "b")}
#: A field that no version has, and fields that some have and others do not.
LONG = "long"
VARYING = (LONG, "registered0_0", "updated0_0", "updated1_0", "updated2_0")
Json = dict[str, Any]


def version(entity_type: str, name: str, *more: str, policies: Json | None = None, activate: bool = True) -> Json:
    fields = {"key": {"type": "string"}, **{field: {"type": "number"} for field in ("a", "b", *more)}}
    return {
        "entity_type": entity_type,
        "schema_version": name,
        "schema_definition": {"fields": fields, "canonical_name_fields": ["key"]},
        "reducer_config": {"merge_policies": policies or {}},
        "activate": activate,
    }


class Seen(NamedTuple):
    """An answer that told of a person: what was surely true when it was asked for, and what it said."""

    change: int
    said: int
    version: str
    snapshot: Json
    provenance: Json


class Stored(NamedTuple):
    """An observation that was acknowledged: the last change before it was sent, and what became of it."""

    change: int
    entity_type: str
    id: str
    version: str


class Town:
    """Everybody at one server."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http
        self.chance = random.Random(16)
        self.over = asyncio.Event()
        #: The last change of persons that was acknowledged.
        self.change = 0
        self.made: dict[str, Json] = {}
        self.grown: dict[str, set[str]] = {"global": set(), "user": set()}
        self.ids: dict[str, str] = {}
        self.asked, self.said = dict.fromkeys(KEYS, 0), dict.fromkeys(KEYS, 0)
        self.stored: list[Stored] = []
        self.seen: list[Seen] = []

    async def post(self, path: str, body: Json) -> Json:
        answer = await self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    async def get(self, path: str, **query: Any) -> Json:
        answer = await self.http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    # -- those who change types

    def changed(self, answer: Json) -> None:
        self.change = max(self.change, answer["change"] or 0)

    async def register(self, client: int) -> None:
        """Versions with the policies of others, each with a field of its own."""
        for turn in range(TURNS):
            name, policies = f"{10 + client}.0.{turn}", FIRST_WINS if (client + turn) % 2 else None
            given = version("person", name, f"registered{client}_{turn}", policies=policies, activate=turn % 3 != 2)
            self.changed(answer := await self.post(TYPES, given))
            assert answer["schema_version"] == name
            assert answer["active"] == (turn % 3 != 2)
            self.made[name] = {"added": None}

    async def activate(self, _: int) -> None:
        """Any version there is."""
        for _ in range(TURNS):
            versions = await self.versions("person")
            chosen = self.chance.choice(versions)["schema_version"]
            self.changed(await self.post(f"{TYPES}/person/activate", {"schema_version": chosen}))

    async def update(self, client: int) -> None:
        """A field more than whatever holds."""
        for turn in range(TURNS):
            field = f"updated{client}_{turn}"
            wish = {"fields_to_add": [{"field_name": field, "field_type": "number"}]}
            self.changed(answer := await self.post(f"{TYPES}/person/update", wish))
            assert answer["fields_added"] == [field] and answer["schema_version"] not in self.made
            self.made[answer["schema_version"]] = {"added": field, "from": answer["previous_version"]}

    async def grow(self, client: int) -> None:
        """A field of firms, for everybody or for oneself, which is there from then on."""
        scope = "user" if client % 2 else "global"
        for turn in range(TURNS):
            field = f"updated{client}_{turn}"
            wish = {"fields_to_add": [{"field_name": field, "field_type": "number"}], "scope": scope}
            assert (await self.post(f"{TYPES}/firm/update", wish))["fields_added"] == [field]
            self.grown[scope].add(field)

    # -- those who store

    async def store(self) -> None:
        while not self.over.is_set():
            await self.say(self.chance.choice(KEYS))

    async def say(self, key: str) -> None:
        """The next thing about a person and a firm, in one request."""
        self.asked[key] += 1
        number, change = self.asked[key], self.change
        given = {"key": key, "a": number, "b": number, **dict.fromkeys(VARYING, number)}
        at = (SINCE + timedelta(seconds=number)).strftime("%Y-%m-%dT%H:%M:%SZ")
        # What is long is accepted in a thread, while others change the type.
        given[LONG] = "x" * self.chance.choice([1, 1, 1, 70_000])
        entities = [{"entity_type": entity_type, **given} for entity_type in ("person", "firm")]
        told = await self.post(
            "/v1/observations",
            {"entities": entities, "observed_at": at, "source_priority": max(1, 900 - number)},
        )
        self.said[key] = max(self.said[key], number)
        for one in told["entities"]:
            self.stored.append(Stored(change, one["entity_type"], one["observation_id"], one["schema_version"]))
        person = told["entities"][0]
        self.ids[key] = person["entity_id"]
        if self.chance.random() < 0.2:
            found = await self.get(f"{TYPES}/person", schema_version=person["schema_version"])
            assert found["schema_version"] == person["schema_version"]

    # -- those who look

    async def look(self, client: int) -> None:
        ways = (self.look_at_a_person, self.look_at_persons, self.look_at_versions)
        while not self.over.is_set():
            await ways[0 if client else self.chance.randrange(len(ways))]()

    async def look_at_a_person(self) -> None:
        key = self.chance.choice(KEYS)
        change, said = self.change, self.said[key]
        self.note(change, said, await self.get(f"/v1/entities/{self.ids[key]}"))

    async def look_at_persons(self) -> None:
        change, said = self.change, {self.ids[key]: said for key, said in self.said.items()}
        found = (await self.get("/v1/entities", entity_type="person"))["entities"]
        assert [one["entity_id"] for one in found] == list(self.ids.values())
        for one in found:
            self.note(change, said[one["entity_id"]], one)

    def note(self, change: int, said: int, told: Json) -> None:
        self.seen.append(Seen(change, said, told["schema_version"], told["snapshot"], told["provenance"]))

    async def look_at_versions(self) -> None:
        grown = {scope: set(fields) for scope, fields in self.grown.items()}
        for entity_type in ("person", "firm"):
            actives = [one["scope"] for one in await self.versions(entity_type) if one["active"]]
            assert sorted(set(actives)) == sorted(actives) and "global" in actives, actives
        shared = await self.get(f"{TYPES}/firm", scope="global")
        assert grown["global"] <= shared["schema_definition"]["fields"].keys()
        own = await self.get(f"{TYPES}/firm")
        assert grown["global"] | grown["user"] <= own["schema_definition"]["fields"].keys()

    async def versions(self, entity_type: str) -> list[Json]:
        found: list[Json] = (await self.get(f"{TYPES}/{entity_type}/versions", limit=1000))["versions"]
        return found


async def _live(url: str) -> None:
    limits = httpx2.Limits(max_connections=64, max_keepalive_connections=64)
    async with httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False, limits=limits) as http:
        town = Town(http)
        town.changed(await town.post(TYPES, version("person", "1.0.0")))
        await town.post(TYPES, version("firm", "1.0.0"))
        town.made["1.0.0"] = {"added": None}
        for key in KEYS:
            await town.say(key)
        others = [town.store() for _ in range(STORERS)] + [town.look(client) for client in range(LOOKERS)]
        tasks = [asyncio.create_task(one) for one in others]
        changers = [
            verb(client)
            for verb in (town.register, town.activate, town.update, town.grow)
            for client in range(4)
        ]  # fmt: skip
        try:
            await asyncio.gather(*changers)
        finally:
            town.over.set()
            await asyncio.gather(*tasks)
        await town.look_at_persons()
        await _check(town)


async def _check(town: Town) -> None:
    """What the types went through, as they tell it, explains everything that was stored and seen."""
    known = {one["schema_version"]: one for one in await town.versions("person")}
    fields = {name: set(one["schema_definition"]["fields"]) for name, one in known.items()}
    active = await _history(town, known, fields)
    _check_seen(town, known, fields, active)
    await _check_stored(town, "person", [fields], active)
    firms = await town.versions("firm")
    shared, own = (
        {one["schema_version"]: set(one["schema_definition"]["fields"]) for one in firms if one["scope"] == scope}
        for scope in ("global", "user")
    )
    await _check_stored(town, "firm", [own, shared], {})


async def _history(town: Town, known: dict[str, Json], fields: dict[str, set[str]]) -> dict[int, str]:
    """Which version was active after each change; every one made is there, with all that it was made from."""
    changes = (await town.get(f"{TYPES}/person/history", limit=1000))["changes"]
    active: dict[int, str] = {}
    current = ""
    for one in changes:
        if one["action"] == "update":
            made = town.made[one["to_version"]]
            assert one["from_version"] == made["from"] == current
            assert fields[one["to_version"]] == fields[made["from"]] | {made["added"]}
            config = known[made["from"]]["reducer_config"]["merge_policies"]
            assert config.items() <= known[one["to_version"]]["reducer_config"]["merge_policies"].items()
        current = one["activated"] or current
        active[one["change"]] = current
    assert known.keys() == town.made.keys()
    assert [name for name, one in known.items() if one["active"]] == [current]
    assert town.change in active and len({one["action"] for one in changes}) == 3
    return active


def _check_seen(town: Town, known: dict[str, Json], fields: dict[str, set[str]], active: dict[int, str]) -> None:
    shown = {True: 0, False: 0}
    for one in town.seen:
        assert _held(active, one.change, one.version), one
        assert one.snapshot["a"] == one.snapshot["b"] and one.provenance["a"] == one.provenance["b"], one
        assert one.snapshot.keys() <= fields[one.version], one
        first_wins = known[one.version]["reducer_config"]["merge_policies"].get("a") == FIRST_WINS["a"]
        assert one.snapshot["a"] == 1 if first_wins else one.snapshot["a"] >= one.said, one
        shown[first_wins] += 1
    assert all(shown.values()) and len(town.seen) > 50, shown


async def _check_stored(town: Town, entity_type: str, known: list[dict[str, set[str]]], active: dict[int, str]) -> None:
    """Every observation that was acknowledged is there once, split by the version that it names, and none is late."""
    found: dict[str, Json] = {}
    offset = "-1"
    while True:
        answer = await town.http.get(f"/v1/stream/entities/{entity_type}", params={"offset": offset})
        page = answer.json()
        assert not found.keys() & {one["id"] for one in page}
        found |= {one["id"]: one for one in page}
        offset = answer.headers["stream-next-offset"]
        if "stream-up-to-date" in answer.headers:
            break
    given = {"key", "a", "b", *VARYING}
    told = {one.id: one for one in town.stored if one.entity_type == entity_type}
    assert told.keys() == found.keys()
    changes = iter([*active.items(), (0, "none")])
    change, current = next(changes)
    for id, one in found.items():
        version = one["schema_version"]
        assert version == told[id].version, one
        # In the order of the stream, versions are those that were active in turn.
        while active and (change < told[id].change or current != version):
            change, current = next(changes)
            assert change, one
        split = set(one["fields"]), {fragment["key"] for fragment in one.get("fragments", ())}
        assert split in [(given & fields[version], given - fields[version]) for fields in known if version in fields]


def _held(active: dict[int, str], since: int, version: str) -> bool:
    """Whether a version was active after a change or any later one."""
    return any(number >= since and name == version for number, name in active.items())


def test_every_moment_has_one_version_when_many_change_types_and_store_and_read(start_server: StartServer) -> None:
    asyncio.run(_live(start_server(**SETTINGS).url))
