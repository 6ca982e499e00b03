"""The feature registry in the object store: published by one node, recovered by another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.features.pipelines import event, register, registered, table
from headrace.engine.features.source import source_of
from headrace.errors import Fenced
from headrace.format.journal import FEATURES
from headrace.storage.journals import FeatureRegistry
from support.engine_rig import Rig, array
from support.machines import take_over_before

KEYED = event(schema={"user": "str", "amount": "f64", "id": {"type": "str", "required": False}}, dedupe_key="id")


def fine(number: int, **more: Any) -> dict[str, Any]:
    return {"user": "u", "amount": float(number), **more}


@contextmanager
def opened(tmp_path: Path, name: str) -> Iterator[Rig]:
    with Rig(tmp_path / name, storage={"object_store": str(tmp_path / "store")}) as rig:
        yield rig


def publish(rig: Rig, *streams: str) -> None:
    rig.run(rig.engine.sealer.publish_journals())
    for stream in streams:
        rig.publish(stream)


def test_the_registry_and_its_streams_are_taken_over(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        registered(rig, event(cold_after="1h", keep_events_for="7d"), table())
        rig.append("events/Txn", array(fine(1), fine(2)))
        registered(rig, event(cold_after="2h", keep_events_for="7d"), table())
        publish(rig, "events/Txn")
        before = rig.engine.features.current
    with opened(tmp_path, "second") as rig:
        after = rig.engine.features.current
        assert after.version == before.version
        assert after.document == before.document
        assert after.cold("Txn") == ((0, 3_600_000), (2, 7_200_000))
        stream = rig.find("events/Txn")
        assert stream.managed and stream.retention_age_us == 7 * 86_400_000_000
        assert len(rig.read("events/Txn")) == 2
        assert [row.version for row in rig.engine.features.history(0, 10)] == [1, 2]
        assert registered(rig, event(cold_after="2h", keep_events_for="7d"), table()).registry_version == 2


def test_a_stream_that_was_never_published_begins_empty(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        registered(rig, event(), table())
        rig.append("events/Txn", array(fine(1)))
        publish(rig)
    with opened(tmp_path, "second") as rig:
        assert rig.read("events/Txn") == []
        rig.append("events/Txn", array(fine(1)))


def test_a_stream_that_is_behind_its_registry_catches_up(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        registered(rig, event())
        rig.append("events/Txn", array(fine(1)))
        publish(rig, "events/Txn")
        registered(rig, event(schema={"user": "str", "amount": "f64", "a": {"type": "i64", "default": 1}}))
        final = event(schema={"user": "str", "amount": "f64", "a": {"type": "f64", "default": 1}}, dedupe_key="user")
        registered(rig, final)
        publish(rig)
    with opened(tmp_path, "second") as rig:
        registry = rig.find("events/Txn").head.registry
        assert registry is not None and registry.version == 3
        assert source_of(registry).rules.event.dedupe_key == "user"
        assert [msgspec.json.decode(entry) for entry in rig.read("events/Txn")] == [fine(1, a=1)]
        assert registered(rig, final).registry_version == 3


def test_a_stream_of_a_removed_source_is_removed(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        registered(rig, event(), event("Rest"))
        rig.append("events/Txn", array(fine(1)))
        publish(rig, "events/Txn")
        registered(rig, event("Rest"), force=True)
        publish(rig)
    with opened(tmp_path, "second") as rig:
        assert rig.engine.log.catalog.find("events/Txn") is None
        assert set(rig.engine.features.current.nodes) == {"Rest"}


def test_what_began_with_a_lost_event_begins_with_the_next(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        registered(rig, event(cold_after="1h"))
        rig.append("events/Txn", array(fine(1)))
        publish(rig, "events/Txn")
        rig.append("events/Txn", array(fine(2), fine(3)))
        registered(rig, event(cold_after="2h", keep_events_for="7d"), table(), backfill=False, force=True)
        assert rig.engine.features.current.feature_versions["Users"]["count"].birth == 3
        publish(rig)
        lost = rig.engine.features.current.feature_versions["Users"]["count"].id
    with opened(tmp_path, "second") as rig:
        current = rig.engine.features.current
        life = current.feature_versions["Users"]["count"]
        assert life.id == lost
        assert life.birth == 1
        assert current.cold("Txn") == ((0, 3_600_000), (1, 7_200_000))
        assert current.version == 3
        assert current.document.plan.action == "recovery"
        publish(rig)
    with opened(tmp_path, "third") as rig:
        assert rig.engine.features.current.document == current.document


def test_keys_of_events_are_known_again(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        registered(rig, KEYED)
        rig.append("events/Txn", array(fine(1, id="a"), fine(2), fine(3, id="b")))
        publish(rig, "events/Txn")
        rig.append("events/Txn", array(fine(4, id="lost")))
    with opened(tmp_path, "second") as rig:
        again = rig.append("events/Txn", array(fine(1, id="a"), fine(4, id="lost"), fine(3, id="b")))
        assert again.deduplicated == 2
        assert again.seqs == [0, 3, 2]
        assert len(rig.read("events/Txn")) == 4


def test_keys_that_are_too_old_are_not_known_again(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        registered(rig, {**KEYED, "dedupe_window": "1h"})
        rig.append("events/Txn", array(fine(1, id="a")))
        publish(rig, "events/Txn")
    store = {"object_store": str(tmp_path / "store")}
    with Rig(tmp_path / "second", storage=store) as rig:
        rig.clock.us += 3_600_000_000
        assert rig.append("events/Txn", array(fine(1, id="a"))).deduplicated == 0


def test_a_registry_object_that_is_damaged_is_left_out(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        registered(rig, event())
        registered(rig, event(), table())
        publish(rig, "events/Txn")
    (tmp_path / "store" / FEATURES.key(2)).write_bytes(b"{}")
    with opened(tmp_path, "second") as rig:
        assert rig.engine.recovered is not None
        assert any("registry-000000000002" in problem for problem in rig.engine.recovered.problems)
        assert set(rig.engine.features.current.nodes) == {"Txn"}


@pytest.mark.parametrize("lost", [[2], [1, 2]])
def test_a_stream_whose_registry_is_lost_stays_until_its_source_is_registered_again(
    tmp_path: Path, lost: list[int]
) -> None:
    with opened(tmp_path, "first") as rig:
        registered(rig, event("Other"))
        registered(rig, event("Other"), event(), table())
        rig.append("events/Txn", array(fine(1), fine(2)))
        publish(rig, "events/Txn")
    for version in lost:
        (tmp_path / "store" / FEATURES.key(version)).unlink()
    with opened(tmp_path, "second") as rig:
        assert rig.engine.recovered is not None
        assert ["'events/Txn'" in problem for problem in rig.engine.recovered.problems] == [True]
        assert len(rig.read("events/Txn")) == 2
        registered(rig, event("Other"), event(), table())
        rig.append("events/Txn", array(fine(3)))
        assert len(rig.read("events/Txn")) == 3


def test_a_stream_is_published_after_its_registry(tmp_path: Path) -> None:
    with opened(tmp_path, "first") as rig:
        registered(rig, event(), table())
        rig.append("events/Txn", array(fine(1)))
        rig.publish("events/Txn")
    with opened(tmp_path, "second") as rig:
        assert set(rig.engine.features.current.nodes) == {"Txn", "Users"}


@pytest.mark.parametrize("version", [1, 2])
def test_versions_are_published_once(tmp_path: Path, version: int) -> None:
    with opened(tmp_path, "first") as rig:
        for number in range(version):
            assert register(rig, event(), *([table()] if number else [])).status == "ok"
        rig.run(rig.engine.sealer.publish_journals())
        keys = sorted(path.name for path in (tmp_path / "store" / "features").iterdir())
        assert keys == [f"registry-{number:012}.json" for number in range(1, version + 1)]
        assert not FeatureRegistry(rig.engine._reader).unpublished(0, 1)


@pytest.mark.parametrize("theirs", [None, b"of another node"], ids=["nothing", "another version"])
def test_who_is_replaced_meanwhile_writes_over_nothing_and_notes_nothing(tmp_path: Path, theirs: bytes | None) -> None:
    key = FEATURES.key(2)
    with Rig(tmp_path) as rig:
        registered(rig, event())
        registered(rig, event(), table())
        take_over_before(rig.engine.objects, key, theirs)
        with pytest.raises(Fenced):
            rig.run(rig.engine.sealer.publish_journals())
        assert [row.version for row in FeatureRegistry(rig.engine._reader).unpublished(0, 9)] == [1, 2]
        assert theirs in (None, rig.engine.objects.get(key))


def test_an_object_that_says_something_else_is_written_again_by_the_writer(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        registered(rig, event())
        rig.engine.objects.put(FEATURES.key(1), b"of a node that was replaced")
        rig.run(rig.engine.sealer.publish_journals())
        (found,) = FEATURES.decode(rig.engine.objects.get(FEATURES.key(1)), FEATURES.key(1))
        assert found.version == 1
        assert FeatureRegistry(rig.engine._reader).unpublished(0, 9) == []
