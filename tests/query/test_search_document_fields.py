from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from headrace.query import search_document
from headrace.query.search import Binding, DefaultField, Kind, Search
from headrace.schema.problem import Problem
from query.declarations import DOCUMENT, SEARCH, declared

TIME = {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/t"}]}
WORD = {"kind": "keyword", "bindings": [{"version": 1, "jsonPointer": "/w"}], "exact": True}
TEXT = {"kind": "text", "bindings": [{"version": 1, "jsonPointer": "/x"}], "analyzer": "unicode_word_v1"}


def document(**more: Any) -> dict[str, Any]:
    return {"primaryTimestampField": "t", "fields": {"t": TIME, "w": WORD, "x": TEXT}, **more}


def with_field(**members: Any) -> dict[str, Any]:
    bindings = [{"version": 1, "jsonPointer": "/f"}]
    return document(fields={"t": TIME, "f": {"bindings": bindings, **members}})


def problems(given: Any, *, version: int = 2) -> list[Problem]:
    found = search_document.parse_search_document(given, current_version=version)
    return [] if isinstance(found, Search) else found


def test_a_whole_document_is_read() -> None:
    assert SEARCH.profile == "evlog"
    assert SEARCH.primary_timestamp == "time"
    assert SEARCH.default_fields == (DefaultField("message", 2.0), DefaultField("why"), DefaultField("request"))
    assert SEARCH.contains_default_fields == ("message", "path")
    service = SEARCH["service"]
    assert service.kind == Kind.KEYWORD
    assert service.lowercase is True
    assert service.exact is True
    assert service.column is False
    assert SEARCH["msg"] is SEARCH["message"]
    assert "msg" in SEARCH and "path" in SEARCH and "nothing" not in SEARCH


def test_what_is_optional_may_be_absent() -> None:
    search = declared(document())
    assert search.profile is None
    assert search.aliases == {}
    assert search.default_fields == ()
    assert search.rollups == {}
    assert search.bare_fields() == (DefaultField("x"),)
    assert search.contains_fields() == ()


def test_a_document_is_given_back_exactly_and_shares_nothing() -> None:
    given = copy.deepcopy(DOCUMENT)
    given["fields"]["path"]["exact"] = False
    original = json.dumps(given)
    search = declared(given)
    given["fields"].clear()
    search_document.dump(search)["fields"].clear()
    assert json.dumps(search_document.dump(search)) == original


def test_an_event_version_chooses_the_greatest_binding_not_above_it() -> None:
    status = SEARCH["status"]
    assert [status.binding(version) for version in (1, 2, 3, 9)] == [
        Binding(1, ("code",)),
        Binding(1, ("code",)),
        Binding(3, ("http", "status")),
        Binding(3, ("http", "status")),
    ]
    assert SEARCH["mute"].binding(1) is None
    assert status.pointer == ("http", "status")


def test_bindings_may_come_in_any_order() -> None:
    bindings = [{"version": 2, "jsonPointer": "/b"}, {"version": 1.0, "jsonPointer": ""}]
    search = declared(with_field(kind="bool", bindings=bindings))
    assert search["f"].bindings == (Binding(1, ()), Binding(2, ("b",)))


@pytest.mark.parametrize("given", [None, 5, [], "text", True])
def test_a_document_that_is_no_object_is_refused(given: Any) -> None:
    assert problems(given) == [Problem("", "must be an object")]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (document(fields={}), "must declare at least one field"),
        (document(fields=[]), "must be an object"),
        ({"primaryTimestampField": "t"}, "is required: an object"),
    ],
)
def test_a_document_without_fields_is_refused(given: Any, reason: str) -> None:
    assert problems(given) == [
        Problem("/fields", reason),
        Problem("/primaryTimestampField", "'t' is no declared field"),
    ]


@pytest.mark.parametrize(
    ("given", "pointer", "reason"),
    [
        (document(extra=1), "/extra", "is not supported"),
        (document(profile=5), "/profile", "must be a string"),
        ({"fields": {"t": TIME}}, "/primaryTimestampField", "is required"),
        (document(primaryTimestampField="nope"), "/primaryTimestampField", "'nope' is no declared field"),
        (document(primaryTimestampField="w"), "/primaryTimestampField", "w is no date field"),
        (document(primaryTimestampField=None), "/primaryTimestampField", "must be a string"),
        (document(aliases=[]), "/aliases", "must be an object"),
        (document(aliases={"a": "nope"}), "/aliases/a", "no declared field"),
        (document(aliases={"a": None}), "/aliases/a", "must be a string"),
        (document(aliases={"a/b": "w"}), "/aliases/a~1b", "a name has 1 to 64"),
        (document(aliases={"": "w"}), "/aliases/", "a name has 1 to 64"),
        (document(aliases={"x": "w"}), "/aliases/x", "hides the field"),
        (document(aliases={"a" * 65: "w"}), "/aliases/" + "a" * 65, "a name has 1 to 64"),
        (document(defaultFields={}), "/defaultFields", "must be an array"),
        (document(defaultFields=["w"]), "/defaultFields/0", "must be an object"),
        (document(defaultFields=[{"field": "w"}, {"field": "t"}]), "/defaultFields/1/field", "only keyword and text"),
        (document(defaultFields=[{"boost": 1}]), "/defaultFields/0/field", "is required"),
        (document(defaultFields=[{"field": "w", "boost": 0}]), "/defaultFields/0/boost", "above 0"),
        (document(defaultFields=[{"field": "w", "boost": 10**400}]), "/defaultFields/0/boost", "above 0"),
        (document(defaultFields=[{"field": "w", "boost": True}]), "/defaultFields/0/boost", "above 0"),
        (document(defaultFields=[{"field": "w", "boost": float("inf")}]), "/defaultFields/0/boost", "above 0"),
        (document(defaultFields=[{"field": "w", "weight": 1}]), "/defaultFields/0/weight", "not supported"),
        (document(containsDefaultFields="w"), "/containsDefaultFields", "must be an array"),
        (document(containsDefaultFields=["w", "no"]), "/containsDefaultFields/1", "no declared field"),
        (document(containsDefaultFields=["t"]), "/containsDefaultFields/0", "only keyword and text"),
        (document(rollups=None), "/rollups", "must be an object"),
    ],
)
def test_a_document_with_one_mistake_is_refused_at_its_place(given: Any, pointer: str, reason: str) -> None:
    (problem,) = problems(given)
    assert problem.pointer == pointer
    assert reason in problem.reason


@pytest.mark.parametrize(
    ("members", "pointer", "reason"),
    [
        ({"kind": "string"}, "/kind", "must be one of keyword, text, integer, float, date, bool"),
        ({"kind": ["text"]}, "/kind", "must be one of"),
        ({}, "/kind", "is required"),
        ({"kind": "bool", "inverted": True}, "/inverted", "is not supported"),
        ({"kind": "bool", "bindings": []}, "/bindings", "at least one binding"),
        ({"kind": "bool", "bindings": {}}, "/bindings", "must be an array"),
        ({"kind": "bool", "bindings": ["/a"]}, "/bindings/0", "must be an object"),
        ({"kind": "bool", "bindings": [{"version": 1, "jsonPointer": "a"}]}, "/bindings/0/jsonPointer", "JSON Pointer"),
        (
            {"kind": "bool", "bindings": [{"version": 1, "jsonPointer": "/~2"}]},
            "/bindings/0/jsonPointer",
            "JSON Pointer",
        ),
        ({"kind": "bool", "bindings": [{"version": 1}]}, "/bindings/0/jsonPointer", "is required"),
        ({"kind": "bool", "bindings": [{"jsonPointer": "/a"}]}, "/bindings/0/version", "is required"),
        ({"kind": "bool", "bindings": [{"version": 0, "jsonPointer": ""}]}, "/bindings/0/version", "1 to 2"),
        ({"kind": "bool", "bindings": [{"version": 3, "jsonPointer": ""}]}, "/bindings/0/version", "1 to 2"),
        ({"kind": "bool", "bindings": [{"version": True, "jsonPointer": ""}]}, "/bindings/0/version", "whole number"),
        ({"kind": "bool", "bindings": [{"version": 1.5, "jsonPointer": ""}]}, "/bindings/0/version", "whole number"),
        ({"kind": "bool", "bindings": [{"version": 1, "jsonPointer": ""}] * 2}, "/bindings/1/version", "bound twice"),
        ({"kind": "keyword", "normalizer": "uppercase_v1"}, "/normalizer", "identity_v1, lowercase_v1"),
        ({"kind": "keyword", "normalizer": None}, "/normalizer", "must be one of"),
        ({"kind": "text", "analyzer": "keyword_v1"}, "/analyzer", "unicode_word_v1"),
        ({"kind": "text"}, "/analyzer", "is required for text fields"),
    ],
)
def test_a_field_with_one_mistake_is_refused_at_its_place(members: dict[str, Any], pointer: str, reason: str) -> None:
    (problem,) = problems(with_field(**members))
    assert problem.pointer == "/fields/f" + pointer
    assert reason in problem.reason


CAPABILITIES = {"exact", "prefix", "column", "exists", "sortable", "aggregatable", "contains", "positions"}
REFUSED = {
    "keyword": {"positions"},
    "text": {"column", "sortable", "aggregatable"},
    **{kind: {"prefix", "contains", "positions"} for kind in ("integer", "float", "date", "bool")},
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("capability", sorted(CAPABILITIES))
def test_each_kind_has_its_capabilities(kind: str, capability: str) -> None:
    analyzer = {"analyzer": "unicode_word_v1"} if kind == "text" else {}
    found = problems(with_field(kind=kind, **{capability: True}, **analyzer))
    refusal = [Problem(f"/fields/f/{capability}", f"is not supported for {kind} fields")]
    assert found == (refusal if capability in REFUSED[kind] else [])
    assert problems(with_field(kind=kind, **{capability: False}, **analyzer)) == []


@pytest.mark.parametrize("value", [None, 1, 0, "true", [], {}])
def test_a_capability_is_true_or_false_and_nothing_else(value: Any) -> None:
    assert problems(with_field(kind="keyword", exact=value)) == [Problem("/fields/f/exact", "must be true or false")]


@pytest.mark.parametrize(
    ("kind", "members", "refused"),
    [
        ("keyword", {"normalizer": "lowercase_v1"}, False),
        ("keyword", {"analyzer": "unicode_word_v1"}, True),
        ("text", {"normalizer": "identity_v1", "analyzer": "unicode_word_v1"}, False),
        ("integer", {"normalizer": "identity_v1"}, True),
        ("date", {"analyzer": "unicode_word_v1"}, False),
    ],
)
def test_normalizers_and_analyzers_have_their_kinds(kind: str, members: dict[str, Any], refused: bool) -> None:
    assert bool(problems(with_field(kind=kind, **members))) is refused


def test_every_problem_is_told_at_once_and_a_broken_field_is_blamed_once() -> None:
    given = {
        "primaryTimestampField": "t",
        "fields": {
            "t": {"kind": "time", "bindings": []},
            "no good": {"kind": "bool", "bindings": [{"version": 7, "jsonPointer": "x"}], "prefix": True},
        },
        "aliases": {"time": "t", "other": "nope"},
        "defaultFields": [{"field": "t"}],
        "rollups": {"r": {"include": "t:1 (", "intervals": ["1m"], "measures": {"n": {"kind": "count"}}}},
    }
    assert [problem.pointer for problem in problems(given)] == [
        "/fields/no good",
        "/fields/t/kind",
        "/fields/t/bindings",
        "/fields/no good/bindings/0/jsonPointer",
        "/fields/no good/bindings/0/version",
        "/fields/no good/prefix",
        "/aliases/other",
        "/rollups/r/include",
    ]


def test_an_alias_may_repeat_the_name_of_its_own_field() -> None:
    assert declared(document(aliases={"w": "w"}))["w"].name == "w"


@pytest.mark.parametrize("name", ["has", "contains"])
def test_a_new_field_or_alias_is_not_named_like_a_question(name: str) -> None:
    given = document(aliases={name: name})
    given["fields"] = given["fields"] | {name: WORD}
    assert problems(given) == [], "what was stored so is still read"
    refused = {problem.pointer for problem in search_document.check_reserved_names(given, None)}
    assert refused == {f"/fields/{name}", f"/aliases/{name}"}
    assert {
        problem.pointer for problem in search_document.check_reserved_names(given, document(aliases={name: "w"}))
    } == {f"/fields/{name}"}
    assert (
        search_document.check_reserved_names(given, given)
        == search_document.check_reserved_names(document(), None)
        == []
    )
