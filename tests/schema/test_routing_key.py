"""Routing keys by a pointer into each entry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.schema.entries import Failure
from headrace.schema.pointer import parse
from headrace.schema.routing_key import RoutingKey


def keys(pointer: str, joined: bytes, *, required: bool = False) -> tuple[list[str | None], list[Failure]]:
    place = parse(pointer)
    assert place is not None
    return RoutingKey(place, required).keys(joined)


def spelled(*values: Any) -> bytes:
    return ",".join(json.dumps(value) for value in values).encode()


@pytest.mark.parametrize(
    ("pointer", "entry", "key"),
    [
        ("/id", {"other": 1, "id": "k"}, "k"),
        ("/a/b", {"a": {"b": "k", "c": 2}}, "k"),
        ("/a/0", {"a": ["k", 2]}, "k"),
        ("/a/1/b", {"a": [0, {"b": "k"}]}, "k"),
        ("/0", {"0": "k"}, "k"),
        ("/0", ["k"], "k"),
        ("/", {"": "k"}, "k"),
        ("/a~1b/m~0n", {"a/b": {"m~n": "k"}}, "k"),
        ('/a"b', {'a"b': "k"}, "k"),
        ("/a\\b", {"a\\b": "k"}, "k"),
        ("/é", {"é": "ü"}, "ü"),
        ("", "k", "k"),
        ("/id", {"id": "x" * 512}, "x" * 512),
        ("/id", {"id": "😀" * 128}, "😀" * 128),
    ],
)
@pytest.mark.parametrize("required", [True, False])
def test_the_key_is_what_the_pointer_leads_to(pointer: str, entry: Any, key: str, required: bool) -> None:
    assert keys(pointer, spelled(entry, entry), required=required) == ([key, key], [])


@pytest.mark.parametrize(
    ("pointer", "entry"),
    [
        ("/id", {}),
        ("/id", {"ID": "k"}),
        ("/id", []),
        ("/id", "id"),
        ("/id", None),
        ("/a/b", {"a": {}}),
        ("/a/b", {"a": None}),
        ("/a/b", {"a": "b"}),
        ("/a/1", {"a": ["k"]}),
        ("/a/00", {"a": ["k"]}),
        ("/a/b/c", {"b": {"c": "k"}}),
    ],
)
def test_a_missing_key_is_none_unless_it_is_required(pointer: str, entry: Any) -> None:
    assert keys(pointer, spelled(entry)) == ([None], [])
    assert keys(pointer, spelled(entry), required=True)[1] == [Failure(0, pointer, "routing key missing")]


@pytest.mark.parametrize("value", [None, 1, 1.5, True, [], {}, ["k"]])
@pytest.mark.parametrize("pointer", ["/id", "/0/id"])
def test_a_key_that_is_no_string_is_refused(pointer: str, value: Any) -> None:
    entry = {"id": value} if pointer == "/id" else [{"id": value}]
    for required in (True, False):
        assert keys(pointer, spelled(entry), required=required)[1] == [
            Failure(0, pointer, "routing key must be string")
        ]


@pytest.mark.parametrize("value", ["", "x" * 513, "😀" * 129, "é" * 257])
def test_a_key_that_is_empty_or_too_long_is_refused(value: str) -> None:
    assert keys("/id", spelled({"id": value}))[1] == [Failure(0, "/id", "routing key must have 1 to 512 bytes")]


def test_entries_that_fail_are_named_among_those_that_do_not() -> None:
    found = keys("/id", spelled({"id": "a"}, {}, {"id": 7}, {"id": "b"}, {"id": ""}), required=True)
    assert found[0] == ["a", None, None, "b", None]
    assert [failure.index for failure in found[1]] == [1, 2, 4]


def test_the_failures_named_are_bounded() -> None:
    assert len(keys("/id", spelled(*[{}] * 100), required=True)[1]) == 20


def test_no_entries_have_no_keys() -> None:
    assert keys("/id", b"", required=True) == ([], [])


def test_the_spelling_of_names_and_numbers_does_not_matter() -> None:
    entry = b'{ "n" : ' + b"9" * 5_000 + b', "\\u0069d" : "\\u006b" }'
    assert keys("/id", entry) == (["k"], [])
    assert keys("/id", entry + b",[]") == (["k", None], [])


def test_nesting_beyond_the_decoder_is_a_failure() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    found = keys("/id", b'{"id":"a"},{"id":"b","more":' + deep + b'},{"id":"c"},' + deep)
    assert found == (["a", None, "c", None], [Failure(1, "", "is nested too deeply")])
