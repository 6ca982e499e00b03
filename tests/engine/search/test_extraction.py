"""Columns that are extracted before anyone asks: once, bounded, and right whatever happens meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from engine.features.pipelines import event, registered
from engine.search.searches import Searched
from headrace.deadline import Deadline
from headrace.engine.history import stored_events
from headrace.engine.search import blocks, extraction
from headrace.engine.search.aggregate import aggregate
from headrace.reduce.request import read
from reduce.answers import decoded
from support.engine_rig import Rig, array

ROUNDS, EACH = 30, 50


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything happens with few events."""
    monkeypatch.setattr(extraction, "MIN_ROWS", 40)
    monkeypatch.setattr(extraction, "MIN_UNQUERIED_ROWS", 40)
    monkeypatch.setattr(extraction, "_RELEASE_S", 0.02)
    monkeypatch.setattr(blocks, "_MIN_SPILLED_ROWS", 1)
    for module in (stored_events, blocks):
        monkeypatch.setattr(module, "CHUNK_ROWS", 100)


def append(stream: Searched, start: int, stop: int) -> None:
    stream.append(*({"time": n, "service": f"s{n % 5}", "code": 200, "body": "red green"} for n in range(start, stop)))


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = monotonic() + 30
    while not holds():
        assert monotonic() < deadline, "it did not happen"
        sleep(0.005)


def extracted(rig: Rig) -> int:
    archive = rig.engine.caches.opened_archive
    return 0 if archive is None else archive.blocks.extracted


def test_events_of_a_source_are_extracted_ahead_once_somebody_searches_them(rig: Rig) -> None:
    registered(rig, event())
    pushed = [{"user": "u", "amount": 1.0}] * 50
    for _ in range(4):
        rig.append("events/Txn", array(*pushed))
    assert rig.engine.caches.opened_archive is None
    source = Searched.of(rig, "events/Txn")
    assert source.ask("user:u", size=0, track_total_hits=True).found.total == 200
    rig.append("events/Txn", array(*pushed))
    wait_for(lambda: extracted(rig) == 250)


def test_new_events_are_extracted_before_anyone_asks_and_only_once(rig: Rig) -> None:
    stream = Searched(rig)
    for n in range(0, 400, 50):
        append(stream, n, n + 50)
        wait_for(lambda n=n: extracted(rig) >= n + 50)
    for query in ("red", "service:s1", "has:time"):
        assert stream.ask(query, size=500, track_total_hits=True).found.total == (80 if query == "service:s1" else 400)
    assert extracted(rig) == 400


def test_after_a_restart_what_no_companion_describes_is_extracted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Rig(tmp_path) as rig:
        stream = Searched(rig)
        for n in range(0, 600, 100):
            append(stream, n, n + 100)
        stream.index(0, 200)
        rig.publish(stream.name)
    monkeypatch.setattr(extraction, "_TURN_ROWS", 64)
    with Rig(tmp_path) as rig:
        stream = Searched.of(rig, stream.name)
        append(stream, 600, 650)
        wait_for(lambda: extracted(rig) > 450 - 40)
        assert stream.ask("red", track_total_hits=True).found.total == 650
        assert extracted(rig) == 450


def test_events_before_those_that_are_caught_up_with_are_left_to_whoever_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "CATCH_UP_ROWS", 120)
    with Rig(tmp_path) as rig:
        stream = Searched(rig)
        append(stream, 0, 300)
        wait_for(lambda: extracted(rig) == 120 and not rig.engine.extraction._queued)
        assert stream.ask("red", track_total_hits=True).found.total == extracted(rig) == 300


def test_few_events_are_left_to_whoever_asks(rig: Rig) -> None:
    stream = Searched(rig)
    append(stream, 0, 39)
    assert rig.engine.caches.opened_archive is None and rig.engine.extraction._thread is None
    assert len(stream.ask("red").seqs) == 39


def made(stream: Searched) -> list[bool]:
    """Of each block, whether all its tables are made."""
    held = stream.archive.blocks
    line = held._blocks_of(stream.stream.incarnation)
    with line.extracting, held._lock:
        return [block.columns is None for block in line.blocks]


def test_postings_are_made_ahead_only_where_questions_are_expected(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Searched(rig)
    append(stream, 0, 100)
    wait_for(lambda: extracted(rig) == 100 and not rig.engine.extraction._queued)
    assert made(stream) == [False]
    assert stream.ask("red", track_total_hits=True).found.total == 100
    append(stream, 100, 200)
    wait_for(lambda: extracted(rig) == 200 and made(stream) == [False, True])
    monkeypatch.setattr(blocks, "_RECENT_S", 0.0)
    append(stream, 200, 300)
    wait_for(lambda: extracted(rig) == 300)
    assert made(stream) == [False, True, False]
    monkeypatch.setattr(blocks, "_RECENT_S", 60.0)
    assert stream.ask("red", track_total_hits=True).found.total == 300


def test_columns_of_a_stream_that_nobody_asks_are_extracted_in_whole_blocks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "MIN_UNQUERIED_ROWS", 100)
    stream = Searched(rig)
    append(stream, 0, 50)
    assert rig.engine.extraction._thread is None
    append(stream, 50, 100)
    wait_for(lambda: extracted(rig) == 100)
    assert stream.ask("red", track_total_hits=True).found.total == 100
    append(stream, 100, 150)
    wait_for(lambda: extracted(rig) == 150)


def test_a_stream_without_search_fields_is_not_followed(rig: Rig) -> None:
    rig.create("plain", "application/json")
    rig.append("plain", array(*range(200)))
    assert rig.engine.caches.opened_archive is None and rig.engine.extraction._thread is None


def test_columns_go_when_companions_describe_the_events_and_when_the_stream_does(rig: Rig) -> None:
    stream = Searched(rig)
    append(stream, 0, 200)
    wait_for(lambda: extracted(rig) == 200)
    stream.index(0, 200)
    held = stream.archive.blocks
    wait_for(lambda: held.bytes == 0)
    append(stream, 200, 300)
    wait_for(lambda: held.bytes > 0)
    rig.delete(stream.name)
    wait_for(lambda: held.bytes == 0 and held.disk_bytes == 0)


def test_nothing_is_extracted_ahead_where_there_is_no_room(tmp_path: Path) -> None:
    with Rig(tmp_path, limits={"tail_columns_bytes": 150_000}, storage={"tail_cache_bytes": 0}) as rig:
        stream = Searched(rig)
        for n in range(0, 1000, 100):
            append(stream, n, n + 100)
        wait_for(lambda: extracted(rig) > 0 and not rig.engine.extraction._queued)
        wait_for(lambda: stream.archive.blocks.bytes <= 150_000)
        assert len(stream.ask("red", size=500).seqs) == 500


def total(stream: Searched, query: str) -> tuple[int, int | None]:
    """How many events there were, and how many of them match."""
    asked = stream.ask(query, size=1, track_total_hits=True)
    assert not asked.found.missing.events
    return asked.found.stop, asked.found.total


def counted(stream: Searched) -> tuple[int, int]:
    """How many events there were, and how many a rollup counts."""
    one, head = stream.stream, stream.stream.head
    defined = stream.archive.defined(one, head)
    given = {"rollup": "requests", "from": 0, "to": 86_400_000, "interval": "1m", "measures": ["all"]}
    found = aggregate(stream.archive, one, head, defined, read(given, defined.definition.search), Deadline(60))
    assert not found.missing.events
    groups = [group for bucket in decoded(found.buckets) for group in bucket["groups"]]
    return found.stop, sum(group["measures"]["all"]["count"] for group in groups)


@pytest.mark.parametrize("disk_bytes", [0, 1 << 30])
def test_answers_are_right_while_events_are_appended_sealed_indexed_and_extracted(
    tmp_path: Path, disk_bytes: int
) -> None:
    limits, storage = {"tail_columns_bytes": 400_000}, {"tail_cache_bytes": disk_bytes}
    with Rig(tmp_path, limits=limits, storage=storage) as rig:
        stream = Searched(rig)
        append(stream, 0, EACH)
        over = threading.Event()

        def ask(number: int) -> int:
            answers = 0
            while not over.is_set():
                if number % 2:
                    stop, found = counted(stream)
                    assert found == stop
                else:
                    stop, matches = total(stream, "service:s1 red")
                    assert matches == len(range(1, stop, 5))
                answers += 1
            return answers

        with ThreadPoolExecutor(4) as threads:
            asking = [threads.submit(ask, number) for number in range(4)]
            for n in range(1, ROUNDS):
                append(stream, n * EACH, (n + 1) * EACH)
                if n % 10 == 5:
                    rig.publish(stream.name)
                if n % 20 == 7:
                    stream.index((n - 5) * EACH, n * EACH)
            over.set()
            assert all(one.result() > 0 for one in asking)
        held = stream.archive.blocks
        # A block is counted before others make room for it.
        wait_for(lambda: held.bytes <= 400_000 and held.disk_bytes <= disk_bytes)
        with held._lock:
            every: list[Any] = [block for line in held._streams.values() for block in line.blocks]
            assert held.bytes == sum(block.bytes for block in every)
            assert held.disk_bytes == sum(block.disk_bytes for block in every)
        assert all(left.end_seq <= right.first_seq for left, right in pairwise(every))
        assert total(stream, "red") == (ROUNDS * EACH, ROUNDS * EACH)
