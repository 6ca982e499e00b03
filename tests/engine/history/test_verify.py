"""Verification finds what is damaged, names it, and complains of nothing else."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.engine.history.verify import VerifyReport, verify
from headrace.engine.products import JOURNALS
from headrace.format import manifest as manifests
from headrace.format import object_names
from headrace.format.manifest import Manifest, Segment
from headrace.storage.objects import Objects
from headrace.types import JSON
from support.engine_rig import Rig, array


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A node that seals two appends at a time."""
    with Rig(tmp_path / "data", storage={"object_store": str(tmp_path / "store"), "seal_rows": 4}) as rig:
        yield rig


@pytest.fixture
def objects(rig: Rig) -> Objects:
    """Two streams: JSON with spaces between its events in two segments, and bytes."""
    rig.create("events", JSON)
    for number in range(4):
        rig.append("events", b'[{"n": %d},  {"n": %d}]' % (number, number), key=f"k{number}")
    rig.publish("events")
    rig.create("bytes")
    rig.append("bytes", b"one")
    rig.append("bytes", b"two")
    rig.publish("bytes")
    return rig.engine.objects


def reports(objects: Objects, stream: str | None = None) -> dict[str | None, VerifyReport]:
    return {report.stream: report for report in verify(objects, JOURNALS, stream=stream)}


def newest(objects: Objects, stream: str, incarnation: str) -> Manifest:
    prefix = f"manifests/{object_names.name_hash(stream)}/{incarnation}"
    key = max(info.key for info in objects.list(prefix))
    return manifests.decode(objects.get(key), key)


def key_of(manifest: Manifest, segment: Segment) -> str:
    return object_names.segment_key(manifest.stream, manifest.incarnation, segment.name)


def rewrite(objects: Objects, manifest: Manifest, **facts: object) -> str:
    """The same manifest with other facts, valid by itself."""
    changed = msgspec.structs.replace(manifest, **facts)
    key = object_names.manifest_key(changed.stream, changed.incarnation, changed.generation)
    objects.put(key, manifests.encode(changed))
    return key


def test_a_store_as_it_was_written_has_no_damage(objects: Objects) -> None:
    found = reports(objects)
    assert {name: report.damage for name, report in found.items()} == {"events": [], "bytes": []}
    events = found["events"]
    assert events.entries == 8
    assert events.segments == 2
    assert events.generation == 1
    assert events.state == "live"
    assert events.bytes == sum(segment.bytes for segment in newest(objects, "events", "0").segments)
    assert not any(report.orphans for report in found.values())


def missing(objects: Objects, manifest: Manifest, segment: Segment) -> str:
    objects.delete([key_of(manifest, segment)])
    return key_of(manifest, segment)


def shorter(objects: Objects, manifest: Manifest, segment: Segment) -> str:
    key = key_of(manifest, segment)
    objects.put(key, objects.get(key)[:-1])
    return key


def flipped(objects: Objects, manifest: Manifest, segment: Segment) -> str:
    key = key_of(manifest, segment)
    data = bytearray(objects.get(key))
    data[len(data) // 2] ^= 1
    objects.put(key, bytes(data))
    return key


def exchanged(objects: Objects, manifest: Manifest, segment: Segment) -> str:
    """A whole segment of another stream, which the manifest describes as it is."""
    theirs = newest(objects, "bytes", "1")
    (other,) = theirs.segments
    key = key_of(manifest, segment)
    objects.put(key, objects.get(key_of(theirs, other)))
    listed = msgspec.structs.replace(segment, bytes=other.bytes, sha256=other.sha256)
    rewrite(objects, manifest, segments=(*manifest.segments[:-1], listed))
    return key


def disordered(objects: Objects, manifest: Manifest, segment: Segment) -> str:
    """A segment that was written wrong, with a manifest that describes it as it is."""
    key, file = key_of(manifest, segment), io.BytesIO()
    table = pq.read_table(io.BytesIO(objects.get(key)))
    seqs = table.column("seq").to_pylist()
    seqs[1:3] = seqs[2:0:-1]
    pq.write_table(table.set_column(0, table.schema.field("seq"), pa.array(seqs)), file)
    objects.put(key, file.getvalue())
    digest = hashlib.sha256(file.getvalue()).hexdigest()
    listed = msgspec.structs.replace(segment, bytes=len(file.getvalue()), sha256=digest)
    rewrite(objects, manifest, segments=(*manifest.segments[:-1], listed))
    return key


def miscounted(objects: Objects, manifest: Manifest, segment: Segment) -> str:
    listed = msgspec.structs.replace(segment, payload_bytes=segment.payload_bytes + 1)
    rewrite(objects, manifest, segments=(*manifest.segments[:-1], listed))
    return key_of(manifest, segment)


def overfull(objects: Objects, manifest: Manifest, segment: Segment) -> str:
    listed = msgspec.structs.replace(segment, before_bytes=segment.total_bytes - 1)
    first = msgspec.structs.replace(manifest.segments[0], total_bytes=listed.before_bytes)
    rewrite(objects, manifest, segments=(first, listed))
    return key_of(manifest, segment)


def torn_total(objects: Objects, manifest: Manifest, segment: Segment) -> str:
    return rewrite(objects, manifest, total_bytes=manifest.total_bytes + 1)


def torn_sum(objects: Objects, manifest: Manifest, segment: Segment) -> str:
    first = msgspec.structs.replace(manifest.segments[0], total_bytes=manifest.segments[0].total_bytes + 1)
    return rewrite(objects, manifest, segments=(first, segment))


def unreadable(objects: Objects, manifest: Manifest, segment: Segment) -> str:
    key = object_names.manifest_key(manifest.stream, manifest.incarnation, manifest.generation)
    objects.put(key, objects.get(key).replace(b'"live"', b'"dead"'))
    return key


@pytest.mark.parametrize(
    ("harm", "check"),
    [
        (missing, "present"),
        (shorter, "size"),
        (flipped, "checksum"),
        (exchanged, "identity"),
        (disordered, "continuity"),
        (miscounted, "count"),
        (overfull, "bytes"),
        (torn_total, "bytes"),
        (torn_sum, "bytes"),
        (unreadable, "checksum"),
    ],
)
def test_a_damaged_object_is_named_and_other_streams_are_not(
    objects: Objects, harm: Callable[[Objects, Manifest, Segment], str], check: str
) -> None:
    manifest = newest(objects, "events", "0")
    key = harm(objects, manifest, manifest.segments[-1])
    found = [report for report in verify(objects, JOURNALS) if report.stream != "bytes"]
    damage = [damage for report in found for damage in report.damage]
    assert (key, check) in [(one.object, one.check) for one in damage]
    assert all(key in one.message for one in damage if one.object == key)
    assert reports(objects)["bytes"].damage == []


def test_an_older_manifest_is_verified_where_the_newest_is_damaged(rig: Rig, objects: Objects) -> None:
    rig.append("bytes", b"three")
    rig.publish("bytes")
    key = unreadable(objects, newest(objects, "bytes", "1"), newest(objects, "bytes", "1").segments[-1])
    report = reports(objects)["bytes"]
    assert [damage.object for damage in report.damage] == [key]
    assert report.generation == 1
    assert report.entries == 2


def test_what_the_newest_manifest_does_not_name_is_an_orphan(rig: Rig, objects: Objects) -> None:
    rig.create("slow", body=b"one")
    rig.publish("slow")
    before = newest(objects, "slow", "2")
    rig.append("slow", b"two")
    rig.publish("slow")
    lost = object_names.segment_key("nobody", "7", object_names.segment_name(0, 1, "x"))
    objects.put(lost, b"from an upload that was cut short")
    found = reports(objects)
    assert found["slow"].orphans == [object_names.manifest_key("slow", "2", 1), key_of(before, before.segments[0])]
    assert found[None].orphans == [lost]
    assert not any(report.damage for report in found.values())


def test_one_stream_alone_can_be_verified(objects: Objects) -> None:
    for segment in newest(objects, "bytes", "1").segments:
        objects.delete([key_of(newest(objects, "bytes", "1"), segment)])
    before = objects.requests.of(object_names.name_hash("bytes"))
    found = reports(objects, "events")
    assert list(found) == ["events"]
    assert found["events"].damage == []
    assert objects.requests.of(object_names.name_hash("bytes")) == before
    assert reports(objects, "nobody") == {}


def test_what_a_fork_reads_from_others_must_be_there(rig: Rig, objects: Objects) -> None:
    rig.fork("events", "fork", 6)
    rig.append("fork", array("own"))
    rig.publish("fork")
    assert reports(objects)["fork"].damage == []
    manifest = newest(objects, "events", "0")
    whole = objects.get(object_names.manifest_key("events", "0", 1))
    rewrite(objects, manifest, published_seq=4, segments=manifest.segments[:1])
    (damage,) = reports(objects, "fork")["fork"].damage
    assert damage.check == "lineage"
    assert "entry 4 of 'events' is not published" in damage.message
    objects.delete([object_names.manifest_key("events", "0", 1)])
    (damage,) = reports(objects, "fork")["fork"].damage
    assert damage.check == "lineage"
    assert "is not there" in damage.message
    objects.put(object_names.manifest_key("events", "0", 1), whole)
    assert reports(objects, "fork")["fork"].damage == []


def test_a_fork_of_a_fork_is_held_against_both(rig: Rig, objects: Objects) -> None:
    rig.fork("events", "child", 2)
    rig.append("child", array("a", "b"))
    rig.fork("child", "grandchild", 3)
    rig.append("grandchild", array("c"))
    for name in ("child", "grandchild"):
        rig.publish(name)
    assert reports(objects)["grandchild"].damage == []
    child = newest(objects, "child", "2")
    rewrite(objects, child, published_seq=2, segments=())
    (damage,) = reports(objects)["grandchild"].damage
    assert "entry 2 of 'child' is not published" in damage.message


def test_segments_that_only_forks_read_are_verified_too(rig: Rig, objects: Objects) -> None:
    rig.fork("events", "fork", 4)
    rig.publish("fork")
    rig.retain("events", size=10)
    rig.publish("events")
    manifest = newest(objects, "events", "0")
    assert manifest.kept
    assert reports(objects)["events"].segments == len(manifest.kept) + len(manifest.segments)
    key = missing(objects, manifest, manifest.kept[0])
    assert [damage.object for damage in reports(objects)["events"].damage] == [key]


def test_a_server_that_goes_on_meanwhile_is_no_damage(rig: Rig, objects: Objects) -> None:
    happened: list[int] = []

    def go_on(done: int, total: int) -> None:
        if not happened:
            happened.append(done)
            rig.append("events", array("more"))
            rig.publish("events")
            # The second segment was small, so it was written again; everyone has had time to finish.
            rig.clock.us += 3_600_000_000
            rig.clear()

    rig.append("events", array("small"))
    rig.publish("events")
    (report,) = verify(objects, JOURNALS, stream="events", on_progress=go_on)
    assert happened
    assert report.damage == []
    assert report.entries == 10
    assert report.generation == 3


def test_a_deleted_stream_is_no_damage_while_its_objects_go(rig: Rig, objects: Objects) -> None:
    before = newest(objects, "bytes", "1")
    rewrite(objects, before, generation=2, state="deleted", segments=(), published_seq=0, total_bytes=0)
    report = reports(objects)["bytes"]
    assert report.state == "deleted"
    assert report.damage == []
    assert key_of(before, before.segments[0]) in report.orphans


def test_a_store_elsewhere_is_verified_like_a_directory(objects: Objects) -> None:
    elsewhere = Objects.open("memory://")
    for info in objects.list(""):
        elsewhere.put(info.key, objects.get(info.key))
    assert [report.damage for report in verify(elsewhere, JOURNALS)] == [[], []]
    manifest = newest(elsewhere, "events", "0")
    key = flipped(elsewhere, manifest, manifest.segments[0])
    assert [damage.object for damage in reports(elsewhere)["events"].damage] == [key]
    told: list[tuple[int, int]] = []
    assert len(list(verify(elsewhere, JOURNALS, on_progress=lambda done, total: told.append((done, total))))) == 2
    assert told[-1][0] == told[-1][1] > 0
