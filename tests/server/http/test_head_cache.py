"""Heads that were parsed before: what is repeated is found, and what the parser has to judge goes there."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace.engine.log.append import PLAIN
from headrace.server.http.auth import LOCAL, Principal
from headrace.server.http.head_cache import RequestHeadCache
from headrace.server.http.request import RequestHead, ResolvedRoute
from headrace.server.http.target import Target, parse

LINES = b"host: localhost\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n"
URL = b"/v1/stream/a/first-1"


def spelled(line: bytes, lines: bytes = LINES, body: bytes = b"{}") -> bytes:
    return line + b"\r\n" + lines + body


def parsed() -> RequestHead:
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"2")]
    return RequestHead("POST", URL, headers, dict(headers), body_bytes=2)


@pytest.fixture
def learnt() -> tuple[RequestHeadCache, RequestHead]:
    heads, head = RequestHeadCache(), parsed()
    heads.learn(spelled(b"POST " + URL + b" HTTP/1.1"), head)
    return heads, head


def test_a_head_is_found_when_it_comes_again(learnt: tuple[RequestHeadCache, RequestHead]) -> None:
    heads, head = learnt
    found = heads.find(spelled(b"POST " + URL + b" HTTP/1.1", body=b"[]"))
    assert found is not None
    assert found[0] is head
    assert found[1] == b"[]"


def test_a_head_is_found_when_only_its_address_is_new(learnt: tuple[RequestHeadCache, RequestHead]) -> None:
    heads, head = learnt
    head.terms = PLAIN
    again = spelled(b"POST /v1/stream/b.2/c_~ HTTP/1.1")
    found = heads.find(again)
    assert found is not None
    other, body = found
    assert (other.method, other.url, other.path, other.query) == ("POST", *(b"/v1/stream/b.2/c_~",) * 2, b"")
    assert other.fields == head.fields
    assert other.media_type == "application/json"
    assert other.body_bytes == 2
    assert body == b"{}"
    assert other.terms is PLAIN
    assert heads.find(again) == (other, b"{}")
    assert head.url == URL


def route(principal: Principal, resource: str = "") -> ResolvedRoute:
    return ResolvedRoute(print, Target("a/first-1", resource, None), {}, principal, 7)


def test_who_may_go_anywhere_has_been_admitted_at_another_plain_address(
    learnt: tuple[RequestHeadCache, RequestHead],
) -> None:
    heads, head = learnt
    head.route = route(LOCAL)
    found = heads.find(spelled(b"POST /v1/stream/b.2 HTTP/1.1"))
    assert found is not None
    assert found[0].route == replace(head.route, target=parse(b"/v1/stream/b.2"))


@pytest.mark.parametrize(
    ("known", "line"),
    [
        (None, b"POST /v1/stream/b HTTP/1.1"),
        (route(Principal("ada", frozenset({"write"}))), b"POST /v1/stream/b HTTP/1.1"),
        (route(LOCAL, "_schema"), b"POST /v1/stream/b HTTP/1.1"),
        (route(LOCAL), b"POST /v1/stream/b/_schema HTTP/1.1"),
        (route(LOCAL), b"POST /v1/stream/b/pk/c HTTP/1.1"),
        (route(LOCAL), b"POST /v1/stream/b/ HTTP/1.1"),
    ],
    ids=["unknown", "a key", "another resource", "a resource", "one key", "an end"],
)
def test_a_head_with_another_address_has_else_yet_to_be_admitted_there(
    learnt: tuple[RequestHeadCache, RequestHead], known: ResolvedRoute | None, line: bytes
) -> None:
    heads, head = learnt
    head.route = known
    found = heads.find(spelled(line))
    assert found is not None
    assert found[0].route is None


@pytest.mark.parametrize(
    "line",
    [
        b"POST /v1/stream/b?key=c HTTP/1.1",
        b"POST /v1/stream/b%20c HTTP/1.1",
        b"POST /v1/stream/__ds/b HTTP/1.1",
        b"POST /v1/stream/ HTTP/1.1",
        b"POST /v1/streams/b HTTP/1.1",
        b"POST http://localhost/v1/stream/b HTTP/1.1",
        b"POST  /v1/stream/b HTTP/1.1",
        b"POST /v1/stream/b  HTTP/1.1",
        b"POST /v1/stream/b\x00 HTTP/1.1",
        b"POST /v1/stream/b HTTP/1.0",
        b"post /v1/stream/b HTTP/1.1",
        b"PUT /v1/stream/b HTTP/1.1",
        b"POST " + URL + b"0 HTTP/1.1",  # longer than any that the parser took
    ],
)
def test_a_first_line_goes_to_the_parser_when_more_than_a_plain_address_is_new(
    learnt: tuple[RequestHeadCache, RequestHead], line: bytes
) -> None:
    heads, _ = learnt
    assert heads.find(spelled(line)) is None


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        (LINES.replace(b"localhost", b"elsewhere"), b"{}"),
        (b"authorization: Bearer x\r\n" + LINES, b"{}"),
        (LINES.replace(b": 2", b": 3"), b"{ }"),
        (LINES, b"{"),
        (LINES, b"{}POST"),
        (LINES[:-2], b""),
    ],
)
def test_other_lines_and_bodies_go_to_the_parser(
    learnt: tuple[RequestHeadCache, RequestHead], lines: bytes, body: bytes
) -> None:
    heads, _ = learnt
    assert heads.find(spelled(b"POST /v1/stream/b HTTP/1.1", lines, body)) is None
