"""Fragments counted on Spark, and those of a live tail, are what a naive count of everything given says.

A type stands for a case: what is given and the cut between history and tail are its own. All of them are counted in the
same few jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from headrace.config import PipelineConfig
from headrace.reduce.fragments.build import name_of
from headrace.reduce.fragments.shapes import SHAPES
from headrace.reduce.fragments.stats import estimate_count
from headrace.schema.entity.observation import decode
from headrace.storage.entity_types import EVERYBODY
from reduce.fragments.counting import count_observations, of_everyone, of_user
from spark.working import work
from support.enhancement_rig import Growing, bytes_of
from support.entity_rig import contact

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

CASES, OBSERVATIONS = 8, 50
CONFIG = PipelineConfig(shuffle_partitions=2, tasks=2)
VALUES: dict[str, list[Any]] = {
    "odd": ["x", "7", "2024-01-01", "yes", 5, 1_700_000_000_000, True, [1], {"a": 1}, None],
    "nick": ["a", "b", "c"],
    "big": [2**60 + 1, 0.5, -1],
    "late": [1_700_000_000, 1_700_000_000_123_456_789],
}
USERS = ("ann", "bob")


class Given:
    """What was given for one key, counted naively."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.sources: set[str] = set()
        self.entities: set[tuple[str, str]] = set()
        self.times: list[int] = []

    def take(self, user: str, entity: dict[str, Any], value: Any, at_us: int) -> None:
        self.kinds[_kind(value)] += 1
        self.times.append(at_us)
        if value is not None:
            self.sources.add(entity["_meta"]["source_id"])
            self.entities.add((user, entity["email"]))


def _kind(value: Any) -> str:
    names = {"str": "string", "int": "number", "float": "number", "bool": "boolean", "list": "array", "dict": "object"}
    return names.get(type(value).__name__, "null")


class Case:
    """A type, and what is given for it up to the cut and after it."""

    def __init__(self, name: str, random: Random) -> None:
        self.name, self.random = name, random
        self.cut = random.randrange(OBSERVATIONS + 1)
        self.given: dict[tuple[str, str], Given] = {}

    def observe(self, rig: Sparked, count: int) -> None:
        for _ in range(count):
            random, user = self.random, self.random.choice(USERS)
            chosen = {key: random.choice(values) for key, values in VALUES.items() if random.random() < 0.6}
            observed_at = f"2024-01-0{random.randrange(1, 9)}T00:00:00Z"
            meta = {"source_id": f"s{random.randrange(9)}", "observed_at": observed_at}
            entity = {"entity_type": self.name, "email": f"u{random.randrange(6)}@x.org", **chosen, "_meta": meta}
            (told,) = rig.store(entity, user=user)
            if told["action"] != "unchanged":
                for key, value in chosen.items():
                    self.given.setdefault((user, key), Given()).take(user, entity, value, rig.clock.us)
            if random.random() < 0.2:
                rig.seal_type(self.name)

    def check(self, rig: Sparked) -> None:
        for user in USERS:
            stats = rig.tallied_of(self.name, user)
            assert stats.keys() == {key for owner, key in self.given if owner == user}
            for key, found in stats.items():
                given = self.given[user, key]
                kinds = Counter[str]({"null": found.nulls} if found.nulls else {})
                for shape, tally in found.shapes.items():
                    kinds[SHAPES[shape].kind] += tally.count
                assert kinds == given.kinds
                assert found.first_us == min(given.times)
                assert found.last_us == max(given.times)
                assert found.sources(found.shapes) == len(given.sources)
                assert estimate_count(found.entities) == len(given.entities)


class Sparked(Growing):
    """The same, with Spark for the worker."""

    spark: SparkSession

    def tallied_of(self, entity_type: str, owner: str) -> dict[str, Any]:
        found = self.run(self.engine.enhancement.candidates.count(entity_type, owner))
        assert found.complete
        return found.fragments.stats

    def one_pass(self, entity_type: str) -> Any:
        """The statistics of all events, read as any reader reads them."""
        bodies = self.read(f"entities/{entity_type}", budget=1 << 30)
        return count_observations((seq, 0, decode(body)) for seq, body in enumerate(bodies))

    def work_on_spark(self) -> int:
        """Every fragment that is due to be counted."""
        return work(self, self.spark, "enhance")


@pytest.fixture
def rig(tmp_path: Path, spark: SparkSession) -> Iterator[Sparked]:
    settings: dict[str, Any] = {
        "storage": {"seal_rows": 6},
        "pipeline": {"min_rows": 1, "unit_bytes": 600, "fan_out": 3},
    }
    with Sparked(tmp_path / "data", features={"fold_rows": 2}, **settings) as opened:
        opened.spark = spark
        yield opened


def test_any_cut_between_spark_and_the_tail_counts_what_was_given(rig: Sparked) -> None:
    random = Random(3)
    cases = [Case(f"case{number}x", random) for number in range(CASES)]
    for case in cases:
        rig.register_type(contact(entity_type=case.name))
        rig.run(rig.engine.enhancement.candidates.count(case.name, EVERYBODY))
        case.observe(rig, case.cut)
        rig.seal_type(case.name)
    assert rig.work_on_spark() > CASES
    for case in cases:
        case.observe(rig, OBSERVATIONS - case.cut)
        case.check(rig)
        everything = rig.one_pass(case.name)
        for owner in (EVERYBODY, *USERS):
            wanted = of_user(everything, owner) if owner else of_everyone(everything)
            assert _timeless(rig.tallied_of(case.name, owner)) == _timeless(wanted)
    states = [state for case in cases for state in rig.states_of(case.name) if state.table == name_of(case.name)]
    assert max(state.level for state in states) >= 1 and sum(state.rows for state in states) > 0


def _timeless(stats: dict[str, Any]) -> dict[str, bytes]:
    """Statistics but for the times of appends, which a reader of payloads does not see."""
    return bytes_of({key: msgspec.structs.replace(one, first_us=0, last_us=0) for key, one in stats.items()})
