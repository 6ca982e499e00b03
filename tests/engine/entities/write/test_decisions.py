"""Corrections, deletions and restorations: observations that outrank what others say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.entities.store import CONTACT, Store
from headrace.errors import ConstraintViolation, IdempotencyCollision, NoSchemaForEntityType, NotFound
from support.entity_rig import Entities, contact

ADA = {"entity_type": "contact", "email": "ada@example.com", "name": "Ada", "age": 36}


@pytest.fixture
def ada(contacts: Store) -> str:
    return str(contacts.store(ADA)["entities"][0]["entity_id"])


def test_a_correction_is_an_observation_without_a_source_that_outranks_others(contacts: Store, ada: str) -> None:
    answer = contacts.decide("correction", ada, age=37, name=None)
    stored = contacts.observations()[-1]
    assert answer == {
        "entity_id": ada, "entity_type": "contact", "action": "corrected", "observation_id": stored["id"],
        "schema_version": "1.0.0", "fields": ["age", "name"], "store_warnings": [],
    }  # fmt: skip
    names = ("kind", "source_id", "source_priority", "specificity_score", "observation_source", "fields")
    assert [stored[name] for name in names] == ["correction", None, 1000, 1.0, "human", {"age": 37, "name": None}]


def test_a_corrected_field_that_is_unknown_is_a_fragment_too(contacts: Store, ada: str) -> None:
    answer = contacts.decide("correction", ada, nick="a")
    stored = contacts.observations()[-1]
    assert stored["fields"] == {"nick": "a"}
    assert stored["fragments"] == [{"key": "nick", "value": "a", "reason": "unknown_field"}]
    assert [one["code"] for one in answer["store_warnings"]] == ["UNKNOWN_FIELD"]


def test_a_corrected_value_is_converted_where_that_makes_it_fit(contacts: Store, ada: str) -> None:
    answer = contacts.decide("correction", ada, born=0)
    stored = contacts.observations()[-1]
    assert stored["fields"] == {"born": "1970-01-01T00:00:00.000Z"}
    assert [(one["key"], one["reason"]) for one in stored["fragments"]] == [("born", "converted_value_original")]
    assert answer["store_warnings"] == []


@pytest.mark.parametrize("policy", ["reject", "warn"])
def test_a_correction_that_its_schema_does_not_take_is_refused_for_every_reason(store: Store, policy: str) -> None:
    fields = {"site": {"type": "string", "validator": "url"}}
    definition = {**CONTACT, "fields": {**CONTACT["fields"], **fields}, "constraint_violation_policy": policy}
    store.register(definition)
    ada = store.store(ADA)["entities"][0]["entity_id"]
    with pytest.raises(ConstraintViolation) as refused:
        store.decide("correction", ada, age="old", born="soon", site="nowhere", name="Ada L.")
    told = [(one["field"], one["constraint"], one["constraint_value"]) for one in refused.value.facts["issues"]]
    assert told == [("age", "type", "number"), ("born", "type", "date"), ("site", "validator", "url")]
    assert refused.value.facts["field"] == "age" and "takes a number" in refused.value.message
    assert len(store.observations()) == 1
    store.decide("correction", ada, age=None, born=None, site=None)


def test_a_correction_that_breaks_a_constraint_is_refused(contacts: Store, ada: str) -> None:
    with pytest.raises(ConstraintViolation):
        contacts.decide("correction", ada, age=151)
    assert len(contacts.observations()) == 1


def test_the_same_correction_is_another_one_later_unless_it_has_a_key(contacts: Store, ada: str) -> None:
    for age in (1, 2, 1):
        contacts.decide("correction", ada, age=age)
    first = contacts.decide("correction", ada, key="k", age=3)
    assert contacts.decide("correction", ada, key="k", age=3) == first
    with pytest.raises(IdempotencyCollision):
        contacts.decide("correction", ada, key="k", age=4)
    assert [one["fields"].get("age") for one in contacts.observations()] == [36, 1, 2, 1, 3]


def test_a_deletion_and_a_restoration_say_so(contacts: Store, ada: str) -> None:
    for _ in range(2):
        assert contacts.decide("deletion", ada)["action"] == "deleted"
        assert contacts.decide("restoration", ada)["action"] == "restored"
    found = [(one["kind"], one["source_priority"], one["fields"]) for one in contacts.observations()[1:]]
    assert found == [("deletion", 1000, {"_deleted": True}), ("restoration", 1001, {"_deleted": False})] * 2


def test_nothing_is_decided_about_entities_of_others(contacts: Store, ada: str) -> None:
    with pytest.raises(NotFound):
        contacts.decide("deletion", ada, user="ann")
    assert len(contacts.observations()) == 1


def test_nothing_is_decided_where_no_schema_holds(contacts: Store, ada: str) -> None:
    contacts.rig.run(contacts.engine.types.deactivate("contact", "1.0.0", "", "test"))
    with pytest.raises(NoSchemaForEntityType):
        contacts.decide("correction", ada, age=3)


@pytest.fixture
def entities(tmp_path: Path) -> Any:
    with Entities(tmp_path) as rig:
        rig.register_type(contact())
        yield rig


def decided(rig: Entities, kind: Any, entity: str, **given: Any) -> None:
    rig.clock.us += 1_000_000
    Store(rig).decide(kind, entity, **given)


def test_a_correction_wins_over_later_and_higher_writes_under_every_policy(entities: Entities) -> None:
    ada = entities.said("ada@example.com", name="a", phone="1", tags=["x", "y"], score=1)
    right = {"name": "A", "phone": "2", "tags": ["z"], "score": 2}
    decided(entities, "correction", ada, **right)
    loud = {"source_priority": 5000, "specificity_score": 1, "observed_at": "2099-01-01T00:00:00Z"}
    entities.said("ada@example.com", name="b", phone="3", tags=["q"], score=3, meta=loud)
    assert entities.snapshot(ada) == {"email": "ada@example.com", **right}
    decided(entities, "correction", ada, tags=["w"], score=None)
    assert entities.snapshot(ada) == {"email": "ada@example.com", "name": "A", "phone": "2", "tags": ["w"]}


def test_a_deleted_entity_stays_so_until_it_is_restored(entities: Entities) -> None:
    ada = entities.said("ada@example.com", name="a")
    decided(entities, "deletion", ada)
    entities.said("ada@example.com", name="b", meta={"source_priority": 5000})
    assert entities.shown(ada).snapshot is None
    decided(entities, "restoration", ada)
    assert entities.snapshot(ada)["name"] == "b"
    decided(entities, "deletion", ada)
    assert entities.shown(ada).snapshot is None
