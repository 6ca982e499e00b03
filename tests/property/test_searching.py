"""Searches find what the oracle finds, whatever the events, their versions, and how far indexing has come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.search.oracle import expected
from engine.search.searches import Searched
from headrace.format.companion.layout import Limits
from headrace.query.syntax import text
from headrace.query.tree import And, Compare, Contains, Has, Node, Not, Or, Phrase, Term
from headrace.query.values import words
from support.engine_rig import Rig

SMALL = Limits(rows=3, postings=4, terms=3, filtered=2)

letters = st.text("aAbBσΣİ 1", max_size=4)
phrases = st.lists(st.sampled_from(["ab", "Abc", "b", "σ", "a1", "zz"]), min_size=1, max_size=4).map(" ".join)
small = st.integers(-3, 3)
huge = st.sampled_from([2**63 - 1, -(2**63), 2**63, -(2**70)])
integers = small | huge
floats = st.floats(-3, 3, allow_nan=False).map(lambda number: round(number, 1)) | st.sampled_from([0.0, -0.0, 1e308])
signs = st.sampled_from(["<", "<=", ">", ">="])
string_fields = st.sampled_from(["message", "why", None])
questions: st.SearchStrategy[Node] = st.one_of(
    st.sampled_from(["status", "tags", "message", "service", "time", "error", "duration", "why"]).map(Has),
    st.builds(Compare, st.sampled_from(["status", "time"]), signs, integers.map(str)),
    st.builds(Compare, st.just("duration"), signs, floats.map(repr)),
    st.builds(Phrase, st.sampled_from(["status", "level"]), integers.map(str)),
    st.builds(Phrase, st.just("duration"), floats.map(repr)),
    st.builds(Phrase, st.just("error"), st.sampled_from(["true", "false"])),
    st.builds(Phrase, st.sampled_from(["service", "tags"]), letters),
    st.builds(Phrase, st.just("service"), letters.filter(bool), st.just(True)),
    st.builds(Contains, st.sampled_from(["message", "path", None]), letters.filter(bool)),
)


def branches(parts: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(parts, min_size=2, max_size=3).map(tuple)
    return st.builds(And, several) | st.builds(Or, several) | st.builds(Not, parts)


texts: st.SearchStrategy[Node] = st.one_of(
    st.builds(Term, string_fields, st.sampled_from(["ab", "b", "σ", "zz", "a", "A1", "ab-b", "abc"]), st.booleans()),
    st.builds(Phrase, st.sampled_from(["message", None]), phrases.filter(words), st.booleans()),
)
queries = st.recursive(texts, branches, max_leaves=3) | st.recursive(texts | questions, branches, max_leaves=5)
# Few events have numbers that no column can hold: those are looked at one by one.
numbers = small | small | floats | small.map(str) | st.sampled_from([None, True, "ab", 2**63 - 1, -(2**63)])
rare = st.integers(0, 19).flatmap(lambda chance: huge if not chance else numbers)
strings = phrases | letters | st.none()


def several(one: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return one | st.lists(one | st.lists(one, max_size=2), max_size=3)


PLACES = {
    "time": st.integers(0, 9),
    "service": several(strings),
    "path": several(strings),
    "request": several(strings),
    "tags": several(strings),
    "duration": several(numbers),
    "error": several(st.booleans() | strings),
    "why": several(phrases | strings),
    "level": several(rare),
}
NAMED = [("code", "body"), ("code", "message"), ("http", "message")]


def events(version: int) -> st.SearchStrategy[dict[str, Any]]:
    status, message = NAMED[version - 1]
    inside = st.fixed_dictionaries({}, optional={"status": several(rare)})
    named = {status: inside if status == "http" else several(rare), message: several(phrases | strings)}
    return st.fixed_dictionaries({}, optional={**PLACES, **named})


appends = st.tuples(*(st.lists(st.lists(events(version), min_size=1, max_size=6), max_size=3) for version in (1, 2, 3)))
keys = st.sampled_from(["_score", "time", "status", "duration", "service", "error", "tags", "ts", "offset"])
orders = st.lists(st.tuples(keys, st.sampled_from(["", ":asc", ":desc"])).map("".join), max_size=3)
requests = st.fixed_dictionaries(
    {"q": queries.map(text), "size": st.integers(1, 7)}, optional={"sort": orders, "track_total_hits": st.booleans()}
)


def compare(stream: Searched, request: dict[str, Any]) -> None:
    pages = stream.pages(**request)
    wanted = expected(stream.search, stream.documents(), pages[0].request)
    found = [hit for page in pages for hit in page.found.hits]
    assert [hit.seq for hit in found] == [seq for seq, _ in wanted], request
    for hit, (seq, place) in zip(found, wanted, strict=True):
        assert hit.sort[:-1] == list(place[:-1]) and hit.sort[-1] == stream.stream.offset_at(seq + 1)
    assert all(not page.found.timed_out and not page.found.missing.events for page in pages)
    if request.get("track_total_hits"):
        assert [page.found.total for page in pages] == [len(wanted)] * len(pages)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("rig")) as opened:
        yield opened


def fill(stream: Searched, versions: tuple[list[list[Any]], ...], data: st.DataObject) -> None:
    """Append events in every version; in between some are published, described in files, or asked for."""
    for number, batches in enumerate(versions):
        if number:
            stream.evolve()
        for batch in batches:
            stream.append(*batch)
            step = data.draw(st.sampled_from(["", "", "publish", "index", "index", "ask"]))
            if step == "publish":
                stream.rig.publish(stream.name)
            elif step == "index":
                end = stream.stream.head.next_seq
                start, stop = sorted(data.draw(st.tuples(st.integers(0, end), st.integers(0, end))))
                if start < stop:
                    stream.index(start, stop, SMALL)
            elif step == "ask":
                stream.ask("has:time")


@settings(max_examples=60)
@given(appends, st.lists(requests, min_size=6, max_size=12), st.data())
def test_every_page_of_every_search_is_what_the_oracle_says(
    rig: Rig, versions: tuple[list[list[Any]], ...], asked: list[dict[str, Any]], data: st.DataObject
) -> None:
    stream = Searched(rig)
    fill(stream, versions, data)
    for request in asked:
        compare(stream, request)
