"""A user's schema lies over the global one: later global fields reach the user, and nobody sees the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.entities.registering import activate, added, fields, fields_of, register, schema, update, version_of
from headrace.engine.entities.types import journal
from support.engine_rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as made:
        register(made, schema())
        yield made


def test_later_global_fields_reach_users_in_the_same_change(rig: Rig) -> None:
    update(rig, "u", fields_to_add=[added("mine")])
    assert version_of(rig, "u") == "1.1.0"
    assert version_of(rig, "v") == "1.0.0"
    outcome = update(rig, fields_to_add=[added("everybodys", "number")])
    assert [impact.dump() for impact in outcome.plan.impact][1] == {
        "subject": "user_schemas", "effect": "rebuilt", "users": 1,
    }  # fmt: skip
    assert version_of(rig, "u") == "1.2.0"
    assert version_of(rig, "v") == "1.1.0"
    assert fields_of(rig, "u") == {"name", "email", "mine", "everybodys"}
    assert fields_of(rig, "v") == {"name", "email", "everybodys"}


def test_what_a_user_has_of_their_own_is_seen_by_nobody_else(rig: Rig) -> None:
    update(rig, "u", fields_to_add=[added("mine")])
    register(rig, schema("7.0.0", definition={"fields": fields(email="string", secret="string")}), "u")
    assert version_of(rig, "v") == "1.0.0"
    assert fields_of(rig, "v") == {"name", "email"}
    types = rig.engine.types
    assert all(not row.user_id for row in types.versions("contact", "v"))
    assert [row.user_id for row in types.page("v", "", 10)] == [""]
    assert {change.user_id for change in types.history("contact", "v", 0, 10)} == {""}


def test_a_field_that_a_user_took_away_stays_away(rig: Rig) -> None:
    update(rig, "u", fields_to_remove=["name"])
    assert version_of(rig, "u") == "2.0.0"
    assert fields_of(rig, "u") == {"email"}
    update(rig, fields_to_add=[added("later")])
    assert fields_of(rig, "u") == {"email", "later"}


def test_a_field_that_is_taken_away_globally_goes_from_users_who_left_it_as_it_was(rig: Rig) -> None:
    update(rig, "u", fields_to_add=[added("mine")])
    update(rig, fields_to_remove=["name"])
    assert version_of(rig, "u") == "2.0.0"
    assert fields_of(rig, "u") == {"email", "mine"}


def test_a_schema_of_a_users_own_takes_in_what_is_global_and_says_so(rig: Rig) -> None:
    outcome = register(rig, schema("5.0.0", definition={"fields": fields(email="string", mine="string")}), "u")
    assert version_of(rig, "u") == "5.0.0"
    assert fields_of(rig, "u") == {"name", "email", "mine"}
    assert [(notice.code, notice.fields) for notice in outcome.proposal.notices] == [
        ("GLOBAL_FIELDS_INHERITED", ("name",))
    ]


def test_a_type_of_ones_own_follows_what_becomes_global_later(tmp_path: Path) -> None:
    with Rig(tmp_path / "other") as rig:
        register(rig, schema("1.0.0", definition={"fields": fields(email="string", mine="string")}), "u")
        assert version_of(rig, "v") is None
        register(rig, schema("1.0.0"))
        assert fields_of(rig, "u") == {"name", "email", "mine"}
        assert fields_of(rig, "v") == {"name", "email"}


def test_a_rollback_of_the_global_schema_takes_its_fields_back_from_users(rig: Rig) -> None:
    update(rig, fields_to_add=[added("later")])
    update(rig, "u", fields_to_add=[added("mine")])
    activate(rig, "1.0.0")
    assert fields_of(rig, "u") == {"name", "email", "mine"}
    assert fields_of(rig, "v") == {"name", "email"}


def test_a_rollback_of_a_users_own_is_exact_and_the_next_global_change_reaches_it(rig: Rig) -> None:
    update(rig, "u", fields_to_add=[added("first")])
    update(rig, fields_to_add=[added("second")])
    activate(rig, "1.1.0", "u")
    assert fields_of(rig, "u") == {"name", "email", "first"}
    update(rig, fields_to_add=[added("third")])
    assert fields_of(rig, "u") == {"name", "email", "first", "second", "third"}
    activate(rig, "1.1.0", "u")
    update(rig, "u", fields_to_add=[added("own")])
    assert fields_of(rig, "u") == {"name", "email", "first", "second", "third", "own"}


def test_a_change_that_a_user_has_already_makes_no_version_of_theirs(rig: Rig) -> None:
    update(rig, "u", fields_to_add=[added("phone")])
    update(rig, fields_to_add=[added("phone")])
    assert version_of(rig, "u") == "1.1.0"
    assert version_of(rig, "v") == "1.1.0"


def test_every_step_is_in_the_history_of_whom_it_concerns(rig: Rig) -> None:
    update(rig, "u", fields_to_add=[added("mine")])
    update(rig, fields_to_add=[added("later")])
    changes = rig.engine.types.history("contact", "u", 0, 10)
    told = [(change.user_id, journal.load(change).action, journal.load(change).to_version) for change in changes]
    assert told == [
        ("", "register", "1.0.0"),
        ("u", "update", "1.1.0"),
        ("", "update", "1.1.0"),
        ("u", "follow", "1.2.0"),
    ]
    assert [change.number for change in changes] == [1, 2, 3, 4]
