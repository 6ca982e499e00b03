"""An import with a change of the schema in the middle: what Spark makes of it at once is what was kept as it came."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.engine.derive.generation import Generation
from headrace.storage.derived import States
from spark.working import work
from support.entity_rig import POLICIES, Entities, contact

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

OBSERVATIONS, PEOPLE, TOGETHER = 10_000, 1_000, 500
#: Other policies, and a field whose values were fragments before.
CHANGED = contact(
    "2.0.0",
    {**POLICIES, "name": {"strategy": "last_write"}, "score": {"strategy": "highest_priority"}},
    fields={"colour": "string"},
)


def people(random: Random) -> list[dict[str, Any]]:
    """What one request says."""
    return [
        {
            "entity_type": "contact",
            "email": f"u{random.randrange(PEOPLE)}@x.org",
            "name": random.choice(["Ada", "Countess", None]),
            "phone": str(random.randrange(5)),
            "score": random.randrange(100),
            "tags": [f"t{random.randrange(9)}"],
            "colour": random.choice(["red", "green"]),
            "_meta": {
                "observed_at": f"2024-01-{random.randrange(1, 29):02}T{random.randrange(24):02}:00:00Z",
                "source_priority": random.choice([10, 100]),
                "specificity_score": random.randrange(4) / 4,
            },
        }
        for _ in range(TOGETHER)
    ]


class Imported(Entities):
    """An engine that people are imported into."""

    def observe(self, random: Random, count: int) -> None:
        for _ in range(0, count, TOGETHER):
            self.store(*people(random))
            self.seal_type()

    def packed(self) -> dict[str, dict[str, bytes]]:
        """What states and the tail hold of every entity, as it is kept."""
        generation = self.tail()
        return {id: generation.fold.reducer.pack(generation.row(id.encode())) for id in self.rows()}

    def tail(self) -> Generation:
        """What answers for every entity."""
        self.ready()
        found = self.engine.snapshots.state_reader.tail_of("contact")
        assert found is not None and not found.base.backfilling
        return found

    def forget_states(self) -> None:
        """Let no state count any more, as if there had never been any."""
        stream = self.find("entities/contact")
        self.run(self.engine.apply(lambda batch: States(batch.connection).retire_all(stream.id)))
        self.run(self.engine.work.run(stream))
        self.reopen()


def test_a_rebuild_on_spark_equals_what_was_kept_as_it_came(tmp_path: Path, spark: SparkSession) -> None:
    random, quarter = Random(4), OBSERVATIONS // 4
    settings: dict[str, Any] = {
        "storage": {"seal_rows": TOGETHER},
        "pipeline": {"min_rows": 1, "unit_bytes": 6_000, "fan_out": 4},
    }
    with Imported(tmp_path / "data", features={"fold_rows": quarter}, **settings) as entities:
        entities.register_type(contact())
        entities.observe(random, quarter)
        assert entities.work() > 1
        entities.observe(random, quarter)
        entities.register_type(CHANGED)
        entities.observe(random, quarter)
        assert entities.work() > 2
        entities.observe(random, quarter)
        kept, rows = entities.packed(), entities.rows()
        assert len(rows) == PEOPLE and rows == entities.oracle()
        assert b'"colour"' in b"".join(rows.values())
        entities.forget_states()
        assert work(entities, spark, "snapshots") > 4
        assert max(state.level for state in entities.states_of()) >= 1
        assert entities.tail().base.start == OBSERVATIONS
        assert entities.packed() == kept
        assert entities.rows() == rows
