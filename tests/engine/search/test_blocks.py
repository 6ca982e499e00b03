from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine.search.oracle import Oracle
from engine.search.searches import Searched
from headrace.deadline import Deadline
from headrace.engine.history import stored_events
from headrace.engine.search import blocks
from headrace.engine.search.aggregate import aggregate
from headrace.reduce.request import read
from support.engine_rig import Rig


def extracted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The chunks of events that are turned into columns from now on."""
    taken: list[tuple[int, int]] = []
    extract = blocks._extract_block

    def noted(extractor: Any, defined: Any, events: Any, chunk: Any, deadline: Any) -> Any:
        taken.append((chunk.start, chunk.stop))
        return extract(extractor, defined, events, chunk, deadline)

    monkeypatch.setattr(blocks, "_extract_block", noted)
    return taken


def lines(stream: Searched) -> list[tuple[int, int]]:
    line = stream.archive.blocks._streams[stream.stream.incarnation]
    return [(block.first_seq, block.end_seq) for block in line.blocks]


def append(stream: Searched, start: int, stop: int) -> None:
    stream.append(*({"time": n, "service": f"s{n % 5}", "body": "red green"} for n in range(start, stop)))


def test_small_blocks_become_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, taken = Searched(rig), extracted(monkeypatch)
    rows = 0
    merge = blocks._merge_blocks

    def counted(defined: Any, left: blocks.Block, right: blocks.Block) -> blocks.Block:
        nonlocal rows
        made = merge(defined, left, right)
        rows += made.end_seq - made.first_seq
        return made

    monkeypatch.setattr(blocks, "_merge_blocks", counted)
    for n in range(0, 256, 2):
        append(stream, n, n + 2)
        stream.ask("service:s1", sort=["time"])
    assert taken == [(n, n + 2) for n in range(0, 256, 2)]
    found = lines(stream)
    assert found[0][0] == 0 and found[-1][1] == 256 and len(found) <= 9
    assert all(left[1] == right[0] for left, right in pairwise(found))
    assert rows <= 256 * 9, "no event is merged more often than the logarithm of their number"


def test_a_block_does_not_grow_without_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "CHUNK_ROWS", 10)
    monkeypatch.setattr(stored_events, "CHUNK_ROWS", 10)
    stream = Searched(rig)
    append(stream, 0, 45)
    assert len(stream.ask("has:time", sort=["time"], size=500).seqs) == 45
    assert lines(stream) == [(0, 5), (5, 15), (15, 25), (25, 35), (35, 45)]
    assert len(stream.ask("has:time", sort=["time:asc"], size=500).seqs) == 45


def test_large_events_come_in_small_chunks(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_events, "CHUNK_BYTES", 2_000)
    monkeypatch.setattr(blocks, "CHUNK_BYTES", 2_000)
    stream, taken = Searched(rig), extracted(monkeypatch)
    for n in range(8):
        stream.append({"time": n, "path": "x" * 900})
    assert len(stream.ask("has:time", sort=["time"]).seqs) == 8
    assert len(taken) >= 4
    rig.publish(stream.name)
    fresh = Searched.of(rig, rig.fork(stream.name, "fork", 8).name)
    taken.clear()
    assert len(fresh.ask("has:time", sort=["time:asc"]).seqs) == 8
    assert len(taken) >= 4


def test_blocks_of_the_stream_asked_longest_ago_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Rig(tmp_path, limits={"tail_columns_bytes": 400_000}, storage={"tail_cache_bytes": 0}) as rig:
        streams = [Searched(rig) for _ in range(6)]
        taken = extracted(monkeypatch)
        for stream in streams:
            append(stream, 0, 50)
            assert len(stream.ask("has:time").seqs) == 50
        held = rig.engine.caches.archive().blocks
        assert 0 < held.bytes <= 400_000
        assert sum(block.bytes for line in held._streams.values() for block in line.blocks) == held.bytes
        assert len(held._streams) < 6
        taken.clear()
        streams[-1].ask("has:time")
        assert taken == []
        streams[0].ask("has:time")
        assert taken == [(0, 50)]


def test_a_range_larger_than_the_room_is_still_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_events, "CHUNK_ROWS", 10)
    monkeypatch.setattr(blocks, "CHUNK_ROWS", 10)
    with Rig(tmp_path, limits={"tail_columns_bytes": 100_000}) as rig:
        stream = Searched(rig)
        append(stream, 0, 100)
        for query in ("has:time", "red"):
            assert len(stream.ask(query, size=500, sort=["_score"]).seqs) == 100
        assert rig.engine.caches.archive().blocks.bytes <= 100_000


def test_holes_between_blocks_are_filled(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_MAX_MERGE_RATIO", 0)
    stream, taken = Searched(rig), extracted(monkeypatch)
    append(stream, 0, 30)
    stream.index(0, 10)
    stream.index(20, 30)
    assert len(stream.ask("has:time", size=500).seqs) == 30
    append(stream, 30, 35)
    assert len(stream.ask("has:time", size=500).seqs) == 35
    assert taken == [(10, 20), (30, 35)]


def test_two_that_ask_together_extract_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, taken = Searched(rig), extracted(monkeypatch)
    append(stream, 0, 200)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: stream.ask("service:s1 red", size=500).seqs, range(8)))
    assert taken == [(0, 200)]
    assert len({tuple(answer) for answer in answers}) == 1 and len(answers[0]) == 40


SMALL = {"limits": {"tail_columns_bytes": 600_000}}


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks hold ten events, and go to files however small they are."""
    monkeypatch.setattr(stored_events, "CHUNK_ROWS", 10)
    monkeypatch.setattr(blocks, "CHUNK_ROWS", 10)
    monkeypatch.setattr(blocks, "_MIN_SPILLED_ROWS", 1)


@pytest.mark.usefixtures("small_chunks")
def test_a_scan_of_more_than_fits_does_not_empty_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Rig(tmp_path, **SMALL, storage={"tail_cache_bytes": 0}) as rig:
        stream, taken = Searched(rig), extracted(monkeypatch)
        append(stream, 0, 200)
        assert len(stream.ask("has:time", size=500).seqs) == 200
        assert len(taken) == 20
        held = lines(stream)
        assert 5 <= len(held) < 20
        for sort in ("time", "time:asc", "service"):
            taken.clear()
            assert len(stream.ask("red", size=500, sort=[sort]).seqs) == 200
            assert 0 < len(taken) <= 20 - len(held)
            assert lines(stream) == held
        assert stream.archive.blocks.bytes <= 600_000


@pytest.mark.usefixtures("small_chunks")
def test_blocks_beyond_memory_are_extracted_once_and_answer_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Rig(tmp_path, **SMALL) as rig:
        stream, taken = Searched(rig), extracted(monkeypatch)
        append(stream, 0, 200)
        stream.append({"time": 200, "service": "s1", "body": "green red", "tags": ["a", "b"]}, {"time": "odd"})
        oracle = Oracle(stream.search, stream.documents())
        for query in ("has:time", '"red green"', "service:s1 red", "contains:s1", "time:>150", "r*", "-service:s1"):
            for sort in (["time"], ["_score"], ["offset:asc"]):
                asked = stream.ask(query, size=500, sort=sort, track_total_hits=True)
                assert asked.seqs == [seq for seq, _ in oracle.expected(asked.request)], (query, sort)
                assert not asked.found.missing.events
        held = stream.archive.blocks
        assert sum(stop - start for start, stop in taken) == held.extracted == 202
        assert held.bytes <= 600_000 and held.disk_bytes > 0
        every = [block for line in held._streams.values() for block in line.blocks]
        assert held.bytes == sum(block.bytes for block in every)
        assert held.disk_bytes == sum(block.disk_bytes for block in every)
        assert list((tmp_path / "cache" / "tail").iterdir()) == [], "nothing is left behind by a crash"


@pytest.mark.usefixtures("small_chunks")
def test_the_disk_is_bounded_too_and_what_does_not_fit_is_extracted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Rig(tmp_path, **SMALL, storage={"tail_cache_bytes": 20_000}) as rig:
        stream, taken = Searched(rig), extracted(monkeypatch)
        append(stream, 0, 300)
        assert len(stream.ask("has:time", size=500).seqs) == 300
        held, found = stream.archive.blocks, lines(stream)
        assert 0 < held.disk_bytes <= 20_000 and held.bytes <= 600_000
        assert held.used_share <= 1
        taken.clear()
        assert len(stream.ask("red", size=500, sort=["time"]).seqs) == 300
        assert 0 < len(taken) <= 30 - len(found) and lines(stream) == found


@pytest.mark.usefixtures("small_chunks")
def test_where_no_file_can_be_written_answers_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "tail").write_text("in the way")
    with Rig(tmp_path, **SMALL) as rig:
        stream = Searched(rig)
        append(stream, 0, 200)
        for _ in range(2):
            assert len(stream.ask("has:time", size=500).seqs) == 200
        assert stream.archive.blocks.disk_bytes == 0 and stream.archive.blocks.bytes <= 600_000


@pytest.mark.usefixtures("small_chunks")
def test_blocks_go_once_companions_describe_their_events(tmp_path: Path) -> None:
    with Rig(tmp_path, **SMALL) as rig:
        stream = Searched(rig)
        append(stream, 0, 200)
        assert len(stream.ask("has:time", size=500, sort=["time:asc"]).seqs) == 200
        stream.index(0, 105)
        head = stream.stream.head
        with stream.archive.snapshot(stream.stream, head, stream.archive.defined(stream.stream, head)) as look:
            look.release()
        assert lines(stream)[0][0] == 100 and lines(stream)[-1][1] == 200
        assert len(stream.ask("has:time", size=500).seqs) == 200


@pytest.mark.usefixtures("small_chunks")
def test_a_changed_definition_is_extracted_anew_from_blocks_in_files_too(tmp_path: Path) -> None:
    with Rig(tmp_path, **SMALL) as rig:
        stream = Searched(rig)
        append(stream, 0, 200)
        assert len(stream.ask("red", size=500).seqs) == 200
        stream.evolve()
        assert len(stream.ask("red", size=500).seqs) == 200
        assert stream.archive.blocks.extracted == 400


def search_by_score(stream: Searched) -> None:
    assert len(stream.ask("red", sort=["_score"]).seqs) == 50


def count_by_rollup(stream: Searched) -> None:
    one, head = stream.stream, stream.stream.head
    defined = stream.archive.defined(one, head)
    given = {"rollup": "requests", "from": 0, "to": 60_000, "interval": "1m", "q": "red"}
    found = aggregate(stream.archive, one, head, defined, read(given, defined.definition.search), Deadline(60))
    assert not found.missing.events


@pytest.mark.parametrize("ask", [search_by_score, count_by_rollup])
def test_an_answer_leaves_no_columns_to_the_garbage_collector(rig: Rig, ask: Callable[[Searched], None]) -> None:
    stream = Searched(rig)
    append(stream, 0, 50)
    gc.collect()
    gc.disable()
    try:
        ask(stream)
        held = weakref.ref(stream.archive.blocks._streams[stream.stream.incarnation].blocks[0].companion)
        stream.archive.clear_events()
        assert held() is None
    finally:
        gc.enable()
