from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.entities.registering import (
    activate,
    added,
    deactivate,
    fields,
    fields_of,
    register,
    schema,
    update,
    version_of,
)
from headrace.engine.entities.entity_type import schema_of
from headrace.engine.entities.types.document import files
from headrace.engine.entities.types.entity_types import Outcome
from headrace.errors import AliasTaken, NoSchemaForEntityType, UnknownEntityType, VersionTaken
from headrace.schema.entity.nodes import ReducerConfig, Schema
from headrace.storage.entity_types import EVERYBODY
from support.engine_rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as made:
        yield made


def codes(outcome: Outcome) -> list[str]:
    return [refusal.code for refusal in outcome.plan.refusals]


def active(rig: Rig, owner: str = EVERYBODY) -> list[str]:
    rows = rig.engine.types.versions("contact", owner)
    return [row.schema_version for row in rows if row.active and row.user_id == owner]


def holding(rig: Rig, user: str = "u") -> Schema:
    found = rig.engine.types.effective("contact", user)
    assert found is not None
    return found.schema


def test_a_type_is_of_use_once_it_is_registered_and_its_stream_is_there(rig: Rig) -> None:
    assert rig.engine.types.effective("contact", "u") is None
    outcome = register(rig, schema())
    assert outcome.number == 1
    assert outcome.proposal.active is True
    assert codes(outcome) == []
    assert holding(rig).schema_definition.dump()["fields"] == fields(name="string", email="string")
    stream = rig.find("entities/contact")
    assert stream.managed is True
    assert (stream.head.registry is not None and stream.head.registry.version) == 1


def test_a_version_is_not_active_unless_that_is_asked_for(rig: Rig) -> None:
    outcome = register(rig, {**schema(), "activate": False})
    assert outcome.number == 1
    assert outcome.proposal.active is False
    assert rig.engine.types.effective("contact", "u") is None
    assert activate(rig, "1.0.0").number == 2
    assert version_of(rig, "u") == "1.0.0"


def test_a_version_is_not_registered_twice(rig: Rig) -> None:
    register(rig, schema())
    other = schema("1.0", definition={"fields": fields(email="string", other="number")})
    outcome = register(rig, other)
    assert codes(outcome) == [VersionTaken.code]
    assert outcome.number is None
    assert register(rig, schema(), "u").number == 2
    assert register(rig, schema(), "v").number == 3
    assert codes(register(rig, schema(), "u")) == [VersionTaken.code]


def test_activation_turns_the_others_off_and_is_the_way_back(rig: Rig) -> None:
    register(rig, schema())
    register(rig, schema("2.0.0", definition={"fields": fields(email="string", age="number")}))
    register(rig, schema("1.5.0"), "u")
    assert active(rig) == ["2.0.0"]
    assert active(rig, "u") == ["1.5.0"]
    back = activate(rig, "1.0.0")
    assert active(rig) == ["1.0.0"]
    assert back.plan.from_version == "2.0.0"
    assert back.plan.to_version == "1.0.0"
    assert {change.what for change in back.plan.changes} == {"field_added", "field_removed"}
    again = activate(rig, "1.0.0")
    assert again.number is None
    assert again.proposal.active is True
    assert again.plan.changes_nothing is True


def test_without_an_active_version_what_is_global_holds_or_nothing(rig: Rig) -> None:
    register(rig, schema())
    register(rig, schema("3.0.0"), "u")
    assert version_of(rig, "u") == "3.0.0"
    outcome = deactivate(rig, "3.0.0", "u")
    assert not outcome.proposal.active and "1.0.0" in outcome.plan.reasons[0]
    assert version_of(rig, "u") == "1.0.0"
    assert deactivate(rig, "3.0.0", "u").number is None
    deactivate(rig, "1.0.0")
    assert version_of(rig, "u") is None
    assert activate(rig, "1.0.0").plan.from_version == ""
    assert version_of(rig, "u") == "1.0.0"


def test_a_dry_run_says_everything_and_does_nothing(rig: Rig) -> None:
    assert register(rig, {**schema(), "dry_run": True}).number is None
    assert rig.engine.types.stream("contact") is None
    register(rig, schema())
    before = rig.engine.types.number
    outcomes = [
        register(rig, {**schema("2.0.0"), "dry_run": True}),
        update(rig, fields_to_add=[added("age", "number")], dry_run=True),
        activate(rig, "1.0.0", dry_run=True),
        deactivate(rig, "1.0.0", dry_run=True),
    ]
    assert [outcome.number for outcome in outcomes] == [None] * 4
    assert [bool(outcome.proposal.owner_changes) for outcome in outcomes] == [True, True, False, True]
    assert rig.engine.types.number == before
    assert version_of(rig, "u") == "1.0.0"
    done = update(rig, fields_to_add=[added("age", "number")])
    assert done.plan.dump() == outcomes[1].plan.dump()


@pytest.mark.parametrize(
    ("wishes", "version", "bump"),
    [
        ({"fields_to_add": [added("age", "number")]}, "1.1.0", "minor"),
        ({"fields_to_add": [added("age", "number", required=True)]}, "2.0.0", "major"),
        ({"fields_to_remove": ["name"]}, "2.0.0", "major"),
        ({"canonical_name_fields": ["name"]}, "2.0.0", "major"),
        ({"canonical_name_fields": []}, "2.0.0", "major"),
        ({"metadata": {"label": "People"}}, "1.0.1", "patch"),
        ({"fields_to_add": [added("age", "number")], "schema_version": "4.2"}, "4.2.0", "minor"),
    ],
    ids=["optional", "required", "removed", "identity", "no identity", "metadata", "explicit"],
)
def test_an_update_moves_the_version_as_far_as_it_changes_things(
    rig: Rig, wishes: dict[str, Any], version: str, bump: str
) -> None:
    register(rig, schema())
    outcome = update(rig, **wishes)
    assert outcome.plan.to_version == version
    assert outcome.proposal.bump.name.lower() == bump
    assert version_of(rig, "u") == version


def test_an_update_that_changes_nothing_makes_no_version(rig: Rig) -> None:
    register(rig, schema(metadata={"label": "People"}))
    before = rig.engine.types.number
    for wishes in (
        {},
        {"fields_to_add": [added("name", "number")]},
        {"fields_to_remove": ["nothing"]},
        {"canonical_name_fields": ["email"]},
        {"metadata": {"label": "People"}},
    ):
        outcome = update(rig, **wishes)
        assert outcome.number is None
        assert outcome.plan.changes_nothing is True
    assert rig.engine.types.number == before
    assert len(rig.engine.types.versions("contact", "u")) == 1


def test_an_update_carries_everything_over(rig: Rig) -> None:
    given = schema(
        metadata={"label": "People", "icon": {"icon_name": "user"}},
        reducer_config={
            "merge_policies": {"name": {"strategy": "highest_priority", "tie_breaker": "source_priority"}},
            "observation_source_priority": ["human", "sensor"],
        },
        definition={
            "aliases": ["person"],
            "temporal_fields": [{"field": "born", "event_type": "birth"}],
            "store_warnings": [{"code": "NO_NAME", "fields": ["name"], "message": "a name would be good"}],
            "fields": {**fields(name="string", email="string"), "born": {"type": "date", "description": "birthday"}},
        },
    )
    register(rig, given)
    before = holding(rig)
    update(rig, fields_to_add=[added("age", "number", reducer_strategy="most_specific")], metadata={"category": "x"})
    after = holding(rig)
    old, new = before.dump(), after.dump()
    assert new["metadata"] == {**old["metadata"], "category": "x"}
    assert new["reducer_config"].pop("merge_policies") == {
        **old["reducer_config"].pop("merge_policies"),
        "age": {"strategy": "most_specific"},
    }
    assert new["reducer_config"] == old["reducer_config"]
    assert new["schema_definition"]["fields"].pop("age") == {"type": "number"}
    assert new["schema_definition"] == old["schema_definition"]


def test_what_is_removed_is_gone_from_every_declaration(rig: Rig) -> None:
    given = schema(
        reducer_config={"merge_policies": {"born": {"strategy": "most_specific"}}},
        definition={
            "canonical_name_fields": [{"composite": ["name", "born"]}, "email"],
            "temporal_fields": [{"field": "born"}],
            "identity_search_fields": ["born", "email"],
            "duplicate_detection_fields": ["born", "name"],
            "store_warnings": [{"code": "NO_DAY", "fields": ["born"], "message": "no birthday"}],
            "fields": fields(name="string", email="string", born="date"),
        },
    )
    register(rig, given)
    assert update(rig, fields_to_remove=["born"]).plan.to_version == "2.0.0"
    assert "born" not in holding(rig).dump()["schema_definition"]["fields"]
    assert '"born"' not in str(holding(rig).dump()).replace("'", '"')
    outcome = update(rig, fields_to_remove=["name", "email"])
    assert outcome.plan.refusals[0].pointer == "/fields_to_remove"
    assert outcome.number is None


def test_converters_are_added_to_fields_that_exist_and_once(rig: Rig) -> None:
    register(rig, schema(definition={"fields": fields(email="string", at="date")}))
    converter = {"from": "number", "to": "date", "function": "timestamp_ms_to_iso", "deterministic": True}
    first = update(rig, converters_to_add=[{"field_name": "at", "converter": converter}])
    assert first.plan.to_version == "1.1.0"
    assert update(rig, converters_to_add=[{"field_name": "at", "converter": converter}]).number is None
    missing = update(rig, converters_to_add=[{"field_name": "gone", "converter": converter}])
    assert missing.plan.refusals[0].pointer == "/converters_to_add/0/field_name"


def test_another_identity_rule_is_told_with_what_becomes_of_entities(rig: Rig) -> None:
    register(rig, schema())
    plan = update(rig, canonical_name_fields=["name"], dry_run=True).plan
    assert plan.classification.value == "destructive"
    assert any("keep their ids" in reason for reason in plan.reasons)
    assert plan.impact[0].dump() == {"subject": "snapshots", "effect": "kept", "entities": 0, "observations": 0}


def test_a_change_of_policies_rebuilds_snapshots_and_an_addition_keeps_them(rig: Rig) -> None:
    register(rig, schema())
    assert update(rig, fields_to_add=[added("a")], dry_run=True).plan.impact[0].effect.value == "kept"
    specific = added("b", reducer_strategy="most_specific")
    assert update(rig, fields_to_add=[specific], dry_run=True).plan.impact[0].effect.value == "rebuilt"


def test_what_nobody_sees_cannot_be_changed(rig: Rig) -> None:
    for attempt in (
        lambda: update(rig, fields_to_add=[added("a")]),
        lambda: activate(rig, "1.0.0"),
        lambda: deactivate(rig, "1.0.0"),
        lambda: rig.engine.types.versions("contact", "u"),
    ):
        with pytest.raises(UnknownEntityType):
            attempt()
    register(rig, {**schema(), "activate": False})
    with pytest.raises(NoSchemaForEntityType):
        update(rig, fields_to_add=[added("a")])
    with pytest.raises(UnknownEntityType, match=r"9\.9\.9"):
        activate(rig, "9.9.9")


def test_names_are_spelled_in_one_way_and_aliases_lead_to_their_type(rig: Rig) -> None:
    register(rig, schema(entity_type="Sales Lead", definition={"aliases": ["Prospect"]}))
    types = rig.engine.types
    assert [types.resolve(name, "u") for name in ("sales_lead", "Sales-Lead", "prospect", "PROSPECT", "Other One")] == [
        "sales_lead", "sales_lead", "sales_lead", "sales_lead", "other_one",
    ]  # fmt: skip
    taken = register(rig, schema(entity_type="prospect"))
    assert codes(taken) == [AliasTaken.code]
    assert taken.plan.refusals[0].facts == {"entity_type": "sales_lead"}
    again = register(rig, schema(entity_type="deal", definition={"aliases": ["prospect"]}))
    assert codes(again) == [AliasTaken.code]
    assert again.plan.refusals[0].pointer == "/schema_definition/aliases/0"
    deactivate(rig, "1.0.0", entity_type="sales_lead")
    assert types.resolve("prospect", "u") == "prospect"
    assert codes(register(rig, schema(entity_type="prospect"))) == []


def test_a_type_is_made_of_what_is_stored_for_the_one_who_stores_it(rig: Rig) -> None:
    types = rig.engine.types
    given = [{"title": "a", "at": "2026-01-01", "n": 1}]
    stream = rig.run(types.ensure("note", given, "u"))
    found = types.effective("note", "u")
    assert stream.name == "entities/note" and found is not None
    assert found.schema.schema_version == "1.0.0"
    assert found.schema.scope == "user"
    assert found.schema.user_id == "u"
    assert {name: field.type for name, field in found.schema.schema_definition.fields.items()} == {
        "title": "string", "at": "date", "n": "number",
    }  # fmt: skip
    assert types.effective("note", "v") is None
    assert types.page("v", "", 10) == []
    assert rig.run(types.ensure("note", [{"other": 1}], "u")) is stream
    assert rig.run(types.ensure("note", [{"other": 1}], "v")) is stream
    assert version_of(rig, "u", "note") == "1.0.0"
    assert fields_of(rig, "v", "note") == {"other"}
    deactivate(rig, "1.0.0", "u", "note")
    rig.run(types.ensure("note", given, "u"))
    assert version_of(rig, "u", "note") == "2.0.0"


def test_a_stream_that_has_the_name_is_not_taken_over(rig: Rig) -> None:
    rig.create("entities/contact")
    outcome = register(rig, schema())
    assert codes(outcome) == ["name_taken"]
    assert outcome.number is None


def test_versions_come_the_newest_first_and_types_in_order(rig: Rig) -> None:
    for version in ("1.0.0", "10.0.0", "9.1.0", "2.0.0"):
        register(rig, schema(version))
    register(rig, schema("9.1.0"), "u")
    rows = rig.engine.types.versions("contact", "u")
    assert [(row.schema_version, row.user_id) for row in rows] == [
        ("10.0.0", ""), ("9.1.0", "u"), ("9.1.0", ""), ("2.0.0", ""), ("1.0.0", ""),
    ]  # fmt: skip
    register(rig, schema(entity_type="account"))
    register(rig, schema(entity_type="task"), "v")
    page = rig.engine.types.page
    assert [(row.entity_type, row.user_id) for row in page("u", "", 9)] == [
        ("account", ""), ("contact", ""), ("contact", "u"),
    ]  # fmt: skip
    assert [row.entity_type for row in page("v", "", 1)] == ["account"]
    assert [row.entity_type for row in page("v", "account", 9)] == ["contact", "task"]


def test_everything_is_there_again_after_a_restart(rig: Rig) -> None:
    register(rig, schema(definition={"aliases": ["person"]}))
    update(rig, "u", fields_to_add=[added("age", "number")])
    types = rig.engine.types
    before = types.versions("contact", "u"), types.history("contact", "u", 0, 9), types.number
    rig.reopen()
    types = rig.engine.types
    assert (types.versions("contact", "u"), types.history("contact", "u", 0, 9), types.number) == before
    assert types.resolve("person", "u") == "contact"
    assert version_of(rig, "u") == "1.1.0"
    assert version_of(rig, "v") == "1.0.0"


def test_exports_have_the_same_bytes_every_time(rig: Rig) -> None:
    register(rig, schema(metadata={"b": 1.0, "a": 2}))
    update(rig, fields_to_add=[added("age", "number")])
    update(rig, "some.one", fields_to_add=[added("mine")])
    found = list(files(rig.engine.types.versions("contact", "some.one")))
    assert [file.path for file in found] == [
        "schema_snapshots/contact/v1.0.0.json",
        "schema_snapshots/contact/v1.1.0.json",
        "schema_snapshots/users/some%2Eone/contact/v1.2.0.json",
    ]
    rig.reopen()
    assert list(files(rig.engine.types.versions("contact", "some.one"))) == found
    with Rig(Path(rig.config.storage.data_dir) / "other") as other:
        register(other, schema(metadata={"a": 2, "b": 1}))
        assert next(iter(files(other.engine.types.versions("contact", "u")))) == found[0]


def test_users_whose_policies_differ_have_snapshots_of_their_own(rig: Rig) -> None:
    register(rig, schema())
    kind = rig.engine.types.find("contact")
    assert kind is not None
    assert dict(kind.configs) == {"": ReducerConfig({})}
    update(rig, "u", fields_to_add=[added("a")])
    update(rig, "v", fields_to_add=[added("a", "array", reducer_strategy="merge_array")])
    later = rig.engine.types.find("contact")
    assert later is not None and later is not kind and later.number > kind.number
    assert set(later.configs) == {"", "v"}
    assert later.configs[""] == kind.configs[""]
    assert "a" in later.configs["v"].merge_policies


def test_a_stored_version_is_what_holds(rig: Rig) -> None:
    register(rig, schema())
    update(rig, "u", fields_to_add=[added("a")])
    for user in ("u", "v"):
        row = rig.engine.types.active("contact", user)
        found = rig.engine.types.effective("contact", user)
        assert row is not None and found is not None
        assert schema_of(row) == found.schema
