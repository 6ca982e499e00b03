"""The law on Spark: observations folded and merged there, and a live tail, give what one pass over all of them does.

A type stands for a case: policies, observations and the cut between history and tail are its own. All of them are
folded in the same few jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.config import PipelineConfig
from spark.working import work
from support.entity_rig import Entities, contact

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

CASES, OBSERVATIONS = 12, 60
CONFIG = PipelineConfig(shuffle_partitions=2, tasks=2)
STRATEGIES = ("last_write", "highest_priority", "most_specific", "merge_array")


class Case:
    """A type with policies of its own, and what is observed of its entities, up to the cut and after it."""

    def __init__(self, name: str, random: Random) -> None:
        self.name, self.random = name, random
        told = [self._told() for _ in range(OBSERVATIONS)]
        cut = random.randrange(OBSERVATIONS + 1)
        self.history, self.tail = told[:cut], told[cut:]

    def schema(self, version: str) -> dict[str, Any]:
        names = ("name", "phone", "score", "tags")
        breakers = ("observed_at", "source_priority")
        policies: dict[str, Any] = {name: {"strategy": self.random.choice(STRATEGIES)} for name in names}
        for policy in policies.values():
            if policy["strategy"] != "merge_array":
                policy["tie_breaker"] = self.random.choice(breakers)
        ranks = self.random.choice([{}, {"observation_source_priority": ["human", "sensor"]}])
        ranks |= self.random.choice([{}, {"source_priorities": {"crm-a": 500, "crm-b": 1}}])
        made = contact(version, entity_type=self.name)
        return {**made, "reducer_config": {"merge_policies": policies, **ranks}}

    def _told(self) -> tuple[str, dict[str, Any]]:
        random = self.random
        fields = {
            "name": random.choice(["Ada", "Countess", None]),
            "phone": str(random.randrange(4)),
            "score": random.choice([1, 2**60 + 1, 0.5, None]),
            "tags": random.choice([["a", "b"], ["b", {"deep": [1]}], [], None]),
            "unknown": random.randrange(3),
        }
        meta = {
            "observed_at": f"2024-01-{random.randrange(1, 9):02}T00:00:00Z",
            "source_priority": random.choice([10, 100, 1000]),
            "observation_source": random.choice(["sensor", "human", "import"]),
            "specificity_score": random.choice([0.1, 0.5]),
            **random.choice(
                [{"source_id": f"s{random.randrange(1 << 40)}"}, {"source": "crm-a"}, {"source": "crm-b"}, {}]
            ),
        }
        chosen = {name: value for name, value in fields.items() if random.random() < 0.7}
        entity = {"entity_type": self.name, "email": f"u{random.randrange(5)}@x.org", **chosen, "_meta": meta}
        return random.choice(["ann", "bob"]), entity


class Sparked(Entities):
    """The same, with Spark for the worker."""

    spark: SparkSession

    def observe(self, told: list[tuple[str, dict[str, Any]]], random: Random) -> None:
        for user, entity in told:
            self.store(entity, user=user)
            if random.random() < 0.2:
                self.seal_type(entity["entity_type"])

    def work_on_spark(self) -> int:
        """Everything that is due."""
        return work(self, self.spark, "snapshots")


@pytest.fixture
def entities(tmp_path: Path, spark: SparkSession) -> Iterator[Sparked]:
    settings: dict[str, Any] = {
        "storage": {"seal_rows": 6},
        "pipeline": {"min_rows": 1, "unit_bytes": 600, "fan_out": 3},
    }
    with Sparked(tmp_path / "data", features={"fold_rows": 2}, **settings) as opened:
        opened.spark = spark
        yield opened


def test_any_cut_between_spark_and_the_tail_gives_the_same_snapshots_and_provenance(entities: Sparked) -> None:
    random = Random(1)
    cases = [Case(f"case{number}x", random) for number in range(CASES)]
    for case in cases:
        entities.register_type(case.schema("1.0.0"))
        entities.observe(case.history, random)
    for case in cases:
        entities.seal_type(case.name)
    assert entities.work_on_spark() > CASES
    for case in cases:
        entities.observe(case.tail, random)
        assert entities.rows(case.name) == entities.oracle(case.name) != {}
    assert max(state.level for case in cases for state in entities.states_of(case.name)) >= 1
    # Other policies hold from now on, in states and in the tail alike; half of them for one user only.
    for number, case in enumerate(cases):
        entities.register_type(case.schema("2.0.0"), owner="ann" if number % 2 else "")
        assert entities.rows(case.name) == entities.oracle(case.name)
        entities.seal_type(case.name)
    assert entities.work_on_spark() > CASES
    for case in cases:
        entities.ready(case.name)
        assert entities.rows(case.name) == entities.oracle(case.name)
        generation = entities.engine.snapshots.state_reader.tail_of(case.name)
        assert generation is not None and not generation.base.backfilling
