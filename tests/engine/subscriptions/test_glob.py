from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.subscriptions.glob import Glob


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("events/*", "events/a", True),
        ("events/*", "events", False),
        ("events/*", "events/a/b", False),
        ("events/**", "events", True),
        ("events/**", "events/a/b", True),
        ("events/**", "eventsa", False),
        ("**", "anything/at/all", True),
        ("**/log", "log", True),
        ("**/log", "a/b/log", True),
        ("**/log", "a/b/logs", False),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/z/z", True),
        ("a/*/**/z", "a/z", False),
        ("exact", "exact", True),
        ("exact", "exact/a", False),
        ("a/%2A", "a/*", True),
        ("a/%2A", "a/b", False),
        ("/a/", "a", True),
        ("**", "entities/a", False),
        ("*/a", "entities/a", False),
        ("entities/*", "entities/a", True),
        ("**", "entities-a", True),
        ("**", "__registry__", False),
        ("__registry__", "__registry__", True),
    ],
)
def test_a_star_is_one_segment_and_two_are_any_number(pattern: str, name: str, fits: bool) -> None:
    assert Glob(pattern).matches(name) is fits


@pytest.mark.parametrize("pattern", ["", "/", "user-*", "a/***", "a*/b"])
def test_patterns_that_would_match_by_surprise_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError):
        Glob(pattern)


@pytest.mark.parametrize(
    ("pattern", "prefix", "takes_all_below"),
    [
        ("a/b", "a/b", False),
        ("a/*", "a/", False),
        ("a/**", "a", True),
        ("a/**/**", "a", True),
        ("a/**/x", "a/", False),
        ("a/*/**", "a/", False),
        ("**", "", False),
        ("*/a", "", False),
    ],
)
def test_every_match_begins_with_the_prefix(pattern: str, prefix: str, takes_all_below: bool) -> None:
    glob = Glob(pattern)
    assert glob.prefix == prefix
    assert glob.takes_all_below == takes_all_below


_SEGMENT = st.sampled_from(["a", "b", "ab"])
_PATTERN = st.lists(st.one_of(_SEGMENT, st.sampled_from(["*", "**"])), min_size=1, max_size=6)


@given(_PATTERN, st.lists(_SEGMENT, min_size=1, max_size=6))
def test_matching_agrees_with_a_regular_expression(parts: list[str], segments: list[str]) -> None:
    kinds = {"*": "/[^/]+", "**": "(?:/[^/]+)*"}
    oracle = "".join(kinds.get(part, f"/{part}") for part in parts)
    glob, name = Glob("/".join(parts)), "/".join(segments)
    assert glob.matches(name) == bool(re.fullmatch(oracle, "/" + name))
    assert not glob.matches(name) or name.startswith(glob.prefix)


def test_a_hostile_pattern_is_matched_quickly() -> None:
    assert not Glob("**/a/" * 60 + "b").matches("a/" * 250 + "c")
