"""Many writers while schemas evolve: each version begins exactly where its boundary says, and nothing gives way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx2
import jsonschema_rs

from headrace.format import offset as offsets
from server.registries import WHOLE, lens, rename, shape, stored, version_at

if TYPE_CHECKING:
    from tests.conftest import ServerProcess
    from tests.server.conftest import Api

WRITERS, CHANGES, BETWEEN = 16, 10, 80
ALL = CHANGES + 1


def form(version: int) -> dict[str, Any]:
    """The schema of a version; no event fits two of them."""
    return shape(writer=WHOLE, number=WHOLE, **{f"v{version}": WHOLE})


def event(version: int, writer: int, number: int) -> dict[str, int]:
    return {"writer": writer, "number": number, f"v{version}": number}


class Story:
    """One stream, sixteen who write, one who evolves, one who follows; and what each of them was told."""

    def __init__(self, url: str, path: str) -> None:
        self.path = path
        self.http = httpx2.AsyncClient(base_url=url, timeout=20, trust_env=False)
        #: The newest version that was confirmed, and the newest that was asked for.
        self.confirmed = self.asked = 1
        self.acknowledged: dict[int, list[tuple[int, int, int]]] = {writer: [] for writer in range(WRITERS)}
        self.refused = 0
        self.moved = asyncio.Condition()
        self.total = 0

    async def run(self) -> list[Any]:
        async with self.http, asyncio.TaskGroup() as all_of_them:
            follower = all_of_them.create_task(self.follow())
            async with asyncio.TaskGroup() as busy:
                for writer in range(WRITERS):
                    busy.create_task(self.write(writer))
                busy.create_task(self.evolve())
            assert (await self.http.post(self.path, headers={"stream-closed": "true"})).status_code == 204
            return await follower

    async def evolve(self) -> None:
        """Change the shape again and again, each time when some more has been written."""
        for version in range(1, ALL):
            await self.written(self.total + BETWEEN)
            self.asked = version + 1
            body = {
                "schema": form(version + 1),
                "lens": lens(self.path, version, rename(f"v{version}", f"v{version + 1}")),
            }
            answer = await self.http.post(f"{self.path}/_schema", json=body)
            assert answer.status_code == 200, answer.text
            assert answer.json()["currentVersion"] == version + 1
            self.confirmed = version + 1

    async def written(self, total: int) -> None:
        async with self.moved:
            await self.moved.wait_for(lambda: self.total >= total)

    async def write(self, writer: int) -> None:
        """Write in the newest shape one knows of, every fifth time in the one that may come next."""
        number = sequence = 0
        while self.confirmed < ALL or not self.acknowledged[writer] or self.acknowledged[writer][-1][2] < ALL:
            known = self.confirmed
            version = min(known + (number % 5 == 4), ALL)
            events = [event(version, writer, number + later) for later in range(1 + number % 3)]
            headers = {"producer-id": str(writer), "producer-epoch": "0", "producer-seq": str(sequence)}
            answer = await self.http.post(self.path, json=events, headers=headers if writer % 2 else {})
            if answer.status_code == 400:
                assert known < self.asked or version > known, "it was refused in the only shape there was"
                assert answer.json()["error"]["failures"][0]["index"] == 0
                self.refused += 1
                number += number % 5 == 4 and version > self.asked  # what never came is not tried again
                continue
            assert answer.status_code in (200, 204), answer.text
            assert known <= version <= self.asked, "it was taken in a shape that was no longer, or not yet, there"
            end = offsets.decode(answer.headers["stream-next-offset"]).position
            self.acknowledged[writer].append((end - len(events), number, version))
            number, sequence = number + len(events), sequence + 1
            async with self.moved:
                self.total += 1
                self.moved.notify_all()

    async def follow(self) -> list[Any]:
        """Read along in the first shape until the stream is closed."""
        seen: list[Any] = []
        offset = "-1"
        while True:
            query = {"live": "long-poll", "offset": offset, "schema_version": "1", "timeout": "5s"}
            answer = await self.http.get(self.path, params=query)
            assert answer.status_code in (200, 204), answer.text
            seen += answer.json() if answer.status_code == 200 else []
            offset = answer.headers["stream-next-offset"]
            if "stream-closed" in answer.headers:
                return seen


def read(api: Api, path: str, **query: Any) -> list[Any]:
    found: list[Any] = []
    offset = "-1"
    while True:
        page = api.get(path, offset=offset, **query)
        found += page.json()
        offset = page.headers["stream-next-offset"]
        if "stream-up-to-date" in page.headers:
            return found


def test_versions_begin_where_their_boundaries_say_under_many_writers(server: ServerProcess, api: Api) -> None:
    path = api.stream()
    assert api.post(f"{path}/_schema", {"schema": form(1)}).status_code == 200
    story = Story(server.url, path)
    followed = asyncio.run(story.run())
    registry = api.get(f"{path}/_schema").json()
    assert registry["currentVersion"] == ALL
    appends = stored(server.data_dir, registry["schema"])

    # Each stored event fits the version that its boundary says, and no append lies across a boundary.
    for seq, size, version, events in appends:
        assert len(events) == size
        assert version == version_at(registry, seq) == version_at(registry, seq + size - 1)
        assert all(jsonschema_rs.is_valid(registry["schemas"][str(version)], entry) for entry in events)
    assert {version for _, _, version, _ in appends} == set(range(1, ALL + 1))

    # What was acknowledged is there once, in its place and in its version; nothing else is.
    expected = {
        (seq, writer, number, version)
        for writer, acknowledged in story.acknowledged.items()
        for seq, number, version in acknowledged
    }
    assert {(seq, e[0]["writer"], e[0]["number"], version) for seq, _, version, e in appends} == expected
    assert len(appends) == len(expected) == story.total

    # Every version shows all events, in one order, in its own shape.
    order = [(entry["writer"], entry["number"]) for _, _, _, events in appends for entry in events]
    for version in range(1, ALL + 1):
        assert read(api, path, schema_version=version) == [event(version, *who) for who in order]
    assert read(api, path) == [event(ALL, *who) for who in order]
    assert followed == [event(1, *who) for who in order]
    for writer in range(WRITERS):
        mine = [number for who, number in order if who == writer]
        assert mine == sorted(set(mine))
    assert story.refused > 0, "no writer was ever overtaken: nothing was tested"


def test_of_many_who_ask_for_the_same_version_one_gets_it(server: ServerProcess, api: Api) -> None:
    path = api.stream()
    assert api.post(f"{path}/_schema", {"schema": form(1)}).status_code == 200

    async def ask(http: httpx2.AsyncClient, version: int, mark: int) -> int:
        schema = {**form(version + 1), "title": str(mark)}
        body = {"schema": schema, "lens": lens(path, version, rename(f"v{version}", f"v{version + 1}"))}
        answer = await http.post(f"{path}/_schema", json=body)
        assert answer.status_code == 200 or answer.json()["error"]["code"] == "conflict"
        return answer.status_code

    async def story() -> list[list[int]]:
        async with httpx2.AsyncClient(base_url=server.url, timeout=20, trust_env=False) as http:
            return [
                await asyncio.gather(*(ask(http, version, mark) for mark in range(WRITERS))) for version in range(1, 4)
            ]

    for statuses in asyncio.run(story()):
        assert sorted(statuses) == [200, *[409] * (WRITERS - 1)]
    found = api.get(f"{path}/_schema").json()
    assert found["currentVersion"] == 4
    assert sorted(found["lenses"]) == ["1", "2", "3"]
    assert len(api.get(f"{path}/_schema/history").json()["revisions"]) == 4


def test_changes_that_do_not_touch_each_other_all_happen(server: ServerProcess, api: Api) -> None:
    path = api.stream()
    assert api.post(f"{path}/_schema", {"schema": form(1)}).status_code == 200
    wider = [{**form(1), "required": []}, {"type": "object"}]

    async def story() -> None:
        async with httpx2.AsyncClient(base_url=server.url, timeout=20, trust_env=False) as http:
            keys = [{"routingKey": {"jsonPointer": f"/{name}", "required": False}} for name in "abcdefgh"]
            answers = await asyncio.gather(
                *(http.post(f"{path}/_schema", json=body) for body in (*keys, {"schema": wider[1]}))
            )
            assert [answer.status_code for answer in answers] == [200] * 9

    asyncio.run(story())
    history = [entry["registry"] for entry in api.get(f"{path}/_schema/history").json()["revisions"]]
    pointers = {registry["routingKey"]["jsonPointer"] for registry in history if "routingKey" in registry}
    assert len(history) == 10 and pointers == {f"/{name}" for name in "abcdefgh"}
    assert history[-1]["currentVersion"] == 2
    assert api.get(f"{path}/_schema").json() == history[-1]


def test_a_first_schema_that_races_with_appends_comes_before_all_of_them_or_not_at_all(
    server: ServerProcess, api: Api
) -> None:
    async def race(http: httpx2.AsyncClient, path: str, turn: int) -> tuple[bool, list[int]]:
        install = http.post(f"{path}/_schema", json={"schema": {"type": "object"}})
        appends = [http.post(path, json=[number]) for number in range(4)]
        asked = [*appends[: turn % 5], install, *appends[turn % 5 :]]
        answers = await asyncio.gather(*asked)
        installed = answers.pop(turn % 5).status_code
        assert installed in (200, 400)
        return installed == 200, [number for number, answer in enumerate(answers) if answer.status_code == 204]

    async def story() -> list[tuple[str, bool, list[int]]]:
        async with httpx2.AsyncClient(base_url=server.url, timeout=20, trust_env=False) as http:
            paths = [api.stream() for _ in range(20)]
            return [(path, *await race(http, path, turn)) for turn, path in enumerate(paths)]

    outcomes = asyncio.run(story())
    for path, installed, taken in outcomes:
        assert not (installed and taken), "a schema and an event that does not fit it were both accepted"
        assert installed or len(taken) == 4
        assert sorted(read(api, path)) == taken
        assert api.get(f"{path}/_schema").json()["currentVersion"] == int(installed)
