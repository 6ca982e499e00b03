from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.engine.log import read as reading
from headrace.engine.log.batch import Batch
from headrace.errors import CorruptData
from headrace.types import JSON, NEVER_US, OCTETS
from support.engine_rig import Rig, array


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


def _page(rig: Rig, name: str, position: int, budget: int, key: str | None = None) -> tuple[list[bytes], int]:
    stream = rig.find(name)
    parts, following = rig.engine.log.read(stream, stream.head, position, budget=budget, key=key)
    return parts, following


def test_whole_requests_are_read_as_they_are_stored(rig: Rig) -> None:
    rig.create("s", JSON, b"[ 1 , 2 ]")
    rig.append("s", array(3))
    assert _page(rig, "s", 0, 100) == ([b" 1 , 2 ", b"3"], 3)


def test_a_position_inside_a_request_and_a_budget_cut_it(rig: Rig) -> None:
    rig.create("s", JSON, array(10, 20, 30, 40))
    assert _page(rig, "s", 1, 100) == ([b"20,30,40"], 4)
    assert _page(rig, "s", 0, 5) == ([b"10,20"], 2)
    assert _page(rig, "s", 2, 1) == ([b"30"], 3)


def test_an_entry_larger_than_the_budget_is_read_alone(rig: Rig) -> None:
    rig.create("s", OCTETS, b"x" * 100)
    rig.append("s", b"y")
    assert _page(rig, "s", 0, 10) == ([b"x" * 100], 1)
    assert _page(rig, "s", 1, 10) == ([b"y"], 2)


def test_at_the_tail_there_is_nothing_and_the_position_stays(rig: Rig) -> None:
    rig.create("s", OCTETS, b"x")
    assert _page(rig, "s", 1, 10) == ([], 1)
    assert _page(rig, "s", 7, 10) == ([], 1)


def test_a_keyed_read_skips_to_the_tail_where_no_more_entries_have_the_key(rig: Rig) -> None:
    rig.create("s", OCTETS)
    for body, key in ((b"a", "k"), (b"b", None), (b"c", "k"), (b"d", "other")):
        rig.append("s", body, key=key)
    assert _page(rig, "s", 0, 1, "k") == ([b"a"], 1)
    assert _page(rig, "s", 1, 10, "k") == ([b"c"], 4)
    assert _page(rig, "s", 3, 10, "k") == ([], 4)


def test_what_was_committed_after_a_head_is_not_part_of_it(rig: Rig) -> None:
    rig.create("s", OCTETS, b"x")
    stream = rig.find("s")
    head = stream.head
    rig.append("s", b"y")
    assert rig.engine.log.read(stream, head, 0, budget=100) == ([b"x"], 1)


def test_an_old_head_leads_to_what_was_sealed_since(rig: Rig) -> None:
    rig.create("s", JSON, array(1, 2))
    rig.publish("s")
    rig.append("s", array(3))
    stream = rig.find("s")
    head = stream.head
    rig.publish("s")
    rig.append("s", array(4))

    def page(position: int) -> tuple[list[bytes], int]:
        return rig.ask(lambda: rig.engine.log.read(stream, head, position, budget=100))

    assert page(0) == ([b"1,2,3"], 3)
    assert page(2) == ([b"3"], 3)


def lose(rig: Rig, name: str, seq: int) -> None:
    """Remove the row of one entry."""
    stream = rig.find(name).id

    def perform(batch: Batch) -> None:
        batch.wal.trim(stream, seq, seq + 1, 1)

    rig.run(rig.engine.apply(perform))


def test_a_page_ends_before_an_entry_that_is_missing_and_the_next_one_says_so(rig: Rig) -> None:
    rig.create("s", JSON, array(1, 2))
    for number in (3, 4, 5):
        rig.append("s", array(number))
    lose(rig, "s", 3)
    assert _page(rig, "s", 0, 100) == ([b"1,2", b"3"], 3)
    with pytest.raises(CorruptData, match="entry 3 of 's' is missing"):
        _page(rig, "s", 3, 100)
    assert _page(rig, "s", 4, 100) == ([b"5"], 5)
    lose(rig, "s", 4)
    with pytest.raises(CorruptData, match="entry 4 of 's' is missing"):
        _page(rig, "s", 4, 100)


def test_bytes_and_time_before_a_position_are_those_of_the_entries_before_it(rig: Rig) -> None:
    rig.create("s", JSON)
    rig.append("s", array(10, 20), timestamp_us=5)
    rig.append("s", array(30), timestamp_us=9)
    stream = rig.find("s")
    facts = [
        (
            reading.bytes_before(rig.engine.tiers, stream, stream.head, p),
            reading.time_before(rig.engine.tiers, stream, stream.head, p),
        )
        for p in range(4)
    ]
    assert facts == [(0, NEVER_US), (2, 5), (5, 5), (7, 9)]


def test_seeking_stops_where_a_fork_cut_the_request_of_its_source(rig: Rig) -> None:
    rig.create("s", JSON)
    rig.append("s", array(*range(10)), timestamp_us=5)
    rig.fork("s", "fork", 4)
    rig.append("fork", array("own"), timestamp_us=9)
    rig.append("fork", array("more"), timestamp_us=11)
    assert [rig.engine.log.seek(rig.find("fork"), at) for at in (5, 6, 9, 10, 12)] == [0, 4, 4, 5, 6]
