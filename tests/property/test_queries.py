"""The laws of the query language: what is printed is read back, what is checked can be run, logic is logic."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.query import predicate, search_document
from headrace.query.check import check
from headrace.query.search import Binding, Field, Kind, Search
from headrace.query.syntax import QuerySyntaxError, is_word, parse, text
from headrace.query.tree import And, Compare, Contains, Has, Node, Not, Or, Phrase, Term
from headrace.query.values import canonical, has_phrase, has_words, lower, words
from headrace.schema import pointer
from query.declarations import DOCUMENT, SEARCH

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Trees in every spelling, whether or not a stream could answer them.
anything = st.text(max_size=8) | st.text('ab*"\\-:<>=() .T0123456789', max_size=8)
names = anything | st.sampled_from(["has", "contains", "and", "NOT", "5xx", "2026-03-25T10", "http.status"])
moments = st.sampled_from(["2026-03-25T10:00:00Z", "2026-03-25T10:00", "2026-03-25t10:00:00.5+02:00"])
plain = anything.filter(lambda word: is_word(word) and not word.endswith("*")) | st.sampled_from(["-5", "-.5e3", "and"])
values = anything | plain | moments | st.sampled_from(["*", "a*", "a\\*"])
bare = plain.filter(lambda word: word[0] != "-" and word.upper() not in ("AND", "OR", "NOT"))
leaves: st.SearchStrategy[Node] = st.one_of(
    st.builds(Has, names),
    st.builds(Compare, names, st.sampled_from(["<", "<=", ">", ">="]), values),
    st.builds(Term, names, plain, st.booleans()),
    st.builds(Term, names, moments),
    st.builds(Term, st.none(), st.just("*")),
    st.builds(Term, st.none(), bare, st.booleans()),
    st.builds(Phrase, st.none() | names, values),
    st.builds(Phrase, st.none() | names, values.filter(bool), st.just(True)),
    st.builds(Contains, st.none() | names, values),
)


def branches(parts: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(parts, min_size=2, max_size=4).map(tuple)
    return st.builds(And, several) | st.builds(Or, several) | st.builds(Not, parts)


trees = st.recursive(leaves, branches, max_leaves=12)
pieces = [
    "a",
    "f",
    ":",
    ">",
    ">=",
    "=",
    "<",
    "(",
    ")",
    "-",
    "NOT ",
    " OR ",
    " AND ",
    " ",
    '"',
    '"x y"',
    "*",
    "\\",
    "-5",
]
soups = st.lists(st.sampled_from([*pieces, "has:", "contains:", "2026-03-25T10:00:00Z", "\n", "é"]), max_size=30)


@given(trees)
def test_a_printed_tree_is_read_back(tree: Node) -> None:
    assert parse(text(tree)) == tree


@given(soups.map("".join) | st.text(max_size=40))
def test_a_text_is_a_query_or_is_refused_at_a_place_inside_it(query: str) -> None:
    try:
        tree = parse(query)
    except QuerySyntaxError as refusal:
        assert 0 <= refusal.position <= len(query)
        return
    assert parse(text(tree)) == tree


@given(st.lists(st.sampled_from(["(", "-", "NOT ", "a ", ") "]), min_size=70, max_size=300).map("".join))
def test_nesting_of_any_depth_is_read_or_refused(query: str) -> None:
    try:
        parse(query)
    except QuerySyntaxError as refusal:
        assert 0 <= refusal.position <= len(query)


# Questions that the sample declaration allows, and events that come close to answering them.
letters = st.text("aAbBσΣςİi -_1", max_size=5)
integers = st.integers(-3, 3) | st.integers(-(2**70), 2**70)
floats = st.floats(-3, 3, allow_nan=False) | st.floats(allow_nan=False, allow_infinity=False)
spellings = letters.map(lambda value: Phrase("service", value)) | letters.map(lambda value: Phrase("tags", value))
asked_words = letters.filter(words)
questions: st.SearchStrategy[Node] = st.one_of(
    st.sampled_from(["status", "tags", "message", "service", "time", "error", "duration"]).map(Has),
    st.builds(Compare, st.just("status"), st.sampled_from(["<", "<=", ">", ">="]), integers.map(str)),
    st.builds(Compare, st.just("duration"), st.sampled_from(["<", "<=", ">", ">="]), floats.map(str)),
    st.builds(Compare, st.just("time"), st.sampled_from(["<", "<=", ">", ">="]), integers.map(str)),
    st.builds(Phrase, st.just("status"), integers.map(str)),
    st.builds(Phrase, st.just("duration"), floats.map(str)),
    st.builds(Phrase, st.just("error"), st.sampled_from(["true", "false"])),
    spellings,
    st.builds(Phrase, st.just("service"), letters.filter(bool), st.just(True)),
    st.builds(Term, st.sampled_from(["message", "why", None]), asked_words.filter(is_word), st.booleans()),
    st.builds(Phrase, st.sampled_from(["message", None]), asked_words, st.booleans()),
    st.builds(Contains, st.sampled_from(["message", "path", None]), letters.filter(bool)),
)
queries = st.recursive(questions, branches, max_leaves=6)
scalars = st.one_of(letters, integers, floats, st.booleans(), st.none(), integers.map(str), floats.map(str))
contents = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.fixed_dictionaries({"a": inner}))
PLACES = ("time", "service", "path", "request", "tags", "duration", "error", "message", "why")
events = st.fixed_dictionaries({}, optional={**dict.fromkeys(PLACES, contents)}).flatmap(
    lambda event: st.just(event) | contents.map(lambda status: {**event, "http": {"status": status}})
)
documents = events | contents


def answer(tree: Node, document: Any, search: Search = SEARCH) -> bool:
    return predicate.compile(tree, search)(document)


@given(queries, documents)
def test_what_has_no_fault_can_be_asked_of_any_document(tree: Node, document: Any) -> None:
    assert check(tree, SEARCH, mode="search") == []
    assert answer(tree, document) in (True, False)
    assert answer(parse(text(tree)), document) == answer(tree, document)


@given(queries, queries, documents)
def test_boolean_algebra_holds(a: Node, b: Node, document: Any) -> None:
    left, right = answer(a, document), answer(b, document)
    assert answer(Not(a), document) == (not left)
    assert answer(Not(Not(a)), document) == left
    assert answer(And((a, b)), document) == answer(And((b, a)), document) == (left and right)
    assert answer(Or((a, b)), document) == answer(Or((b, a)), document) == (left or right)
    assert answer(Not(And((a, b))), document) == answer(Or((Not(a), Not(b))), document)
    assert answer(Not(Or((a, b))), document) == answer(And((Not(a), Not(b))), document)


@given(questions, st.lists(scalars, max_size=4))
def test_a_field_with_several_values_answers_if_any_of_them_does(clause: Node, given_values: list[Any]) -> None:
    def event(content: Any) -> Any:
        return {**dict.fromkeys(PLACES, content), "http": {"status": content}}

    one_by_one = any(answer(clause, event(value)) for value in given_values)
    assert answer(clause, event(given_values)) == answer(clause, event([[given_values], []])) == one_by_one


@given(letters, letters)
def test_an_exact_keyword_begins_with_its_prefixes_and_contains_its_parts(value: str, other: str) -> None:
    assume(value and other)
    for document in ({"service": value}, {"service": value + other}, {"service": other + value}, {"service": other}):
        held = lower(document["service"])
        assert answer(Phrase("service", value), document) == (held == lower(value))
        assert answer(Phrase("service", value, prefix=True), document) == held.startswith(lower(value))
        path = {"path": document["service"]}
        assert answer(Contains("path", value), path) == (value in document["service"])
        if answer(Phrase("service", value), document):
            assert answer(Phrase("service", value, prefix=True), document)


@given(integers, integers)
def test_a_number_is_below_equal_or_above(value: int, bound: int) -> None:
    for document in ({"http": {"status": value}}, {"http": {"status": str(value)}}):
        assert answer(Compare("status", "<", str(bound)), document) == (value < bound)
        assert answer(Compare("status", "<=", str(bound)), document) == (value <= bound)
        assert answer(Compare("status", ">", str(bound)), document) == (value > bound)
        assert answer(Compare("status", ">=", str(bound)), document) == (value >= bound)
        assert answer(Phrase("status", str(bound)), document) == (value == bound)


@given(floats, floats)
def test_a_float_is_below_equal_or_above(value: float, bound: float) -> None:
    document = {"duration": value}
    assert answer(Compare("duration", "<", repr(bound)), document) == (value < bound)
    assert answer(Compare("duration", ">=", repr(bound)), document) == (value >= bound)
    assert answer(Phrase("duration", repr(bound)), document) == (value == bound)


# Canonical values and words

kinds = st.builds(
    lambda kind, lowercase: Field(name="f", kind=kind, bindings=(Binding(1, ()),), lowercase=lowercase),
    st.sampled_from(Kind),
    st.booleans(),
)


@given(kinds, scalars | st.text(max_size=10) | st.floats() | st.text("0123456789-+.:TZe ", max_size=24))
def test_a_canonical_value_is_its_own_canonical_value_also_as_text(field: Field, value: Any) -> None:
    found = canonical(field, value)
    assume(found is not None)
    assert canonical(field, found) == found
    spelled = json.dumps(found) if isinstance(found, bool) else repr(found) if isinstance(found, float) else str(found)
    # Four digits are a year.
    if not (field.kind is Kind.DATE and len(spelled) == 4):
        assert canonical(field, spelled) == found


@given(
    st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 12, 31)),
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
    st.sampled_from(["T", " "]),
    st.sampled_from(["minutes", "seconds", "milliseconds", "microseconds"]),
)
def test_a_moment_in_any_zone_is_read_to_the_millisecond(local: datetime, zone: int, gap: str, precision: str) -> None:
    spelled = local.replace(tzinfo=timezone(timedelta(minutes=zone))).isoformat(gap, precision)
    assert canonical(SEARCH["time"], spelled) == (datetime.fromisoformat(spelled) - EPOCH) // timedelta(milliseconds=1)


@given(st.text() | letters, st.text() | letters)
def test_lower_case_keeps_parts_together(left: str, right: str) -> None:
    assert lower(left + right) == lower(left) + lower(right)
    assert lower(lower(left)) == lower(left)


@given(st.text() | letters)
def test_words_of_words_are_the_same_words(given_text: str) -> None:
    found = words(given_text)
    assert words(" ".join(found)) == found
    assert "".join(found) == "".join(character for character in lower(given_text) if character.isalnum())


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=6), st.lists(st.sampled_from("abc"), min_size=1, max_size=3)
)
def test_a_phrase_is_found_where_its_text_is(held: list[str], asked: list[str]) -> None:
    found = has_phrase(held, asked, prefix=False)
    assert found == ("".join(asked) in "".join(held))
    assert not found or (has_words(held, asked, prefix=False) and has_phrase(held, asked, prefix=True))


# Search documents with something wrong anywhere

junk = scalars | st.just([]) | st.just({}) | st.sampled_from(["a b", "/x", "time", "1m", "count", "text", "status:("])


def places(document: Any, at: pointer.Pointer = ()) -> list[pointer.Pointer]:
    members = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [at, *(place for name, value in members for place in places(value, (*at, str(name))))]


def value_at(document: Any, place: pointer.Pointer) -> Any:
    for name in place:
        document = document[int(name)] if isinstance(document, list) else document[name]
    return document


def mutated(document: Any, place: pointer.Pointer, value: Any) -> Any:
    if not place:
        return value
    changed = copy.deepcopy(document)
    parent = value_at(changed, place[:-1])
    parent[int(place[-1]) if isinstance(parent, list) else place[-1]] = value
    return changed


@given(st.lists(st.tuples(st.sampled_from(places(DOCUMENT)), junk), max_size=3))
def test_a_search_document_is_read_and_given_back_or_refused_with_places(mistakes: list[tuple[Any, Any]]) -> None:
    given_document = DOCUMENT
    for place, value in mistakes:
        if place in places(given_document):
            given_document = mutated(given_document, place, value)
    found = search_document.parse_search_document(given_document, current_version=3)
    if isinstance(found, Search):
        assert search_document.dump(found) == given_document
        assert all(field.pointer == field.binding(3).pointer for field in found.fields.values() if field.binding(3))
    else:
        assert found
        assert all(pointer.parse(problem.pointer) is not None and problem.reason for problem in found)


@pytest.mark.parametrize("place", [place for place in places(DOCUMENT) if isinstance(value_at(DOCUMENT, place), dict)])
def test_nothing_unknown_is_dropped_in_silence(place: pointer.Pointer) -> None:
    changed = mutated(DOCUMENT, (*place, "unknown"), 1)
    found = search_document.parse_search_document(changed, current_version=3)
    assert isinstance(found, list)
    assert any(problem.pointer.startswith(pointer.text((*place, "unknown"))) for problem in found)
