from __future__ import annotations

from typing import Any

import pytest

from headrace.query import predicate
from headrace.query.syntax import MAX_DEPTH, parse, text
from headrace.query.tree import Node, Term
from query.declarations import DOCUMENT, declared, matches

EVENT: dict[str, Any] = {
    "time": "2026-03-25T10:00:00.500Z",
    "service": "Billing-API",
    "path": "/API/checkout",
    "request": "req-8F2k",
    "tags": ["red", ["Blue", None], 7],
    "http": {"status": "503"},
    "code": 200,
    "level": 2**63 + 1,
    "duration": 12.5,
    "error": "true",
    "message": ["Card declined by the issuer.", "Retry later"],
    "why": "insufficient funds",
    "mute": None,
}


@pytest.mark.parametrize(
    "query",
    [
        "status:503",
        "status:>=503 status:<504",
        "level:9223372036854775809",
        "duration:12.5",
        "duration:>12.49 duration:<=12.5",
        "time:2026-03-25T10:00:00.5Z",
        "ts:>2026-03-25T12:00:00+02:00",
        "time:1774432800500",
        "time:<2026-03-26",
        "error:true",
        "service:billing-api",
        "service:BILLING-API",
        "service:bill*",
        "tags:red tags:Blue",
        "has:tags has:status has:message",
        "message:declined",
        "message:declined-card",
        "msg:ISSUER",
        "message:decl*",
        'message:"declined by"',
        'message:"by the iss*"',
        'message:"retry"',
        "declined",
        "insufficient",
        "insuff*",
        "req-8F2k",
        "req-8F*",
        '"req-8F2k"',
        "contains:clin",
        "contains:message:THE",
        'contains:"d by the i"',
        "contains:path:API/check",
        "-status:200",
        "NOT has:nope",
        "status:1 OR declined",
        "why:funds (message:nothing OR NOT message:nothing)",
    ],
)
def test_an_event_answers_what_it_holds(query: str) -> None:
    assert matches(query, EVENT, SEARCH)


@pytest.mark.parametrize(
    "query",
    [
        "status:200",
        "status:>503",
        "level:9223372036854775808",
        "duration:<12.5",
        "time:2026-03-25T10:00:00Z",
        "error:false",
        "service:billing",
        "service:api*",
        "tags:blue",
        "tags:7",
        "has:nope",
        "message:decline",
        "message:card-retry",
        'message:"card issuer"',
        'message:"issuer retry"',
        'message:"the declined"',
        "req-8f2k",
        "8F2k",
        "contains:api",
        "contains:path:api",
        "contains:xyz",
        "-has:tags",
        "status:503 status:504",
    ],
)
def test_an_event_does_not_answer_what_it_does_not_hold(query: str) -> None:
    assert not matches(query, EVENT, SEARCH)


NOPE = {"kind": "keyword", "bindings": [{"version": 1, "jsonPointer": "/mute"}], "exists": True}
SEARCH = declared({**DOCUMENT, "fields": {**DOCUMENT["fields"], "nope": NOPE}})


@pytest.mark.parametrize("document", [{}, None, 5, [], "declined", {"message": None}, {"message": {"a": "declined"}}])
def test_an_absent_field_answers_only_its_negation(document: Any) -> None:
    for query in ("status:503", "has:message", "declined", "time:>0", "time:<0", "contains:e", "service:a*"):
        assert not matches(query, document)
        assert matches(f"NOT {query}", document)


def test_an_empty_string_is_a_value() -> None:
    assert matches('service:""', {"service": ""})
    assert matches("has:service has:message", {"service": "", "message": ""})
    assert not matches('service:""', {})


def test_every_default_field_is_asked_in_its_own_way() -> None:
    assert matches("REQ-1", {"message": "req 1 failed"})
    assert matches("REQ-1", {"request": "REQ-1"})
    assert not matches("REQ-1", {"request": "req-1"})
    assert not matches("REQ-1", {"request": "x REQ-1"})
    assert not matches('"--"', {"message": "--"})
    assert matches('"--"', {"request": "--"})


def test_the_newest_binding_says_where_a_promoted_event_has_its_value() -> None:
    assert matches("status:1", {"http": {"status": 1}, "code": 2})
    assert not matches("status:2", {"http": {"status": 1}, "code": 2})


def test_a_value_that_ends_in_a_star_can_be_asked_for() -> None:
    assert matches(r'service:"a\*"', {"service": "a*"})
    assert not matches(r'service:"a\*"', {"service": "ab"})


def test_what_is_no_query_is_not_compiled() -> None:
    with pytest.raises(TypeError):
        predicate.compile(Node(), SEARCH)
    with pytest.raises(KeyError):
        predicate.compile(Term("nothing", "1"), SEARCH)


def test_the_deepest_query_can_be_read_printed_and_asked() -> None:
    query = "status:1 OR why:x (" * (MAX_DEPTH - 1) + "NOT tags:a" + ")" * (MAX_DEPTH - 1)
    assert parse(text(parse(query))) == parse(query)
    assert matches(query, {"why": "x"})
    assert not matches(query, {"why": "x", "tags": ["a"]})
