"""Pushes and gets on the wire, without a server."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace import errors
from headrace.client import features
from headrace.client.answers import Answer
from headrace.client.features import History
from headrace.client.retry import check_repeatable

MOMENT = datetime(2026, 11, 16, 2, tzinfo=UTC)


def test_a_push_carries_bare_fields() -> None:
    request = features.push("Txn", {"user": "u1", "at": MOMENT, "token": b"\x00\xff"})
    assert request.method == "POST"
    assert request.target == "/v1/push/Txn"
    assert request.changes is True
    assert request.body == b'{"user":"u1","at":"2026-11-16T02:00:00Z","token":"AP8="}'


def test_an_event_name_cannot_leave_its_place() -> None:
    assert features.push("a/b?c", {}).target == "/v1/push/a%2Fb%3Fc"


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, {}),
        ({"features": ("n", "m")}, {"features": ["n", "m"]}),
        ({"features": []}, {"features": []}),
        ({"as_of": MOMENT}, {"as_of": "2026-11-16T02:00:00Z"}),
        ({"as_known_at": MOMENT}, {"as_known_at": "2026-11-16T02:00:00Z"}),
        ({"explain": True}, {"explain": True}),
        ({"explain": False, "features": None, "as_of": None}, {}),
    ],
)
def test_a_get_says_what_it_is_told(options: Any, more: dict[str, Any]) -> None:
    request = features.get("T", ("u1", 7), **options)
    assert msgspec.json.decode(request.body) == {"table": "T", "key": ["u1", 7], **more}


def test_questions_may_be_sent_again_and_pushes_may_not() -> None:
    lost = hr.Unreachable("the line was cut")
    for question in (features.get("T", 1), features.batch_get([("T", 1)])):
        assert check_repeatable(question, lost) is lost
    with pytest.raises(hr.Unreachable):
        check_repeatable(features.push("Txn", {"user": "u1"}), lost)


def test_a_batch_get_keeps_its_order() -> None:
    request = features.batch_get([("T", "u1"), ("U", [1, True], ["n"])])
    asked = [{"table": "T", "key": "u1"}, {"table": "U", "key": [1, True], "features": ["n"]}]
    assert msgspec.json.decode(request.body) == {"requests": asked}


def test_an_acknowledgement_says_where_the_event_is() -> None:
    body = b'{"ack": true, "offset": "0004", "registry_version": 3, "idempotent_replay": true}'
    assert Answer(200, {}, body).decode(hr.Pushed) == hr.Pushed("0004", 3, True)


RESULTS: dict[str, Any] = {
    "results": [
        {"ack": True, "offset": "0004", "idempotent_replay": False},
        {"error": {"code": "missing_field", "message": "user is missing", "path": "user"}},
    ],
    "registry_version": 3,
}


def test_refused_events_of_many_are_raised_by_number() -> None:
    found = features.read_push_results(Answer(200, {}, msgspec.json.encode(RESULTS)))
    with pytest.raises(hr.PushRefused, match="1 of 2 events were refused") as caught:
        features.check_all_pushed("Txn", found)
    (refusal,) = caught.value.refusals.values()
    assert caught.value.refusals.keys() == {1}
    assert isinstance(refusal, errors.MissingField)
    assert refusal.facts == {"path": "user"}
    assert caught.value.facts["results"][0]["offset"] == "0004"


def test_every_event_of_many_has_its_acknowledgement() -> None:
    whole = {**RESULTS, "results": RESULTS["results"][:1] * 2}
    found = features.read_push_results(Answer(200, {}, msgspec.json.encode(whole)))
    assert features.check_all_pushed("Txn", found) == [hr.Pushed("0004", 3)] * 2


def test_many_events_of_which_none_was_taken_are_refused() -> None:
    none = {**RESULTS, "results": RESULTS["results"][1:]}
    with pytest.raises(hr.PushRefused) as caught:
        features.read_push_results(Answer(400, {}, msgspec.json.encode(none)))
    assert caught.value.refusals.keys() == {0}


def test_a_row_is_a_dictionary_that_knows_whether_it_is_complete() -> None:
    row = features.read_row(Answer(200, {"headrace-coverage": "complete"}, b'{"n": 25, "total": 625.0}'))
    assert row == {"n": 25, "total": 625.0}
    assert row.complete
    assert not features.read_row(Answer(200, {"headrace-coverage": "backfilling"}, b'{"n": null}')).complete


def test_a_row_of_the_past_says_how_far_events_reach() -> None:
    headers = {"headrace-coverage": "partial", "headrace-events-from": "2026-11-16T02:00:00Z"}
    row = features.read_row(Answer(200, headers, b'{"n": 3}'))
    assert row.complete is False
    assert row.events_from == "2026-11-16T02:00:00Z"


def test_a_row_may_be_explained() -> None:
    body = b'{"row": {"n": 1}, "explain": {"table": "T"}}'
    row = features.read_row(Answer(200, {}, body), explained=True)
    assert row == {"n": 1}
    assert row.explain == {"table": "T"}


def test_rows_come_in_the_order_in_which_they_were_asked_for() -> None:
    body = b'{"results": [{"n": 1}, {}]}'
    assert features.read_rows(Answer(200, {"headrace-coverage": "complete"}, body), [("T", 1), ("T", 2)], {}) == [
        {"n": 1},
        {},
    ]


CONFLICT: dict[str, Any] = {
    "status": "conflict",
    "registry_version": 3,
    "added": [],
    "removed": ["T"],
    "changed": [],
    "error": {
        "code": "registration_conflict",
        "message": "state would be lost",
        "errors": [{"code": "registration_conflict", "path": "T", "message": "the table is removed"}],
    },
}


def test_what_is_none_is_left_out() -> None:
    request = features.register({"descriptors": [], "force": False, "app": None, "backfill": False})
    assert request.method == "POST"
    assert request.target == "/v1/register"
    assert request.changes is True
    assert msgspec.json.decode(request.body) == {"descriptors": [], "force": False, "backfill": False}


@pytest.mark.parametrize("dry_run", [True, False])
def test_only_a_dry_run_may_be_sent_again(dry_run: bool) -> None:
    assert features.register({"descriptors": [], "dry_run": dry_run}).changes is not dry_run
    assert features.rollback(3, {"dry_run": dry_run}).changes is not dry_run


def test_a_rollback_says_where_to() -> None:
    request = features.rollback(3, {"force": True, "app": None})
    assert request.target == "/v1/registry/rollback"
    assert msgspec.json.decode(request.body) == {"version": 3, "force": True}


def test_an_answer_is_a_diff() -> None:
    body = b'{"status": "ok", "registry_version": 2, "added": ["T"], "removed": [], "changed": []}'
    assert Answer(200, {}, body).decode(hr.Diff) == hr.Diff("ok", 2, ["T"])


def test_a_conflict_has_the_diff_that_needs_force() -> None:
    with pytest.raises(hr.RegistrationConflict) as caught:
        Answer(409, {}, msgspec.json.encode(CONFLICT)).decode(hr.Diff)
    refused = caught.value
    assert refused.code == "registration_conflict"
    assert refused.status == 409
    assert refused.diff == hr.Diff("conflict", 3, removed=["T"])
    assert refused.errors == [hr.Problem("registration_conflict", "T", "the table is removed")]
    assert isinstance(refused, errors.RegistrationConflict)
    assert str(refused) == (
        "the registration is refused, and changes nothing: state would be lost\n"
        "  T: the table is removed (registration_conflict)\n"
        "Look at what would be lost; `force=True` applies the change.\n"
        "registry version 3: conflict\n  - T"
    )


def test_an_invalid_registration_has_every_reason() -> None:
    reasons = [
        {"code": "unknown_op", "path": "descriptors[0].agg.n.op", "message": "there is no operator 'cuont'"},
        {"code": "table_key_invalid", "path": "", "message": "no"},
    ]
    error = {"code": "unknown_op", "message": "two things are wrong", "errors": reasons}
    body = msgspec.json.encode({**CONFLICT, "error": error})
    with pytest.raises(hr.RegistrationInvalid) as caught:
        Answer(400, {}, body).decode(hr.Diff)
    assert [problem.code for problem in caught.value.errors] == ["unknown_op", "table_key_invalid"]
    assert str(caught.value).splitlines()[1:] == [
        "  descriptors[0].agg.n.op: there is no operator 'cuont' (unknown_op)",
        "  no (table_key_invalid)",
    ]


def test_a_refusal_survives_a_process_boundary() -> None:
    with pytest.raises(hr.RegistrationRefused) as caught:
        Answer(409, {}, msgspec.json.encode(CONFLICT)).decode(hr.Diff)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert type(copied) is hr.RegistrationConflict
    assert copied.diff == caught.value.diff
    assert copied.code == "registration_conflict"


def test_a_question_has_keys_and_moments() -> None:
    request = features.request_history(
        "T", [("u1", datetime(2026, 1, 1, tzinfo=UTC)), ([1, True], "2026-01-02T00:00:00Z")], ["n"]
    )
    assert request.target == "/v1/tables/T/history"
    assert request.changes is False
    assert msgspec.json.decode(request.body) == {
        "rows": [{"key": "u1", "at": "2026-01-01T00:00:00Z"}, {"key": [1, True], "at": "2026-01-02T00:00:00Z"}],
        "features": ["n"],
    }
    assert "features" not in msgspec.json.decode(features.request_history("T", [], None).body)
    known = features.request_history("T", [(1, "a", "b"), (2, "c"), (3, "d", None)], None, as_known_at="e")
    assert msgspec.json.decode(known.body) == {
        "rows": [{"key": 1, "at": "a", "as_known_at": "b"}, {"key": 2, "at": "c"}, {"key": 3, "at": "d"}],
        "as_known_at": "e",
    }


def test_a_table_name_cannot_leave_its_place() -> None:
    assert features.poll_history("a/b", "c/d").target == "/v1/tables/a%2Fb/history/c%2Fd"


def test_an_answer_at_once_has_its_rows() -> None:
    body = b'{"results": [{"n": 1}, {}], "complete": false, "since": "0", "events_from": "2026-01-01T00:00:00Z"}'
    first, second = features.read_history_rows(features.read_history(Answer(200, {}, body)), [(1, 2), (3, 4)])
    assert first == {"n": 1}
    assert second == {}
    assert first.complete is False
    assert second.events_from == "2026-01-01T00:00:00Z"


def test_an_answer_later_says_where_it_will_be() -> None:
    body = b'{"history": {"id": "7f", "table": "T", "state": "running", "rows": 0, "total": 3, "reason": null}}'
    assert features.read_history(Answer(202, {}, body)) == History("7f", "running")


def test_a_question_that_failed_says_why() -> None:
    body = b'{"id": "7f", "state": "failed", "reason": "the events are gone"}'
    with pytest.raises(hr.HistoryFailed, match="the rows were not found: the events are gone"):
        features.read_history_rows(Answer(200, {}, body).decode(History), [])
