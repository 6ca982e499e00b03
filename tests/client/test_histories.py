"""Rows of the past on the wire, without a server."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

import headrace as hr
from headrace.client import features
from headrace.client.answers import Answer
from headrace.client.features import History


def test_a_question_has_keys_and_moments() -> None:
    request = features.request_history(
        "T", [("u1", datetime(2026, 1, 1, tzinfo=UTC)), ([1, True], "2026-01-02T00:00:00Z")], ["n"]
    )
    assert (request.target, request.changes) == ("/v1/tables/T/history", False)
    assert msgspec.json.decode(request.body) == {
        "rows": [{"key": "u1", "at": "2026-01-01T00:00:00Z"}, {"key": [1, True], "at": "2026-01-02T00:00:00Z"}],
        "features": ["n"],
    }
    assert "features" not in msgspec.json.decode(features.request_history("T", [], None).body)


def test_a_table_name_cannot_leave_its_place() -> None:
    assert features.poll_history("a/b", "c/d").target == "/v1/tables/a%2Fb/history/c%2Fd"


def test_an_answer_at_once_has_its_rows() -> None:
    body = b'{"results": [{"n": 1}, {}], "complete": false, "since": "0", "events_from": "2026-01-01T00:00:00Z"}'
    first, second = features.history_rows(features.started_history(Answer(200, {}, body)))
    assert (first, second) == ({"n": 1}, {})
    assert (first.complete, second.events_from) == (False, "2026-01-01T00:00:00Z")


def test_an_answer_later_says_where_it_will_be() -> None:
    body = b'{"history": {"id": "7f", "table": "T", "state": "running", "rows": 0, "total": 3, "reason": null}}'
    assert features.started_history(Answer(202, {}, body)) == History("7f", "running")


def test_a_question_that_failed_says_why() -> None:
    body = b'{"id": "7f", "state": "failed", "reason": "the events are gone"}'
    with pytest.raises(hr.HistoryFailed, match="the rows were not found: the events are gone"):
        features.history_rows(features.history_status(Answer(200, {}, body)))
