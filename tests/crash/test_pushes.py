"""SIGKILL of the server and of its worker under pushes, appends, registrations and gets.

Whatever was acknowledged is in the stream once and in every feature once. What features must say is computed from the
stream as it is read back, by a few lines of Python.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx2
import pytest

from headrace.format.offset import decode

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

ROUNDS, LONELY_ROUNDS = 7, 2
USERS = [f"u{number}" for number in range(12)]
#: ``n_unique`` counts exactly up to so many.
EXACT = 256
SETTINGS = {
    "storage__seal_rows": "40",
    "storage__seal_age_s": "0.2",
    "pipeline__min_rows": "20",
    "pipeline__unit_bytes": "3000",
    "pipeline__fan_out": "3",
    "pipeline__lease_s": "0.5",
    "features__fold_rows": "250",
}
Row = dict[str, Any]
Event = dict[str, Any]


def op(name: str, **params: Any) -> Row:
    return {"op": name, "params": params}


#: What a table of users has from the start, and what it gets with every registration.
FIRST = {
    "n": op("count"),
    "ones": op("sum", field="one"),
    "total": op("sum", field="id"),
    "ids": op("n_unique", field="id"),
    "newest": op("last", field="id"),
}
LATER = {
    "recent": op("count", window="1h"),
    "since": op("count", where="id > 0"),
    "oldest": op("first", field="id"),
    "odd": op("count", where="id % 2 == 1"),
    "added": op("sum", field="added"),
    "tail": op("last_n", field="id", n=5),
    "after": op("sum", field="id"),
    "least": op("min", field="id"),
    "most": op("max", field="id", window="1h"),
}
#: Those that begin with the next event.
BORN_NOW = ("since", "after")
#: The registration that brings a field, whose default stands in where it is left out.
WIDER = list(LATER).index("added")


def descriptors(later: int) -> list[Row]:
    """The pipeline with so many later features."""
    fields: Row = {"user": "str", "id": "i64", "one": "i64", "key": {"type": "str", "required": False}}
    if later > WIDER:
        fields["added"] = {"type": "i64", "default": 7}
    agg = FIRST | dict(itertools.islice(LATER.items(), later))
    return [
        {"kind": "event", "name": "Order", "schema": fields, "dedupe_key": "key"},
        {
            "kind": "derivation",
            "name": "Odd",
            "output_kind": "event",
            "upstreams": ["Order"],
            "ops": [{"op": "filter", "expr": "id % 2 == 1"}],
        },
        {"kind": "table", "name": "Users", "upstreams": ["Order"], "key": ["user"], "agg": agg},
        {"kind": "table", "name": "Odds", "upstreams": ["Odd"], "key": ["user", "one"], "agg": FIRST},
        {"kind": "table", "name": "Everyone", "upstreams": ["Order"], "key": [], "agg": FIRST},
    ]


def terms(later: int) -> Row:
    """What a registration says besides."""
    return {"backfill": False} if later and list(LATER)[later - 1] in BORN_NOW else {}


def expected(events: list[Event]) -> Row:
    """What every feature says of a key that has these events, if it has counted them all."""
    ids = [event["id"] for event in events]
    return {
        "n": len(ids),
        "ones": len(ids),
        "total": sum(ids),
        "ids": len(set(ids)),
        "newest": ids[-1],
        "recent": len(ids),
        "oldest": ids[0],
        "since": len(ids),
        "odd": sum(number % 2 for number in ids),
        "added": sum(event.get("added", 7) for event in events),
        "tail": ids[-5:],
        "after": sum(ids),
        "least": min(ids),
        "most": max(ids),
    }


class Question(NamedTuple):
    """A row that is asked for."""

    table: str
    key: Any

    def concerns(self, event: Event) -> bool:
        if self.table == "Odds":
            return bool(event["id"] % 2) and [event["user"], event["one"]] == self.key
        return self.table == "Everyone" or event["user"] == self.key


QUESTIONS = [
    *(Question("Users", user) for user in USERS),
    *(Question("Odds", [user, 1]) for user in USERS),
    Question("Everyone", []),
]


class World:
    """What was asked over many lives of a server, and what was confirmed."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self.server, self.chance = server, random.Random(seed)
        self.numbers = itertools.count(1)
        #: Every event that was sent, and what each acknowledged one was told: its offset, None where it was appended.
        self.sent: dict[int, Event] = {}
        self.acknowledged: dict[int, str | None] = {}
        self.keyed: list[int] = []
        self.asked = self.confirmed = self.version = 0
        #: With which event the features of users began.
        self.births: dict[str, int] = {}
        self.replays = self.cut_off = self.gets = self.complete = 0

    def http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.server.url, timeout=20, trust_env=False)

    async def round(self, seconds: Callable[[], Awaitable[None]]) -> None:
        """Let everyone at the server, and kill it after a while."""
        async with self.http() as http:
            acts = [self.push_one] * 5 + [self.push_many] * 3 + [self.append] * 2 + [self.register] + [self.look] * 2
            tasks = [asyncio.create_task(self._until_it_dies(act, http)) for act in acts]
            await seconds()
            await asyncio.to_thread(self.server.kill)
            await asyncio.gather(*tasks)
        await asyncio.to_thread(self.server.start)

    async def _until_it_dies(self, act: Callable[[httpx2.AsyncClient], Awaitable[None]], http: Any) -> None:
        try:
            while True:
                await act(http)
        except httpx2.TransportError:
            self.cut_off += 1

    # -- those who write

    def _event(self) -> Event:
        """An event: new, most of the time with a key, or one with a key that was sent before."""
        if self.keyed and self.chance.random() < 0.25:
            return self.sent[self.chance.choice(self.keyed)]
        number = next(self.numbers)
        event = {"user": self.chance.choice(USERS), "id": number, "one": 1}
        if self.chance.random() < 0.8:
            event["key"] = f"k{number}"
            self.keyed.append(number)
        if self.confirmed > WIDER and self.chance.random() < 0.5:
            event["added"] = number % 10
        self.sent[number] = event
        return event

    async def push_one(self, http: httpx2.AsyncClient) -> None:
        event, version = self._event(), self.version
        known = event["id"] in self.acknowledged
        answer = await http.post("/v1/push/Order", json=event)
        assert answer.status_code == 200, answer.text
        self._told(event, answer.json(), known)
        self._seen(answer.json(), version)

    async def push_many(self, http: httpx2.AsyncClient) -> None:
        events = [self._event() for _ in range(self.chance.randrange(1, 6))]
        known, version = [event["id"] in self.acknowledged for event in events], self.version
        answer = await http.post("/v1/push/Order", json=events)
        assert answer.status_code == 200, answer.text
        for event, result, was_known in zip(events, answer.json()["results"], known, strict=True):
            self._told(event, result, was_known)
        self._seen(answer.json(), version)

    def _told(self, event: Event, result: Row, known: bool) -> None:
        """An acknowledgement: the first one, or the first one again."""
        number, offset = event["id"], result["offset"]
        assert result["ack"] and (result["idempotent_replay"] or not known), (event, result)
        before = self.acknowledged.setdefault(number, offset)
        assert before in (None, offset), (event, result, before)
        self.acknowledged[number] = offset
        self.replays += result["idempotent_replay"]

    async def append(self, http: httpx2.AsyncClient) -> None:
        events = [self._event() for _ in range(self.chance.randrange(1, 4))]
        known = [event["id"] for event in events if event["id"] in self.acknowledged]
        answer = await http.post("/v1/stream/events/Order", json=events)
        assert answer.status_code == 204, answer.text
        assert int(answer.headers.get("stream-deduplicated", 0)) >= len(known)
        for event in events:
            self.acknowledged.setdefault(event["id"], None)

    # -- those who change and look

    async def register(self, http: httpx2.AsyncClient) -> None:
        """One feature more, now and then; or the same again, which changes nothing."""
        await asyncio.sleep(self.chance.uniform(0.1, 0.5))
        self.asked = max(self.asked, min(self.confirmed + self.chance.randrange(2), len(LATER)))
        wanted, version = self.asked, self.version
        answer = await http.post("/v1/register", json={"descriptors": descriptors(wanted), **terms(wanted)})
        assert (answer.status_code, answer.json()["status"]) == (200, "ok"), answer.text
        self.confirmed = wanted
        self._seen(answer.json(), version)

    def _seen(self, answer: Row, before: int) -> None:
        """The registry is no older than it was when the request was sent."""
        assert answer["registry_version"] >= before, "the registry went back"
        self.version = max(self.version, answer["registry_version"])

    async def look(self, http: httpx2.AsyncClient) -> None:
        """Rows hold together, among each other too, and hold what was acknowledged before."""
        least = [sum(map(one.concerns, map(self.sent.__getitem__, self.acknowledged))) for one in QUESTIONS]
        rows, _ = await self._rows(http)
        for row, count in zip(rows, least, strict=True):
            assert row.get("n") == row.get("ones"), row
            if "n" not in row or row["n"] is not None:
                assert row.get("n", 0) >= count, (row, count)
        users = [row.get("n", 0) for question, row in zip(QUESTIONS, rows, strict=True) if question.table == "Users"]
        if None not in (*users, rows[-1].get("n", 0)):
            assert sum(users) == rows[-1].get("n", 0), "rows of one answer are of different moments"
        self.gets += 1
        await asyncio.sleep(0.02)

    async def _rows(self, http: httpx2.AsyncClient) -> tuple[list[Row], bool]:
        body = {"requests": [question._asdict() for question in QUESTIONS]}
        answer = await http.post("/v1/batch_get", json=body)
        assert answer.status_code == 200, answer.text
        rows: list[Row] = answer.json()["results"]
        complete = answer.headers["headrace-coverage"] == "complete"
        silent = {name for row in rows for name, value in row.items() if value is None}
        assert not complete or silent <= set(BORN_NOW), rows
        self.complete += complete
        return rows, complete

    # -- what must hold

    async def check(self, *, whole: bool = False) -> None:
        """Everything that was confirmed, and nothing twice; if it must be ``whole``, every feature speaks."""
        async with self.http() as http:
            await self._check_registry(http)
            events = await self._events(http)
            self._check_events(events)
            await self._check_repeated(http)
            rows, complete = await self._rows(http)
            while whole and not complete:
                await asyncio.sleep(0.1)
                rows, complete = await self._rows(http)
            self._check_rows(events, rows)

    async def _check_registry(self, http: httpx2.AsyncClient) -> None:
        registry = (await http.get("/v1/registry")).json()
        self._seen(registry, self.version)
        nodes = {node["name"]: node for node in registry["descriptors"]}
        later = len(nodes["Users"]["agg"]) - len(FIRST)
        assert self.confirmed <= later <= self.asked
        assert ("added" in nodes["Order"]["schema"]) == (later > WIDER)
        births = {name: life["birth"] for name, life in registry["features"]["Users"].items()}
        assert births.keys() == nodes["Users"]["agg"].keys() and self.births.items() <= births.items()
        assert all(birth == 0 or name in BORN_NOW for name, birth in births.items())
        self.confirmed, self.births = later, births

    async def _events(self, http: httpx2.AsyncClient) -> list[Event]:
        found: list[Event] = []
        offset = "-1"
        while True:
            answer = await http.get("/v1/stream/events/Order", params={"offset": offset})
            assert answer.status_code == 200, answer.text
            found += answer.json()
            offset = answer.headers["stream-next-offset"]
            if "stream-up-to-date" in answer.headers:
                return found

    def _check_events(self, events: list[Event]) -> None:
        ids = [event["id"] for event in events]
        assert len(ids) == len(set(ids)), "an event was stored twice"
        assert self.acknowledged.keys() <= set(ids) <= self.sent.keys()
        for number, offset in self.acknowledged.items():
            assert offset is None or ids[decode(offset).position - 1] == number
        for event in events:
            sent = self.sent[event["id"]]
            added = {"added": event["added"]} if "added" in event else {}
            assert event == {**sent, **added} and event.get("added", 7) == sent.get("added", 7)

    async def _check_repeated(self, http: httpx2.AsyncClient) -> None:
        """An event with a key that is pushed again is answered as it was the first time."""
        known = [number for number in self.keyed if number in self.acknowledged]
        for number in self.chance.sample(known, min(4, len(known))):
            answer = await http.post("/v1/push/Order", json=self.sent[number])
            self._told(self.sent[number], answer.json(), known=True)

    def _check_rows(self, events: list[Event], rows: list[Row]) -> None:
        """Features that speak say what the events say."""
        for question, row in zip(QUESTIONS, rows, strict=True):
            concerned = [event for event in events if question.concerns(event)]
            if not concerned:
                assert not set(row.values()) - {None}
                continue
            names = list(FIRST) + (list(LATER)[: self.confirmed] if question.table == "Users" else [])
            assert sorted(row) == sorted(names), (question, row)
            wanted = expected(concerned)
            for name in BORN_NOW:
                counted = [event for event in events[self.births.get(name, 0) :] if question.concerns(event)]
                wanted[name] = expected(counted)[name] if counted else (0 if name == "since" else None)
            if wanted["n"] > EXACT:
                row.pop("ids")
            told = {name: value for name, value in row.items() if value is not None}
            assert told == {name: wanted[name] for name in told}, (question, wanted)


class Worker:
    """A worker process, which is killed and hired again; it counts what it got done."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def hire(self, url: str) -> None:
        """Let it work for the server at this address, too."""
        if self._process is None:
            path = os.pathsep.join(sys.path)
            with self._log.open("a") as out, self._log.with_suffix(".err").open("a") as err:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "crash.laborer"],
                    env={**os.environ, "PYTHONPATH": path},
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=err,
                    text=True,
                )
        assert self._process.stdin is not None and self._process.poll() is None, self.complaints()
        self._process.stdin.write(url + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            with closing(self._process.stdin or sys.stdin):
                self._process.wait()
            self._process = None

    def steps(self) -> int:
        """How often it has begun or done something."""
        return len(self._log.read_text().split())

    def committed(self) -> int:
        """How many units it has done."""
        return sum(map(int, self._log.read_text().split()))

    def complaints(self) -> str:
        return self._log.with_suffix(".err").read_text()


@contextmanager
def hired(log: Path) -> Iterator[Worker]:
    worker = Worker(log)
    try:
        yield worker
    finally:
        worker.kill()


def test_every_acknowledged_push_counts_once_after_every_kill(start_server: StartServer, tmp_path: Path) -> None:
    world = World(start_server(**SETTINGS), seed=6)
    states = world.server.data_dir / "objects" / "states"

    async def with_worker(worker: Worker) -> None:
        """Both work for a while; now and then the worker dies first."""
        before, until = worker.steps(), time.monotonic() + 15
        while worker.steps() == before:
            assert time.monotonic() < until, worker.complaints()
            await asyncio.sleep(0.02)
        await asyncio.sleep(world.chance.uniform(0.1, 0.7))
        if world.chance.random() < 0.4:
            worker.kill()
            await asyncio.sleep(world.chance.uniform(0, 0.2))

    async def alone() -> None:
        """The server makes states itself, and dies soon after the first."""
        before, until = set(states.rglob("*.parquet")), time.monotonic() + 15
        while not set(states.rglob("*.parquet")) - before:
            assert time.monotonic() < until, "the server made no state"
            await asyncio.sleep(0.02)
        await asyncio.sleep(world.chance.uniform(0, 0.4))

    async def scenario(worker: Worker) -> None:
        async with world.http() as http:
            await world.register(http)
        for _ in range(ROUNDS):
            worker.hire(world.server.url)
            await world.round(lambda: with_worker(worker))
            await world.check()
        assert worker.committed() > ROUNDS, worker.complaints()
        worker.kill()
        for _ in range(LONELY_ROUNDS):
            await world.round(alone)
            await world.check()
        worker.hire(world.server.url)
        await world.check(whole=True)
        world.server.stop()
        world.server.start()
        await world.check(whole=True)

    with hired(tmp_path / "worker.log") as worker:
        asyncio.run(scenario(worker))
    assert not worker.complaints()
    assert len(world.acknowledged) > 100 * ROUNDS and world.replays > ROUNDS and world.cut_off > ROUNDS
    assert world.confirmed > WIDER and world.gets > ROUNDS
    print(f"{len(world.acknowledged)} of {len(world.sent)} acknowledged, {world.replays} replays, {world.gets} gets")
    print(f"{worker.committed()} units, {world.complete} answers were complete, {world.confirmed} features later")
