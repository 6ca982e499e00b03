"""Whatever happened before: a node that is made of the store alone answers as of what was published there."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.reduce.work_units import JobName
from support.feature_rig import SECOND_US, Pipelines, event, op, table

USERS = ["a", "b", "c"]
STEPS = 40
HOUR_MS = 3_600_000
FIRST = {"n": op("count"), "total": op("sum", field="id"), "newest": op("last", field="id")}
LATER = {
    "ids": op("n_unique", field="id"),
    "recent": op("count", window="1000h"),
    "tail": op("last_n", field="id", n=3),
    "odd": op("count", where="id % 2 == 1"),
    "oldest": op("first", field="id"),
    "longest": op("max_streak", where="id % 3 != 0"),
}


def descriptors(later: int, hours: int) -> list[dict[str, Any]]:
    """The pipeline with so many later features, and one that starts afresh with every other window."""
    features = {**FIRST, "fresh": op("count", window=f"{hours}h"), **dict(list(LATER.items())[:later])}
    fields = {"user": "str", "id": "i64", "key": {"type": "str", "required": False}}
    return [
        event("Order", fields, dedupe_key="key", dedupe_window="1000h", keep_events_for="1h"),
        table("Users", "Order", ["user"], features),
        table("All", "Order", [], features),
    ]


def expected(feature: str, ids: list[int]) -> Any:
    """What a feature says that has counted these."""
    match feature:
        case "total":
            return sum(ids) if ids else None
        case "newest" | "oldest":
            return ids[-1 if feature == "newest" else 0] if ids else None
        case "tail":
            return ids[-3:]
        case "odd":
            return sum(number % 2 for number in ids)
        case "longest":
            runs = itertools.groupby(ids, key=lambda number: number % 3 != 0)
            return max((len(list(run)) for matches, run in runs if matches), default=0)
    return len(ids)


class World:
    """One node after the other on the same store, and what is known of the events."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory, self.chance = directory, random.Random(seed)
        self.nodes = self.number = 0
        self.fold_rows = self.chance.choice([10, 1000])
        self.events: list[dict[str, Any]] = []
        #: The keys that are remembered: a recovery finds those of events that are retained.
        self.keys: set[str | None] = set()
        #: How many features there are, and at least how many the store knows of.
        self.later = self.stored_later = 0
        #: The windows of the fresh feature; the first retained event.
        self.windows = itertools.count(1000)
        self.hours = next(self.windows)
        self.first = 0
        self.pipelines = self._open()
        self._register()

    def _open(self) -> Pipelines:
        self.nodes += 1
        return Pipelines(
            self.directory / f"node{self.nodes}",
            storage={"object_store": str(self.directory / "store"), "seal_rows": 8},
            pipeline={"min_rows": 1, "unit_bytes": 200, "fan_out": 2, "lease_s": 5.0},
            features={"fold_rows": self.fold_rows},
        )

    def step(self) -> None:
        """Something happens."""
        chosen = ["push"] * 5 + ["seal"] * 3 + ["work"] * 4 + ["lose", "add", "add", "renew", "recover", "age"]
        getattr(self, self.chance.choice(chosen))()

    def push(self) -> None:
        """Some events, of which some have keys that others had."""
        sent: list[dict[str, Any]] = []
        for _ in range(self.chance.randrange(1, 5)):
            self.number += 1
            key = self.chance.choice([None, f"k{self.number}", f"k{self.chance.randrange(1, self.number + 1)}"])
            sent.append({"user": self.chance.choice(USERS), "id": self.number, "key": key})
        self.pipelines.push("Order", *sent)
        for one in sent:
            if one["key"] is None or one["key"] not in self.keys:
                self.events.append(one)
                self.keys.add(one["key"])

    def seal(self) -> None:
        self.pipelines.seal("Order")
        self.stored_later = self.later

    def work(self) -> None:
        self.pipelines.work_once(self.chance.randrange(1, 4))

    def lose(self) -> None:
        """A worker takes units, and is never heard of again."""
        jobs: tuple[JobName, ...] = ("features",)
        self.pipelines.run(self.pipelines.engine.work.lease("lost", 2, jobs))
        self.pipelines.clock.us += 6 * SECOND_US

    def add(self) -> None:
        """One feature more, which counts everything."""
        known = self._births()
        self.later = min(self.later + 1, len(LATER))
        self._register()
        first = self.pipelines.find("events/Order").head.first_seq
        assert all(self._births()[name] == first for name in self._births().keys() - known.keys())

    def renew(self) -> None:
        """Let one feature start afresh."""
        self.hours = next(self.windows)
        self._register(force=True)
        assert self._births()["fresh"] == len(self.events)

    def age(self) -> None:
        """Events get old, and those that are in states of all features are dropped."""
        self.pipelines.clock.us += 2 * HOUR_MS * 1000
        self.pipelines.sweep()
        self.first = self.pipelines.find("events/Order").head.first_seq

    def _births(self) -> dict[str, int]:
        """With which event each feature began."""
        return {
            name: life.birth for name, life in self.pipelines.engine.features.current.feature_versions["Users"].items()
        }

    def _register(self, **terms: Any) -> None:
        self.pipelines.register(*descriptors(self.later, self.hours), **terms)

    def recover(self) -> None:
        """Go on with an empty directory and the store."""
        before = self.pipelines
        published = before.find("events/Order").head.published_seq
        before.close()
        self.pipelines = self._open()
        self.pipelines.clock.us = before.clock.us
        current = self.pipelines.engine.features.current
        if not current.version:
            assert not published and not self.stored_later
            self.events, self.keys, self.later, self.first = [], set(), 0, 0
            self._register()
            return
        self.later = len(current.feature_versions["Users"]) - len(FIRST) - 1
        self.hours = current.table("Users").features["fresh"].params["window"] // HOUR_MS
        assert self.later >= self.stored_later
        head = self.pipelines.find("events/Order").head
        assert published <= head.next_seq <= len(self.events) and head.first_seq <= self.first
        self.events, self.first = self.events[: head.next_seq], head.first_seq
        self.keys = {one["key"] for one in self.events[self.first :]}
        assert max(self._births().values()) <= head.next_seq

    def _read(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(entry) for entry in self.pipelines.read("events/Order", self.first)]

    def check(self, *, whole: bool = False) -> None:
        """Features that speak say what the events say."""
        assert self._read() == self.events[self.first :]
        births = self._births()
        for name, key in [*(("Users", user) for user in USERS), ("All", [])]:
            mine = [(seq, one["id"]) for seq, one in enumerate(self.events) if key in ([], one["user"])]
            row, complete, *_ = self.pipelines.answer(name, key)
            assert complete or not whole
            if not mine:
                assert set(row.values()) <= {None}
                continue
            assert row.keys() == births.keys()
            for feature, value in row.items():
                counted = [number for seq, number in mine if seq >= births[feature]]
                wanted = expected(feature, counted)
                assert value == wanted or (value is None and not complete), (name, key, feature, value, wanted)


@pytest.mark.parametrize("seed", range(8))
def test_a_node_made_of_the_store_answers_as_of_what_was_published(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    try:
        for _ in range(STEPS):
            world.step()
            world.check()
        world.seal()
        world.recover()
        world.check()
        world.pipelines.work()
        world.check(whole=True)
        world.push()
        world.check(whole=True)
    finally:
        world.pipelines.close()
