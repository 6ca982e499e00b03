"""Splitting a JSON body, held against Python's own parser."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.errors import BadRequest
from headrace.schema.entries import entries_of, slice_json, split_at_commas, split_json

DEEPEST = 100

# Numbers are generated as text, because no Python number can spell all of them.
digits = st.text("0123456789", min_size=1, max_size=40)
whole = st.sampled_from(["0", "-0"]) | st.builds("{}{}".format, st.sampled_from(["1", "-9"]), digits)
numbers = st.builds(
    "{}{}{}".format,
    whole,
    st.just("") | digits.map(lambda d: "." + d),
    st.just("") | st.builds("{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), digits),
)
strings = st.builds(json.dumps, st.text(), ensure_ascii=st.booleans())
strings |= st.sampled_from([r'"\ud83d\ude00"', r'"\/\b\f\n\r\t\u00Ff"', '"\u2028\x7f"', '"]"', '"[,"', r'"\\\""'])
blanks = st.text(" \t\r\n", max_size=3)


def _padded(text: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds("{}{}{}".format, blanks, text, blanks)


def _arrays(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        blanks.map(lambda blank: f"[{blank}]"), st.lists(_padded(items), min_size=1).map(lambda i: f"[{','.join(i)}]")
    )


def _objects(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.builds("{}:{}".format, _padded(strings), _padded(items))
    return st.lists(members).map(lambda m: "{" + ",".join(m) + "}")


values = st.recursive(
    st.sampled_from(["null", "true", "false"]) | numbers | strings, lambda v: _arrays(v) | _objects(v), max_leaves=12
)
deep = st.integers(1, DEEPEST).map(lambda n: "[" * n + "7" + "]" * n)
documents = _padded(values | deep | _arrays(values))


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def parsed(body: bytes) -> Any:
    """What strict JSON makes of a body; numbers stay as they were spelled, and half a surrogate pair is no text."""
    value = json.loads(
        body.decode(), parse_int=lambda n: f"#{n}", parse_float=lambda n: f"#{n}", parse_constant=_refuse
    )
    json.dumps(value, ensure_ascii=False).encode()
    return value


def entries(body: bytes) -> list[Any]:
    value = parsed(body)
    return value if isinstance(value, list) else [value]


def is_json(body: bytes) -> bool:
    try:
        parsed(body)
    except ValueError:
        return False
    return True


@given(documents)
def test_splitting_keeps_every_entry_as_it_was_spelled(document: str) -> None:
    body = document.encode()
    joined, count = split_json(body)
    assert count == len(entries(body))
    assert joined in body
    assert parsed(b"[" + joined + b"]") == entries(body)
    assert [parsed(bytes(memoryview(entry))) for entry in entries_of(joined)] == entries(body)


@given(st.lists(values, max_size=8), blanks)
def test_an_array_splits_into_exactly_the_texts_it_was_made_of(texts: list[str], blank: str) -> None:
    joined, count = split_json(f"{blank}[{f'{blank},{blank}'.join(texts)}]{blank}".encode())
    assert count == len(texts)
    assert [bytes(memoryview(entry)).decode() for entry in entries_of(joined)] == texts


@given(st.lists(values, min_size=1, max_size=8), st.data())
def test_a_slice_holds_the_entries_of_its_range(texts: list[str], data: st.DataObject) -> None:
    joined, count = split_json(f"[{','.join(texts)}]".encode())
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    assert slice_json(joined, start, stop).decode() == ",".join(texts[start:stop])


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A document with a few bytes replaced, removed or inserted."""
    body = bytearray(draw(documents).encode())
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(body)))
        body[at : at + draw(st.integers(0, 2))] = draw(st.sampled_from(TELLING) | st.binary(max_size=2))
    return bytes(body)


TELLING = [bytes([c]) for c in b'\x00\x1f\x7f\x80\xc3\xff"\\,:[]{}0-+.eE \t\n\x0b\x0cuNt'] + [
    b"\xef\xbb\xbf",
    b"\\u",
    b"//",
]


@given(damaged() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode))
@example(b"")
@example(b"  ")
@example(b"\xef\xbb\xbf[1]")
@example("[1]".encode("utf-16"))
@example(b"NaN")
@example(b"[Infinity]")
@example(b"01")
@example(b"[1,]")
@example(b"[1]]")
@example(b"1 2")
@example(b'"\x01"')
@example(b'"\\x"')
@example(b'"\\ud800"')
@example(b'{"\\ude00\\ud83d":[]}')
@example(b'[[{"a":"\\ud83d\\u0041"}]]')
@example(b'"\\u12"')
@example(b'"\xed\xa0\x80"')
@example(b'{"a":1,}')
@example(b"[1.]")
@example(b"[.5]")
@example(b"[-]")
@example(b"[1e]")
@example(b"+1")
@example(b"1\x0b")
def test_a_body_is_accepted_exactly_where_it_is_strict_json(body: bytes) -> None:
    try:
        split_json(body)
        accepted = True
    except BadRequest:
        accepted = False
    assert accepted == is_json(body)


@given(st.sampled_from(["[", '{"a":']), st.integers(DEEPEST, 2_000) | st.integers(2_000, 200_000))
def test_nesting_without_bound_is_refused_and_what_is_accepted_can_be_read(opening: str, depth: int) -> None:
    closing = {"[": "]", '{"a":': "}"}[opening]
    body = (opening * depth + "1" + closing * depth).encode()
    try:
        joined, count = split_json(body)
    except BadRequest as refusal:
        assert "nested" in refusal.message
    else:
        assert count == len(_further_down_the_stack(60, joined)) == 1


def _further_down_the_stack(frames: int, joined: bytes) -> list[Any]:
    return list(entries_of(joined)) if not frames else _further_down_the_stack(frames - 1, joined)


@given(st.lists(values, min_size=1))
def test_the_slow_way_finds_the_same_entries_as_the_quick_one(texts: list[str]) -> None:
    joined = ",".join(texts).encode()
    assert [bytes(entry) for entry in split_at_commas(joined)] == [bytes(entry) for entry in entries_of(joined)]


def test_entries_too_deep_for_the_decoder_are_split_all_the_same() -> None:
    deep = b"[" * 50_000 + b"]" * 50_000
    entries = entries_of(deep + b', {"a": "],["} ,' + deep)
    assert [bytes(entry) for entry in entries] == [deep, b'{"a": "],["}', deep]
