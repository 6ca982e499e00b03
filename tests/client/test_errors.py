"""Errors survive the wire: what the server raises is what the client raises."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest

from headrace import errors
from headrace.client.errors import BY_CODE, ApiError, from_answer
from headrace.errors import HeadraceError, every_error

SERVER_ERRORS = [kind for kind in every_error() if kind.__module__ == errors.__name__]


def test_every_code_of_the_server_has_a_class() -> None:
    assert {kind.code for kind in SERVER_ERRORS} - {HeadraceError.code} == set(BY_CODE)


@pytest.mark.parametrize("kind", SERVER_ERRORS, ids=lambda kind: kind.__name__)
def test_error_is_rebuilt_from_its_answer(kind: type[HeadraceError]) -> None:
    facts: dict[str, Any] = dict.fromkeys(kind.header_facts, 7) | {"field": "offset"}
    sent = kind("a sentence", **facts)
    got = from_answer(kind.status, sent.headers(), msgspec.json.encode(sent.body()))
    assert got.code == kind.code
    assert got.status == kind.status
    assert got.message == "a sentence"
    assert got.facts == sent.facts
    assert type(got) is BY_CODE.get(kind.code, ApiError)


@pytest.mark.parametrize("kind", [kind for kind in SERVER_ERRORS if kind.header_facts], ids=lambda kind: kind.__name__)
def test_facts_come_from_headers_when_there_is_no_body(kind: type[HeadraceError]) -> None:
    sent = kind("a sentence", **{fact: "007" if "offset" in fact else 7 for fact in kind.header_facts})
    got = from_answer(kind.status, sent.headers(), b"")
    assert got.status == kind.status
    allowed = {"allow": "7"}
    expected = {fact: allowed.get(fact, value) for fact, value in sent.facts.items() if fact in got.header_facts}
    assert got.facts == expected


@pytest.mark.parametrize(
    ("status", "headers", "kind"),
    [
        (403, {"producer-epoch": "4"}, errors.ProducerFenced),
        (409, {"producer-expected-seq": "4", "producer-received-seq": "6"}, errors.ProducerGap),
        (409, {"stream-closed": "TRUE", "stream-next-offset": "7"}, errors.StreamClosed),
        (409, {}, errors.Conflict),
        (404, {}, errors.NotFound),
        (410, {}, errors.Gone),
        (408, {}, errors.TimedOut),
        (429, {"retry-after": "9"}, errors.Overloaded),
        (502, {}, ApiError),
        (418, {}, ApiError),
    ],
)
def test_answer_in_plain_text_is_understood_by_its_status(
    status: int, headers: dict[str, str], kind: type[HeadraceError]
) -> None:
    got = from_answer(status, headers, b"just text")
    assert type(got) is kind
    assert got.status == status
    assert got.message == "just text"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"error": 1}', b'{"error": []}', b"\xff", b'"error"'])
def test_any_body_makes_some_error(body: bytes) -> None:
    assert from_answer(500, {}, body).status == 500


def test_unknown_code_keeps_its_code_status_and_facts() -> None:
    body = b'{"error": {"code": "brand_new", "message": "m", "n": 1}}'
    got = pickle.loads(pickle.dumps(from_answer(422, {}, body)))
    assert isinstance(got, ApiError)
    assert got.status == 422
    assert got.code == "brand_new"
    assert got.message == "m"
    assert got.facts == {"n": 1}
