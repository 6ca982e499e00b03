"""The event loop never waits for a segment: what is not at hand is found by a thread, then asked for again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.log import tiers
from headrace.engine.log.tiers import NeedsFetch
from headrace.errors import CorruptData
from headrace.storage.objects import ObjectMissing, StoreUnavailable
from headrace.types import JSON, OCTETS
from support.disturbed_store import disturb
from support.engine_rig import Rig, array
from support.stored_objects import placed

BUDGET = 1 << 20


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, storage={"seal_rows": 10}) as rig:
        yield rig


def _numbers(rig: Rig, name: str, count: int, keys: int = 3) -> None:
    """A published stream of numbers, one append each, every third with the same key."""
    rig.create(name, JSON)
    for number in range(count):
        rig.append(name, array(number), key=f"k{number % keys}")
    rig.publish(name)


def _works(rig: Rig, question: Any) -> int:
    """How often a thread has to look before a question is answered."""
    for times in range(100):
        try:
            question()
            return times
        except NeedsFetch as cold:
            cold.work()
    raise AssertionError("the question is never answered")


def _read(rig: Rig, position: int = 0, *, name: str = "s", key: str | None = None, budget: int = BUDGET) -> Any:
    stream = rig.find(name)
    return rig.engine.log.read(stream, stream.head, position, budget=budget, key=key)


def test_what_is_in_a_segment_that_was_never_opened_is_cold(rig: Rig) -> None:
    _numbers(rig, "s", 5)
    with pytest.raises(NeedsFetch) as cold:
        _read(rig)
    cold.value.work()
    assert _read(rig) == ([b"0,1,2,3,4"], 5)
    assert _works(rig, lambda: _read(rig, 2)) == 0


def test_what_the_log_holds_is_never_cold(rig: Rig) -> None:
    _numbers(rig, "s", 5)
    rig.append("s", array("new"))
    assert _read(rig, 5) == ([b'"new"'], 6)


class _AtOnce(Executor):
    """Does the work before it is asked for again, or never."""

    def __init__(self, *, never: bool = False) -> None:
        self._never = never

    def submit(self, work: Any, /, *args: Any, **facts: Any) -> Future[Any]:
        done: Future[Any] = Future()
        if not self._never:
            try:
                done.set_result(work(*args, **facts))
            except Exception as reason:
                done.set_exception(reason)
        return done


def test_a_page_ends_where_the_next_segment_is_cold(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.engine.tiers, "_ahead", _AtOnce(never=True))
    _numbers(rig, "s", 20)
    assert _works(rig, lambda: _read(rig)) == 1
    assert _read(rig) == ([b"0,1,2,3,4,5,6,7,8,9"], 10)
    assert _works(rig, lambda: _read(rig, 10)) == 1
    assert _read(rig).position == 20


def test_a_reader_that_goes_on_waits_only_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it will ask for next is decoded meanwhile, in the segments that follow too."""
    monkeypatch.setattr(rig.engine.tiers, "_ahead", _AtOnce())
    _numbers(rig, "s", 70)
    assert _works(rig, lambda: _read(rig, budget=5)) == 1
    position, entries = 0, []
    while position < 70:
        parts, position = _read(rig, position, budget=5)
        entries += [int(entry) for part in parts for entry in bytes(part).split(b",")]
    assert entries == list(range(70))


def test_a_segment_that_cannot_be_read_ahead_disturbs_nobody(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.engine.tiers, "_ahead", _AtOnce())
    _numbers(rig, "s", 20)
    rig.engine.objects.delete([placed(rig, "s")[1].key])
    for _ in range(2):
        assert rig.ask(lambda: _read(rig)).position == 10


def test_a_page_goes_on_from_a_segment_into_the_log(rig: Rig) -> None:
    _numbers(rig, "s", 3)
    rig.append("s", array("new"))
    rig.ask(lambda: _read(rig))
    assert _read(rig) == ([b"0,1,2", b'"new"'], 4)
    assert _read(rig, budget=3) == ([b"0,1"], 2)
    assert _read(rig, budget=6) == ([b"0,1,2"], 3)  # what follows would not fit


def test_answers_that_nobody_fetched_do_not_pile_up(rig: Rig) -> None:
    _numbers(rig, "s", 20)
    held = rig.engine.tiers._answers
    for position in range(20):
        for budget in range(1, 8):
            try:
                _read(rig, position, budget=budget, key="k1")
            except NeedsFetch as cold:
                cold.work()
    assert len(held) == tiers._ANSWERS
    assert _read(rig, 19, budget=7, key="k1") == ([b"19"], 20)


def test_a_reader_is_answered_while_the_stream_grows(rig: Rig) -> None:
    _numbers(rig, "s", 20)
    numbers = iter(range(100))

    def ask(key: str | None) -> Any:
        rig.append("s", array(next(numbers)))
        return _read(rig, key=key)

    for key in (None, "k1"):
        assert _works(rig, partial(ask, key)) == 1


def test_a_key_is_looked_for_in_many_segments_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    _numbers(rig, "s", 60, keys=50)
    assert _works(rig, lambda: _read(rig, key="k45")) == 1
    assert rig.read("s", key="k45") == [b"45"]
    monkeypatch.setattr(tiers, "_SEGMENTS_PER_KEY", 2)
    assert rig.ask(lambda: _read(rig, key="k45")) == ([], 20)  # how far the search has come
    assert rig.read("s", key="k45") == [b"45"]
    assert rig.read("s", key="none") == []


def test_a_key_is_found_in_segments_and_in_the_log(rig: Rig) -> None:
    _numbers(rig, "s", 14)
    rig.append("s", array("new"), key="k1")
    assert rig.read("s", key="k1") == [b"1", b"4", b"7", b"10", b"13", b'"new"']
    assert rig.read("s", 8, key="k1", budget=3) == [b"10", b"13", b'"new"']


def test_the_entries_of_a_key_fill_an_answer_from_many_segments(rig: Rig) -> None:
    _numbers(rig, "s", 60)
    assert _works(rig, lambda: _read(rig, key="k1")) == 1
    found = rig.ask(lambda: _read(rig, key="k1"))
    assert b",".join(found.parts) == b",".join(b"%d" % n for n in range(1, 60, 3))
    assert found.position == 60
    pages, position = [], 0
    while position < 60:
        page = rig.ask(lambda at=position: _read(rig, at, key="k1", budget=20))  # type: ignore[misc]
        position = page.position
        pages.append(b",".join(page.parts))
    assert all(len(page) <= 20 for page in pages)
    assert len(pages) <= 5
    assert b",".join(pages) == b",".join(b"%d" % n for n in range(1, 60, 3))


def test_a_missing_segment_does_not_hide_what_a_key_has_before_it(rig: Rig) -> None:
    _numbers(rig, "s", 30)
    _, _, third = placed(rig, "s")
    rig.engine.objects.delete([third.key])
    found = rig.ask(lambda: _read(rig, key="k1"))
    assert b",".join(found.parts) == b"1,4,7,10,13,16,19"
    assert found.position == 20
    with pytest.raises(ObjectMissing):
        rig.ask(lambda: _read(rig, 20, key="k1"))


def test_a_question_with_many_cold_parts_is_answered_after_as_many_looks(rig: Rig) -> None:
    """A fork of a fork of a fork, each of which has gone on after the fork point."""
    _numbers(rig, "s0", 4)
    for depth in range(8):
        rig.clock.us += 1
        rig.fork(f"s{depth}", f"s{depth + 1}", 3 + depth)
        rig.clock.us += 1
        for name in (f"s{depth}", f"s{depth + 1}"):
            rig.append(name, array("mine"))
            rig.publish(name)
    stream = rig.find("s8")
    assert _works(rig, lambda: rig.engine.log.seek(stream, rig.clock.us)) <= 9
    assert rig.engine.log.seek(stream, rig.clock.us) == 10


def test_segments_of_a_service_are_fetched_once_and_outlive_a_restart(rig: Rig) -> None:
    _numbers(rig, "s", 20)
    cache = Path(rig.config.storage.data_dir) / "cache"
    for restart in range(2):
        store = disturb(rig.engine.objects, far=True)
        for _ in range(2):
            assert len(rig.read("s")) == 20
        fetched = [call.key for call in store.calls if call.verb == "get_range"]
        assert fetched == ([] if restart else [one.key for one in placed(rig, "s")])
        assert len(list(cache.glob("*.parquet"))) == 2
        rig.reopen()


@pytest.mark.parametrize("far", [False, True], ids=["directory", "service"])
def test_a_missing_segment_is_named_and_the_others_are_read(rig: Rig, far: bool) -> None:
    _numbers(rig, "s", 20)
    _numbers(rig, "other", 3)
    _, second = placed(rig, "s")
    rig.engine.objects.delete([second.key])
    disturb(rig.engine.objects, far=far)
    assert rig.ask(lambda: _read(rig)).position == 10
    for key in (None, "k0"):
        with pytest.raises(ObjectMissing) as missing:
            rig.ask(lambda key=key: _read(rig, 10, key=key))  # type: ignore[misc]
        assert missing.value.facts["object"] == second.key
    assert rig.ask(lambda: _read(rig)).position == 10
    assert rig.read("other") == [b"0", b"1", b"2"]


def test_a_damaged_segment_is_named(rig: Rig) -> None:
    _numbers(rig, "s", 3)
    [one] = placed(rig, "s")
    data = rig.engine.objects.get(one.key)
    rig.engine.objects.put(one.key, data[:100] + bytes([data[100] ^ 1]) + data[101:])
    rig.reopen()  # what a process has just written itself it does not check as a whole
    with pytest.raises(CorruptData) as damaged:
        rig.read("s")
    assert damaged.value.facts["object"] == one.key
    assert damaged.value.facts["check"] == "checksum"


def test_a_store_that_does_not_answer_is_asked_again_by_the_next_reader(rig: Rig) -> None:
    _numbers(rig, "s", 3)
    store = disturb(rig.engine.objects, far=True)
    store.plan = lambda _: "refuse"
    with pytest.raises(StoreUnavailable):
        rig.read("s")
    store.plan = lambda _: None
    assert rig.read("s") == [b"0", b"1", b"2"]


def test_a_large_entry_is_read_from_bytes_and_from_json(rig: Rig) -> None:
    large = b"x" * 3_000_000
    rig.create("bytes", OCTETS, large)
    rig.create("json", JSON, array(large.decode()))
    for name in ("bytes", "json"):
        rig.append(name, b"1")
        rig.publish(name)
    assert rig.read("bytes", budget=10) == [large, b"1"]
    assert rig.read("json", budget=10) == [b'"%s"' % large, b"1"]
