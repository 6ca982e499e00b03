"""Nodes on a service whose listings do not know the last moment: nothing that was published is lost by that."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.entities.registering import register as register_type
from engine.entities.registering import schema
from engine.features.pipelines import event, registered
from headrace.types import JSON
from support.engine_rig import Rig, array
from support.s3 import S3


@pytest.fixture
def lag(bucket: S3) -> S3:
    """A bucket whose listings lag behind once their knowledge is frozen."""
    bucket.chance = lambda request: "stale" if request.is_listing and bucket.recent.known_until is not None else None
    return bucket


def open_rig(directory: Path, bucket: S3) -> Rig:
    return Rig(directory, storage={"object_store": bucket.url, "seal_rows": 2})


def publish(rig: Rig, *names: str) -> None:
    for name in names:
        rig.append(name, array("more"))
        rig.publish(name)


def test_a_takeover_follows_manifests_that_no_listing_shows_yet(tmp_path: Path, lag: S3) -> None:
    with open_rig(tmp_path / "first", lag) as rig:
        for name in ("a", "b"):
            rig.create(name, JSON, array(1))
            rig.publish(name)
        lag.recent.freeze()
        publish(rig, "a", "a", "b")
    with open_rig(tmp_path / "second", lag) as fresh:
        assert fresh.read("a") == [b"1", b'"more"', b'"more"']
        assert fresh.read("b") == [b"1", b'"more"']
        publish(fresh, "a")
        lag.recent.known_until = None
    with open_rig(tmp_path / "third", lag) as last:
        assert last.read("a") == [b"1", b'"more"', b'"more"', b'"more"']


def test_a_node_takes_over_from_one_whose_lease_no_listing_shows_yet(tmp_path: Path, lag: S3) -> None:
    with open_rig(tmp_path / "first", lag) as rig:
        rig.create("a", JSON, array(1))
        rig.publish("a")
    lag.recent.freeze()
    with open_rig(tmp_path / "second", lag):
        pass
    with open_rig(tmp_path / "third", lag) as rig:
        assert rig.read("a") == [b"1"]


def test_a_directory_keeps_streams_whose_objects_no_listing_shows_yet(tmp_path: Path, lag: S3) -> None:
    with open_rig(tmp_path / "first", lag) as rig:
        rig.create("old", JSON, array(1))
        rig.publish("old")
    with open_rig(tmp_path / "second", lag) as rig:
        lag.recent.freeze()
        rig.create("new", JSON, array(2))
        rig.publish("new")
    with open_rig(tmp_path / "second", lag) as rig:
        assert rig.read("new") == [b"2"]
    with open_rig(tmp_path / "third", lag):
        pass
    with open_rig(tmp_path / "second", lag) as rig:
        assert rig.read("new") == [b"2"]


def test_registries_are_taken_over_that_no_listing_shows_yet(tmp_path: Path, lag: S3) -> None:
    with open_rig(tmp_path / "first", lag) as rig:
        for names in ("A", "AB", "ABC"):
            registered(rig, *map(event, names))
            rig.run(rig.engine.sealer.publish_journals())
            register_type(rig, schema("1.0.0", names[-1].lower()))
            rig.run(rig.engine.sealer.publish_journals())
            if names == "A":
                lag.recent.freeze()
    with open_rig(tmp_path / "second", lag) as fresh:
        assert fresh.engine.features.current.version == 3
        assert all(fresh.find(f"entities/{name}").managed for name in ("a", "b", "c"))
