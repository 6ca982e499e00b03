from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.engine.log.append import Append
from headrace.engine.log.catalog import AppendHooks, StreamManager
from headrace.engine.log.stream import Stream
from headrace.errors import CorruptData, HeadraceError
from headrace.profiles.hook import AppendHook
from headrace.storage.streams import StreamRow
from headrace.types import JSON
from support.engine_rig import Rig, array

SECOND = 1_000_000


def test_a_stream_is_one_object_as_long_as_it_lives(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.create("s")
        stream = rig.find("s")
        rig.append("s", b"x")
        assert rig.find("s") is stream
        rig.delete("s")
        rig.create("s")
        assert rig.find("s") is not stream


def test_memory_does_not_grow_with_the_number_of_streams(tmp_path: Path) -> None:
    with Rig(tmp_path, limits={"cached_streams": 300}) as rig:
        for number in range(600):
            rig.create(f"s{number}", body=b"x")
        assert len(rig.engine.log.catalog) <= 300
        assert all(rig.read(f"s{number}") == [b"x"] for number in range(600))


def test_a_stream_that_is_asked_for_again_and_again_stays_in_memory(tmp_path: Path) -> None:
    with Rig(tmp_path, limits={"cached_streams": 300}) as rig:
        often, once = rig.create("often"), rig.create("once")
        for number in range(600):
            rig.create(f"s{number}")
            assert rig.find("often") is often
        assert rig.find("once") is not once


def test_streams_that_are_fetched_together_are_as_if_found_one_by_one(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        for number in range(6):
            rig.create(f"s{number}", body=b"x" * (number % 2))
        rig.append("s2", b"y")
        rig.publish("s1")
        rig.run(rig.engine.sealer.watch.count())
        rig.delete("s5")
        rig.reopen()
        catalog, names = rig.engine.log.catalog, [f"s{number}" for number in range(7)]
        catalog.fetch(names)
        assert [name in catalog.held for name in names] == [True] * 5 + [False] * 2
        fetched = [rig.find(name) for name in names[:5]]
        assert [stream.head.next_seq for stream in fetched] == [0, 1, 1, 1, 0]
        catalog.fetch(names)
        assert [rig.find(name) for name in names[:5]] == fetched


def test_a_stream_that_was_fetched_for_one_who_asks_is_not_kept_for_others(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        for number in range(300):
            rig.create(f"s{number}")
    with Rig(tmp_path, limits={"cached_streams": 128}) as rig:
        catalog = rig.engine.log.catalog
        catalog.fetch(["s0", "s1"])
        for name in ("s0", "s1", "s1"):
            rig.find(name)
        for number in range(2, 100 + 64):
            catalog.fetch([f"s{number}"])
        assert "s0" not in catalog.held
        assert "s1" in catalog.held


def test_only_whoever_asks_for_a_stream_that_cannot_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Rig(tmp_path) as rig:
        for name in "abc":
            rig.create(name)
        rig.reopen()
        catalog = rig.engine.log.catalog
        load = catalog.load

        def read(row: StreamRow) -> Stream:
            if row.name == "b":
                raise CorruptData("its registry cannot be read")
            return load(row)

        monkeypatch.setattr(catalog, "load", read)
        catalog.fetch(["a", "b", "c"])
        assert rig.find("a").name + rig.find("c").name == "ac"
        with pytest.raises(CorruptData):
            rig.find("b")


@pytest.mark.parametrize("capacity", [1, 2, 100])
def test_appends_to_one_stream_meet_in_one_object_however_small_the_cache_is(tmp_path: Path, capacity: int) -> None:
    with Rig(tmp_path, limits={"cached_streams": capacity}) as rig:
        for name in "abc":
            rig.create(name, JSON)
        errors: list[HeadraceError | None] = []

        async def append_at_once() -> None:
            done = asyncio.Event()

            def settled(append: Append) -> None:
                errors.append(append.error)
                if len(errors) == 9:
                    done.set()

            for number in range(9):
                rig.submit("abc"[number % 3], array(number), settled)
            await done.wait()

        rig.run(append_at_once())
        assert errors == [None] * 9
        assert rig.read("a") == [b"0", b"3", b"6"]


def test_the_source_of_a_fork_stays_in_memory_while_the_fork_is_made(tmp_path: Path) -> None:
    with Rig(tmp_path, limits={"cached_streams": 1}) as rig:
        rig.create("source", JSON, array(1))
        rig.create("other")
        source = rig.find("source")
        rig.fork("source", "fork", 1)
        assert rig.find("source") is source or source.pins == 0
        assert rig.read("fork") == [b"1"]


def test_an_access_restarts_the_sliding_window_and_a_restart_counts_as_one(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        stream = rig.create("s", ttl_s=10)
        catalog = rig.engine.log.catalog
        rig.clock.us += 9 * SECOND
        catalog.note_access(stream)
        rig.clock.us += 9 * SECOND
        assert not catalog.expired(stream)
        rig.reopen()
        rig.clock.us += 9 * SECOND
        assert not rig.engine.log.catalog.expired(rig.find("s"))
        rig.clock.us += SECOND
        assert rig.engine.log.catalog.expired(stream)


def row(name: str = "s", **values: str) -> StreamRow:
    return StreamRow(name=name, content_type=JSON, created_us=0, epochs="[[0,0]]", **values)


class Named(AppendHook):
    """A hook that knows the stream it was loaded for."""

    def __init__(self, row: StreamRow) -> None:
        self.name = row.name


HOOKS = AppendHooks({"kept": StreamManager(Named, is_retained=False), "usual": StreamManager(Named)})


@pytest.mark.parametrize("kind", ["kept", "usual"])
def test_a_managed_stream_has_the_hook_of_its_registry(kind: str) -> None:
    managed = row("a", managed=f'{{"kind":"{kind}","event":{{"kind":"other"}}}}')
    hook = HOOKS.load(managed)
    assert isinstance(hook, Named)
    assert hook.name == "a"
    assert HOOKS.is_retained(managed) == (kind == "usual")


def test_a_registry_that_nobody_knows_is_corrupt_data_that_names_the_stream() -> None:
    with pytest.raises(CorruptData) as refused:
        HOOKS.load(row("a", managed='{"kind":"other"}'))
    assert refused.value.facts["stream"] == "a"


def test_a_plain_stream_has_no_hook_and_is_retained_as_its_rule_says() -> None:
    assert HOOKS.load(row()) is None
    assert HOOKS.is_retained(row())


def test_streams_of_the_server_have_the_routing_keys_of_their_registries_and_no_others() -> None:
    ours, theirs = (HOOKS.load(row(name, profile='{"kind":"metrics"}')) for name in ("__metrics__", "metrics"))
    assert ours is not None
    assert theirs is not None
    assert ours.suggests_keys is False
    assert theirs.suggests_keys is True
