"""The tail of a type by the keys of its entities: what is indexed and what is looked for are the same."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from headrace.engine.entities.read.observations import Observations, TailKeyIndex
from support.entity_rig import Entities, contact


@pytest.mark.parametrize("most", [1 << 20, 40, 3], ids=["plenty", "some", "none"])
def test_observations_are_found_whatever_is_indexed_while_segments_are_published(tmp_path: Path, most: int) -> None:
    random, tails = Random(most), TailKeyIndex(most)
    with Entities(tmp_path / "data") as entities:
        entities.register_type(contact())
        ids: set[str] = set()
        for step in range(24):
            people = [f"u{random.randrange(12)}@x.org" for _ in range(random.choice([1, 1, 5]))]
            stored = entities.store(*({"entity_type": "contact", "email": one, "score": step} for one in people))
            ids |= {one["entity_id"] for one in stored}
            if step % 7 == 6:
                entities.seal_type()
            stream = entities.find("entities/contact")
            with closing(entities.engine.connect()) as connection:
                indexed = Observations(connection, entities.engine.caches.segments, stream, stream.head, tails)
                looked = Observations(connection, entities.engine.caches.segments, stream, stream.head)
                for id in ids:
                    start = random.randrange(stream.head.next_seq)
                    assert list(indexed.read(id)) == list(looked.read(id))
                    assert list(indexed.read(id, start)) == list(looked.read(id, start))
                    assert list(indexed.read(id, 0, start, newest_first=True)) == list(
                        looked.read(id, 0, start, newest_first=True)
                    )
                assert sum(len(list(looked.read(id))) for id in ids) == stream.head.next_seq


def test_two_streams_share_what_may_be_indexed(tmp_path: Path) -> None:
    tails = TailKeyIndex(6)
    with Entities(tmp_path / "data") as entities:
        for name in ("contact", "person"):
            entities.register_type(contact(entity_type=name))
        found = {}
        for name in ("contact", "person"):
            given = ({"entity_type": name, "email": f"{n}@x.org", "name": "n"} for n in range(4))
            found[name] = [one["entity_id"] for one in entities.store(*given)]
        for name in ("contact", "person", "contact"):
            stream = entities.find(f"entities/{name}")
            with closing(entities.engine.connect()) as connection:
                of = Observations(connection, entities.engine.caches.segments, stream, stream.head, tails).read
                assert [len(list(of(id))) for id in found[name]] == [1, 1, 1, 1]
