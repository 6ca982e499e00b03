"""Bodies are cut where their entries end, natively where they are plain objects, and never anywhere else."""

from __future__ import annotations

import pytest

from headrace.format.segment.row_group import cut, cut_keys
from headrace.schema.entries import entries_of, split_json


def _entries(*bodies: bytes) -> list[str]:
    joined, counts = zip(*map(split_json, bodies), strict=True)
    found: list[str] = cut(joined, counts, entries_of).to_pylist()
    return found


def _refuse(body: bytes) -> list[bytes]:
    raise AssertionError(f"{body!r} is not cut natively")


@pytest.mark.parametrize(
    ("bodies", "counts"),
    [
        ([b"{}"], [1]),
        ([b'{"a":1},{"b":[1,2]}', b"{}", b'{"c":"x,y"},{"d":null},{"e":"[\\""}'], [2, 1, 3]),
        (['{"größe":"✓"},{}'.encode()], [2]),
    ],
)
def test_plain_objects_are_cut_natively(bodies: list[bytes], counts: list[int]) -> None:
    wanted = [bytes(memoryview(entry)).decode() for body in bodies for entry in entries_of(body)]
    assert cut(bodies, counts, _refuse).to_pylist() == wanted


@pytest.mark.parametrize(
    "body",
    [
        b'[{"a":{}},{"b":1}]',
        b'[{"a":[{},{}]},1,{}]',
        b'[{"a":"},{"}]',
        b'[{"a":"},{"},1,{}]',
        b'[{"a":"},{","b":1},{"c":"}"},{"d":"{"}]',
        b'[{"a":"{"},{"b":"}"}]',
        b'[{}, {}]',
        b'[ {},{}]',
        b'[{},{} ]',
        b'[{} ,{}]',
        b'[{},[{},{},{}],{}]',
        b'[{},1]',
        b'[1,{}]',
        b'[1,2]',
        b'["{","}"]',
        b'[[{},{}]]',
        b' {"a":1} ',
        b'["},{"]',
    ],
)  # fmt: skip
def test_what_is_not_plain_is_cut_rightly_too(body: bytes) -> None:
    wanted = [bytes(memoryview(entry)).decode() for entry in entries_of(split_json(body)[0])]
    assert _entries(body) == wanted
    assert _entries(b"{}", body, b'[{"x":1},{"y":2}]') == ["{}", *wanted, '{"x":1}', '{"y":2}']
    assert _entries(body, b"{}") == [*wanted, "{}"]


def test_a_body_that_holds_other_than_was_said_is_refused() -> None:
    with pytest.raises(ValueError, match="bodies of 3 entries hold 2"):
        cut([b"{},{}"], [3], entries_of)


def test_keys_without_escapes_are_cut_natively() -> None:
    lists = ['["a","größe",""]'.encode(), b'["x,y]"]']
    assert cut_keys(lists, 4).to_pylist() == ["a", "größe", "", "x,y]"]


@pytest.mark.parametrize("text", [b'["a",null]', b"[null]", rb'["a\"b"]', rb'["\u00e9"]', rb'["\\",null,null]', b"[]"])
def test_keys_that_are_missing_or_escaped_are_left_to_others(text: bytes) -> None:
    assert cut_keys([text], text.count(b",") + 1) is None
