"""Pull-back: where a pointer leads in older versions."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.schema import pointer as pointers
from headrace.schema.lens.ops import Convert, Head, Transform, Wrap
from headrace.schema.lens.pullback import (
    MAX_PARTS,
    Absent,
    ConstantSource,
    Either,
    Rebuild,
    Stored,
    ValueSource,
    pull_back,
)
from schema.lens.wire import add, convert, copy, each, head, hoist, lens, plunge, remove, rename, within, wrap


def source(pointer: str, *ops: dict[str, Any]) -> ValueSource:
    names = pointers.parse(pointer)
    assert names is not None
    return pull_back({1: lens(*ops)}, names, 2)[1]


def stored(pointer: str, *conversions: Any) -> Stored:
    return Stored(pointers.parse(pointer) or (), conversions)


UPPER = Convert(
    path=(),
    from_type="string",
    to_type="string",
    forward=Transform(table={"x": "X"}),
    backward=Transform(table={"X": "x"}),
)


@pytest.mark.parametrize(
    ("pointer", "op", "expected"),
    [
        ("/z", rename("/a", "/b"), stored("/z")),
        ("/b", rename("/a", "/b"), stored("/a")),
        ("/b/c", rename("/a", "/b"), stored("/a/c")),
        ("/a", rename("/a", "/b"), Absent()),
        ("/a/c", rename("/a", "/b"), Absent()),
        ("/a/b", rename("/a/b", "/a"), stored("/a/b/b")),
        ("/b", rename("/a", "/b", optional=True), Either(("a",), stored("/a"), stored("/b"))),
        ("/a", rename("/a", "/b", optional=True), Absent()),
        ("/a", copy("/a", "/b"), stored("/a")),
        ("/b/c", copy("/a", "/b"), stored("/a/c")),
        ("/a/b/x", copy("/a", "/a/b"), stored("/a/x")),
        ("/a", add("/a", None), ConstantSource(None)),
        ("/a/0/x", add("/a", [{"x": 1}]), ConstantSource(1)),
        ("/a/1", add("/a", [{"x": 1}]), Absent()),
        ("/o/a", add("/o/a", 0, optional=True), Either(("o",), ConstantSource(0), Absent())),
        ("/a", remove("/a"), Absent()),
        ("/a/b", remove("/a", optional=True), Absent()),
        ("/n", hoist("/h", "n", "/n"), stored("/h/n")),
        ("/h/n", hoist("/h", "n", "/n"), Absent()),
        ("/h/n", hoist("/h", "n", "/n", removeFromHost=False), stored("/h/n")),
        ("/h/1", hoist("/h", "0", "/n"), stored("/h/1")),
        ("/h/n", plunge("/a", "/h", "n"), stored("/a")),
        ("/h/m", plunge("/a", "/h", "n"), stored("/h/m")),
        ("/a", wrap("/a"), stored("/a", Wrap(path=()))),
        ("/a/0", wrap("/a"), stored("/a")),
        ("/a/0/x", wrap("/a"), stored("/a/x")),
        ("/a/1", wrap("/a"), Absent()),
        ("/a/x", wrap("/a"), Absent()),
        ("/a", head("/a"), stored("/a", Head(path=()))),
        ("/a/x", head("/a"), stored("/a/0/x")),
        ("/a", convert("/a", {"x": "X"}), stored("/a", UPPER)),
        ("/a", convert("/a", {"x": "X"}, optional=True), stored("/a", UPPER)),
        ("/a/x", convert("/a", {"x": "X"}), Absent()),
        ("/o/b", within("/o", rename("/a", "/b")), stored("/o/a")),
        ("/o", within("/o", rename("/a", "")), stored("/o/a")),
        ("/o/b", within("/o", add("/b", 1)), ConstantSource(1)),
        ("/o/b", within("/o", add("/b", 1), optional=True), Either(("o",), ConstantSource(1), Absent())),
        ("/l/3/b", each("/l", rename("/a", "/b")), stored("/l/3/a")),
        ("/l/3/b", each("/l", add("/b", 1)), Either(("l", "3"), ConstantSource(1), Absent())),
        ("/l/0", each("/l", convert("", {"x": "X"})), stored("/l/0", UPPER)),
        ("/l", each("/l"), stored("/l")),
        ("/z", each("/l", wrap("")), stored("/z")),
        ("/l/0", rename("/l/a", "/b"), stored("/l/0")),
        ("/l", rename("/a", "/l/0/x", optional=True), None),
        ("/l/0", rename("/l/1", "/b"), None),
        ("/l/0", remove("/l/0"), None),
        ("/o", rename("/o/a", "/o/b"), None),
        ("/o", add("/o/a", 1), None),
        ("/o", plunge("/a", "/o", "n"), None),
        ("", rename("/a", "/b"), None),
        ("/h", hoist("/h", "n", "/n"), None),
        ("/o", wrap("/o/a"), None),
        ("/l", each("/l", wrap("")), None),
        ("/o", within("/o", remove("/a")), None),
    ],
)
def test_a_pointer_is_traced_through_an_op(pointer: str, op: dict[str, Any], expected: ValueSource | None) -> None:
    assert source(pointer, op) == (expected or Rebuild((lens(op),), pointers.parse(pointer) or ()))


def test_conversions_follow_one_another() -> None:
    ops = [head("/a"), convert("/a", {"x": "X"}), rename("/a", "/b"), wrap("/b")]
    assert source("/b", *ops) == stored("/a", Head(path=()), UPPER, Wrap(path=()))
    assert source("/b", *ops).evaluate(b'{"a":["x","y"]}') == b'["X"]'
    assert source("/b/0", *ops) == stored("/a", Head(path=()), UPPER)


def test_a_constant_is_converted_at_once() -> None:
    assert source("/a", add("/a", "x"), convert("/a", {"x": "X"}), wrap("/a")) == ConstantSource(["X"])


def test_a_constant_that_no_conversion_takes_is_left_to_promotion() -> None:
    ops = [add("/a", "y"), convert("/a", {"x": "X"})]
    assert source("/a", *ops) == Rebuild((lens(*ops),), ("a",))


def test_a_choice_is_settled_where_an_older_op_decides_it() -> None:
    optional = rename("/a", "/b", optional=True)
    assert source("/b", add("/a", 1), optional) == ConstantSource(1)
    assert source("/b", remove("/a"), optional) == stored("/b")
    assert source("/b", rename("/z", "/a", optional=True), optional) == Either(
        ("z",), stored("/z"), Either(("a",), stored("/a"), stored("/b"))
    )


def test_a_choice_asks_nothing_that_an_earlier_one_has_answered() -> None:
    inner = [add("/n", 0), rename("/x", "/n", optional=True)]
    assert source("/o/n", within("/o", *inner, optional=True)) == Either(
        ("o",), Either(("o", "x"), stored("/o/x"), ConstantSource(0)), Absent()
    )
    ops = [rename("/o/z", "/p"), rename("/o", "/p", optional=True)]
    assert source("/p/y", *ops) == Either(("o",), stored("/o/y"), Absent())


def test_whether_a_changed_object_is_there_is_still_known() -> None:
    ops = [rename("/o/x", "/o/y", optional=True), add("/o/z", 0, optional=True)]
    assert source("/o/z", *ops) == Either(("o",), ConstantSource(0), Absent())
    made = [plunge("/a", "/o", "y", optional=True), add("/o/z", 0, optional=True)]
    assert source("/o/z", *made) == Either(("a",), ConstantSource(0), Either(("o",), ConstantSource(0), Absent()))


def test_a_source_does_not_grow_without_bound() -> None:
    ops = [rename(f"/a{n}", "/b", optional=True) for n in range(MAX_PARTS)]
    assert source("/b", *ops) == Rebuild((lens(*ops),), ("b",))
    assert isinstance(source("/b", *ops[1:]), Either)


def test_every_older_version_has_its_source() -> None:
    lenses = {
        1: lens(rename("/a", "/b"), version=1),
        2: lens(version=2),
        3: lens(wrap("/b"), version=3),
        4: lens(rename("/b/0", "/first"), version=4),
    }
    assert pull_back(lenses, ("first",), 5) == {
        5: stored("/first"),
        4: stored("/b/0"),
        3: stored("/b"),
        2: stored("/b"),
        1: stored("/a"),
    }
    assert pull_back(lenses, ("b",), 3) == {3: stored("/b"), 2: stored("/b"), 1: stored("/a")}
    assert pull_back(lenses, ("b",), 5)[1] == Rebuild(tuple(lenses.values()), ("b",))


def test_tracing_ends_at_a_break() -> None:
    assert sorted(pull_back({1: lens(), 3: lens(version=3)}, ("a",), 4)) == [3, 4]


@pytest.mark.parametrize(
    ("source", "document", "value"),
    [
        (stored("/a/b"), b'{"a":{"b":1.0}}', b"1.0"),
        (stored("/a"), b'{"a":{ "b" : 1.0 }}', b'{ "b" : 1.0 }'),
        (stored("/a/b"), b'{"a":7}', None),
        (stored(""), b" 7", b"7"),
        (stored("/a", UPPER), b'{"a":"x"}', b'"X"'),
        (ConstantSource({"a": None}), b"{}", b'{"a":null}'),
        (Absent(), b"{}", None),
        (Either(("a",), stored("/a"), ConstantSource(0)), b'{"a":null}', b"null"),
        (Either(("a",), stored("/a"), ConstantSource(0)), b"{}", b"0"),
        (Rebuild((lens(rename("/o/a", "/o/b")),), ("o",)), b'{"o":{"a":1e5}}', b'{"b":1e5}'),
        (Rebuild((lens(remove("/a")),), ("a", "b")), b'{"a":1}', None),
    ],
)
def test_a_source_is_evaluated_on_a_stored_document(source: ValueSource, document: bytes, value: bytes | None) -> None:
    assert source.evaluate(document) == value
