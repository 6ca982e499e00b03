"""Which routing keys a stream has, wherever its events lie and however far its companions are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.registries import change
from engine.search.keyed import Indexer, append, keyed, opened, page, pages
from headrace.engine.search.routing_keys import KeyQuery, RoutingKeyReader
from headrace.errors import NotFound
from headrace.format.object_names import companion_key
from support.engine_rig import Rig
from support.work_rig import search

KEYS = [None, "a", "aa", "b", "ä", "Z", "\U0001f600", "\uffff", "nul\0l", "long" * 100, "7", " "]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with opened(tmp_path) as rig:
        yield rig


def test_a_stream_without_events_has_no_keys(rig: Rig) -> None:
    keyed(rig, "s")
    found = page(rig, "s")
    assert found.keys == []
    assert found.has_more is False
    assert found.is_complete is True


def test_keys_of_the_log_are_listed_by_code_points_and_once(rig: Rig) -> None:
    keyed(rig, "s")
    append(rig, "s", KEYS)
    append(rig, "s", ["same", "same"])
    append(rig, "s", ["a"])
    found = page(rig, "s")
    assert found.keys == sorted({"same", *filter(None, KEYS)})
    assert found.scanned_rows == len(KEYS) + 3
    assert found.scanned_segments == 0
    assert found.companions == 0


def test_the_newest_event_is_listed_wherever_the_others_lie(rig: Rig) -> None:
    keyed(rig, "s")
    append(rig, "s", ["indexed", "b"])
    rig.publish("s")
    Indexer(rig).work()
    append(rig, "s", ["published", "c"])
    rig.publish("s")
    append(rig, "s", ["new"])
    found = page(rig, "s")
    assert found.keys == ["b", "c", "indexed", "new", "published"]
    assert found.indexed_segments == 1
    assert found.companions == 1
    assert found.scanned_segments == 1
    assert found.scanned_rows == 1
    assert found.is_complete is True
    assert found.missing_segments == 0


def test_a_stream_without_search_fields_has_its_keys_from_segments(rig: Rig) -> None:
    keyed(rig, "s", searched=False)
    append(rig, "s", ["a", "b"])
    append(rig, "s", ["a", "c"])
    rig.publish("s")
    assert Indexer(rig).work() == 0
    reader = RoutingKeyReader(
        config=rig.engine.config, open_archive=rig.engine.caches.archive, connect=rig.engine.connect
    )
    for _ in range(2):
        found = page(rig, "s", reader=reader)
        assert found.keys == ["a", "b", "c"]
        assert found.scanned_segments == 1
    assert reader.cache.bytes > 0
    assert found.segment_get_ms == 0, "what was found the first time is kept"


def test_a_page_ends_after_its_limit_and_the_next_begins_behind_it(rig: Rig) -> None:
    keyed(rig, "s")
    append(rig, "s", [f"{n:02}" for n in range(10)])
    rig.publish("s")
    Indexer(rig).work()
    append(rig, "s", [f"{n:02}" for n in range(5, 15)])
    first = page(rig, "s", limit=4)
    assert first.keys == ["00", "01", "02", "03"]
    assert first.has_more is True
    assert page(rig, "s", after="03", limit=3).keys == ["04", "05", "06"]
    assert page(rig, "s", after="03x", limit=1).keys == ["04"]
    last = page(rig, "s", after="12", limit=2)
    assert last.keys == ["13", "14"]
    assert last.has_more is False
    assert pages(rig, "s", 4) == [f"{n:02}" for n in range(15)]


def test_only_retained_events_count(rig: Rig) -> None:
    keyed(rig, "s")
    for key in "abcdefgh":
        append(rig, "s", [key, f"{key}2"])
    rig.publish("s")
    Indexer(rig).work()
    assert page(rig, "s").companions == 2
    size = rig.find("s").head.bytes
    for share in (3, 8):
        rig.retain("s", size=size // share)
        first = rig.find("s").head.first_seq
        assert first > 0
        expected = [key for n, key in enumerate(f"{k}{s}" for k in "abcdefgh" for s in ("", "2")) if n >= first]
        assert page(rig, "s").keys == sorted(expected)
        assert page(rig, "s").scanned_segments == 0
        assert pages(rig, "s", 1) == sorted(expected)


def test_a_fork_has_the_keys_it_inherited_and_its_own(rig: Rig) -> None:
    keyed(rig, "s")
    append(rig, "s", ["a", "b", "c"])
    rig.publish("s")
    append(rig, "s", ["d"])
    append(rig, "s", ["e", "f"])
    rig.fork("s", "f", 5)
    append(rig, "s", ["of the source alone"])
    append(rig, "f", ["own"])
    for name in ("s", "f"):
        assert page(rig, name).scanned_segments == 1
    assert page(rig, "f").keys == ["a", "b", "c", "d", "e", "own"]
    rig.publish("s")
    rig.publish("f")
    assert page(rig, "f").keys == ["a", "b", "c", "d", "e", "own"]
    Indexer(rig).work()
    found = page(rig, "f")
    assert found.keys == ["a", "b", "c", "d", "e", "own"]
    assert found.scanned_segments == 0
    assert page(rig, "s").keys == ["a", "b", "c", "d", "e", "f", "of the source alone"]


def test_companions_that_lack_a_new_field_still_know_the_keys(rig: Rig) -> None:
    keyed(rig, "s")
    append(rig, "s", ["a"])
    rig.publish("s")
    Indexer(rig).work()
    change(rig, "s", search=search("user", "other"))
    found = page(rig, "s")
    assert found.keys == ["a"]
    assert found.companions == 1
    assert found.scanned_segments == 0


def test_companions_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    with opened(tmp_path, fan_out=100) as rig:
        keyed(rig, "s")
        for key in "abcdefg":
            append(rig, "s", [key, key, key, key])
            rig.publish("s")
        assert Indexer(rig).work() == 7
        stream = rig.find("s")
        for companion in rig.engine.coverage.listed(stream)[1:]:
            path = rig.engine.objects.local_path(companion_key("s", stream.incarnation, companion.name, "postings"))
            assert path is not None
            path.write_bytes(b"PAR1 no more")
        found = page(rig, "s")
        assert found.keys == list("abcdefg")
        assert found.companions == 1
        assert found.scanned_segments == 6


def test_what_there_was_no_time_for_is_told(rig: Rig) -> None:
    keyed(rig, "s")
    append(rig, "s", ["a", "b", "c", "d"])
    rig.publish("s")
    Indexer(rig).work()
    append(rig, "s", ["e", "f", "g", "h"])
    append(rig, "s", ["i", "j", "k", "l"])
    rig.publish("s")
    append(rig, "s", ["m", "n"])
    append(rig, "s", ["o"])
    found = page(rig, "s", time_s=0)
    assert found.keys == []
    assert found.is_complete is False
    assert found.missing_segments == 3
    assert found.indexed_segments == 0
    assert found.scanned_segments == 0
    assert found.scanned_rows == 0


def test_the_keys_of_a_deleted_stream_are_gone(rig: Rig) -> None:
    keyed(rig, "s")
    append(rig, "s", ["a"])
    stream = rig.find("s")
    rig.delete("s")
    with pytest.raises(NotFound):
        RoutingKeyReader(
            config=rig.engine.config, open_archive=rig.engine.caches.archive, connect=rig.engine.connect
        ).page(KeyQuery(stream, stream.head, "", 10, 60))


@pytest.mark.parametrize("seed", range(8))
def test_keys_are_those_of_all_retained_events_at_any_progress(rig: Rig, seed: int) -> None:
    chance = random.Random(seed)
    names, events = ["s"], {"s": list[str | None]()}
    keyed(rig, "s", searched=seed % 2 == 0)
    for step in range(30):
        name = chance.choice(names)
        match chance.choice(["append", "append", "publish", "index", "compact", "retain", "fork", "ask"]):
            case "append":
                keys = chance.choices([*KEYS, f"k{step}"], k=chance.randint(1, 5))
                append(rig, name, keys)
                events[name] += keys
            case "publish":
                rig.publish(name)
            case "index" | "compact" as job:
                worker = Indexer(rig)
                grant = worker.lease(limit=chance.randint(1, 3), jobs=[job])
                if grant is not None:
                    worker.commit(grant)
            case "retain" if events[name]:
                rig.retain(name, size=chance.randint(1, rig.find(name).head.bytes))
            case "fork" if len(names) < 3 and rig.find(name).head.first_seq < len(events[name]):
                at = chance.randint(rig.find(name).head.first_seq, len(events[name]))
                rig.fork(name, f"f{step}", at)
                names.append(f"f{step}")
                events[f"f{step}"] = events[name][:at]
        for one in names:
            retained = events[one][rig.find(one).head.first_seq :]
            assert pages(rig, one, chance.choice([1, 3, 500])) == sorted(set(filter(None, retained)))
