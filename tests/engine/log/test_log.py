from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest

from crash.forgetful import Disk
from headrace.engine.log.log import Tail
from headrace.engine.log.stream import Stream
from headrace.engine.runtime.event_loop import FEW, Slices
from headrace.errors import Gone, NotFound, Overloaded, Unavailable
from headrace.storage.streams import StreamRow
from headrace.types import JSON, OCTETS
from support.engine_rig import Rig, array

SECOND = 1_000_000
NUMBERS = count()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


def test_a_missing_an_expired_and_a_soft_deleted_stream_are_told_apart(rig: Rig) -> None:
    with pytest.raises(NotFound, match="no such stream"):
        rig.find("never")
    rig.create("brief", ttl_s=1)
    rig.clock.us += SECOND
    with pytest.raises(NotFound, match="expired"):
        rig.find("brief")
    rig.create("source", body=b"x")
    rig.fork("source", "fork", 1)
    rig.delete("source")
    with pytest.raises(Gone, match="only its forks"):
        rig.find("source")


def test_an_expired_name_can_be_taken_again(rig: Rig) -> None:
    old = rig.create("s", body=b"old", ttl_s=1)
    rig.clock.us += SECOND
    row = StreamRow(name="s", content_type=OCTETS, created_us=rig.clock.us, epochs="[]")
    rig.settle(lambda done: rig.engine.log.create(row, done, body=b"new", count=1, replaces=old))
    assert rig.read("s") == [b"new"]


def test_pages_list_living_streams_in_name_order(rig: Rig) -> None:
    for name in ("b", "a", "c", "d"):
        rig.create(name, ttl_s=1 if name == "b" else None)
    rig.delete("c")
    rig.clock.us += SECOND
    page = rig.engine.log.page
    assert [stream.name for stream in page(prefix="", after="", limit=2)] == ["a", "d"]
    assert [stream.name for stream in page(prefix="", after="a", limit=2)] == ["d"]


def test_hooks_hear_of_the_first_position_of_every_append_and_of_deletes(rig: Rig) -> None:
    heard: list[tuple[str, int]] = []
    rig.engine.log.on_append.append(lambda stream, position: heard.append((stream.name, position)))
    rig.engine.log.on_delete.append(lambda stream: heard.append((stream.name, -1)))
    rig.create("s", JSON, array(1, 2))
    rig.append("s", array(3), producer=("p", 0, 0))
    rig.append("s", array(3), producer=("p", 0, 0))
    rig.delete("s")
    assert heard == [("s", 0), ("s", 2), ("s", -1)]


def test_hooks_hear_of_a_stream_once_for_each_commit(rig: Rig) -> None:
    heard: list[tuple[str, int]] = []
    for name in ("a", "b"):
        rig.create(name, JSON, array(0))
    rig.engine.log.on_append.append(lambda stream, position: heard.append((stream.name, position)))
    before = rig.engine.writer.commits

    def begin(done: Callable[[Any], None]) -> None:
        for name in ("a", "a", "b"):
            rig.submit(name, array(1), lambda _: None)
        rig.submit("a", array(2), done)

    rig.settle(begin)
    assert rig.engine.writer.commits == before + 1
    assert heard == [("a", 1), ("b", 1)]


def test_an_access_in_time_keeps_an_expiring_stream_and_nobody_hears_of_a_delete(rig: Rig) -> None:
    heard: list[Stream] = []
    rig.engine.log.on_delete.append(heard.append)
    stream = rig.create("s", ttl_s=1)
    rig.settle(lambda done: rig.engine.log.delete(stream, done, deadline_us=rig.clock.us))
    assert rig.find("s") is stream
    assert heard == []
    assert rig.engine.counters.deleted == 0


def test_a_moment_is_found_again(rig: Rig) -> None:
    rig.create("s", JSON)
    for number in range(3):
        rig.clock.us += SECOND
        rig.append("s", array(number, number))
    stream, now = rig.find("s"), rig.clock.us
    seek = rig.engine.log.seek
    assert [seek(stream, now - shift * SECOND) for shift in (3, 2, 1, 0)] == [0, 0, 2, 4]
    assert seek(stream, now + 1) == 6


def test_counters_count_what_was_committed(rig: Rig) -> None:
    rig.create("s", JSON)
    rig.append("s", array(1, 2, 3))
    rig.read("s")
    counters = rig.engine.counters
    assert counters.created == 1
    assert counters.appends == 1
    assert counters.appended_events == 3
    assert counters.reads == 1


class _Faulty:
    """A log on a disk that can be made to fail, and what its delete hooks heard."""

    def __init__(self, directory: Path) -> None:
        self.disk = Disk(f"faulty-{next(NUMBERS)}")
        self.rig = Rig(directory, vfs=self.disk.name)
        self.deleted: list[Stream] = []
        self.rig.engine.log.on_delete.append(self.deleted.append)


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[_Faulty]:
    faulty = _Faulty(tmp_path)
    yield faulty
    faulty.disk.fail.clear()
    faulty.rig.close()
    faulty.disk.unregister()


def test_a_stream_whose_deletion_failed_is_still_the_same_stream(faulty: _Faulty) -> None:
    stream = faulty.rig.create("s", body=b"x")
    faulty.disk.fail["sync"] = apsw.IOError("broken")
    with pytest.raises(Unavailable):
        faulty.rig.delete("s")
    assert faulty.rig.find("s") is stream
    assert faulty.deleted == []


def test_an_expired_stream_whose_replacement_failed_was_not_deleted(faulty: _Faulty) -> None:
    stream = faulty.rig.create("s", ttl_s=1)
    faulty.rig.clock.us += SECOND
    faulty.disk.fail["sync"] = apsw.IOError("broken")
    row = StreamRow(name="s", content_type=OCTETS, created_us=0, epochs="[]")
    with pytest.raises(Unavailable):
        faulty.rig.settle(lambda done: faulty.rig.engine.log.create(row, done, replaces=stream))
    assert faulty.deleted == []
    assert faulty.rig.engine.log.catalog.find("s") is stream


class _Reader:
    def __init__(self) -> None:
        self.woken = 0
        self.ended = False

    def wake(self) -> None:
        self.woken += 1

    def end(self) -> None:
        self.ended = True


@pytest.fixture
def stream() -> Stream:
    return Stream(StreamRow(name="s", content_type="text/plain", created_us=0, epochs="[[0,0]]"), ())


def test_who_watches_is_woken_until_it_leaves(stream: Stream) -> None:
    tail, reader, other = Tail(10), _Reader(), _Reader()
    tail.watch(stream, reader)
    tail.watch(stream, other)
    tail.wake(stream)
    tail.leave(stream, reader)
    tail.wake(stream)
    assert reader.woken == 1
    assert other.woken == 2


def test_a_watched_stream_is_pinned(stream: Stream) -> None:
    tail, reader = Tail(10), _Reader()
    tail.watch(stream, reader)
    assert stream.pins == 1
    assert tail.watchers == 1
    tail.leave(stream, reader)
    tail.leave(stream, reader)
    assert stream.pins == 0
    assert tail.watchers == 0
    assert stream.watchers is None


def test_a_watcher_may_leave_while_all_are_woken(stream: Stream) -> None:
    tail, second = Tail(10), _Reader()

    class _Leaving(_Reader):
        def wake(self) -> None:
            super().wake()
            tail.leave(stream, self)
            tail.leave(stream, second)

    first = _Leaving()
    tail.watch(stream, first)
    tail.watch(stream, second)
    tail.wake(stream)
    assert first.woken == 1
    assert tail.watchers == 0


def test_many_watchers_are_woken_in_slices_and_once_however_often_the_stream_moves(stream: Stream) -> None:
    async def scenario() -> None:
        slices = Slices()
        tail, readers = Tail(1_000, slices), [_Reader() for _ in range(FEW + 10)]
        for reader in readers:
            tail.watch(stream, reader)
        tail.wake(stream)
        tail.wake(stream)
        tail.leave(stream, readers[0])
        assert not any(reader.woken for reader in readers)
        while slices.queued:
            await asyncio.sleep(0)
        assert [reader.woken for reader in readers] == [0, *[1] * (FEW + 9)]
        tail.wake(stream)
        while slices.queued:
            await asyncio.sleep(0)
        assert [reader.woken for reader in readers] == [0, *[2] * (FEW + 9)]

    asyncio.run(scenario())


def test_the_number_of_watchers_is_bounded(stream: Stream) -> None:
    tail = Tail(1)
    tail.watch(stream, _Reader())
    with pytest.raises(Overloaded):
        tail.watch(stream, _Reader())
    assert stream.pins == 1


def test_all_watchers_are_let_go_when_the_server_stops(stream: Stream) -> None:
    tail, reader = Tail(10), _Reader()
    tail.watch(stream, reader)
    tail.end()
    assert reader.ended
