from __future__ import annotations

import pytest

from headrace.engine.log.stream import Stream
from headrace.errors import OffsetFenced, OffsetGone
from headrace.format.offset import START, Offset, encode
from headrace.storage.streams import StreamRow


def _stream(**facts: object) -> Stream:
    """A fork whose first three entries are of epoch 4, and the next two of its own epoch 7."""
    row = StreamRow(name="s", content_type="text/plain", created_us=0, epochs="[[4,0],[7,3]]", next_seq=5)
    for name, value in facts.items():
        setattr(row, name, value)
    return Stream(row, ())


def test_an_offset_carries_the_epoch_in_which_its_entry_was_written() -> None:
    stream = _stream()
    assert stream.offset_at(0) == START
    assert stream.offset_at(3) == encode(4, 3)
    assert stream.offset_at(4) == encode(7, 4)
    assert stream.tail_offset() == encode(7, 5)


def test_offsets_of_every_epoch_are_located_within_its_range() -> None:
    stream = _stream()
    assert [stream.locate(Offset(4, n)) for n in (1, 2, 3)] == [1, 2, 3]
    assert [stream.locate(Offset(7, n)) for n in (4, 5)] == [4, 5]


@pytest.mark.parametrize("foreign", [Offset(4, 4), Offset(7, 3), Offset(7, 1), Offset(5, 1), Offset(8, 6)])
def test_an_offset_outside_the_range_of_its_epoch_is_fenced(foreign: Offset) -> None:
    with pytest.raises(OffsetFenced):
        _stream().locate(foreign)


def test_beyond_the_end_of_the_current_epoch_is_the_tail() -> None:
    assert _stream().locate(Offset(7, 1000)) == 5


def test_the_start_is_the_first_retained_entry_and_what_lies_before_it_is_gone() -> None:
    stream = _stream(first_seq=2)
    assert stream.locate(Offset(0, 0)) == 2
    assert stream.locate(Offset(4, 2)) == 2
    with pytest.raises(OffsetGone) as refusal:
        stream.locate(Offset(4, 1))
    assert refusal.value.facts["earliest_offset"] == encode(4, 2)


def test_a_draft_does_not_touch_the_head_it_was_made_from() -> None:
    stream = _stream(closed=1, closed_by='["p",0,3]', stream_seq="x", last_us=9, bytes=11, first_seq=1, first_bytes=2)
    head, draft = stream.head, stream.head.copy()
    assert {name: getattr(draft, name) for name in draft.__slots__} == {n: getattr(head, n) for n in head.__slots__}
    draft.next_seq = 99
    assert head.next_seq == 5
    assert head.closed_by == ("p", 0, 3)


@pytest.mark.parametrize(
    ("content_type", "is_json", "is_text"),
    [
        ("application/json", True, True),
        ("Application/JSON; charset=utf-8", True, True),
        ("text/csv", False, True),
        ("application/octet-stream", False, False),
    ],
)
def test_the_media_type_decides_how_entries_are_treated(content_type: str, is_json: bool, is_text: bool) -> None:
    stream = _stream(content_type=content_type)
    assert stream.is_json == is_json
    assert stream.is_text == is_text
    assert stream.content_type == content_type
