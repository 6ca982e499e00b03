"""Registrations on the wire, without a server."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace import errors
from headrace.client import registration
from headrace.client.answers import Answer

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
    request = registration.register({"descriptors": [], "force": False, "app": None, "backfill": False})
    assert (request.method, request.target, request.changes) == ("POST", "/v1/register", True)
    assert msgspec.json.decode(request.body) == {"descriptors": [], "force": False, "backfill": False}


@pytest.mark.parametrize("dry_run", [True, False])
def test_only_a_dry_run_may_be_sent_again(dry_run: bool) -> None:
    assert registration.register({"descriptors": [], "dry_run": dry_run}).changes is not dry_run
    assert registration.rollback(3, {"dry_run": dry_run}).changes is not dry_run


def test_a_rollback_says_where_to() -> None:
    request = registration.rollback(3, {"force": True, "app": None})
    assert request.target == "/v1/registry/rollback"
    assert msgspec.json.decode(request.body) == {"version": 3, "force": True}


def test_an_answer_is_a_diff() -> None:
    body = b'{"status": "ok", "registry_version": 2, "added": ["T"], "removed": [], "changed": []}'
    assert registration.diff(Answer(200, {}, body)) == hr.Diff("ok", 2, ["T"])


def test_a_conflict_has_the_diff_that_needs_force() -> None:
    with pytest.raises(hr.RegistrationConflict) as caught:
        registration.diff(Answer(409, {}, msgspec.json.encode(CONFLICT)))
    refused = caught.value
    assert (refused.code, refused.status) == ("registration_conflict", 409)
    assert refused.diff == hr.Diff("conflict", 3, removed=["T"])
    assert refused.errors == [hr.Problem("registration_conflict", "T", "the table is removed")]
    assert isinstance(refused, errors.RegistrationConflict)
    assert str(refused) == (
        "state would be lost\n  T: the table is removed (registration_conflict)\nregistry version 3: conflict\n  - T"
    )


def test_an_invalid_registration_has_every_reason() -> None:
    reasons = [
        {"code": "unknown_op", "path": "descriptors[0].agg.n.op", "message": "there is no operator 'cuont'"},
        {"code": "table_key_invalid", "path": "", "message": "no"},
    ]
    error = {"code": "unknown_op", "message": "two things are wrong", "errors": reasons}
    body = msgspec.json.encode({**CONFLICT, "error": error})
    with pytest.raises(hr.RegistrationInvalid) as caught:
        registration.diff(Answer(400, {}, body))
    assert [problem.code for problem in caught.value.errors] == ["unknown_op", "table_key_invalid"]
    assert str(caught.value).splitlines()[1:] == [
        "  descriptors[0].agg.n.op: there is no operator 'cuont' (unknown_op)",
        "  no (table_key_invalid)",
    ]


def test_a_refusal_survives_a_process_boundary() -> None:
    with pytest.raises(hr.RegistrationRefused) as caught:
        registration.diff(Answer(409, {}, msgspec.json.encode(CONFLICT)))
    copied = pickle.loads(pickle.dumps(caught.value))
    assert type(copied) is hr.RegistrationConflict
    assert (copied.diff, copied.code) == (caught.value.diff, "registration_conflict")
