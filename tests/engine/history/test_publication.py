"""What happens to a stream while its objects are being written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
    assert (stream.head.next_seq, stream.head.bytes, stream.head.published_seq) == (2, 2, 2)
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
    assert (rig.find("s").head.next_seq, rig.find("s").head.published_seq) == (2, 1)
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
    assert (head.stream_seq, head.last_us, head.bytes) == ("5", rig.clock.us, 1)
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
