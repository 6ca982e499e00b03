from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import (
    BadRequest,
    NotFound,
    PreconditionFailed,
    ProducerFenced,
    ProducerGap,
    SequenceConflict,
    StreamClosed,
)
from headrace.types import JSON
from support.engine_rig import START_US, Rig, array

MINUTE_US = 60_000_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        rig.create("s", JSON)
        yield rig


def _times(rig: Rig) -> list[int]:
    return [row.append_us for row in rig.engine.wal.scan(rig.find("s").id, 0, 100)]


def test_entries_take_the_next_sequence_numbers(rig: Rig) -> None:
    assert rig.append("s", array("a", "b")).position == 2
    assert rig.append("s", array("c")).position == 3
    assert rig.read("s") == [b'"a"', b'"b"', b'"c"']


def test_append_times_never_go_back(rig: Rig) -> None:
    rig.append("s", array(1))
    rig.clock.us -= MINUTE_US
    rig.append("s", array(2))
    rig.append("s", array(3), timestamp_us=START_US - MINUTE_US)
    assert _times(rig) == [START_US] * 3


def test_history_can_be_imported_in_order_with_its_own_times(rig: Rig) -> None:
    for at in (-5, 17, 17, START_US + MINUTE_US):
        rig.append("s", array(at), timestamp_us=at)
    assert _times(rig) == [-5, 17, 17, START_US + MINUTE_US]


def test_a_time_more_than_a_minute_ahead_is_refused(rig: Rig) -> None:
    with pytest.raises(BadRequest, match="60 s ahead"):
        rig.append("s", array(1), timestamp_us=START_US + MINUTE_US + 1)
    assert rig.find("s").head.next_seq == 0


def test_a_sequence_text_must_increase_byte_by_byte(rig: Rig) -> None:
    rig.append("s", array(1), stream_seq="2")
    for not_after in ("2", "10", ""):
        with pytest.raises(SequenceConflict) as refusal:
            rig.append("s", array(2), stream_seq=not_after)
        assert refusal.value.facts == {"expected_seq": "2", "received_seq": not_after}
    rig.append("s", array(3), stream_seq="é")
    rig.append("s", array(4))
    with pytest.raises(SequenceConflict):
        rig.append("s", array(5), stream_seq="z")


def test_an_append_can_be_made_conditional_on_the_tail(rig: Rig) -> None:
    rig.append("s", array(1), if_match=0)
    with pytest.raises(PreconditionFailed) as refusal:
        rig.append("s", array(2), if_match=0)
    assert refusal.value.facts["next_offset"] == rig.find("s").tail_offset()
    assert rig.append("s", array(2), if_match=1).position == 2


def test_a_producer_counts_from_0_without_gaps_and_repeats_change_nothing(rig: Rig) -> None:
    with pytest.raises(ProducerGap) as gap:
        rig.append("s", array("x"), producer=("p", 0, 1))
    assert gap.value.facts == {"expected_seq": 0, "received_seq": 1}
    rig.append("s", array("a"), producer=("p", 0, 0))
    rig.append("s", array("b"), producer=("p", 0, 1))
    repeat = rig.append("s", array("a"), producer=("p", 0, 0))
    assert repeat.duplicate is True
    assert repeat.producer_last == 1
    assert repeat.position == 2
    with pytest.raises(ProducerGap) as gap:
        rig.append("s", array("d"), producer=("p", 0, 3))
    assert gap.value.facts == {"expected_seq": 2, "received_seq": 3}
    assert rig.read("s") == [b'"a"', b'"b"']


def test_a_newer_epoch_of_a_producer_starts_at_0_and_fences_the_older(rig: Rig) -> None:
    rig.append("s", array("a"), producer=("p", 0, 0))
    with pytest.raises(BadRequest, match="starts at Producer-Seq 0"):
        rig.append("s", array("x"), producer=("p", 1, 1))
    rig.append("s", array("b"), producer=("p", 1, 0))
    with pytest.raises(ProducerFenced) as fenced:
        rig.append("s", array("x"), producer=("p", 0, 1))
    assert fenced.value.facts == {"producer_epoch": 1}


def test_a_refused_append_leaves_its_producer_where_it_was(rig: Rig) -> None:
    with pytest.raises(PreconditionFailed):
        rig.append("s", array("x"), producer=("p", 0, 0), if_match=9)
    assert not rig.append("s", array("a"), producer=("p", 0, 0)).duplicate


def test_a_repeat_is_answered_before_its_other_conditions_are_looked_at(rig: Rig) -> None:
    rig.append("s", array("a"), producer=("p", 0, 0), stream_seq="1", if_match=0)
    assert rig.append("s", array("a"), producer=("p", 0, 0), stream_seq="1", if_match=0).duplicate


def test_producers_are_remembered_over_a_restart(rig: Rig) -> None:
    rig.append("s", array("a"), producer=("p", 3, 0))
    rig.reopen()
    assert rig.append("s", array("a"), producer=("p", 3, 0)).duplicate
    assert not rig.append("s", array("b"), producer=("p", 3, 1)).duplicate


def test_a_closed_stream_takes_nothing_more_and_confirms_its_closing(rig: Rig) -> None:
    rig.append("s", array("last"), close=True)
    with pytest.raises(StreamClosed) as refusal:
        rig.append("s", array("x"))
    assert refusal.value.facts["next_offset"] == rig.find("s").tail_offset()
    assert rig.append("s", close=True).position == 1
    with pytest.raises(StreamClosed):
        rig.append("s", array("last"), close=True)


def test_only_the_closing_request_of_a_producer_can_be_repeated(rig: Rig) -> None:
    rig.append("s", array("last"), close=True, producer=("p", 0, 0))
    rig.reopen()
    assert rig.append("s", array("last"), close=True, producer=("p", 0, 0)).duplicate
    for other in (("p", 0, 1), ("p", 1, 0), ("q", 0, 0)):
        with pytest.raises(StreamClosed):
            rig.append("s", array("x"), close=True, producer=other)
    assert rig.read("s") == [b'"last"']


def test_an_append_to_a_stream_that_was_deleted_meanwhile_is_refused(rig: Rig) -> None:
    stale = rig.find("s")
    rig.delete("s")
    with pytest.raises(NotFound):
        rig.settle(lambda done: rig.append_to(stale, array(1), done))
    assert stale.pins == 0
