"""A store that hangs holds up nothing that is watched: the backlog stays within its limit, a lost lease is noticed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from threading import Timer
from time import monotonic

import pytest

from headrace.engine.history import seal_watch, sealer
from headrace.engine.history.seal_watch import RESTS, SealPace
from headrace.errors import Fenced, Overloaded
from headrace.storage.node import NODES
from headrace.types import OCTETS
from support.disturbed_store import Call, disturb
from support.engine_rig import Rig

Open = Callable[..., Rig]
ENTRY = b"x" * 1_000
LIMIT = 20_000


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens engines with these storage settings, each in a directory of its own."""
    with ExitStack() as stack:
        yield lambda name="node", **storage: stack.enter_context(Rig(tmp_path / name, storage=storage))


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealer, "TICK_S", 0.01)
    monkeypatch.setattr(seal_watch, "COUNT_S", 0.01)
    monkeypatch.setattr(seal_watch, "CHECK_S", 0.01)
    monkeypatch.setattr("headrace.storage.objects._PAUSE_S", 0.0)


def _appended(rig: Rig) -> int:
    """Append until that is refused; answers the bytes that were taken."""
    for number in range(LIMIT):
        try:
            rig.append("s", ENTRY)
        except Overloaded:
            return number * len(ENTRY)
    raise AssertionError("the backlog has no end")


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.005)


def test_the_backlog_is_bounded_between_two_counts(opened: Open) -> None:
    rig = opened(backlog_bytes=LIMIT)
    rig.create("s", OCTETS)
    assert LIMIT // 2 < _appended(rig) < LIMIT + len(ENTRY)


def test_rows_that_an_earlier_run_left_count_from_the_start(opened: Open) -> None:
    rig = opened(backlog_bytes=LIMIT)
    rig.create("s", OCTETS, b"x" * (LIMIT + 1))
    rig.reopen()

    async def start() -> None:
        rig.engine.sealer.start()
        await _until(lambda: rig.engine.writer.room_bytes < 0)

    rig.run(start())
    with pytest.raises(Overloaded):
        rig.append("s", b"more")


@pytest.mark.usefixtures("quickly")
def test_the_backlog_is_counted_while_a_publication_hangs(opened: Open) -> None:
    rig = opened(seal_bytes=1, backlog_bytes=LIMIT)
    rig.create("s", OCTETS, ENTRY)
    store, hangs, released = disturb(rig.engine.objects), threading.Event(), threading.Event()

    def hang(call: Call) -> None:
        if call.verb == "upload":
            hangs.set()
            released.wait(20)

    store.before = hang

    async def count_meanwhile() -> None:
        rig.engine.sealer.start()
        await _until(hangs.is_set)

    async def count_again() -> None:
        await _until(lambda: rig.engine.sealer.watch.backlog_bytes >= LIMIT // 2)

    async def let_go() -> None:
        released.set()
        await _until(lambda: rig.engine.writer.room_bytes == LIMIT)

    rig.run(count_meanwhile())
    taken = _appended(rig)
    assert LIMIT // 2 < taken < LIMIT + len(ENTRY)
    rig.run(count_again())
    rig.run(let_go())
    rig.append("s", ENTRY)
    assert len(rig.read("s")) == taken // len(ENTRY) + 2


@pytest.mark.usefixtures("quickly")
def test_an_idle_node_notices_that_another_has_taken_over(opened: Open, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    old = opened("old", object_store=store)
    old.create("s", OCTETS, b"a")
    old.publish("s")
    new = opened("new", object_store=store)

    async def wait() -> None:
        old.engine.sealer.start()
        await _until(lambda: old.engine.writer.fenced)

    old.run(wait())
    for change in (lambda: old.append("s", b"b"), lambda: old.create("t"), lambda: old.delete("s")):
        with pytest.raises(Fenced) as refusal:
            change()
        assert refusal.value.code == "node_fenced"
        assert refusal.value.status == 503
    assert old.read("s") == [b"a"]
    new.append("s", b"new")
    assert new.read("s") == [b"a", b"new"]


@pytest.mark.usefixtures("quickly")
def test_a_node_goes_on_where_the_store_does_not_say_who_writes(opened: Open) -> None:
    rig = opened()
    rig.create("s", OCTETS)
    store = disturb(rig.engine.objects)
    store.plan = lambda call: "refuse" if call.key.startswith(NODES) else None

    async def wait() -> None:
        rig.engine.sealer.start()
        await _until(lambda: sum(call.key.startswith(NODES) for call in store.calls) >= 3)

    rig.run(wait())
    assert rig.append("s", b"a").position == 1


def test_streams_are_counted_page_by_page(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal_watch, "_PAGE", 2)
    rig, pages = opened(), list[list[int]]()
    streams = [rig.create(f"s{number}", OCTETS, ENTRY) for number in range(5)]
    rig.run(rig.engine.sealer.watch.count(lambda page: pages.append([backlog.stream for backlog in page])))
    assert pages == [[stream.id for stream in some] for some in (streams[:2], streams[2:4], streams[4:])]
    assert rig.engine.sealer.watch.backlog_bytes == 5 * len(ENTRY)


SECOND = 1_000_000


def _pace(rig: Rig, appends: Callable[[], int]) -> SealPace:
    return SealPace(rig.engine.sealer.watch, appends, rig.clock, rig.engine.config.storage)


def _count(rig: Rig) -> SealPace:
    rig.run(rig.engine.sealer.watch.count())
    return rig.engine.sealer.pace


def test_a_rest_is_several_times_as_long_as_the_work(opened: Open) -> None:
    assert opened().engine.sealer.pace.rest_s(2.0) == 2.0 * RESTS


def test_rests_are_shorter_the_more_waits(opened: Open) -> None:
    rig = opened(backlog_bytes=800)
    rig.create("s", OCTETS, b"x" * 100)
    assert _count(rig).rest_s(1.0) == RESTS / 2
    rig.append("s", b"x" * 100)
    assert _count(rig).rest_s(1.0) == 0.0


def test_rests_are_shorter_the_more_columns_are_kept_of_events_without_companions(opened: Open) -> None:
    rig, share = opened(), 0.0
    pace = SealPace(rig.engine.sealer.watch, lambda: 0, rig.clock, rig.engine.config.storage, lambda: share)
    assert pace.rest_s(1.0) == RESTS
    share = 0.125
    assert pace.rest_s(1.0) == RESTS / 2
    share = 0.25
    assert pace.rest_s(1.0) == 0.0


def test_a_rest_is_no_longer_than_entries_may_wait(opened: Open) -> None:
    rig = opened(seal_age_s=10.0)
    rig.create("s", OCTETS, b"x")
    rig.clock.us += 9 * SECOND
    assert _count(rig).rest_s(100.0) == pytest.approx(1.0)
    rig.clock.us += 2 * SECOND
    assert _count(rig).rest_s(100.0) == 0.0


def test_a_rest_ends_when_nothing_is_appended(opened: Open) -> None:
    appends = [0]
    pace = _pace(opened(), lambda: appends[0])
    pace.rest_s = lambda worked_s: 60.0  # type: ignore[method-assign]
    began_s = monotonic()
    pace.rest()
    pace.begin()
    appends[0] = 1
    pace.rest()
    assert monotonic() - began_s < 30.0


def test_a_rest_lasts_while_there_are_appends(opened: Open) -> None:
    pace = _pace(opened(), count().__next__)
    pace.rest_s = lambda worked_s: 0.2  # type: ignore[method-assign]
    began_s = monotonic()
    pace.rest()
    assert monotonic() - began_s >= 0.2


def test_a_rest_ends_when_the_server_stops(opened: Open) -> None:
    pace = _pace(opened(), count().__next__)
    pace.rest_s = lambda worked_s: 60.0  # type: ignore[method-assign]
    timer = Timer(0.01, pace.stop)
    timer.start()
    began_s = monotonic()
    pace.rest()
    timer.join()
    assert monotonic() - began_s < 30.0
