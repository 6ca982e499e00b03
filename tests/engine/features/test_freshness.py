"""A row has every event that was acknowledged before it was asked for, whatever tails and states have done by then."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from headrace.engine.derive import state_reader as served
from headrace.engine.derive import tails
from headrace.engine.derive.generation import NotReady
from headrace.engine.features.feature_reader import FeatureAnswer
from headrace.reduce.features.build import TableColumns
from headrace.reduce.features.definition import TableDefinition
from headrace.reduce.features.events import EventShapes
from support.feature_rig import Pipelines, event, op, table

STEPS = 45
USERS = ["a", "b", "c", "d"]
FIELDS = {"user": "str", "shop": "i64", "id": "i64", "at": {"type": "datetime", "required": False}}
SOURCE = event("Order", FIELDS)
#: A derivation whose rows have renamed and computed fields, and not all events.
STEPS_OF_ROWS: list[dict[str, Any]] = [
    {"op": "filter", "expr": "id % 3 != 0"},
    {"op": "rename", "mapping": {"shop": "store"}},
    {"op": "with_columns", "exprs": {"parity": "id % 2"}},
]
DERIVED = {"kind": "derivation", "name": "Some", "output_kind": "event", "upstreams": ["Order"], "ops": STEPS_OF_ROWS}
KEYS: dict[str, tuple[str, list[str]]] = {
    "Users": ("Order", ["user"]),
    "All": ("Order", []),
    "Pairs": ("Some", ["user", "store"]),
    "Parities": ("Some", ["parity"]),
    "Moments": ("Order", ["at"]),
}
FIRST = {"n": op("count"), "total": op("sum", field="id"), "newest": op("last_n", field="id", n=3)}
LATER = {
    "users": op("n_unique", field="user"),
    "oldest": op("first", field="id"),
    "longest": op("max_streak", where="id % 5 != 0"),
    "odd": op("count", where="id % 2 == 1"),
}
#: Whole numbers whose hashes are the same in CPython, and one in two spellings.
SHOPS = [-1, -2, 2, 2.0]
#: One moment in two spellings.
TIMES = ["2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00", "2026-01-02T00:00:00Z", None]


class World:
    """An engine, the events that it has acknowledged, and the features that had no past when they were registered."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = Random(seed)
        self.pipelines = Pipelines(
            directory / "data",
            storage={"seal_rows": 16},
            pipeline={"min_rows": 1, "unit_bytes": 400, "fan_out": 2},
            features={"tail_bytes": self.chance.choice([1 << 20, 1 << 20, 0])},
        )
        self.events: list[tuple[int, dict[str, Any]]] = []
        self.later: list[str] = []
        self.hours = 1000
        self.newborn: set[str] = set()
        self._register()

    def _register(self, **terms: Any) -> None:
        features = {
            **FIRST,
            "fresh": op("count", window=f"{self.hours}h"),
            **{name: LATER[name] for name in self.later},
        }
        found = (table(name, upstream, key, features) for name, (upstream, key) in KEYS.items())
        self.pipelines.register(SOURCE, DERIVED, *found, **terms)

    def step(self) -> None:
        """Something happens."""
        chosen = (
            ["push"] * 4 + ["push_many"] * 5 + ["seal"] * 2 + ["work"] * 2 + ["fold"] * 2 + ["add", "renew", "reopen"]
        )
        getattr(self, self.chance.choice(chosen))()

    def push(self, count: int = 1) -> None:
        made = [
            {
                "user": self.chance.choice(USERS),
                "shop": self.chance.choice(SHOPS),
                "id": len(self.events) + number,
                **({} if (at := self.chance.choice(TIMES)) is None else {"at": at}),
            }
            for number in range(count)
        ]
        self.pipelines.push("Order", *made)
        self.events += ((self.pipelines.clock.us // 1000, {"at": None, **one}) for one in made)

    def push_many(self) -> None:
        self.push(self.chance.randrange(10, 60))

    def seal(self) -> None:
        self.pipelines.seal("Order")

    def work(self) -> None:
        self.pipelines.work_once(self.chance.randrange(1, 4))

    def fold(self) -> None:
        """Let tails be folded on for a while."""
        self.pipelines.run(asyncio.sleep(0.01))

    def add(self) -> None:
        left = [name for name in LATER if name not in self.later]
        if left:
            self.later.append(left[0])
            backfill = self.chance.choice([None, True, False])
            if backfill is False or not self.events:
                self.newborn.add(left[0])
            self._register(backfill=backfill)

    def renew(self) -> None:
        self.hours += 1
        self.newborn.add("fresh")
        self._register(force=True)

    def reopen(self) -> None:
        self.pipelines.reopen()

    def check(self) -> None:
        """Ask for some rows at one moment, and hold them against all events folded in one pass."""
        asked = [
            (name, key)
            for name, keys in {
                "Users": USERS,
                "All": [[]],
                "Pairs": [[user, shop] for user in USERS[:2] for shop in SHOPS[:3]],
                "Parities": [0, 1],
                "Moments": TIMES[:3],
            }.items()
            for key in keys
        ]
        asked = self.chance.sample(asked, self.chance.randrange(1, 7))
        for (name, key), answer in zip(asked, self.pipelines.run(self._answers(asked)), strict=True):
            expected = self._expected(name, key)
            if not expected:
                assert set(answer.row.values()) <= {None}
                continue
            assert answer.row.keys() == expected.keys()
            for feature, value in answer.row.items():
                lacks = value is None and not answer.complete and feature not in self.newborn
                assert value == expected[feature] or lacks, (name, key, feature, value, expected)
            assert answer.complete or not self.newborn.issuperset(answer.row)

    async def _answers(self, asked: list[tuple[str, Any]]) -> list[FeatureAnswer]:
        found = self.pipelines.engine.feature_reader
        while True:
            try:
                moment = found.moment((name for name, _ in asked), float("inf"))
                return [found.get(name, key, None, moment) for name, key in asked]
            except NotReady:
                for name, key in asked:
                    await found.ready(name)
                    try:
                        found.get(name, key, None, found.moment([name], 0.0))
                    except NotReady:
                        continue

    def _expected(self, name: str, key: Any) -> dict[str, Any]:
        reducer, state = self.pipelines.engine.feature_reader.defined(name).reducer, None
        for seq, (at_ms, one) in enumerate(self.events):
            placed = reducer.key_and_row(one)
            if placed is not None and placed[0] == reducer.key(key):
                state = reducer.fold(state, at_ms, seq, placed[1])
        row: dict[str, Any] = msgspec.to_builtins(reducer.finish(state, self.pipelines.clock.us // 1000))
        return row


@pytest.mark.parametrize("seed", range(8))
def test_rows_have_every_event_that_was_acknowledged(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So little is folded at once that most rows are ahead of their tail.
    monkeypatch.setattr(served, "SLICE_S", 0.0)
    monkeypatch.setattr(tails, "_STEP_S", 0.0)
    world = World(tmp_path, seed)
    try:
        for _ in range(STEPS):
            world.step()
            world.check()
    finally:
        world.pipelines.close()


def test_a_get_folds_the_events_of_its_key_and_leaves_the_others_to_the_tail(tmp_path: Path) -> None:
    with Pipelines(tmp_path / "data") as pipelines:
        features = {"n": op("count"), "total": op("sum", field="id")}
        pipelines.register(SOURCE, table("Users", "Order", ["user"], features))
        pipelines.push("Order", {"user": "rare", "shop": 1, "id": 0})
        assert pipelines.get("Users", "rare")["n"] == 1
        many = [{"user": f"u{number % 100}", "shop": 1, "id": 1} for number in range(20_000)]
        pipelines.push("Order", *many, {"user": "rare", "shop": 1, "id": 5})
        answer = pipelines.answer("Users", "rare", explain=True)
        assert answer.row == {"n": 2, "total": 5.0}
        assert answer.complete is True
        assert answer.explain is not None and answer.explain["through"] == pipelines.find("events/Order").tail_offset()
        tail = pipelines.engine.feature_reader.tail_of("Users")
        assert tail is not None and tail.position < 10_000, "the answer did not wait for the tail"
        assert pipelines.get("Users", "u7") == {"n": 200, "total": 200.0}


def many(pipelines: Pipelines, events: int) -> None:
    """Push events of a hundred users, in one request."""
    pipelines.push("Order", *({"user": f"u{number % 100}", "shop": 1, "id": 1} for number in range(events)))


def position(pipelines: Pipelines) -> int:
    """How many events the tail of the table has folded."""
    tail = pipelines.engine.feature_reader.tail_of("Users")
    assert tail is not None
    return tail.position


def begin(pipelines: Pipelines, features: dict[str, Any], first: int) -> None:
    """A table that is asked for, and then lags by many events."""
    pipelines.register(SOURCE, table("Users", "Order", ["user"], features))
    many(pipelines, first)
    assert pipelines.get("Users", "u7")["n"] == first // 100
    many(pipelines, 20_000)


def test_many_events_that_nobody_asks_for_are_not_folded(tmp_path: Path) -> None:
    with Pipelines(tmp_path / "data") as pipelines:
        begin(pipelines, {"n": op("count")}, 100)
        pipelines.run(asyncio.sleep(0.2))
        assert position(pipelines) == 100
        assert pipelines.get("Users", "u7") == {"n": 201}
        pipelines.run(asyncio.sleep(0.1))
        assert position(pipelines) == 100, "one answer is not worth folding all"


def test_many_events_are_folded_once_they_are_asked_for_often(tmp_path: Path) -> None:
    with Pipelines(tmp_path / "data") as pipelines:
        begin(pipelines, {"n": op("count")}, 100)
        while position(pipelines) < 20_100:
            for number in range(100):
                assert pipelines.get("Users", f"u{number}") == {"n": 201}
            pipelines.run(asyncio.sleep(0.01))


class Pause:
    """Pauses the thread that makes columns of events, until it is released."""

    def __init__(self, pipelines: Pipelines) -> None:
        self.began, self._released = threading.Event(), threading.Event()
        for follower in pipelines.engine.feature_reader.followers:
            follower.columns_of = self._columns

    def __enter__(self) -> Pause:
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()

    def _columns(self, shapes: EventShapes, tables: Sequence[TableDefinition]) -> TableColumns:
        self.began.set()
        self._released.wait()
        return TableColumns(shapes, tables)


COSTLY = {"n": op("count"), **{f"f{n}": op("quantile", field="id", q=0.5, window=f"{n + 1}h") for n in range(80)}}


def test_a_get_does_not_wait_until_the_tail_has_folded_everything(tmp_path: Path) -> None:
    with Pipelines(tmp_path / "data") as pipelines:
        begin(pipelines, COSTLY, 100)
        with Pause(pipelines) as pause:
            while not pause.began.is_set():
                for number in range(99):
                    assert pipelines.get("Users", f"u{number}", features=["n"]) == {"n": 201}
                pipelines.run(asyncio.sleep(0.01))
            assert pipelines.get("Users", "u99", features=["n"]) == {"n": 201}
            assert position(pipelines) == 100
        while position(pipelines) == 100:
            pipelines.run(asyncio.sleep(0.01))
        assert position(pipelines) == 20_100
        assert pipelines.get("Users", "u99", features=["n"]) == {"n": 201}


def test_new_events_are_kept_while_others_are_folded(tmp_path: Path) -> None:
    """They may leave the log soon, and then no row of a key would be found without folding all of them."""
    with Pipelines(tmp_path / "data", features={"tail_bytes": 1_280_000}) as pipelines:
        begin(pipelines, COSTLY, 100)
        with Pause(pipelines) as pause:
            while not pause.began.is_set():
                pipelines.run(asyncio.sleep(0.01))
            many(pipelines, 4_000)
            (follower,) = pipelines.engine.feature_reader.followers
            while follower.pending is not None and follower.pending.end < 24_100:
                pipelines.run(asyncio.sleep(0.01))
            pipelines.seal("Order")
            assert pipelines.get("Users", "u99", features=["n"]) == {"n": 241}
            assert position(pipelines) == 100


def test_events_are_folded_once_where_a_table_changes_meanwhile(tmp_path: Path) -> None:
    features = {"n": op("count"), "total": op("sum", field="id")}
    with Pipelines(tmp_path / "data", features={"tail_bytes": 1_280_000}) as pipelines:
        begin(pipelines, features, 100)
        with Pause(pipelines) as pause:
            while not pause.began.is_set():
                pipelines.run(asyncio.sleep(0.01))
            pipelines.register(SOURCE, table("Users", "Order", ["user"], {**features, "most": op("max", field="id")}))
            many(pipelines, 4_000)
        (follower,) = pipelines.engine.feature_reader.followers
        while follower.is_preparing or follower.busy:
            pipelines.run(asyncio.sleep(0.01))
        assert pipelines.get("Users", "u7") == {"n": 241, "total": 241, "most": 1}


def test_states_that_come_leave_waiting_events_to_whoever_asks(tmp_path: Path) -> None:
    with Pipelines(tmp_path / "data") as pipelines:
        begin(pipelines, {"n": op("count")}, 1_000)
        pipelines.seal("Order")
        many(pipelines, 20_000)
        pipelines.run(asyncio.sleep(0.2))
        pipelines.work()
        assert pipelines.states("Users") and position(pipelines) == 21_000
        assert pipelines.get("Users", "u7") == {"n": 410}
        assert position(pipelines) == 21_000, "answered from the state and what is kept"
