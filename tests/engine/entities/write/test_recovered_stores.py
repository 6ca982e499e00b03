"""An empty directory that is pointed at a store knows the entities and sources that were published there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.entities.store import CONTACT, Store
from support.engine_rig import Rig

ADA = {"entity_type": "contact", "email": "ada@example.com", "name": "Ada", "nick": "a"}
BOB = {"entity_type": "contact", "email": "bob@example.com", "born": 5}
_ROWS = "SELECT entity_id, user_id, canonical_name, first_seq FROM entities ORDER BY first_seq"


@contextmanager
def opened(tmp_path: Path, name: str) -> Iterator[Store]:
    with Rig(tmp_path / name, storage={"object_store": str(tmp_path / "store")}) as rig:
        yield Store(rig)


def published(store: Store) -> tuple[dict[str, Any], list[Any]]:
    """Store entities of two users in several requests, and publish them; the first answer, and the entities."""
    store.register({**CONTACT, "name_collision_policy": "reject"})
    answer = store.store(ADA, BOB, user="ann")
    store.store(ADA, user="ben", source_id="letter")
    store.append("contact", {"email": "cy@example.com"}, user="ann")
    store.decide("correction", answer["entities"][0]["entity_id"], user="ann", age=5)
    rows = store.rows(_ROWS)
    store.rig.run(store.engine.sealer.publish_journals())
    store.rig.publish("entities/contact")
    return answer, rows


def test_entities_and_sources_are_found_again_and_nothing_is_stored_twice(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as store:
        answer, rows = published(store)
    with opened(tmp_path, "second") as store:
        assert store.rows(_ROWS) == rows and len(rows) == 4
        source = store.source(answer["source_id"], "ann")
        assert source.complete and source.entities == [ADA, BOB]
        assert store.source("letter", "ben").entities == [ADA]
        assert store.actions(store.store(ADA, BOB, user="ann")) == ["unchanged", "unchanged"]
        assert store.append("contact", {"email": "cy@example.com"}, user="ann").deduplicated == 1
        assert len(store.observations()) == 5
