from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.log.batch import Batch
from headrace.engine.log.forks import Fork
from headrace.engine.log.lifecycle import StreamChange, make_done_callback, run_change
from headrace.engine.log.stream import Stream
from headrace.errors import BadRequest, Conflict, Gone, HeadraceError, NotFound, OffsetGone
from headrace.types import JSON, OCTETS
from support.engine_rig import Hold, Rig, array


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        rig.create("json", JSON, array("a", "b", "c"))
        rig.append("json", array("d"))
        rig.create("bytes", OCTETS, b"abcdef")
        rig.append("bytes", b"ghi")
        yield rig


def test_a_stream_is_created_with_its_first_entries_and_its_closing_mark(rig: Rig) -> None:
    stream = rig.create("s", JSON, array(1, 2), closed=1)
    assert stream.head.next_seq == 2
    assert stream.head.closed is True
    assert rig.read("s") == [b"1", b"2"]


def test_every_life_of_a_name_has_an_epoch_of_its_own(rig: Rig) -> None:
    epochs = set()
    for _ in range(3):
        epochs.add(rig.create("s").epochs[-1][0])
        rig.delete("s")
        rig.reopen()
    assert len(epochs) == 3


def test_a_fork_inherits_up_to_its_point_and_then_lives_alone(rig: Rig) -> None:
    fork = rig.fork("json", "fork", 2)
    rig.append("json", array("source"))
    rig.append("fork", array("fork"))
    assert rig.read("fork") == [b'"a"', b'"b"', b'"fork"']
    assert rig.read("json") == [b'"a"', b'"b"', b'"c"', b'"d"', b'"source"']
    assert fork.offset_at(2) == rig.find("json").offset_at(2)
    assert fork.offset_at(3) != rig.find("json").offset_at(3)


def test_a_fork_of_a_fork_reads_through_the_whole_lineage(rig: Rig) -> None:
    rig.fork("json", "one", 2)
    rig.append("one", array("x", "y"))
    rig.fork("one", "two", 3)
    rig.append("two", array("z"))
    rig.fork("two", "three", 1)
    assert rig.read("two") == [b'"a"', b'"b"', b'"x"', b'"z"']
    assert rig.read("three") == [b'"a"']


@pytest.mark.parametrize(
    ("source", "position", "sub", "found"),
    [
        ("json", 0, 2, [b'"a"', b'"b"']),
        ("json", 0, 3, [b'"a"', b'"b"', b'"c"']),
        ("json", 1, 1, [b'"a"', b'"b"']),
        ("json", 3, 1, [b'"a"', b'"b"', b'"c"', b'"d"']),
        ("bytes", 0, 3, [b"abc"]),
        ("bytes", 0, 6, [b"abcdef"]),
        ("bytes", 1, 2, [b"abcdef", b"gh"]),
    ],
)
def test_a_sub_offset_goes_into_the_append_that_follows(
    rig: Rig, source: str, position: int, sub: int, found: list[bytes]
) -> None:
    rig.fork(source, "fork", position, sub)
    assert rig.read("fork") == found


@pytest.mark.parametrize(
    ("source", "position", "sub"), [("json", 0, 4), ("json", 3, 2), ("json", 4, 1), ("bytes", 0, 7), ("bytes", 2, 1)]
)
def test_a_sub_offset_beyond_the_next_append_is_refused_and_leaves_no_trace(
    rig: Rig, source: str, position: int, sub: int
) -> None:
    with pytest.raises(BadRequest, match="overshoots"):
        rig.fork(source, "fork", position, sub)
    rig.delete(source)
    with pytest.raises(NotFound):
        rig.find(source)


def test_a_sub_offset_ends_where_a_fork_cut_the_append_of_its_source(rig: Rig) -> None:
    rig.fork("json", "cut", 1)
    with pytest.raises(BadRequest, match="overshoots"):
        rig.fork("cut", "fork", 0, 2)
    rig.append("cut", array("own"))
    rig.fork("cut", "fork", 0, 1)
    assert rig.read("fork") == [b'"a"']


def test_the_bytes_a_fork_copies_keep_the_key_and_the_time_of_their_entry(rig: Rig) -> None:
    rig.append("bytes", b"keyed", key="k")
    written_us = rig.clock.us
    rig.clock.us += 5
    rig.fork("bytes", "fork", 2, 3)
    assert rig.read("fork", key="k") == [b"key"]
    assert rig.engine.log.seek(rig.find("fork"), written_us + 1) == 3


def test_a_fork_before_the_first_retained_entry_is_gone(rig: Rig) -> None:
    source = rig.find("json")
    rig.retain("json", size=3)
    with pytest.raises(OffsetGone):
        rig.create("fork", JSON, fork=Fork(source, 1, bytes=3, last_us=0))
    assert rig.fork("json", "fork", 3).head.first_seq == 3


def test_a_source_stays_for_its_forks_and_goes_with_the_last(rig: Rig) -> None:
    rig.fork("json", "one", 2)
    rig.fork("one", "two", 1)
    for name in ("json", "one"):
        rig.delete(name)
        with pytest.raises(Gone):
            rig.find(name)
        with pytest.raises(Conflict):
            rig.create(name)
    rig.sweep()
    assert rig.read("two") == [b'"a"']
    rig.delete("two")
    for name in ("json", "one", "two"):
        with pytest.raises(NotFound):
            rig.find(name)
        rig.create(name)


def test_a_source_that_was_deleted_meanwhile_cannot_be_forked(rig: Rig) -> None:
    source = rig.find("json")
    rig.delete("json")
    with pytest.raises(Conflict, match="source"):
        rig.create("fork", JSON, fork=Fork(source, 1, bytes=3, last_us=0))


def _at_once(rig: Rig, *begin: Callable[[Callable[[Any], None]], None]) -> list[HeadraceError | None]:
    """Begin operations that are committed together; answers what refused each."""

    async def settled() -> list[HeadraceError | None]:
        futures = [asyncio.get_running_loop().create_future() for _ in begin]
        for one, future in zip(begin, futures, strict=True):
            one(make_done_callback(future))
        return [operation.error for operation in await asyncio.gather(*futures)]

    return rig.run(settled())


def test_of_many_who_delete_a_stream_each_is_told_that_it_is_gone(rig: Rig) -> None:
    stream, log = rig.find("json"), rig.engine.log
    buried: list[Stream] = []
    log.on_delete.append(buried.append)
    errors = _at_once(
        rig,
        partial(log.delete, stream),
        partial(log.delete, stream),
        partial(rig.append_to, stream, array(1)),
        partial(log.delete, stream),
    )
    assert [type(error) for error in errors] == [type(None), NotFound, NotFound, NotFound]
    assert buried == [stream]
    assert log.counters.deleted == 1


def test_a_source_that_is_deleted_meanwhile_is_gone_for_everyone(rig: Rig) -> None:
    stream, log = rig.find("json"), rig.engine.log
    rig.fork("json", "fork", 1)
    errors = _at_once(
        rig,
        partial(log.delete, stream),
        partial(log.delete, stream),
        partial(rig.append_to, stream, array(1)),
        partial(log.set_retention, stream, age_us=1, size=None),
    )
    assert [type(error) for error in errors] == [type(None), Gone, Gone, Gone]


@pytest.mark.parametrize("forked", [False, True])
def test_an_expired_stream_is_not_found_before_and_after_it_is_swept(rig: Rig, forked: bool) -> None:
    rig.create("short", OCTETS, b"x", ttl_s=10)
    if forked:
        rig.fork("short", "fork", 1)
    rig.clock.us += 11_000_000
    for step in (rig.sweep, rig.reopen, lambda: None):
        with pytest.raises(NotFound):
            rig.find("short")
        step()
    assert not forked or rig.read("fork") == [b"x"]


def test_a_deleted_source_does_not_expire_afterwards(rig: Rig) -> None:
    rig.create("short", OCTETS, b"x", ttl_s=10)
    rig.fork("short", "fork", 1)
    rig.engine.log.catalog.note_access(rig.find("short"))
    rig.delete("short")
    for step in (rig.sweep, rig.reopen, lambda: None):
        rig.clock.us += 11_000_000
        with pytest.raises(Gone):
            rig.find("short")
        step()


class _Nothing(StreamChange):
    def perform(self, batch: Batch) -> None:
        pass


def test_a_change_that_nobody_waits_for_any_more_is_settled_in_silence(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async def given_up() -> None:
        hold, writer = Hold(), rig.engine.writer
        writer.submit(hold)
        waiting = asyncio.create_task(run_change(writer, _Nothing))
        await asyncio.to_thread(hold.entered.wait)
        waiting.cancel()
        hold.go_on.set()
        await asyncio.wait([waiting])
        await run_change(writer, _Nothing)

    rig.run(given_up())
    assert not caplog.records


def test_a_settled_change_is_let_go_of_without_the_collector(rig: Rig) -> None:
    async def settled() -> weakref.ref[StreamChange]:
        return weakref.ref(await run_change(rig.engine.writer, _Nothing))

    gc.disable()
    try:
        change = rig.run(settled())
        rig.run(settled())  # the writer remembers the last one
        assert change() is None
    finally:
        gc.enable()


def test_of_two_who_create_the_same_name_one_is_told_that_it_exists(rig: Rig) -> None:
    rig.create("s")
    with pytest.raises(AssertionError):
        rig.create("s")
