from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.engine.history import segment_builder
from headrace.schema.registry import KeySetting
from headrace.schema.update import SchemaUpdate
from headrace.types import JSON, OCTETS
from support.engine_rig import Rig, array
from support.stored_objects import placed, reader, spans

Open = Callable[..., Rig]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens an engine with these storage settings."""
    with ExitStack() as stack:
        yield lambda **storage: stack.enter_context(Rig(tmp_path, storage=storage))


def _append(rig: Rig, name: str, *sizes: int) -> None:
    """One append for each size, of so many entries."""
    for size in sizes:
        rig.append(name, array(*range(size)))


def test_segments_are_cut_between_requests_once_they_have_enough_rows(opened: Open) -> None:
    rig = opened(seal_rows=4)
    rig.create("s", JSON)
    _append(rig, "s", 3, 3, 1, 9, 1, 1)
    rig.publish("s")
    assert spans(rig, "s") == [(0, 6), (6, 16), (16, 18)]
    assert rig.find("s").head.published_seq == 18


def test_segments_are_cut_between_requests_once_they_have_enough_bytes(opened: Open) -> None:
    rig = opened(seal_bytes=10)
    rig.create("s", OCTETS)
    for size in (9, 1, 25, 4, 6, 3):
        rig.append("s", b"x" * size)
    rig.publish("s")
    assert spans(rig, "s") == [(0, 2), (2, 3), (3, 5), (5, 6)]
    sizes = [(one.segment.before_bytes, one.segment.total_bytes) for one in placed(rig, "s")]
    assert sizes == [(0, 10), (10, 35), (35, 45), (45, 48)]


def test_segments_are_cut_alike_however_many_rows_there_are(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are looked at some at a time, which nobody can tell from the segments."""
    rig = opened(seal_rows=7, seal_bytes=60)
    rig.create("one", JSON)
    rig.create("other", JSON)
    for name, rows in (("one", 1), ("other", 50)):
        monkeypatch.setattr(segment_builder, "_BATCH_ROWS", rows)
        _append(rig, name, *(1 + n * 7 % 5 for n in range(40)))
        rig.append(name, array("long" * 20))
        rig.publish(name)
    assert spans(rig, "one") == spans(rig, "other")
    assert len(spans(rig, "one")) > 10
    assert rig.read("one") == rig.read("other")


def test_short_rows_are_sealed_as_they_are_however_many_are_taken_at_once(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long ones, and lists, between short ones; with keys and without; at times of their own."""
    rig = opened(seal_rows=40)
    sealed = []
    for name, rows in (("some", 4), ("one", 1)):
        monkeypatch.setattr(segment_builder, "_BATCH_ROWS", rows)
        rig.create(name, JSON)
        for n in range(100):
            entries = [f"x{n}" * (2000 if n % 37 == 36 else 1)] * (3 if n % 11 == 10 else 1)
            rig.append(name, array(*entries), key=f"k{n}" if 40 < n < 70 else None)
            rig.clock.us += 5
        rig.publish(name)
        columns = [reader(rig, one).batches(*spans(rig, name)[at]) for at, one in enumerate(placed(rig, name))]
        cells = [[batch.drop_columns(["append_time"]).to_pylist() for batch in batches] for batches in columns]
        sealed.append((spans(rig, name), cells))
        assert rig.read(name) == rig.read("some")
    assert sealed[0] == sealed[1]


def test_a_small_segment_is_left_alone_where_much_follows(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_builder, "GROUP_ROWS", 2)
    rig = opened(seal_rows=20)
    rig.create("s", JSON)
    for size, expected in ((1, [(0, 1)]), (4, [(0, 5)]), (5, [(0, 5), (5, 10)])):
        _append(rig, "s", size)
        rig.publish("s")
        assert spans(rig, "s") == expected


def test_a_body_larger_than_a_row_group_is_spread_over_several(opened: Open) -> None:
    rig = opened()
    rig.create("s", JSON)
    events = [{"n": n, "text": "x" * 1000} for n in range(2500)]
    rig.append("s", array("before"))
    rig.append("s", array(*events))
    rig.append("s", array("after"))
    rig.publish("s")
    assert [json.loads(entry) for entry in rig.read("s")] == ["before", *events, "after"]
    [one] = placed(rig, "s")
    found = reader(rig, one)
    found.verify()
    assert len(found.info.groups) > 2
    assert [found.request_at(seq) for seq in (0, 1, 2500, 2501)] == [(0, 1), (1, 2501), (1, 2501), (2501, 2502)]


def test_a_small_last_segment_is_written_again_with_what_follows(opened: Open) -> None:
    rig = opened(seal_rows=6)
    rig.create("s", JSON)
    for size, expected in ((2, [(0, 2)]), (1, [(0, 3)]), (1, [(0, 3), (3, 4)]), (1, [(0, 3), (3, 5)])):
        _append(rig, "s", size)
        rig.publish("s")
        assert spans(rig, "s") == expected
    assert rig.read("s") == [b"0", b"1", b"0", b"0", b"0"]


def test_a_segment_with_half_the_bytes_is_not_written_again(opened: Open) -> None:
    rig = opened(seal_bytes=20)
    rig.create("s", OCTETS)
    for size, expected in ((9, [(0, 1)]), (3, [(0, 2)]), (1, [(0, 2), (2, 3)])):
        rig.append("s", b"x" * size)
        rig.publish("s")
        assert spans(rig, "s") == expected


@pytest.mark.parametrize("rule", [{"age_us": 80_000_000}, {"size": 80}])
def test_what_comes_slowly_does_not_keep_alive_what_is_too_old(opened: Open, rule: dict[str, int]) -> None:
    """One byte and one second at a time; were the segment written again for ever, nothing would ever go."""
    rig = opened()
    rig.create("s", OCTETS)
    rig.retain("s", **rule)
    for number in range(300):
        rig.append("s", b"x")
        rig.clock.us += 1_000_000
        if number % 5 == 4:
            rig.publish("s")
            rig.sweep()
    head = rig.find("s").head
    assert 80 <= head.next_seq - head.first_seq <= 80 + 80 // 8 + 5
    assert len(spans(rig, "s")) <= 9


def test_a_segment_written_again_keeps_times_keys_and_requests(opened: Open) -> None:
    rig = opened()
    rig.create("s", JSON)
    start = rig.clock.us
    for key, values in (("a", (1, 2)), (None, (3,)), ("b", (4, 5, 6))):
        rig.append("s", array(*values), key=key)
        rig.clock.us += 7
        rig.publish("s")
    [one] = placed(rig, "s")
    sealed = reader(rig, one)
    found = [sealed.cell(seq) for seq in range(6)]
    assert [key for _, key, _ in found] == ["a", "a", None, "b", "b", "b"]
    assert [at_us - start for at_us, _, _ in found] == [0, 0, 7, 14, 14, 14]
    assert [sealed.request_at(seq) for seq in range(6)] == [(0, 2), (0, 2), (2, 3), (3, 6), (3, 6), (3, 6)]
    assert sealed.info.stream == "s"
    assert sealed.info.incarnation == rig.find("s").incarnation


def test_entries_of_one_request_keep_their_own_keys(opened: Open) -> None:
    rig = opened()
    stream = rig.create("s", JSON)
    rig.run(rig.engine.schemas.apply(stream, SchemaUpdate(routing_key=KeySetting(pointer="/k", required=False))))
    rig.append("s", array({"k": "a"}, {}, {"k": "b"}, {"k": "a"}))
    rig.publish("s")
    [one] = placed(rig, "s")
    assert [reader(rig, one).cell(seq)[1] for seq in range(4)] == ["a", None, "b", "a"]
    assert rig.read("s", key="a") == [b'{"k":"a"}', b'{"k":"a"}']


def test_what_retention_removed_before_it_was_published_is_left_out(opened: Open) -> None:
    rig = opened()
    rig.create("s", OCTETS)
    for body in (b"aa", b"bb", b"cc"):
        rig.append("s", body)
    rig.retain("s", size=2)
    rig.publish("s")
    assert spans(rig, "s") == [(2, 3)]
    assert rig.read("s", 2) == [b"cc"]


def test_nothing_but_a_segment_can_follow_what_retention_left_of_the_last(opened: Open) -> None:
    rig = opened()
    rig.create("s", OCTETS, b"aa")
    rig.publish("s")
    rig.append("s", b"bb")
    rig.retain("s", size=0)
    rig.append("s", b"cc")
    rig.publish("s")
    assert spans(rig, "s")[-1] == (2, 3)
    assert rig.read("s", 2) == [b"cc"]


def test_rows_that_only_a_fork_reads_are_published_for_it(opened: Open) -> None:
    rig = opened()
    rig.create("s", OCTETS)
    for body in (b"a", b"b", b"c", b"d"):
        rig.append("s", body)
    rig.fork("s", "fork", 2)
    rig.retain("s", size=1)
    rig.publish("s")
    assert spans(rig, "s") == [(0, 2), (3, 4)]
    rig.reopen()
    assert rig.read("fork") == [b"ab"]
    assert rig.read("s", 3) == [b"d"]


def test_no_file_is_left_behind(opened: Open, tmp_path: Path) -> None:
    rig = opened(seal_rows=2)
    rig.create("s", JSON)
    _append(rig, "s", 2, 2, 1)
    rig.publish("s")
    assert list((tmp_path / "sealing").iterdir()) == []
