from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest

from crash.forgetful import Disk
from headrace.engine.log import retention
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import Delete
from headrace.errors import NotFound, Unavailable
from headrace.types import JSON, OCTETS
from support.engine_rig import Rig, array

SECOND = 1_000_000
DAY = 86_400 * SECOND
NUMBERS = count()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


def _rows(rig: Rig, table: str = "wal") -> int:
    return int(rig.engine.streams._connection.execute(f"SELECT count(*) FROM {table}").get)


def test_retention_by_bytes_keeps_the_newest_whole_requests_that_fit(rig: Rig) -> None:
    rig.create("s", OCTETS)
    for body in (b"aaaa", b"bbb", b"cc", b"d"):
        rig.append("s", body)
    rig.retain("s", size=6)
    assert rig.find("s").head.first_seq == 1
    rig.retain("s", size=5)
    assert rig.read("s", rig.find("s").head.first_seq) == [b"cc", b"d"]
    assert _rows(rig) == 2
    rig.retain("s", size=0)
    assert rig.find("s").head.first_seq == rig.find("s").head.next_seq == 4


def test_retention_by_age_drops_what_is_older(rig: Rig) -> None:
    rig.create("s", JSON)
    for number in range(4):
        rig.append("s", array(number))
        rig.clock.us += SECOND
    rig.retain("s", age_us=2 * SECOND)
    assert rig.read("s", rig.find("s").head.first_seq) == [b"2", b"3"]


def test_an_emptied_stream_goes_on_where_it_was(rig: Rig) -> None:
    rig.create("s", OCTETS, b"x")
    rig.append("s", b"y", stream_seq="7")
    tail = rig.find("s").tail_offset()
    rig.retain("s", size=0)
    rig.reopen()
    stream = rig.find("s")
    assert stream.tail_offset() == tail
    assert stream.head.next_seq == 2
    assert stream.head.bytes == 2
    assert stream.head.stream_seq == "7"
    assert rig.append("s", b"z").position == 3


def test_what_forks_still_read_stays(rig: Rig) -> None:
    rig.create("s", OCTETS, b"a")
    rig.append("s", b"b")
    rig.fork("s", "fork", 2)
    rig.retain("s", size=0)
    assert rig.read("fork") == [b"a", b"b"]


def test_what_lies_beyond_the_forks_does_not_stay_for_their_sake(rig: Rig) -> None:
    rig.create("s", OCTETS)
    for _ in range(10):
        rig.append("s", b"x")
    rig.fork("s", "fork", 2)
    rig.retain("s", size=0)
    assert rig.read("fork") == [b"x", b"x"]
    assert _rows(rig) == 2
    rig.reopen()
    assert rig.append("s", b"y").position == 11


def test_retention_of_a_fork_counts_only_what_it_inherited(rig: Rig) -> None:
    rig.create("s", JSON, array(*range(10)))
    rig.fork("s", "fork", 4)
    rig.append("fork", array("a"))
    rig.append("fork", array("b"))
    rig.retain("fork", size=6)
    assert rig.read("fork", rig.find("fork").head.first_seq) == [b'"a"', b'"b"']


def test_streams_whose_time_is_over_are_deleted(rig: Rig) -> None:
    rig.create("sliding", ttl_s=5)
    rig.create("fixed", deadline_us=rig.clock.us + 5 * SECOND, expires_us=rig.clock.us + 5 * SECOND)
    rig.create("accessed", ttl_s=5)
    rig.clock.us += 4 * SECOND
    rig.engine.log.catalog.note_access(rig.find("accessed"))
    rig.clock.us += SECOND
    rig.sweep()
    assert rig.engine.counters.expired == 2
    assert [row.name for row in rig.engine.streams.every(0, 10)] == ["accessed"]
    assert rig.find("accessed")


def test_an_access_is_stored_by_the_sweep(rig: Rig) -> None:
    stream = rig.create("s", ttl_s=5)
    rig.clock.us += SECOND
    rig.engine.log.catalog.note_access(stream)
    rig.sweep()
    found = rig.engine.streams.by_name("s")
    assert found is not None
    assert found.deadline_us == stream.deadline_us == rig.clock.us + 5 * SECOND


def test_an_access_that_could_not_be_stored_is_stored_by_the_next_sweep(tmp_path: Path) -> None:
    disk = Disk(f"swept-{next(NUMBERS)}")
    with Rig(tmp_path, vfs=disk.name) as rig:
        stream = rig.create("s", ttl_s=5)
        rig.clock.us += SECOND
        rig.engine.log.catalog.note_access(stream)
        disk.fail["sync"] = apsw.FullError("full")
        rig.sweep()
        disk.fail.clear()
        rig.sweep()
        found = rig.engine.streams.by_name("s")
        assert found is not None
        assert found.deadline_us == stream.deadline_us
    disk.unregister()


def test_a_stream_stays_in_memory_until_its_access_is_stored(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_STREAMS", 2)
    streams = [rig.create(f"s{number}", ttl_s=60) for number in range(5)]
    catalog, perform = rig.engine.log.catalog, retention.store_deadlines
    left: list[int] = []

    def noting(batch: Batch, deadlines: Any) -> None:
        left.append(len(catalog.accessed))
        perform(batch, deadlines)

    monkeypatch.setattr(retention, "store_deadlines", noting)
    rig.clock.us += 40 * SECOND
    for stream in streams:
        catalog.note_access(stream)
    rig.sweep()
    assert left == [5, 3, 1]
    assert len(catalog.accessed) == 0
    rows = [rig.engine.streams.by_name(stream.name) for stream in streams]
    assert [row and row.deadline_us for row in rows] == [rig.clock.us + 60 * SECOND] * 5


def test_an_access_while_the_last_one_is_stored_is_stored_too(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, perform = rig.create("s", ttl_s=60), retention.store_deadlines

    def accessed_again(batch: Batch, deadlines: Any) -> None:
        perform(batch, deadlines)
        rig.clock.us += SECOND
        rig.engine.log.catalog.note_access(stream)

    rig.engine.log.catalog.note_access(stream)
    with monkeypatch.context() as patched:
        patched.setattr(retention, "store_deadlines", accessed_again)
        rig.run(rig.engine.sweeper._persist_accesses())
    rig.sweep()
    row = rig.engine.streams.by_name("s")
    assert row is not None and row.deadline_us == rig.clock.us + 60 * SECOND


def test_a_stream_that_is_deleted_while_its_access_is_stored_is_not_missed(rig: Rig) -> None:
    streams = [rig.create(name, ttl_s=60) for name in ("gone", "stays")]

    async def meanwhile() -> None:
        for stream in streams:
            rig.engine.log.catalog.note_access(stream)
        storing = asyncio.create_task(rig.engine.sweeper._persist_accesses())
        await asyncio.sleep(0)
        deleted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        rig.engine.log.delete(streams[0], deleted.set_result)
        await asyncio.gather(storing, deleted)

    rig.clock.us += SECOND
    rig.run(meanwhile())
    row = rig.engine.streams.by_name("stays")
    assert row is not None and row.deadline_us == streams[1].deadline_us
    assert not rig.engine.log.catalog.accessed


def test_a_stream_that_is_accessed_between_the_sweep_and_the_commit_lives_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, perform = rig.create("s", ttl_s=1), Delete.perform

    def accessed_first(change: Delete, batch: Batch) -> None:
        rig.engine.log.catalog.note_access(stream)
        perform(change, batch)

    rig.clock.us += 2 * SECOND
    with monkeypatch.context() as patched:
        patched.setattr(Delete, "perform", accessed_first)
        rig.sweep()
    assert rig.find("s") is stream
    assert not rig.engine.counters.expired


def test_an_access_that_is_stored_after_the_deletion_does_not_make_it_later(rig: Rig) -> None:
    stream = rig.create("s", ttl_s=60)

    async def both() -> None:
        rig.engine.log.catalog.note_access(stream)
        deleted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        rig.engine.log.delete(stream, deleted.set_result)
        await rig.engine.sweeper._persist_accesses()
        await deleted

    rig.run(both())
    assert rig.engine.streams.by_name("s")
    rig.clock.us += DAY
    rig.sweep()
    assert not rig.engine.streams.by_name("s")


def test_streams_that_live_on_after_a_restart_do_not_hide_those_whose_time_is_over(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_STREAMS", 2)
    for number in range(2):
        rig.create(f"sliding{number}", ttl_s=5)
    over_us = rig.clock.us + 6 * SECOND
    rig.create("fixed", deadline_us=over_us, expires_us=over_us)
    rig.run(rig.engine.close())
    rig.clock.us = over_us
    rig.engine = rig.run(rig._open())  # which counts as an access that nobody has stored
    rig.sweep()
    assert [row.name for row in rig.engine.streams.every(0, 10)] == ["sliding0", "sliding1"]


def test_streams_that_cannot_be_deleted_do_not_keep_a_sweep_from_its_end(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def refuse(change: Delete, batch: Batch) -> None:
        tries.append(change.stream.name)
        raise Unavailable("the disk is full")

    monkeypatch.setattr(retention, "_STREAMS", 2)
    for number in range(4):
        rig.create(f"s{number}", ttl_s=1)
    rig.clock.us += 2 * SECOND
    with monkeypatch.context() as patched:
        patched.setattr(Delete, "perform", refuse)
        rig.sweep()
    assert tries == ["s0", "s1"] and not rig.engine.counters.expired
    rig.sweep()
    assert rig.engine.counters.expired == 4


def test_one_sweep_purges_every_deleted_stream(rig: Rig) -> None:
    for number in range(20):
        rig.create(f"s{number}", OCTETS, b"x")
        rig.append(f"s{number}", b"y", producer=("p", 0, 0))
        rig.delete(f"s{number}")
    rig.sweep()
    assert _rows(rig) == 0
    assert _rows(rig, "producers") == 0
    assert _rows(rig, "garbage") == 0


def test_the_row_of_a_deleted_stream_is_kept_for_a_day(rig: Rig) -> None:
    rig.create("s")
    rig.delete("s")
    rig.clock.us += DAY - 1
    rig.sweep()
    assert rig.engine.streams.by_name("s")
    rig.clock.us += 1
    rig.sweep()
    assert not rig.engine.streams.by_name("s")
    with pytest.raises(NotFound):
        rig.find("s")
