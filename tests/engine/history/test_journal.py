"""Journals: registries of the whole node are verified like streams, and recovered from what is left of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.entities.registering import register as register_type
from engine.entities.registering import schema
from engine.features.pipelines import event, registered
from headrace.engine.history.verify import verify
from headrace.engine.products import JOURNALS
from headrace.format.journal import ENTITIES, FEATURES
from headrace.storage.objects import Objects
from support.engine_rig import Rig


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    """A store with two versions of the feature registry and three changes of entity types."""
    with Rig(tmp_path / "data", storage={"object_store": str(tmp_path / "store")}) as rig:
        for names in ("A", "AB"):
            registered(rig, *map(event, names))
            rig.run(rig.engine.sealer.publish_journals())
        for name in ("a", "b", "c"):
            register_type(rig, schema("1.0.0", name))
            rig.run(rig.engine.sealer.publish_journals())
    return Objects.open(str(tmp_path / "store"))


def damage(objects: Objects) -> dict[str, list[tuple[str, str]]]:
    found = (report for report in verify(objects, JOURNALS) if report.stream is None)
    return {report.state: [(one.object, one.check) for one in report.damage] for report in found}


def test_registries_as_they_were_written_have_no_damage(objects: Objects) -> None:
    found = {
        report.state: (report.generation, report.entries)
        for report in verify(objects, JOURNALS)
        if report.stream is None
    }
    assert found == {"feature_registry": (2, 2), "entity_changes": (3, 3)}
    assert damage(objects) == {"feature_registry": [], "entity_changes": []}


def test_an_object_that_is_damaged_is_named(objects: Objects) -> None:
    version, change = FEATURES.key(2), ENTITIES.key(3)
    for key in (version, change):
        objects.put(key, objects.get(key).replace(b'"at_us":', b'"at_us":1'))
    assert damage(objects) == {"feature_registry": [(version, "checksum")], "entity_changes": [(change, "checksum")]}


def test_a_change_that_is_missing_is_named(objects: Objects) -> None:
    objects.delete([ENTITIES.key(1), ENTITIES.key(2)])
    assert damage(objects)["entity_changes"] == [(ENTITIES.key(1), "present")]


def test_one_stream_is_verified_without_them(objects: Objects) -> None:
    assert list(verify(objects, JOURNALS, stream="a")) == []


def test_a_damaged_newest_object_is_told_once_and_written_again(objects: Objects, tmp_path: Path) -> None:
    key = FEATURES.key(2)
    objects.put(key, b"of a node that was replaced")
    with Rig(tmp_path / "fresh", storage={"object_store": str(tmp_path / "store")}) as rig:
        assert rig.engine.recovered is not None
        assert [key in problem for problem in rig.engine.recovered.problems] == [True]
        assert rig.engine.features.current.version == 1
        registered(rig, event("A"), event("B"))
        rig.run(rig.engine.sealer.publish_journals())
        assert [record.version for record in FEATURES.decode(objects.get(key), key)] == [2]
    assert damage(objects) == {"feature_registry": [], "entity_changes": []}
