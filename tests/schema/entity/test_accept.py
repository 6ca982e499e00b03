from __future__ import annotations

from typing import Any

import pytest

from headrace.schema.entity.accept import Accepted, Acceptor, Refused
from schema.entity.samples import CONTACT, defined, schema

GIVEN: dict[str, Any] = {"name": "Ada", "email": "ada@example.org", "notes": "n", "tags": ["x"]}
ACCEPTOR = Acceptor(schema())


def accepted(given: dict[str, Any], acceptor: Acceptor = ACCEPTOR, **how: Any) -> Accepted:
    found = acceptor.accept(given, "t", **how)
    assert isinstance(found, Accepted), found
    return found


def notices(given: dict[str, Any], **how: Any) -> dict[str, tuple[str, ...]]:
    return {notice.code: notice.fields for notice in accepted(given, **how).notices}


def test_nothing_is_told_of_what_is_complete() -> None:
    found = accepted(GIVEN)
    assert (found.fields, found.fragments, found.notices) == (GIVEN, (), [])
    assert found.identity.canonical_name == "contact:ada@example.org"


@pytest.mark.parametrize(
    ("change", "code", "fields"),
    [
        ({"shoe": 38}, "UNKNOWN_FIELD", ("shoe",)),
        ({"age": "old"}, "UNKNOWN_FIELD", ("age",)),
        ({"name": None}, "MISSING_REQUIRED_FIELD", ("name",)),
        ({"notes": None}, "MISSING_CONTENT_FIELD", ("notes",)),
        ({"tags": None}, "NO_TAGS", ("tags",)),
        ({"email": None}, "MISSING_IDENTITY_FIELDS", ("email",)),
    ],
)
def test_what_is_unknown_or_missing_is_told_and_never_refused(
    change: dict[str, Any], code: str, fields: tuple[str, ...]
) -> None:
    assert notices({**GIVEN, **change}) == {code: fields}


def test_what_a_validator_refuses_is_told() -> None:
    assert notices({**GIVEN, "email": "nobody"}) == {
        "VALIDATOR_FAILED": ("email",),
        "MISSING_IDENTITY_FIELDS": ("email",),
    }
    assert accepted({**GIVEN, "email": "nobody"}).unknown_fields == ["email"]


def test_a_priority_that_no_policy_looks_at_is_told() -> None:
    assert notices(GIVEN, prioritised=True) == {"SOURCE_PRIORITY_IGNORED": ("email", "notes")}


def test_a_broken_constraint_refuses_or_is_told_as_the_schema_says() -> None:
    found = ACCEPTOR.accept({**GIVEN, "age": "151"}, "t")
    assert isinstance(found, Refused)
    assert [violation.message for violation in found.violations] == ["age: is above 150"]
    lenient = Acceptor(schema(schema_definition={**CONTACT, "constraint_violation_policy": "warn"}))
    assert [notice.code for notice in accepted({**GIVEN, "age": -1}, lenient).notices] == ["CONSTRAINT_VIOLATION"]


@pytest.mark.parametrize(
    ("constraints", "good", "bad"),
    [
        ({"enum": ["a", "b"]}, "a", "c"),
        ({"banned": ["a"]}, "b", "a"),
        ({"pattern": "^[0-9]+$"}, "12", "1x"),
        ({"pattern": "x"}, "axb", "ab"),
    ],
)
def test_each_constraint_is_applied(constraints: dict[str, Any], good: str, bad: str) -> None:
    acceptor = Acceptor(defined({"name": "string", "x": {"type": "string", "constraints": constraints}}))
    assert isinstance(acceptor.accept({"name": "n", "x": good}, "t"), Accepted)
    assert isinstance(acceptor.accept({"name": "n", "x": bad}, "t"), Refused)
    assert isinstance(acceptor.accept({"name": "n", "x": None}, "t"), Accepted)


def test_all_that_speaks_against_it_is_said_at_once() -> None:
    acceptor = Acceptor(schema(schema_definition={**CONTACT, "canonical_name_strict": True}))
    found = acceptor.accept({"age": 200}, "t")
    assert isinstance(found, Refused)
    assert found.unresolved is not None
    assert len(found.violations) == 1


def test_an_entity_that_is_named_by_its_id_needs_no_name() -> None:
    found = accepted({"age": 3}, target_id="ent_x")
    assert (found.identity.entity_id, found.identity.basis) == ("ent_x", "target_id")
    assert ACCEPTOR.required_missing(found.fields) == ["name"]
