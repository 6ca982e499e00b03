from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.engine.history import seal_watch, sealer
from headrace.engine.history.publication import Publication
from headrace.engine.history.publisher import Publisher
from headrace.engine.history.seal_watch import SealPace
from headrace.errors import Fenced, Overloaded
from headrace.format import object_names
from headrace.storage.objects import StoreUnavailable
from headrace.types import JSON, OCTETS
from support.disturbed_store import disturb
from support.engine_rig import Rig, array
from support.stored_objects import generations, keys, manifest, placed, reader, rows, spans

SECOND = 1_000_000
Open = Callable[..., Rig]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens engines with these storage settings, each in a directory of its own."""
    with ExitStack() as stack:
        yield lambda name="node", **storage: stack.enter_context(Rig(tmp_path / name, storage=storage))


def _work(rig: Rig) -> None:
    rig.run(rig.engine.sealer.work())


def test_a_stream_is_due_once_it_holds_enough_bytes(opened: Open) -> None:
    rig = opened(seal_bytes=10)
    rig.create("s", OCTETS, b"x" * 9)
    _work(rig)
    assert spans(rig, "s") == []
    rig.append("s", b"x")
    _work(rig)
    assert spans(rig, "s") == [(0, 2)]


def test_a_stream_is_due_once_it_holds_enough_rows(opened: Open) -> None:
    rig = opened(seal_rows=3)
    rig.create("s", JSON, array(1, 2))
    _work(rig)
    assert spans(rig, "s") == []
    rig.append("s", array(3))
    _work(rig)
    assert spans(rig, "s") == [(0, 3)]


def test_a_stream_is_due_once_its_first_entry_has_waited_long_enough(opened: Open) -> None:
    rig = opened(seal_age_s=5.0)
    rig.create("s", OCTETS)
    rig.clock.us += 60 * SECOND
    _work(rig)  # the stream itself has waited
    assert manifest(rig, "s").published_seq == 0
    rig.append("s", b"a")
    rig.clock.us += 5 * SECOND - 1
    rig.append("s", b"b")
    _work(rig)
    assert spans(rig, "s") == []
    rig.clock.us += 1
    _work(rig)
    assert spans(rig, "s") == [(0, 2)]


def test_a_stream_is_sealed_at_once_for_all_who_ask(opened: Open) -> None:
    rig = opened()
    rig.create("s", JSON, array(1, 2))
    stream, seals = rig.find("s"), rig.engine.sealer

    async def ask_twice() -> None:
        first, second = seals.seal(stream), seals.seal(stream)
        assert first is second
        assert rig.engine.sealer.pace.callers == 0  # it has not begun
        await first

    rig.run(ask_twice())
    assert seals.published_until(stream) == 2
    assert spans(rig, "s") == [(0, 2)]
    assert rows(rig) == 0
    assert seals.pace.callers == 0


def test_no_more_streams_are_sealed_at_the_same_time_than_the_limit(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealer, "MAX_SEALS", 1)
    rig = opened()
    for name in ("a", "b"):
        rig.create(name, JSON, array(1))

    async def ask() -> None:
        first = rig.engine.sealer.seal(rig.find("a"))
        with pytest.raises(Overloaded, match="too many streams"):
            rig.engine.sealer.seal(rig.find("b"))
        await first
        await rig.engine.sealer.seal(rig.find("b"))

    rig.run(ask())
    assert [spans(rig, name) for name in ("a", "b")] == [[(0, 1)], [(0, 1)]]


def test_a_seal_that_fails_says_why_and_is_made_up_for_in_the_next_round(opened: Open) -> None:
    rig = opened(store_timeout_s=0.1)
    store = disturb(rig.engine.objects)
    rig.create("s", JSON, array(1))
    store.plan = lambda _: "refuse"
    with pytest.raises(StoreUnavailable):
        rig.run(_sealed(rig, "s"))
    store.plan = lambda _: None
    _work(rig)
    assert spans(rig, "s") == [(0, 1)]


async def _sealed(rig: Rig, name: str) -> None:
    await rig.engine.sealer.seal(rig.find(name))


def test_what_is_published_of_a_fork_includes_what_it_reads_of_its_source(opened: Open) -> None:
    rig = opened()
    rig.create("s", JSON, array(1, 2, 3))
    rig.fork("s", "fork", 2)
    published_until = rig.engine.sealer.published_until
    assert published_until(rig.find("fork")) == 0
    rig.run(_sealed(rig, "fork"))
    assert published_until(rig.find("fork")) == 2
    rig.append("fork", array(4))
    assert published_until(rig.find("fork")) == 2
    rig.run(_sealed(rig, "fork"))
    assert published_until(rig.find("fork")) == 3


def test_entries_with_old_times_of_their_own_have_not_waited_since_then(opened: Open) -> None:
    rig = opened(seal_age_s=5.0)
    rig.create("s", OCTETS)
    rig.append("s", b"a", timestamp_us=1)
    _work(rig)
    assert spans(rig, "s") == []


def test_a_change_without_entries_is_published_after_a_while(opened: Open) -> None:
    rig = opened(seal_age_s=5.0)
    rig.create("s", OCTETS, b"a")
    rig.publish("s")
    rig.append("s", close=True)
    rig.clock.us += 5 * SECOND - 1
    _work(rig)
    assert not manifest(rig, "s").closed
    rig.clock.us += 1
    _work(rig)
    assert manifest(rig, "s").closed
    generation = generations(rig, "s")[0]
    rig.clock.us += 60 * SECOND
    _work(rig)
    assert generations(rig, "s")[0] == generation  # nothing is left to tell


def test_what_came_while_the_clock_was_ahead_is_due_and_then_waits_like_all_others(opened: Open) -> None:
    rig = opened()
    rig.clock.us += 86_400 * SECOND
    rig.create("s", JSON, array(1))
    rig.publish("s")
    rig.create("t", JSON, array(1))
    rig.create("empty", JSON)
    rig.clock.us -= 86_400 * SECOND
    rig.append("s", array(2))
    rig.append("t", array(2))
    _work(rig)
    assert rows(rig) == 0
    assert rig.engine.published.marked(rig.clock.us, rig.clock.us, 10) == []
    assert manifest(rig, "empty").published_seq == 0
    rig.append("s", array(3))
    _work(rig)
    assert rows(rig) == 1
    rig.clock.us += 300 * SECOND
    _work(rig)
    assert rows(rig) == 0 and spans(rig, "s")[-1][1] == 3


def test_the_files_of_a_deleted_stream_are_closed(opened: Open) -> None:
    rig = opened()
    for name in ("gone", "stays"):
        rig.create(name, OCTETS, name.encode())
        rig.publish(name)
        assert b"".join(rig.read(name)) == name.encode()
    segments = rig.engine.sealer._open_segments()
    assert segments.usage().readers == 2
    rig.delete("gone")
    rig.clear()
    assert segments.usage().readers == 1
    assert b"".join(rig.read("stays")) == b"stays"


def test_the_file_of_a_replaced_segment_is_closed_when_its_object_goes(opened: Open) -> None:
    rig = opened()
    rig.create("s", OCTETS, b"a")
    rig.publish("s")
    assert rig.read("s") == [b"a"]
    rig.append("s", b"b")
    rig.publish("s")  # both are in one segment now
    assert b"".join(rig.read("s")) == b"ab"
    segments = rig.engine.sealer._open_segments()
    assert segments.usage().readers == 2
    rig.clock.us += 60 * SECOND
    rig.clear()
    assert segments.usage().readers == 1


def test_what_waits_is_counted(opened: Open) -> None:
    rig = opened()
    since = rig.clock.us
    rig.create("s", OCTETS, b"aaa")
    rig.clock.us += SECOND
    rig.create("t", OCTETS, b"bb")
    _work(rig)
    assert rig.engine.sealer.watch.backlog_bytes == 5
    assert rig.engine.sealer.watch.oldest_us == since
    rig.publish("s")
    rig.publish("t")
    _work(rig)
    assert rig.engine.sealer.watch.backlog_bytes == 0
    assert rig.engine.sealer.watch.oldest_us is None


def test_a_full_backlog_refuses_appends_until_the_store_takes_them(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.storage.objects._PAUSE_S", 0.0)
    rig = opened(seal_bytes=4, backlog_bytes=10)
    rig.create("s", OCTETS, b"x" * 11)
    store = disturb(rig.engine.objects)
    store.plan = lambda _: "refuse"
    with pytest.raises(StoreUnavailable):
        _work(rig)
    with pytest.raises(Overloaded) as refusal:
        rig.append("s", b"more")
    assert refusal.value.status == 429
    with pytest.raises(Overloaded):
        rig.create("t", OCTETS, b"more")
    rig.create("empty", OCTETS)
    assert rig.read("s") == [b"x" * 11]
    rig.delete("empty")
    store.plan = lambda _: None
    _work(rig)
    _work(rig)
    assert rig.append("s", b"more").position == 2
    assert rig.read("s") == [b"x" * 11, b"more"]


def test_an_outage_of_the_store_is_logged_once_and_told_with_its_cause_until_it_ends(
    opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sealer, "TICK_S", 0.001)
    monkeypatch.setattr(sealer, "_LONGEST_PAUSE_S", 0.001)
    rig = opened(seal_bytes=4)
    rig.create("s", OCTETS, b"x" * 11)
    store, part = disturb(rig.engine.objects), rig.engine.sealer

    def fail(_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def outage() -> str | None:
        part._loop.start()
        async with asyncio.timeout(30):
            while part.failed_seals < 20:
                await asyncio.sleep(0.001)
            trouble = part.trouble
            store.before = lambda _: None
            while part.trouble is not None:
                await asyncio.sleep(0.001)
        await part._loop.stop(timeout_s=0)
        return trouble

    store.before = fail
    trouble = rig.run(outage())
    assert trouble is not None and trouble.endswith(": Input/output error")
    assert caplog.text.count("the object store takes nothing") == 1
    assert spans(rig, "s") == [(0, 1)]


def test_a_stream_that_cannot_be_published_does_not_hold_up_the_others(opened: Open) -> None:
    rig = opened(seal_bytes=4)
    for name in ("damaged", "missing", "good"):
        rig.create(name, OCTETS, b"x")
        rig.publish(name)
        rig.append(name, b"y" * 9)
    [damaged], [missing] = placed(rig, "damaged"), placed(rig, "missing")
    rig.engine.objects.put(damaged.key, b"damaged")
    rig.engine.objects.delete([missing.key])
    _work(rig)
    assert rows(rig) == 0
    assert spans(rig, "good") == [(0, 2)]
    assert rig.read("damaged", 1) == rig.read("missing", 1) == [b"y" * 9]


def test_a_stream_that_cannot_be_published_is_tried_again_more_and_more_rarely(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = opened(seal_bytes=4)
    rig.create("odd", OCTETS, b"x" * 9)
    odd, began_us, tries = rig.find("odd").id, rig.clock.us, list[int]()
    publish = Publisher.publish

    def refuse(publisher: Publisher, stream: int, pace: SealPace) -> Publication | None:
        if stream != odd:
            return publish(publisher, stream, pace)
        tries.append((rig.clock.us - began_us) // SECOND)
        raise ValueError("it is odd")

    with monkeypatch.context() as patched:
        patched.setattr(Publisher, "publish", refuse)
        for _ in range(100):
            _work(rig)
            rig.clock.us += SECOND
    assert tries == [0, 1, 3, 7, 15, 31, 63]
    rig.create("even", OCTETS, b"y" * 9)
    _work(rig)
    assert spans(rig, "even") == [(0, 1)] and spans(rig, "odd") == []
    rig.clock.us += 64 * SECOND
    _work(rig)
    assert spans(rig, "odd") == [(0, 1)]


def _failing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let no stream be published from now on; answers when it is tried."""
    tries: list[int] = []

    def refuse(publisher: Publisher, stream: int, pace: SealPace) -> Publication | None:
        tries.append(rig.clock.us)
        raise ValueError("it is odd")

    monkeypatch.setattr(Publisher, "publish", refuse)
    return tries


def test_a_stream_that_cannot_be_published_is_put_off_for_ten_minutes_at_most(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = opened(seal_bytes=4)
    rig.create("odd", OCTETS, b"x" * 9)
    tries = _failing(rig, monkeypatch)
    for _ in range(20):
        _work(rig)
        rig.clock.us += 600 * SECOND
    assert len(tries) == 20


def test_a_stream_that_was_put_off_while_the_clock_was_ahead_is_tried_at_once(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = opened(seal_bytes=4)
    rig.create("odd", OCTETS, b"x" * 9)
    rig.clock.us += 86_400 * SECOND
    with monkeypatch.context() as patched:
        _failing(rig, patched)
        _work(rig)
    rig.clock.us -= 86_400 * SECOND
    _work(rig)
    assert spans(rig, "odd") == [(0, 1)]


def test_a_fork_is_published_after_what_it_reads_from(opened: Open) -> None:
    rig = opened()
    rig.create("root", JSON, array(1, 2, 3))
    rig.fork("root", "middle", 2)
    rig.append("middle", array("m"))
    rig.fork("middle", "leaf", 3)
    rig.append("leaf", array("l"))
    rig.publish("leaf")
    assert [manifest(rig, name).published_seq for name in ("root", "middle", "leaf")] == [3, 3, 4]
    rig.append("root", array(4))
    rig.append("leaf", array("ll"))
    rig.publish("leaf")
    assert manifest(rig, "root").published_seq == 3  # what comes after the fork is the root's own business


def test_more_epochs_are_reserved_before_they_run_out(opened: Open) -> None:
    rig = opened()
    for _ in range(3):  # whole blocks, but for one
        rig.run(rig.engine.apply(lambda batch: batch.streams.set_meta("next_epoch", batch.streams.meta("epoch_end"))))
        rig.create("s", OCTETS)
        rig.delete("s")
        _work(rig)
    assert len(keys(rig.engine.objects, "epochs")) == 5


def test_an_older_node_is_fenced_and_damages_nothing(opened: Open, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    old = opened("old", object_store=store)
    for name in ("s", "buried"):
        old.create(name, OCTETS, b"a")
        old.publish(name)
    old.append("s", b"b")
    old.publish("s")  # the first segment and the first manifest are left over now
    new = opened("new", object_store=store)
    assert new.read("s") == [b"ab"]
    assert new.read("buried") == [b"a"]
    new.append("s", b"new")
    new.publish("s")
    there = {key: new.engine.objects.get(key) for key in keys(new.engine.objects)}
    old.append("s", b"old")
    old.delete("buried")
    old.clock.us += 3600 * SECOND
    with pytest.raises(Fenced) as refusal:
        old.publish("s")
    assert refusal.value.status == 503
    with pytest.raises(Fenced):
        old.clear()
    assert {key: new.engine.objects.get(key) for key in there} == there
    assert set(keys(new.engine.objects, "manifests")) <= there.keys()
    new.append("s", b"newer")
    new.publish("s")
    assert b"".join(new.read("s")) == b"abnewnewer"
    assert new.read("buried") == [b"a"]


def test_a_fenced_node_takes_nothing_more_and_still_answers(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((sealer, "TICK_S"), (seal_watch, "COUNT_S"), (seal_watch, "CHECK_S")):
        monkeypatch.setattr(module, name, 0.01)
    store = str(tmp_path / "store")
    old = opened("old", object_store=store, seal_bytes=1)
    old.create("s", OCTETS, b"a")
    opened("new", object_store=store)

    async def look_after_the_streams() -> None:
        old.engine.sealer.start()
        async with asyncio.timeout(20):
            while not old.engine.writer.fenced:
                await asyncio.sleep(0.005)

    old.run(look_after_the_streams())
    changes: list[Callable[[], object]] = [
        lambda: old.append("s", b"b"),
        lambda: old.create("t"),
        lambda: old.delete("s"),
    ]
    for change in changes:
        with pytest.raises(Fenced) as refusal:
            change()
        assert refusal.value.code == "node_fenced"
    assert old.read("s") == [b"a"]


def test_segments_are_read_back_as_they_were_written(opened: Open) -> None:
    rig = opened(seal_rows=2)
    rig.create("s", JSON)
    for number in range(5):
        rig.append("s", array(number))
    rig.publish("s")
    for one in placed(rig, "s"):
        sealed = reader(rig, one)
        sealed.verify()
        assert sealed.info.first_seq == one.segment.first_seq
        assert sealed.info.count == one.segment.count
        assert one.key == object_names.segment_key("s", rig.find("s").incarnation, one.segment.name)
