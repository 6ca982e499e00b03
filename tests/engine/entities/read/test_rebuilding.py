"""States that were kept step by step are, byte for byte, those that are made of everything at once."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from headrace.storage.derived import States
from support.entity_rig import POLICIES, Entities, contact

OBSERVATIONS, PEOPLE, TOGETHER = 10_000, 1_000, 500
CHANGED = {**POLICIES, "name": {"strategy": "last_write"}, "score": {"strategy": "highest_priority"}}


def people(random: Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "entity_type": "contact",
            "email": f"u{random.randrange(PEOPLE)}@x.org",
            "name": f"N{random.randrange(5)}",
            "phone": str(random.randrange(5)),
            "score": random.randrange(100),
            "tags": [f"t{random.randrange(9)}"],
            "colour": "red",
            "_meta": {"source_priority": random.choice([10, 100]), "specificity_score": random.randrange(4) / 4},
        }
        for _ in range(count)
    ]


def packed(entities: Entities) -> dict[bytes, dict[str, bytes]]:
    """What states and the tail hold of every entity, as it is kept."""
    entities.ready()
    generation = entities.engine.snapshots.state_reader.tail_of("contact")
    assert generation is not None and not generation.base.backfilling
    reducer, keys = generation.fold.reducer, [id.encode() for id in entities.oracle()]
    return {key: reducer.pack(generation.row(key)) for key in keys}


def test_a_rebuild_equals_what_was_kept_with_a_change_of_policies_in_the_middle(tmp_path: Path) -> None:
    random, stored = Random(1), 0
    with Entities(tmp_path / "data", features={"fold_rows": 1_000}) as entities:
        entities.register_type(contact())
        while stored < OBSERVATIONS:
            entities.store(*people(random, TOGETHER))
            stored += TOGETHER
            if stored == OBSERVATIONS // 2:
                entities.register_type(contact("2.0.0", CHANGED))
            if stored % 2_000 == 0:
                entities.seal_type()
                entities.work()
        entities.store(*people(random, TOGETHER))
        kept, rows = packed(entities), entities.rows()
        assert len(rows) == PEOPLE and rows == entities.oracle()
        stream = entities.find("entities/contact")
        entities.run(entities.engine.apply(lambda batch: States(batch.connection).retire_all(stream.id)))
        entities.run(entities.engine.work.run(stream))
        entities.reopen()
        assert entities.work() > 0
        assert packed(entities) == kept
        assert entities.rows() == rows
