from __future__ import annotations

import tracemalloc

import pytest

from headrace.errors import BadRequest
from headrace.schema.entries import entries_of, slice_json, split_json


@pytest.mark.parametrize(
    ("body", "joined", "count"),
    [
        (b'{"a": 1}', b'{"a": 1}', 1),
        (b"[1, 2]", b"1, 2", 2),
        (b"[[1,2],[3]]", b"[1,2],[3]", 2),
        (b"[[[1]]]", b"[[1]]", 1),
        (b"[]", b"", 0),
        (b" [ ] ", b"", 0),
        (b" \n[1]\t", b"1", 1),
        (b' "text" ', b'"text"', 1),
        ('["é"]'.encode(), '"é"'.encode(), 1),
    ],
)
def test_an_array_is_flattened_one_level_and_spelling_is_kept(body: bytes, joined: bytes, count: int) -> None:
    assert split_json(body) == (joined, count)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1,]", "not JSON"),
        (b"NaN", "not JSON"),
        (b"\xef\xbb\xbf1", "not JSON"),
        (b'"\xff"', "not UTF-8: byte 1"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_not_json_is_refused_with_the_reason(body: bytes, why: str) -> None:
    with pytest.raises(BadRequest, match=why) as refusal:
        split_json(body)
    assert refusal.value.facts == {"field": "body"}


def test_entries_come_apart_again_exactly_as_they_were_spelled() -> None:
    joined, _ = split_json(b'[ 1.0e0 , "a,b" ,[ ],{"k" : 2} ]')
    assert [bytes(memoryview(entry)) for entry in entries_of(joined)] == [b"1.0e0", b'"a,b"', b"[ ]", b'{"k" : 2}']
    assert slice_json(joined, 1, 3) == b'"a,b",[ ]'


@pytest.mark.parametrize("text", [b"a", rb"\n"])
def test_a_long_text_deep_inside_an_entry_is_cut_in_a_few_times_its_size(text: bytes) -> None:
    joined = b"[" * 5_000 + b'"' + text * 1_000_000 + b'"' + b"]" * 5_000
    tracemalloc.start()
    try:
        entries = entries_of(joined)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [bytes(memoryview(entry)) for entry in entries] == [joined]
    assert most < 5 * len(joined)
