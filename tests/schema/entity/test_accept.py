"""Entities are split, checked and accepted."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.schema.entity.accept import Accepted, Acceptor, Fragment, Refused, Splitter, rejoin_fragments
from schema.entity.samples import CONTACT, NANOS, defined, schema

NANO = 1_700_000_000_123_456_789


def test_what_fits_stays_what_converts_is_kept_twice_and_the_rest_is_a_fragment() -> None:
    given = {"name": "Ada", "age": "36", "born": NANO, "tags": "x", "shoe": 38}
    fields, fragments = Splitter(schema().schema_definition).split(given)
    assert fields == {"name": "Ada", "age": 36, "born": "2023-11-14T22:13:20.123Z"}
    assert fragments == (
        Fragment("age", "36", "converted_value_original", "number"),
        Fragment("born", NANO, "converted_value_original", "date"),
        Fragment("tags", "x", "unknown_field"),
        Fragment("shoe", 38, "unknown_field"),
    )
    assert rejoin_fragments(fields, fragments) == given


def test_an_explicit_null_is_a_value_of_any_field_and_a_fragment_elsewhere() -> None:
    fields, fragments = Splitter(schema().schema_definition).split({"email": None, "born": None, "other": None})
    assert fields == {"email": None, "born": None}
    assert fragments == (Fragment("other", None, "unknown_field"),)


def test_a_value_that_its_validator_refuses_is_kept_as_a_fragment() -> None:
    splitter = Splitter(schema().schema_definition)
    fields, fragments = splitter.split({"email": "nobody"})
    assert fields == {}
    assert fragments == (Fragment("email", "nobody", "unknown_field"),)
    assert splitter.explain_fragment(fragments[0])[0] == "VALIDATOR_FAILED"


def test_a_validator_judges_what_conversion_made() -> None:
    field = {"type": "date", "converters": [NANOS], "validator": "iso_date"}
    fields, fragments = Splitter(defined({"on": field}).schema_definition).split({"on": NANO})
    assert fields == {}
    assert fragments == (Fragment("on", NANO, "unknown_field"),)


def test_a_nested_value_is_not_touched() -> None:
    nested = {"a": [1, {"b": None}], "c": 10**25}
    fields, fragments = Splitter(defined({"o": "object", "l": "array"}).schema_definition).split(
        {"o": nested, "l": [nested]}
    )
    assert fields == {"o": nested, "l": [nested]}
    assert fragments == ()


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
    assert found.fields == GIVEN
    assert found.fragments == ()
    assert found.notices == []
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
    assert found.identity.entity_id == "ent_x"
    assert found.identity.basis == "target_id"
    assert ACCEPTOR.missing_required_fields(found.fields) == ["name"]
