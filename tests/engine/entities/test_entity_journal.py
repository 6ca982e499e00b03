"""Changes of entity types in the object store: published by one node, recovered by another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.entities.registering import activate, added, deactivate, register, schema, update, version_of
from engine.entities.store import Store
from headrace.errors import Fenced
from headrace.format.journal import ENTITIES
from headrace.storage.entity_types import SchemaRegistry
from headrace.storage.journals import EntityChanges
from headrace.storage.objects import Objects
from support.engine_rig import Rig
from support.machines import take_over_before

#: What is known of entities, without the numbers of their streams, which are others on every node.
COLUMNS = {
    "entities": "entity_id, user_id, canonical_name, first_seq, at_us",
    "aliases": "entity_id, into_id, user_id, seq, at_us",
    "splits": "entity_id, observation_id, into_id, user_id, seq, at_us",
    "sources": "source_id, first_seq, count, user_id, at_us",
    "dedupe": "key, seq, at_us",
}


@contextmanager
def opened(tmp_path: Path, name: str) -> Iterator[Rig]:
    with Rig(tmp_path / name, storage={"object_store": str(tmp_path / "store")}) as rig:
        yield rig


def publish(rig: Rig, *streams: str) -> None:
    rig.run(rig.engine.sealer.publish_journals())
    for stream in streams:
        rig.publish(stream)


def tables(rig: Rig) -> dict[str, list[object]]:
    """Everything that is known of types and entities."""
    connection = rig.engine.connect()
    try:
        found: dict[str, list[object]] = {
            name: list(connection.execute(f"SELECT {columns} FROM {name} ORDER BY 1, 2").fetchall())
            for name, columns in COLUMNS.items()
        }
        found["schema_registry"] = list(SchemaRegistry(connection).every("", 1000))
        found["entity_changes"] = list(EntityChanges(connection).all())
        aliases = connection.execute("SELECT * FROM entity_type_aliases ORDER BY 1, 2").fetchall()
        return {**found, "entity_type_aliases": list(aliases)}
    finally:
        connection.close()


def test_types_come_back_from_the_store_alone(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        register(rig, schema(definition={"aliases": ["person"]}))
        update(rig, "u", fields_to_add=[added("mine")])
        update(rig, fields_to_add=[added("later")])
        register(rig, schema("1.0.0", "task"))
        deactivate(rig, "1.0.0", entity_type="task")
        activate(rig, "1.0.0")
        publish(rig, "entities/contact")
        before = tables(rig)
    with opened(tmp_path, "second") as rig:
        assert tables(rig) == before
        assert (rig.engine.recovered and rig.engine.recovered.problems) == []
        assert version_of(rig, "u") == "2.0.0"
        assert version_of(rig, "v") == "1.0.0"
        assert version_of(rig, "v", "task") is None
        assert rig.engine.types.resolve("person", "u") == "contact"
        assert rig.find("entities/task").managed
        assert update(rig, fields_to_add=[added("again")]).plan.to_version == "1.2.0"


def test_entities_come_back_with_their_observations(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        store = Store(rig)
        register(rig, schema())
        for number in range(3):
            store.store({"entity_type": "contact", "email": f"{number}@x.example", "name": f"n{number}", "odd": number})
        store.store({"entity_type": "note", "title": "by itself"})
        rows = rig.engine.types.entities.page(rig.find("entities/contact").id, "local", "", 10)
        ids = [row.entity_id for row in rows]
        rig.run(rig.engine.entity_relations.merge("local", ids[0], ids[1]))
        rig.run(rig.engine.entity_relations.merge("local", ids[2], ids[1]))
        rig.run(rig.engine.entity_relations.unmerge("local", ids[2]))
        publish(rig, "entities/contact", "entities/note")
        before = tables(rig)
        assert len(before["entities"]) == 4
        assert len(before["aliases"]) == 1
    with opened(tmp_path, "second") as rig:
        after = tables(rig)
        assert after == before
        again = Store(rig).store({"entity_type": "contact", "email": "1@x.example", "name": "n1", "odd": 1})
        assert again["entities"][0]["action"] == "unchanged"
        assert len(rig.read("entities/contact")) == 6


def test_the_store_never_has_an_observation_whose_version_it_lacks(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        store = Store(rig)
        register(rig, schema())
        update(rig, fields_to_add=[added("age", "number")])
        store.store({"entity_type": "contact", "email": "a@x.example", "age": 1})
        rig.publish("entities/contact")  # that alone publishes the journal before it
    with opened(tmp_path, "second") as rig:
        assert version_of(rig, "u") == "1.1.0"
        assert len(rig.read("entities/contact")) == 1


def test_a_type_that_was_never_published_with_its_stream_begins_empty(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        register(rig, schema())
        publish(rig)
    with opened(tmp_path, "second") as rig:
        assert version_of(rig, "u") == "1.0.0"
        assert rig.read("entities/contact") == []


def test_what_another_node_did_meanwhile_takes_the_place_of_what_was_only_here(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        register(rig, schema())
        publish(rig, "entities/contact")
        update(rig, fields_to_add=[added("only_here")])  # never published
    with opened(tmp_path, "second") as rig:
        update(rig, fields_to_add=[added("there")])
        publish(rig, "entities/contact")
    with opened(tmp_path, "first") as rig:
        found = rig.engine.types.effective("contact", "u")
        assert found is not None
        assert set(found.schema.schema_definition.fields) == {"name", "email", "there"}
        assert [row.schema_version for row in rig.engine.types.versions("contact", "u")] == ["1.1.0", "1.0.0"]


def test_what_is_only_here_and_follows_the_store_stays(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        register(rig, schema())
        publish(rig, "entities/contact")
        update(rig, fields_to_add=[added("only_here")])
    with opened(tmp_path, "second") as rig:
        rig.create("other")
    with opened(tmp_path, "first") as rig:
        assert version_of(rig, "u") == "1.1.0"


def test_a_crash_before_the_mark_publishes_the_same_again(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        register(rig, schema())
        rig.publish("entities/contact")  # creates the object, and does not mark the change
        update(rig, fields_to_add=[added("a")])
        publish(rig, "entities/contact")
        objects = Objects.open(str(tmp_path / "store"))
        keys = [info.key for info in objects.list(ENTITIES.prefix)]
        assert keys == [ENTITIES.key(1)]
        assert [one.number for one in ENTITIES.decode(objects.get(keys[0]), keys[0])] == [1, 2]
        update(rig, fields_to_add=[added("b")])
        publish(rig)
        assert [info.key for info in objects.list(ENTITIES.prefix)] == [ENTITIES.key(1), ENTITIES.key(3)]


def test_a_damaged_change_is_told_and_the_others_count(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        register(rig, schema())
        publish(rig)
        register(rig, schema("1.0.0", "task"))
        publish(rig)
    objects = Objects.open(str(tmp_path / "store"))
    objects.put(ENTITIES.key(1), b"{}")
    with opened(tmp_path, "second") as rig:
        assert rig.engine.recovered is not None
        told, missed = rig.engine.recovered.problems
        assert ENTITIES.key(1) in told and missed.startswith("changes 1 to 1 of entity types are missing")
        assert version_of(rig, "u") is None
        assert version_of(rig, "u", "task") == "1.0.0"


def test_a_change_that_is_missing_is_told(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        for name in ("a", "b", "c"):
            register(rig, schema("1.0.0", name))
            publish(rig)
    objects = Objects.open(str(tmp_path / "store"))
    objects.delete([ENTITIES.key(2)])
    with opened(tmp_path, "second") as rig:
        assert rig.engine.recovered is not None
        assert rig.engine.recovered.problems == ["changes 2 to 2 of entity types are missing in the object store"]
        assert [version_of(rig, "u", name) for name in ("a", "b", "c")] == ["1.0.0", None, "1.0.0"]


def test_a_stream_whose_type_is_lost_is_told_and_found_when_the_type_is_registered_again(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        register(rig, schema())
        publish(rig, "entities/contact")
    Objects.open(str(tmp_path / "store")).delete([ENTITIES.key(1)])
    with opened(tmp_path, "second") as rig:
        assert rig.engine.recovered is not None
        assert ["'entities/contact'" in problem for problem in rig.engine.recovered.problems] == [True]
        register(rig, schema())
        assert version_of(rig, "u") == "1.0.0"


@pytest.mark.parametrize("theirs", [None, b"of another node"], ids=["nothing", "another change"])
def test_who_is_replaced_meanwhile_writes_over_nothing_and_notes_nothing(tmp_path: Path, theirs: bytes | None) -> None:
    key = ENTITIES.key(1)
    with Rig(tmp_path) as rig:
        register(rig, schema())
        take_over_before(rig.engine.objects, key, theirs)
        with pytest.raises(Fenced):
            rig.run(rig.engine.sealer.publish_journals())
        assert EntityChanges(rig.engine._reader).unpublished(0, 1)
        assert theirs in (None, rig.engine.objects.get(key))
