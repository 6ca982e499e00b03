"""Clients that search, filter and aggregate a stream while it grows, and others whose search configuration changes."""

from __future__ import annotations

from collections import Counter
from typing import Any
from urllib.parse import quote

from bench.requests import stream_path
from bench.soak.load import BUSY, Client
from bench.soak.streams import START, append, create
from bench.soak.written import NEEDLES, SERVICES, START_MS, STEP_MS, Written, event, every

_HOUR_MS = 3_600_000
_INTERVALS = {"1m": 60_000, "1h": _HOUR_MS}
_FIELDS: dict[str, dict[str, Any]] = {
    "at": {"kind": "date", "exact": True, "column": True, "sortable": True},
    "service": {"kind": "keyword", "exact": True, "prefix": True},
    "user": {"kind": "keyword", "exact": True, "aggregatable": True},
    "ms": {"kind": "float", "column": True, "sortable": True, "aggregatable": True},
    "message": {"kind": "text", "analyzer": "unicode_word_v1", "positions": True},
}
_ROLLUP: dict[str, Any] = {
    "dimensions": ["service"],
    "intervals": ["1m", "1h"],
    "measures": {
        "count": {"kind": "count"},
        "ms": {"kind": "summary", "field": "ms"},
        "users": {"kind": "distinct", "field": "user"},
    },
}


def document(*fields: str) -> dict[str, Any]:
    """A search configuration with some of the fields, or all."""
    return {
        "primaryTimestampField": "at",
        "defaultFields": [{"field": "message"}],
        "fields": {
            name: {**declared, "bindings": [{"version": 1, "jsonPointer": f"/{name}"}]}
            for name, declared in _FIELDS.items()
            if not fields or name in fields
        },
        "rollups": {"requests": _ROLLUP, "users": {**_ROLLUP, "dimensions": ["user"]}},
    }


async def declare(client: Client, written: Written) -> None:
    """Make a stream that can be searched."""
    await create(client, written)
    await client.insist("POST", f"{written.path}/_schema", {"schema": {"type": "object"}})
    await client.insist("POST", f"{written.path}/_schema", {"search": document()})


class Counted:
    """Numbers that must lie between what was acknowledged before a question and what was sent after its answer."""

    def __init__(self, client: Client, written: Written, first: int = 0) -> None:
        self._client, self._written, self._first = client, written, first
        self._before = written.acknowledged

    def check(self, count: int, step: int, remainder: int, what: str, *, complete: bool = True) -> None:
        """How many events there are with such a number, from the first one on."""
        lost = sum(stop - start for start, stop in self._written.unknown)
        least = every(step, remainder, self._first, self._before) - lost if complete else 0
        most = every(step, remainder, self._first, self._written.sent)
        self._client.check(least <= count <= most, lambda: f"{what}: {count} and not between {least} and {most}")


def _since(written: Written, back_ms: int, interval_ms: int) -> tuple[int, int]:
    """The beginning of an interval that lies so far back, and the number of the first event from then on."""
    now = START_MS + written.sent * STEP_MS
    start = max(START_MS, now - back_ms) // interval_ms * interval_ms
    return start, max(0, -((START_MS - start) // STEP_MS))


class Search:
    """Searches of several kinds, one after the other."""

    def __init__(self, written: Written) -> None:
        self._written = written

    async def __call__(self, client: Client) -> None:
        """Search until the load ends."""
        while client.load.running:
            service = client.load.random.randrange(SERVICES)
            await self._search(client, f"service:svc-{service:02d}", SERVICES, service)
            await self._search(client, "message:needle", NEEDLES, 0, sort=["at:desc"])
            await self._search(client, "has:at", 1, 0, size=0)
            await client.load.pause(1)

    async def _search(self, client: Client, query: str, step: int, remainder: int, **terms: Any) -> None:
        counted = Counted(client, self._written)
        body = {"q": query, "size": 20, "track_total_hits": True, **terms}
        answer = await client.ask("POST", f"{self._written.path}/_search", body)
        if answer.status != 200:
            return
        found = answer.json()
        complete = found["coverage"]["complete"] and found["total"]["relation"] == "eq"
        counted.check(found["total"]["value"], step, remainder, query, complete=complete)
        numbers = [hit["source"]["n"] for hit in found["hits"]]
        right = all(number % step == remainder for number in numbers) and len(set(numbers)) == len(numbers)
        client.check(right, lambda: f"{query} found {numbers}")
        whole = all(hit["source"] == event(hit["source"]["n"]) for hit in found["hits"])
        client.check(whole, lambda: f"{query} found events that were changed")


class Aggregate:
    """Aggregates by groups over the last hours."""

    def __init__(self, written: Written, rollup: str, dimension: str, *intervals: str, pause_s: float = 1.0) -> None:
        self._written, self._rollup, self._dimension = written, rollup, dimension
        self._intervals, self._pause_s = intervals, pause_s

    async def __call__(self, client: Client) -> None:
        """Ask until the load ends."""
        while client.load.running:
            for interval in self._intervals:
                await self._ask(client, interval)
            await client.load.pause(self._pause_s)

    async def _ask(self, client: Client, interval: str) -> None:
        start, first = _since(self._written, 2 * _HOUR_MS, _INTERVALS[interval])
        counted = Counted(client, self._written, first)
        body = {"rollup": self._rollup, "from": start, "to": 4_000_000_000_000, "interval": interval}
        answer = await client.ask("POST", f"{self._written.path}/_aggregate", {**body, "group_by": [self._dimension]})
        if answer.status != 200:
            return
        found, counts = answer.json(), Counter[str]()
        for bucket in found["buckets"]:
            for group in bucket["groups"]:
                counts[group["key"][self._dimension]] += group["measures"]["count"]["count"]
        complete = found["coverage"]["complete"]
        counted.check(counts.total(), 1, 0, f"groups of {self._dimension}", complete=complete)
        if self._dimension == "service":
            for service in range(SERVICES):
                name = f"svc-{service:02d}"
                counted.check(counts[name], SERVICES, service, f"{interval} {name}", complete=complete)


class Filtered:
    """Reads what matches, from anywhere to the end."""

    def __init__(self, written: Written) -> None:
        self._written = written

    async def __call__(self, client: Client) -> None:
        """Read until the load ends."""
        while client.load.running:
            service, offset, numbers = client.load.random.randrange(SERVICES), START, []
            before, asked = self._written.acknowledged, quote(f"service:svc-{service:02d}")
            complete = False
            while client.load.running and not complete:
                answer = await client.ask("GET", f"{self._written.path}?offset={offset}&filter={asked}")
                if answer.status != 200:
                    break
                numbers += [found["n"] for found in answer.json()]
                offset = answer.headers["stream-next-offset"]
                complete = "stream-up-to-date" in answer.headers
            right = all(number % SERVICES == service for number in numbers) and sorted(set(numbers)) == numbers
            client.check(right, lambda: f"a filtered read of svc-{service:02d} is not in order")  # noqa: B023
            if complete:
                lost = sum(stop - start for start, stop in self._written.unknown)
                enough = len(numbers) >= every(SERVICES, service, 0, before) - lost
                client.check(enough, lambda: f"a filtered read has {len(numbers)} events of {before}")  # noqa: B023
            await client.load.pause(3)


class Redeclared:
    """Another stream whose search configuration changes again and again, while it grows and is searched."""

    SHORT = ("at", "service", "ms", "user")

    def __init__(self, written: Written) -> None:
        self._written, self._round = written, 0

    async def __call__(self, client: Client) -> None:
        """Change, append and search until the load ends."""
        search = Search(self._written)
        while client.load.running:
            self._round += 1
            fields = self.SHORT if self._round % 2 else ()
            changed = {**document(*fields), **({"defaultFields": [{"field": "service"}]} if fields else {})}
            await client.insist("POST", f"{self._written.path}/_schema", {"search": changed})
            for _ in range(20):
                await append(client, self._written, 100)
                service = client.load.random.randrange(SERVICES)
                await search._search(client, f"service:svc-{service:02d}", SERVICES, service)
                await client.load.pause(0.5)


class Versions:
    """Streams whose schema changes under lenses; every event is read in every version."""

    CHANGES = 6

    def __init__(self, number: int) -> None:
        self._name, self._round = f"versions-{number}", 0

    async def __call__(self, client: Client) -> None:
        """Make streams, change them and delete them until the load ends."""
        while client.load.running:
            self._round += 1
            path = stream_path(f"{self._name}-{self._round}")
            await client.insist("PUT", path, expected=(200, 201))
            await client.insist("POST", f"{path}/_schema", {"schema": _schema(0)})
            statuses = []
            for version in range(1, self.CHANGES + 1):
                appended = await client.ask("POST", path, [{"id": version, _field(version - 1): version * 10}])
                statuses.append(appended.status)
                await client.insist("POST", f"{path}/_schema", _change(self._name, self._round, version))
            if not set(statuses) & set(BUSY):
                await self._read(client, path)
            await client.insist("DELETE", path, expected=(204, 404))
            await client.load.pause(1)

    async def _read(self, client: Client, path: str) -> None:
        for version in range(1, self.CHANGES + 2):
            answer = await client.insist("GET", f"{path}?schema_version={version}")
            field = _field(version - 1)
            wanted = [{"id": one, field: one * 10} for one in range(1, self.CHANGES + 1)]
            found = answer.json()
            client.check(found == wanted, lambda: f"version {version} is {found} and not {wanted}")  # noqa: B023


def _field(version: int) -> str:
    return f"field{version}"


def _schema(version: int) -> dict[str, Any]:
    properties = {"id": {"type": "integer"}, _field(version): {"type": "integer"}}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _change(name: str, number: int, version: int) -> dict[str, Any]:
    rename = {"op": "rename", "from": f"/{_field(version - 1)}", "to": f"/{_field(version)}"}
    lens = {"apiVersion": "durable.lens/v1", "schema": f"{name}-{number}", "from": version, "to": version + 1}
    return {"schema": _schema(version), "lens": {**lens, "ops": [rename]}}
