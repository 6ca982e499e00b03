"""Entries as values, with nothing lost unseen, and how bodies are split."""

from __future__ import annotations

import tracemalloc
from decimal import Decimal
from typing import Any

import pytest

from headrace.errors import BadRequest
from headrace.schema.entries import (
    Failure,
    checked_number,
    entries_of,
    exact_number,
    integer_or_double,
    read,
    slice_json,
    split_json,
)


@pytest.mark.parametrize(
    ("joined", "values"),
    [
        (b"", []),
        (b'{"a":1},[true,null],"x"', [{"a": 1}, [True, None], "x"]),
        (b' {"a" :\t1 } ,\r\n[ ] ', [{"a": 1}, []]),
        (b'{"a":1.50,"b":1e2}', [{"a": 1.5, "b": 100.0}]),
        (b"9007199254740993,18446744073709551617", [9007199254740993, 18446744073709551617]),
    ],
)
def test_entries_are_decoded_however_they_are_spelled(joined: bytes, values: list[Any]) -> None:
    assert read(joined) == (values, [])


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.1", 0.1),
        ("0.10", 0.1),
        ("1E2", 100.0),
        ("1.0", 1.0),
        ("0.1000000000000000055511151231257827", Decimal("0.1000000000000000055511151231257827")),
        ("9007199254740993.0", 9007199254740993),
        ("9007199254740993.5", Decimal("9007199254740993.5")),
        ("1e400", 10**400),
        ("1e4000", Decimal("1e4000")),
        ("-1e-400", Decimal("-1e-400")),
    ],
)
def test_a_number_is_a_float_only_where_that_says_the_same(text: str, number: float | Decimal) -> None:
    (value,), _ = read(text.encode())
    assert type(value) is type(number)
    assert value == number
    assert exact_number(text) == number


@pytest.mark.parametrize(
    ("entry", "pointer"),
    [
        (b'{"a":1,"a":1}', "/a"),
        (b'{"a":1, "b":2, "a" : 1}', "/a"),
        (b'{"a":1,"\\u0061":1}', "/a"),
        (b'{"":1,"":1}', "/"),
        (b'{"a/b":1,"a/b":1}', "/a~1b"),
        (b'{"x":[0,{"y":{"k":1,"k":2}}]}', "/x/1/y/k"),
        (b'{"a":{"k":1,"k":2},"a":{}}', "/a"),
        (b'{"a":":","a":"x"}', "/a"),
        (b'{"a":"\\u003a","a":1}', "/a"),
        (b'{"a":"x:","a":"\\u003a\\u003A"}', "/a"),
        (b'{"a":"\\":","a":"\\":"}', "/a"),
        (b'{"a":1.50,"a":1e5}', "/a"),
        (b'{"a":1,"a":1e400}', "/a"),
        (b'{"a":12345678901234567890123,"a":1}', "/a"),
    ],
)
def test_a_repeated_key_is_found_at_any_depth(entry: bytes, pointer: str) -> None:
    values, failures = read(b'{"a":1},' + entry + b',{"a":":"}')
    assert failures == [Failure(1, pointer, "is a repeated key")]
    assert len(values) == 3


@pytest.mark.parametrize(
    "entry",
    [
        b'{"a":{"a":{"a":1}},"b":[{"a":1},{"a":1}]}',
        b'{"a":"{\\"a\\":1,\\"a\\":2}"}',
        b'{":":":\\":","\\u003a ":"\\u003a"}',
        b'{"a\\\\":1,"a":2,"A":3}',
        b'{"a":"\\u0022:","b":1}',
        b'[":",":"]',
        b'":"',
    ],
)
def test_what_looks_like_a_repeated_key_is_none(entry: bytes) -> None:
    assert read(b'{"a":1.0},' + entry)[1] == []


def test_one_repeated_key_is_named_of_each_entry() -> None:
    _, failures = read(b'{"a":1,"a":2,"b":1,"b":2},{},{"c":1,"c":2}')
    assert [(failure.index, failure.pointer) for failure in failures] == [(0, "/a"), (2, "/c")]


def test_an_entry_that_cannot_be_decoded_does_not_hide_the_others() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    values, failures = read(b"1.50," + b"7" * 5_000 + b',{"a":1,"a":2},1e9999999999999999999,1e400')
    assert values[0] == 1.5
    assert values[4] == 10**400
    assert [failure.index for failure in failures] == [1, 2, 3]
    values, failures = read(b'{"a":1.0}, ' + deep + b',"[",{"a":1,"a":2}')
    assert values[0] == {"a": 1.0}
    assert values[2] == "["
    assert failures == [Failure(1, "", "is nested too deeply"), Failure(3, "/a", "is a repeated key")]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5.0", 5.0),
        ("0.10", 0.1),
        ("9007199254740993.0", 2**53 + 1),
        ("-900719925474099.3e1", -(2**53) - 1),
        ("1e18", 10**18),
        ("9223372036854775807.0", 2**63 - 1),
        ("9223372036854775808.0", 2.0**63),
        ("1e30", 1e30),
        ("0e400", 0.0),
    ],
)
def test_whole_numbers_of_64_bits_keep_their_digits(text: str, number: float) -> None:
    assert integer_or_double(text) == number
    assert type(integer_or_double(text)) is type(number)
    assert checked_number(text) == number


@pytest.mark.parametrize(
    ("text", "nearest"),
    [("9007199254740992.5", 2.0**53), ("1e-400", 0.0), ("1.00000000000000000001", 1.0), ("1e400", float("inf"))],
)
def test_numbers_that_only_look_whole_are_refused(text: str, nearest: float) -> None:
    assert integer_or_double(text) == nearest
    with pytest.raises(ValueError, match=r"digits|range"):
        checked_number(text)


@pytest.mark.parametrize("text", ["1e-99999999999999999999", "0e99999999999999999999"])
def test_numbers_that_no_decimal_is_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="exponent"):
        checked_number(text)


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
