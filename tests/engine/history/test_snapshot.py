from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.schema.registry import KeySetting
from headrace.schema.update import SchemaUpdate
from headrace.types import JSON, OCTETS
from support.engine_rig import Rig, array
from support.stored_objects import manifest, placed

SHAPE = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


def test_a_manifest_tells_what_a_stream_is(rig: Rig) -> None:
    stream = rig.create("s", JSON, array(1, 2), ttl_s=500, retention_bytes=1_000)
    rig.clock.us += 5
    rig.append("s", array(3), key="k", stream_seq="7", producer=("p", 2, 0))
    rig.publish("s")
    found = manifest(rig, "s")
    assert (found.stream, found.incarnation, found.generation, found.state) == ("s", stream.incarnation, 1, "live")
    assert (found.content_type, found.ttl_s, found.retention_bytes) == (JSON, 500, 1_000)
    assert (found.created_us, found.last_us, found.written_us) == (rig.clock.us - 5, rig.clock.us, rig.clock.us)
    assert (found.first_seq, found.published_seq, found.total_bytes) == (0, 3, 4)
    assert (found.stream_seq, found.producers) == ("7", {"p": (2, 0)})
    assert found.epochs == stream.epochs
    assert found.segments == tuple(one.segment for one in placed(rig, "s"))
    assert not (found.closed or found.lineage or found.registry or found.kept)


def test_a_manifest_is_never_newer_than_its_last_entry(rig: Rig) -> None:
    rig.create("s", OCTETS, b"a")
    rig.append("s", b"b", stream_seq="1", producer=("p", 0, 0))
    rig.publish("s")
    rig.append("s", b"c", stream_seq="2", producer=("p", 0, 1))
    found = manifest(rig, "s")
    assert (found.published_seq, found.stream_seq, found.producers) == (2, "1", {"p": (0, 0)})
    rig.publish("s")
    found = manifest(rig, "s")
    assert (found.published_seq, found.stream_seq, found.producers) == (3, "2", {"p": (0, 1)})


def test_a_manifest_tells_who_closed_the_stream(rig: Rig) -> None:
    rig.create("s", OCTETS, b"a")
    rig.append("s", b"b", close=True, producer=("p", 4, 0))
    rig.publish("s")
    found = manifest(rig, "s")
    assert (found.closed, found.closed_by, found.published_seq) == (True, ("p", 4, 0), 2)


def test_a_stream_without_entries_is_published_too(rig: Rig) -> None:
    rig.create("s", OCTETS)
    rig.publish("s")
    found = manifest(rig, "s")
    assert (found.published_seq, found.segments) == (0, ())


def test_a_manifest_holds_every_revision_of_the_registry(rig: Rig) -> None:
    stream = rig.create("s", JSON)
    rig.run(rig.engine.schemas.apply(stream, SchemaUpdate(schema=SHAPE)))
    rig.clock.us += 9
    rig.run(rig.engine.schemas.apply(stream, SchemaUpdate(routing_key=KeySetting(pointer="/n", required=False))))
    rig.publish("s")
    first, second = manifest(rig, "s").registry
    assert (first.revision, second.revision, second.at_us - first.at_us) == (1, 2, 9)
    assert msgspec.json.decode(first.document)["schemas"] == {"1": SHAPE}
    assert msgspec.json.decode(second.document)["routingKey"] == {"jsonPointer": "/n", "required": False}


def test_a_fork_names_everyone_it_reads_from(rig: Rig) -> None:
    root = rig.create("root", JSON, array(1, 2, 3, 4))
    middle = rig.fork("root", "middle", 3)
    rig.append("middle", array("m", "n"))
    rig.fork("middle", "leaf", 4)
    rig.fork("middle", "early", 2)
    rig.append("leaf", array("l"))
    for name in ("root", "middle", "leaf", "early"):
        rig.publish(name)
    assert manifest(rig, "middle").lineage == ((root.incarnation, 3),)
    assert manifest(rig, "leaf").lineage == ((root.incarnation, 3), (middle.incarnation, 4))
    assert manifest(rig, "early").lineage == ((root.incarnation, 2), (middle.incarnation, 2))
    assert [one.first_seq for one in manifest(rig, "leaf").segments] == [4]


def test_what_retention_let_go_is_not_in_the_manifest_and_what_forks_read_is_kept(tmp_path: Path) -> None:
    with Rig(tmp_path / "cut", storage={"seal_bytes": 10}) as rig:
        rig.create("s", OCTETS)
        for number in range(5):
            rig.append("s", b"%d" % number * 10)
        rig.publish("s")
        rig.fork("s", "fork", 2)
        rig.retain("s", size=19)
        rig.publish("s")
        found = manifest(rig, "s")
        assert (found.first_seq, found.first_bytes) == (3, 30)
        assert [one.first_seq for one in found.segments] == [3, 4]
        assert [one.first_seq for one in found.kept] == [0, 1]
        assert [one.segment.first_seq for one in placed(rig, "s")] == [0, 1, 3, 4]
        rig.delete("fork")
        rig.publish("s")
        assert manifest(rig, "s").kept == ()
        assert [one.segment.first_seq for one in placed(rig, "s")] == [3, 4]


def test_a_soft_deleted_source_says_so(rig: Rig) -> None:
    rig.create("s", OCTETS, b"a")
    rig.fork("s", "fork", 1)
    rig.delete("s")
    rig.publish("s")
    assert manifest(rig, "s").state == "soft_deleted"
