"""Where a commit is done: on the event loop if it is small and the disk is quick, otherwise on the writer's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import Config, StorageConfig
from headrace.engine.log import writer as writer_module
from headrace.engine.log.append import Append
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import StreamChange
from headrace.engine.log.writer import Writer
from headrace.errors import PreconditionFailed, Unavailable
from headrace.storage.database import DiskFull
from headrace.types import OCTETS, SystemClock
from support.engine_rig import Hold, Rig

#: More than the loop commits at once.
MUCH = b"x" * 200_000
STREAMS = [f"s{number}" for number in range(8)]


@pytest.fixture
def performed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each append, whether the loop performed it, on a disk that is always quick."""
    monkeypatch.setattr(writer_module, "_QUICK_S", float("inf"))
    found: list[bool] = []
    perform = Append.perform

    def noting(append: Append, batch: Batch) -> None:
        found.append(threading.current_thread() is threading.main_thread())
        perform(append, batch)

    monkeypatch.setattr(Append, "perform", noting)
    return found


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        for name in STREAMS:
            rig.create(name, OCTETS)
        yield rig


def _win_trust(rig: Rig, performed: list[bool]) -> None:
    for _ in range(32):
        rig.append("s0", b"x")
    performed.clear()


def _together(rig: Rig, *begin: Callable[[Callable[[Any], None]], None]) -> list[Any]:
    """Begin operations in one turn of the loop; answers them in the order in which they were settled."""

    async def settled() -> list[Any]:
        outcomes: list[Any] = []
        done = asyncio.Event()

        def note(operation: Any) -> None:
            outcomes.append(operation)
            if len(outcomes) == len(begin):
                done.set()

        for one in begin:
            one(note)
        await done.wait()
        return outcomes

    outcomes: list[Any] = rig.run(settled())
    return outcomes


def _append(rig: Rig, name: str, body: bytes) -> Callable[[Callable[[Any], None]], None]:
    return lambda done: rig.submit(name, body, done)


def test_a_disk_is_trusted_once_it_was_quick_for_a_while(rig: Rig, performed: list[bool]) -> None:
    for _ in range(32):
        rig.append("s0", b"x")
    assert not performed[0] and performed[-1]
    assert performed == sorted(performed)
    assert rig.read("s0") == [b"x"] * 32


def test_a_slow_commit_loses_the_trust(rig: Rig, performed: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    _win_trust(rig, performed)
    rig.append("s0", b"quick")
    monkeypatch.setattr(writer_module, "_QUICK_S", 0.0)
    rig.append("s0", b"slow")
    rig.append("s0", b"later")
    assert performed == [True, True, False]


def test_long_work_on_a_quick_disk_keeps_the_trust(
    rig: Rig, performed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    _win_trust(rig, performed)
    now_s = [0.0]
    monkeypatch.setattr(writer_module, "_QUICK_S", 0.002)
    monkeypatch.setattr(writer_module, "monotonic", lambda: now_s[0])

    class Long(StreamChange):
        def perform(self, batch: Batch) -> None:
            now_s[0] += 10

    _together(rig, lambda done: rig.engine.writer.submit(Long(done)))
    rig.append("s0", b"after")
    assert performed == [True]


def test_a_commit_that_writes_nothing_wins_no_trust(rig: Rig, performed: list[bool]) -> None:
    for _ in range(32):
        with pytest.raises(PreconditionFailed):
            rig.append("s0", b"x", if_match=7)
    rig.append("s0", b"x")
    assert not any(performed)


@pytest.mark.parametrize(
    ("appends", "here"),
    [
        ([("s0", b"x")] * 3, True),
        ([(name, b"x") for name in STREAMS[:4]], True),
        ([(name, b"x") for name in STREAMS], False),
        ([("s0", MUCH)], False),
        ([("s0", b"x"), ("s0", MUCH)], False),
    ],
    ids=["little", "few streams", "many streams", "much", "little and much"],
)
def test_the_loop_commits_little_and_the_thread_the_rest(
    rig: Rig, performed: list[bool], appends: list[tuple[str, bytes]], here: bool
) -> None:
    _win_trust(rig, performed)
    _together(rig, *(_append(rig, name, body) for name, body in appends))
    assert performed == [here] * len(appends)


def test_what_is_no_append_is_left_to_the_thread_with_all_that_comes_with_it(rig: Rig, performed: list[bool]) -> None:
    _win_trust(rig, performed)
    stream = rig.find("s0")
    _together(
        rig,
        _append(rig, "s0", b"before"),
        lambda done: rig.engine.log.set_retention(stream, done, age_us=None, size=1 << 30),
        _append(rig, "s0", b"after"),
    )
    assert performed == [False, False]


def test_what_comes_while_the_thread_is_busy_waits_for_it(rig: Rig, performed: list[bool]) -> None:
    _win_trust(rig, performed)
    positions: list[int] = []

    async def meanwhile() -> None:
        hold, done = Hold(), asyncio.Event()
        rig.engine.writer.submit(hold)
        await asyncio.to_thread(hold.entered.wait, 30)
        for _ in range(3):
            rig.submit("s0", b"y", lambda append: positions.append(append.position))
            await asyncio.sleep(0)
            assert not positions and not performed
        rig.submit("s0", b"y", lambda _: done.set())
        hold.go_on.set()
        await done.wait()

    rig.run(meanwhile())
    assert positions == [33, 34, 35]
    assert performed == [True] * 4


def test_what_waited_for_the_thread_is_bounded_too_and_its_time_began_when_it_came(
    tmp_path: Path, performed: list[bool]
) -> None:
    with Rig(tmp_path, limits={"batch_requests": 32}) as rig:
        rig.create("s0", OCTETS)
        _win_trust(rig, performed)
        before, submitted = rig.engine.writer.commits, []

        async def meanwhile() -> None:
            hold, done = Hold(), asyncio.Event()
            rig.engine.writer.submit(hold)
            await asyncio.to_thread(hold.entered.wait, 30)
            for _ in range(100):
                rig.submit("s0", b"y", lambda append: done.set() if append.position == 132 else None)
                submitted.append(next(reversed(rig.engine.writer._in_flight)).submitted)
                await asyncio.sleep(0)
            hold.go_on.set()
            await done.wait()

        rig.run(meanwhile())
        assert rig.engine.writer.commits == before + 1 + 4
        assert len(set(submitted)) > 90 and submitted == sorted(submitted)


def test_the_write_ahead_log_is_moved_by_the_thread_before_it_is_long(tmp_path: Path, performed: list[bool]) -> None:
    with Rig(tmp_path, storage={"checkpoint_pages": 16}) as rig:
        rig.create("s0", OCTETS)
        _win_trust(rig, performed)
        for _ in range(200):
            rig.append("s0", b"x" * 100)
        assert 0 < performed.count(False) < 100
        assert (tmp_path / "headrace.db-wal").stat().st_size < 40 * 8192


def test_what_is_written_before_the_start_is_moved_at_once(tmp_path: Path) -> None:
    path, config = tmp_path / "headrace.db", Config(storage=StorageConfig(checkpoint_pages=16))
    writer = Writer(path, config, SystemClock())
    try:
        body = b"x" * 1_000_000
        writer.before_start(lambda batch: batch.wal.insert([(1, 0, 1, 0, 0, None, None, None, 0, body, None)]))
        assert path.stat().st_size > len(body)
    finally:
        writer.close()


def test_the_loop_commits_nothing_while_the_reserve_is_out(rig: Rig, performed: list[bool]) -> None:
    _win_trust(rig, performed)
    reserve = rig.engine.writer.reserve
    assert reserve.release()
    with pytest.raises(Unavailable, match="the disk is full"):
        rig.append("s0", b"x")  # what is free is for those who free more
    reserve.restock()
    rig.append("s0", b"y")
    assert performed == [True]
    assert rig.read("s0") == [b"x"] * 32 + [b"y"]


def test_a_failed_commit_of_the_loop_is_told_and_the_next_one_is_the_threads(
    rig: Rig, performed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    _win_trust(rig, performed)
    commit = Batch.commit

    def failing(batch: Batch) -> None:
        monkeypatch.setattr(Batch, "commit", commit)
        raise DiskFull

    monkeypatch.setattr(Batch, "commit", failing)
    with pytest.raises(Unavailable, match="the disk is full"):
        rig.append("s0", b"lost")
    rig.append("s0", b"kept")
    assert performed == [True, False]
    assert rig.read("s0") == [b"x"] * 32 + [b"kept"]


Step = tuple[str, str, bytes]
_APPENDS = st.tuples(st.just("append"), st.sampled_from(STREAMS[:3]), st.sampled_from([b"a", b"b" * 50, MUCH]))
_CHANGES = st.tuples(st.just("retain"), st.sampled_from(STREAMS[:3]), st.just(b""))
_TURNS = st.lists(st.lists(st.one_of(_APPENDS, _CHANGES), min_size=1, max_size=6), min_size=1, max_size=12)


@given(turns=_TURNS)
def test_wherever_commits_are_done_everything_is_stored_once_and_settled_in_order(
    turns: list[list[Step]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    expected: dict[str, list[bytes]] = {name: [] for name in STREAMS[:3]}
    begun: list[int] = []
    settled: list[int] = []
    with pytest.MonkeyPatch.context() as patch, Rig(tmp_path_factory.mktemp("rig")) as rig:
        patch.setattr(writer_module, "_QUICK_S", float("inf"))
        for name in expected:
            rig.create(name, OCTETS)
        for _ in range(16):
            rig.append("s0", b"x")
        expected["s0"] += [b"x"] * 16

        async def take_turns() -> None:
            all_settled = asyncio.Event()
            expecting = sum(map(len, turns))

            def note(number: int, _operation: Any) -> None:
                settled.append(number)
                if len(settled) == expecting:
                    all_settled.set()

            for turn in turns:
                for what, name, body in turn:
                    number = len(begun)
                    begun.append(number)
                    done = partial(note, number)
                    if what == "append":
                        expected[name].append(body)
                        rig.submit(name, body, done)
                    else:
                        rig.engine.log.set_retention(rig.find(name), done, age_us=None, size=1 << 40)
                await asyncio.sleep(0)
            await all_settled.wait()

        rig.run(take_turns())
        assert settled == begun
        assert {name: rig.read(name) for name in expected} == expected
        rig.reopen()
        assert {name: rig.read(name) for name in expected} == expected
