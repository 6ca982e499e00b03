from __future__ import annotations

from typing import Any

import pytest

from headrace.query.check import Mode
from headrace.query.tree import Fault
from query.declarations import DOCUMENT, declared, faults

BOTH: list[Mode] = ["filter", "search"]


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize(
    "query",
    [
        "status:500",
        'status:"500"',
        "status:>=-5",
        "level:5",
        "duration:1.5",
        "duration:<1e3",
        "time:>2026-03-25T10:00:00Z",
        "ts:<=1774432800000",
        "error:true",
        "service:billing-api",
        'service:""',
        "tags:a",
        "has:status",
        "has:tags",
        "has:message",
        "-(has:why OR NOT service:x) status:1",
    ],
)
def test_what_the_declaration_allows_may_be_asked_in_both_modes(query: str, mode: Mode) -> None:
    assert faults(query, mode) == []


@pytest.mark.parametrize(
    "query",
    [
        "service:bill*",
        'service:"bill*"',
        "message:declined",
        "why:decl*",
        "msg:card-declined",
        'message:"card declined"',
        'message:"card decl*"',
        'why:"declined"',
        "declined",
        "req-1*",
        '"card declined"',
        '"--"',
        "contains:x",
        "contains:message:x",
        'contains:path:" "',
    ],
)
def test_prefixes_words_phrases_and_parts_are_for_search_only(query: str) -> None:
    assert faults(query, "search") == []
    assert [fault.position for fault in faults(query, "filter")] == [0]


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("nothing:1", "'nothing' is no declared search field or alias"),
        ("nothing:>1", "no declared"),
        ("has:nothing", "no declared"),
        ("contains:nothing:x", "no declared"),
        ("level:>5", "level needs column to be compared"),
        ("service:>a", "service is a keyword field and cannot be compared"),
        ("error:>=false", "error is a bool field and cannot be compared"),
        ("message:<a", "message is a text field and cannot be compared"),
        ("status:5.5", "'5.5' is no value of status, an integer field"),
        ("status:>5.5", "no value of status"),
        ("status:5*", "status is an integer field and has no prefixes"),
        ("duration:fast", "no value of duration, a float field"),
        ("time:>yesterday", "no value of time, a date field"),
        ("error:yes", "no value of error, a bool field"),
        ("mute:x", "mute needs exact"),
        ("path:x", "path needs exact"),
        ("has:mute", "mute needs exists, exact or column"),
    ],
)
def test_what_the_declaration_does_not_allow_is_refused_in_both_modes(query: str, reason: str, mode: Mode) -> None:
    (fault,) = faults(f"NOT {query}", mode)
    assert reason in fault.reason
    assert fault.position == 4


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("service:b*", "a filter knows no prefixes"),
        ("message:x", "text field, which only a search"),
        ("word", "every clause of a filter names a field"),
        ('"word"', "every clause of a filter names a field"),
        ("contains:x", "only a search does"),
        ("contains:message:x", "only a search does"),
    ],
)
def test_a_filter_says_what_it_cannot_do(query: str, reason: str) -> None:
    (fault,) = faults(query, "filter")
    assert reason in fault.reason


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("tags:b*", "tags needs prefix"),
        ("request:x", "request needs exact"),
        ('why:"a b"', "why needs positions"),
        ('message:"--"', "'--' holds no word"),
        ('message:""', "holds no word"),
        ('""', "holds no word"),
        ('" "', "holds no word"),
        ("contains:service:x", "service needs contains"),
        ('contains:""', "not empty"),
    ],
)
def test_a_search_says_what_it_cannot_do(query: str, reason: str) -> None:
    (fault,) = faults(query, "search")
    assert reason in fault.reason


def test_a_column_is_enough_for_a_keyword_in_a_filter() -> None:
    assert faults("request:x", "filter") == []


def test_every_fault_is_told_at_once_with_its_place() -> None:
    found = faults("nothing:1 (level:>a OR service:>b) has:mute", "filter")
    assert found == [
        Fault(0, "'nothing' is no declared search field or alias"),
        Fault(11, "level needs column to be compared"),
        Fault(11, "'a' is no value of level, an integer field"),
        Fault(23, "service is a keyword field and cannot be compared"),
        Fault(35, "mute needs exists, exact or column to be asked by has:"),
    ]


def without(*keys: str, only: str) -> dict[str, Any]:
    document = {key: value for key, value in DOCUMENT.items() if key not in (*keys, "rollups", "aliases", "fields")}
    return {**document, "fields": {name: DOCUMENT["fields"][name] for name in ("time", only)}}


def test_without_default_fields_bare_words_ask_every_text_field() -> None:
    document = without("defaultFields", "containsDefaultFields", only="why")
    assert faults("word", "search", declared(document)) == []
    (fault,) = faults('"--"', "search", declared(document))
    assert "holds no word" in fault.reason


def test_without_anything_to_ask_bare_words_are_refused() -> None:
    search = declared(without("defaultFields", "containsDefaultFields", only="tags"))
    assert [fault.reason for fault in faults("word contains:x", "search", search)] == [
        "a word without a field needs default fields or a text field",
        "contains: without a field needs a field that has contains",
    ]


def test_without_default_fields_contains_asks_every_field_that_can() -> None:
    search = declared(without("defaultFields", "containsDefaultFields", only="path"))
    assert search.contains_fields() == ("path",)
    assert faults("contains:x", "search", search) == []
