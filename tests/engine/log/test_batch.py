"""Names of streams that may have entries in the log: whatever happens in which order, none that has is missing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.engine.log.batch import Batch, WalNameFilter
from headrace.types import OCTETS
from support.engine_rig import Rig

NAMES = [f"s{number}" for number in range(3)]
names = st.sampled_from(NAMES)


class Threads(RuleBasedStateMachine):
    """The writer commits, then adds; who counts sees a page at a time what is on disk at that moment."""

    def __init__(self) -> None:
        super().__init__()
        self.wal_names = WalNameFilter()
        self.on_disk: set[str] = set()
        self.untold: list[str] = []
        self.counted: int | None = None

    @rule(name=names)
    def commit(self, name: str) -> None:
        self.on_disk.add(name)
        self.untold.append(name)

    @precondition(lambda self: self.untold)
    @rule()
    def add(self) -> None:
        self.wal_names.add(self.untold.pop(0))

    @precondition(lambda self: self.on_disk - set(self.untold))
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        self.on_disk.discard(data.draw(st.sampled_from(sorted(self.on_disk - set(self.untold)))))

    @precondition(lambda self: self.counted is None)
    @rule()
    def begin(self) -> None:
        self.wal_names.begin()
        self.counted = 0

    @precondition(lambda self: self.counted is not None)
    @rule(page=st.integers(1, 2))
    def count(self, page: int) -> None:
        assert self.counted is not None
        self.wal_names.add_counted(self.on_disk & set(NAMES[self.counted : self.counted + page]))
        self.counted += page
        if self.counted >= len(NAMES):
            self.wal_names.end()
            self.counted = None

    @invariant()
    def none_that_was_told_of_is_missing(self) -> None:
        assert all(name in self.wal_names for name in self.on_disk - set(self.untold))


TestThreads = Threads.TestCase


def test_a_count_forgets_streams_that_have_left_the_log(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        logged = rig.engine.writer.wal_names
        for name in ("never", "sealed", "waits"):
            rig.create(name, OCTETS)
            assert name in logged
        rig.append("sealed", b"a")
        rig.append("waits", b"b")
        rig.publish("sealed")
        rig.run(rig.engine.sealer.watch.count())
        assert [name in logged for name in ("never", "sealed", "waits")] == [False, False, True]
        rig.create("begun", OCTETS, b"c")
        rig.append("never", b"d")
        assert "begun" in logged and "never" in logged


def test_heads_are_the_newest_however_often_streams_leave_memory_and_are_counted(tmp_path: Path) -> None:
    random, expected = Random(7), dict.fromkeys((f"s{number}" for number in range(300)), 0)
    with Rig(tmp_path, limits={"cached_streams": 1}) as rig:
        for name in expected:
            expected[name] = random.choice([0, 1])
            rig.create(name, OCTETS, b"x" * expected[name])
        for step in range(900):
            name = random.choice(list(expected))
            assert rig.find(name).head.next_seq == expected[name]
            if random.random() < 0.5:
                rig.append(name, b"y")
                expected[name] += 1
            elif random.random() < 0.1:
                rig.publish(name)
            if step % 100 == 50:
                rig.run(rig.engine.sealer.watch.count())
        assert {name: rig.find(name).head.next_seq for name in expected} == expected


@pytest.mark.parametrize("forked", [False, True])
def test_who_asks_for_a_stream_while_it_is_made_finds_its_first_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: bool
) -> None:
    """Its row is on disk a moment before its name is told to be in the log."""
    seen: list[int] = []
    publish = Batch.publish

    async def look() -> None:
        stream = rig.engine.log.catalog.find("new")
        assert stream is not None
        seen.append(stream.head.next_seq)

    def asked_before(batch: Batch, logged: WalNameFilter) -> None:
        asyncio.run_coroutine_threadsafe(look(), rig.loop).result(10)
        publish(batch, logged)

    with Rig(tmp_path) as rig:
        rig.create("old", OCTETS, b"one")
        rig.append("old", b"two three")
        rig.run(rig.engine.sealer.watch.count())
        assert "new" not in rig.engine.writer.wal_names
        with monkeypatch.context() as patched:
            patched.setattr(Batch, "publish", asked_before)
            if forked:
                rig.fork("old", "new", 1, 3)
            else:
                rig.create("new", OCTETS, b"two")
        entries = [b"one", b"two"] if forked else [b"two"]
        assert seen == [len(entries)]
        assert rig.append("new", b"more").position == len(entries) + 1
        rig.publish("new")
        rig.reopen()
        assert b"".join(rig.read("new")) == b"".join([*entries, b"more"])
