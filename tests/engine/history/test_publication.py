"""What happens to a stream while its objects are being written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.engine.history import sealer
from headrace.engine.log.append import Append, Terms
from headrace.schema.registry import KeySetting
from headrace.schema.update import SchemaUpdate
from headrace.types import JSON, OCTETS
from support.disturbed_store import Call, disturb
from support.engine_rig import Rig, array
from support.stored_objects import keys, manifest, placed, rows, spans

NOW = 1 << 60


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


def _meanwhile(rig: Rig, begin: Callable[[Callable[[Any], None]], None]) -> None:
    """Let an operation be settled while the next manifest is on its way to the store."""
    loop = rig._runner.get_loop()
    left = [begin]

    async def settled() -> None:
        outcome: asyncio.Future[Any] = loop.create_future()
        left.pop()(lambda operation: outcome.set_result(operation) if operation.settled else None)
        assert (await outcome).error is None

    def before(call: Call) -> None:
        if call.verb == "create" and left:
            asyncio.run_coroutine_threadsafe(settled(), loop).result(10)

    disturb(rig.engine.objects).before = before


def _append(rig: Rig, body: bytes, **terms: Any) -> Callable[[Callable[[Any], None]], None]:
    return lambda done: rig.engine.log.append(Append(rig.find("s"), body, 1 if body else 0, done, Terms(**terms)))


def _marked(rig: Rig) -> list[int]:
    return rig.engine.published.marked(NOW, NOW, 10)


def test_rows_go_once_their_entries_are_published(rig: Rig) -> None:
    rig.create("s", OCTETS, b"a")
    rig.append("s", b"b")
    assert rows(rig) == 2
    rig.publish("s")
    assert rows(rig) == 0
    rig.reopen()
    stream = rig.find("s")
    assert stream.head.next_seq == 2
    assert stream.head.bytes == 2
    assert stream.head.published_seq == 2
    assert rig.append("s", b"c").position == 3
    assert rig.read("s") == [b"ab", b"c"]


def test_rows_go_in_slices(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.history.publication.TRIM_ROWS", 2)
    monkeypatch.setattr(sealer, "TRIM_ROWS", 2)
    rig.create("s", OCTETS)
    for _ in range(5):
        rig.append("s", b"x")
    commits = rig.engine.writer.commits
    rig.publish("s")
    assert rows(rig) == 0
    assert rig.engine.writer.commits == commits + 5  # the attempt, the publication, three slices


def test_what_is_appended_meanwhile_stays_in_the_log(rig: Rig) -> None:
    rig.create("s", OCTETS, b"a")
    _meanwhile(rig, _append(rig, b"b", stream_seq="5"))
    rig.publish("s")
    assert spans(rig, "s") == [(0, 1)]
    assert rows(rig) == 1
    assert rig.find("s").head.next_seq == 2
    assert rig.find("s").head.published_seq == 1
    assert rig.read("s") == [b"a", b"b"]
    rig.reopen()
    assert rig.find("s").head.stream_seq == "5"
    assert rig.read("s") == [b"a", b"b"]


def test_the_last_sequence_survives_without_rows(rig: Rig) -> None:
    rig.create("s", OCTETS)
    rig.append("s", b"a", stream_seq="5", producer=("p", 1, 0))
    rig.publish("s")
    rig.reopen()
    head = rig.find("s").head
    assert head.stream_seq == "5"
    assert head.last_us == rig.clock.us
    assert head.bytes == 1
    assert rig.append("s", b"a", producer=("p", 1, 0)).duplicate


def test_a_published_manifest_tells_the_truth_until_something_changes(rig: Rig) -> None:
    stream = rig.create("s", JSON, array(1))
    assert _marked(rig) == [stream.id]
    rig.publish("s")
    assert _marked(rig) == []
    changes: list[Callable[[], object]] = [
        lambda: rig.retain("s", size=1_000),
        lambda: rig.append("s", close=True),
        lambda: rig.run(rig.engine.schemas.apply(stream, SchemaUpdate(routing_key=KeySetting("/k", required=False)))),
    ]
    for change in changes:
        change()
        assert _marked(rig) == [stream.id]
        rig.publish("s")
        assert _marked(rig) == []
    rig.fork("s", "fork", 1)
    rig.publish("fork")
    assert _marked(rig) == []
    rig.delete("s")
    assert _marked(rig) == [stream.id]


def test_a_change_that_the_manifest_missed_is_published_next(rig: Rig) -> None:
    stream = rig.create("s", OCTETS, b"a")
    _meanwhile(rig, _append(rig, b"", close=True))
    rig.publish("s")
    assert not manifest(rig, "s").closed
    assert _marked(rig) == [stream.id]
    rig.publish("s")
    assert manifest(rig, "s").closed
    assert _marked(rig) == []


def test_a_stream_deleted_meanwhile_leaves_no_objects(rig: Rig) -> None:
    rig.create("s", OCTETS, b"a")
    _meanwhile(rig, lambda done: rig.engine.log.delete(rig.find("s"), done))
    stream = rig.find("s")
    rig.run(rig.engine.sealer.publish(stream.id))
    assert keys(rig.engine.objects, "segments") != []
    rig.sweep()
    rig.clear()
    assert keys(rig.engine.objects, "segments") == keys(rig.engine.objects, "manifests") == []
    assert rows(rig, "segments") == rows(rig, "unpublished") == rows(rig, "graves") == 0


def test_a_stream_deleted_before_is_not_published(rig: Rig) -> None:
    stream = rig.create("s", OCTETS, b"a")
    rig.delete("s")
    rig.run(rig.engine.sealer.publish(stream.id))
    assert keys(rig.engine.objects, "manifests") == []
    assert rows(rig, "unpublished") == 0


def test_a_source_that_is_soft_deleted_meanwhile_is_published_for_its_forks(rig: Rig) -> None:
    stream = rig.create("s", OCTETS, b"a")
    rig.fork("s", "fork", 1)
    _meanwhile(rig, lambda done: rig.engine.log.delete(rig.find("s"), done))
    rig.publish("s")
    assert rows(rig) == 0
    assert stream.id in _marked(rig)
    assert rig.read("fork") == [b"a"]


def test_retention_that_comes_meanwhile_keeps_what_it_must(rig: Rig) -> None:
    stream = rig.create("s", OCTETS)
    for body in (b"aa", b"bb", b"cc"):
        rig.append("s", body)
    log = rig.engine.log
    _meanwhile(rig, lambda done: log.set_retention(stream, done, age_us=None, size=2))
    rig.publish("s")
    assert stream.id in _marked(rig)
    rig.sweep()
    assert rig.read("s", rig.find("s").head.first_seq)[-1][-2:] == b"cc"
    rig.publish("s")
    assert manifest(rig, "s").retention_bytes == 2
    assert [one.segment.end_seq for one in placed(rig, "s")][-1] == 3


SHAPE = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_a_manifest_tells_what_a_stream_is(rig: Rig) -> None:
    stream = rig.create("s", JSON, array(1, 2), ttl_s=500, retention_bytes=1_000)
    rig.clock.us += 5
    rig.append("s", array(3), key="k", stream_seq="7", producer=("p", 2, 0))
    rig.publish("s")
    found = manifest(rig, "s")
    assert found.stream == "s"
    assert found.incarnation == stream.incarnation
    assert found.generation == 1
    assert found.state == "live"
    assert found.content_type == JSON
    assert found.ttl_s == 500
    assert found.retention_bytes == 1_000
    assert found.created_us == rig.clock.us - 5
    assert found.last_us == rig.clock.us
    assert found.written_us == rig.clock.us
    assert found.first_seq == 0
    assert found.published_seq == 3
    assert found.total_bytes == 4
    assert found.stream_seq == "7"
    assert found.producers == {"p": (2, 0)}
    assert found.epochs == stream.epochs
    assert found.segments == tuple(one.segment for one in placed(rig, "s"))
    assert not (found.closed or found.lineage or found.registry or found.kept)


def test_a_manifest_is_never_newer_than_its_last_entry(rig: Rig) -> None:
    rig.create("s", OCTETS, b"a")
    rig.append("s", b"b", stream_seq="1", producer=("p", 0, 0))
    rig.publish("s")
    rig.append("s", b"c", stream_seq="2", producer=("p", 0, 1))
    found = manifest(rig, "s")
    assert found.published_seq == 2
    assert found.stream_seq == "1"
    assert found.producers == {"p": (0, 0)}
    rig.publish("s")
    found = manifest(rig, "s")
    assert found.published_seq == 3
    assert found.stream_seq == "2"
    assert found.producers == {"p": (0, 1)}


def test_a_manifest_tells_who_closed_the_stream(rig: Rig) -> None:
    rig.create("s", OCTETS, b"a")
    rig.append("s", b"b", close=True, producer=("p", 4, 0))
    rig.publish("s")
    found = manifest(rig, "s")
    assert found.closed is True
    assert found.closed_by == ("p", 4, 0)
    assert found.published_seq == 2


def test_a_stream_without_entries_is_published_too(rig: Rig) -> None:
    rig.create("s", OCTETS)
    rig.publish("s")
    found = manifest(rig, "s")
    assert found.published_seq == 0
    assert found.segments == ()


def test_a_manifest_holds_every_revision_of_the_registry(rig: Rig) -> None:
    stream = rig.create("s", JSON)
    rig.run(rig.engine.schemas.apply(stream, SchemaUpdate(schema=SHAPE)))
    rig.clock.us += 9
    rig.run(rig.engine.schemas.apply(stream, SchemaUpdate(routing_key=KeySetting(pointer="/n", required=False))))
    rig.publish("s")
    first, second = manifest(rig, "s").registry
    assert first.revision == 1
    assert second.revision == 2
    assert second.at_us - first.at_us == 9
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
        assert found.first_seq == 3
        assert found.first_bytes == 30
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
