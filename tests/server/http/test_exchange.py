from __future__ import annotations

import json

import pytest

from headrace.errors import HeadraceError, every_error
from headrace.server.http.exchange import Reply

# Errors of those who ask are never sent.
ASKING = ("headrace.client", "headrace.cli", "headrace.pipeline")
SENT = [kind for kind in every_error() if not kind.__module__.startswith(ASKING)]


@pytest.mark.parametrize("kind", sorted(SENT, key=lambda kind: kind.__name__))
def test_every_error_has_the_same_shape(kind: type[HeadraceError]) -> None:
    reply = Reply.failure(kind("a sentence", field="x"))
    assert reply.status == kind.status
    assert json.loads(reply.body)["error"]["code"] == kind.code
    assert json.loads(reply.body)["error"] | {"message": "a sentence", "field": "x"} == json.loads(reply.body)["error"]
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert reply.headers["cache-control"] == "no-store"
    if kind.status in (429, 503):
        assert int(reply.headers["retry-after"]) >= 1


def test_a_reply_without_headers_has_its_own() -> None:
    one, other = Reply(204), Reply(204)
    one.headers["a"] = "b"
    assert other.headers == {}
