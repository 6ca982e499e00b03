"""Plain appends to the stream of a type: the same as storing entities, by the terms of an append."""

from __future__ import annotations

import copy

import pytest

from engine.entities.store import CONTACT, Store
from headrace.errors import BadRequest, ConstraintViolation, NoSchemaForEntityType, StoreResolutionFailed
from headrace.schema.entity.identity import entity_id

ADA = {"email": "ada@example.com", "name": "Ada", "age": 36, "nick": "a"}
BOB = {"email": "bob@example.com"}


def test_appended_entities_become_observations_of_the_user_who_appends(contacts: Store) -> None:
    contacts.append("contact", ADA, {**BOB, "entity_type": "Contact"}, user="ann")
    appended = contacts.observations()
    assert [one["user_id"] for one in appended] == ["ann", "ann"]
    assert appended[0]["fields"] == {"email": "ada@example.com", "name": "Ada", "age": 36}
    assert appended[0]["fragments"] == [{"key": "nick", "value": "a", "reason": "unknown_field"}]
    assert appended[0]["entity_id"] == entity_id("ann", "contact:ada@example.com")
    stored = contacts.store({"entity_type": "contact", **ADA}, {"entity_type": "Contact", **BOB}, user="ann")
    assert contacts.actions(stored) == ["unchanged", "unchanged"] and len(contacts.observations()) == 2


def test_what_is_appended_again_is_not_stored_again(contacts: Store) -> None:
    assert contacts.append("contact", ADA, BOB, ADA).deduplicated == 1
    again = contacts.append("contact", ADA, BOB, ADA)
    assert again.deduplicated == 3
    assert again.count == 0
    entities = {one["entity_id"] for one in contacts.observations()}
    for entity in entities:
        assert [one["entity_id"] for one in contacts.observations(key=entity)] == [entity]


def test_entities_and_sources_of_plain_appends_are_known(contacts: Store) -> None:
    contacts.append("contact", ADA, BOB)
    source = contacts.source(contacts.observations()[0]["source_id"])
    assert source.complete and source.entities == [{"entity_type": "contact", **one} for one in (ADA, BOB)]
    rows = contacts.rows("SELECT entity_id, canonical_name, first_seq FROM entities ORDER BY first_seq")
    assert rows == [
        (entity_id("local", f"contact:{one['email']}"), f"contact:{one['email']}", number)
        for number, one in enumerate((ADA, BOB))
    ]
    assert contacts.actions(contacts.store({"entity_type": "contact", **ADA, "age": 1})) == ["updated"]


def test_a_merge_that_the_schema_refuses_refuses_the_append(store: Store) -> None:
    store.register({**copy.deepcopy(CONTACT), "name_collision_policy": "reject"})
    store.append("contact", ADA)
    assert store.append("contact", ADA).deduplicated == 1
    for producer in (None, ("p", 0, 0)):
        with pytest.raises(StoreResolutionFailed):
            store.append("contact", BOB, {**ADA, "age": 1}, producer=producer)
    assert store.append("contact", BOB, producer=("p", 0, 0)).count == 1
    assert len(store.observations()) == 2


def test_what_cannot_be_stored_is_refused_with_its_place(contacts: Store) -> None:
    with pytest.raises(ConstraintViolation) as refused:
        contacts.append("contact", BOB, {**ADA, "age": 200})
    assert refused.value.facts["item"] == 1
    for entry in (1, {**ADA, "entity_type": "book"}, {**ADA, "entity_type": 5}):
        with pytest.raises(BadRequest) as refused_too:
            contacts.append("contact", BOB, entry)
        assert refused_too.value.facts["item"] == 1
    assert contacts.observations() == []


def test_a_user_without_a_schema_cannot_append(store: Store) -> None:
    store.register(CONTACT, owner="ann")
    with pytest.raises(NoSchemaForEntityType):
        store.append("contact", ADA, user="ben")


def test_an_append_is_made_again_by_the_schema_that_holds_in_the_commit(contacts: Store) -> None:
    stream = contacts.rig.find("entities/contact")
    before = stream.head.registry
    contacts.register({**CONTACT, "fields": {**CONTACT["fields"], "nick": {"type": "string"}}}, version="1.1.0")
    now = stream.head.registry
    assert before is not None and now is not None and before is not now

    async def outdated() -> None:
        stream.head.registry = before
        contacts.rig.append_to(stream, b'[{"email":"a@b.c","nick":"x"}]', lambda append: None)
        stream.head.registry = now

    contacts.rig.run(outdated())
    contacts.store({"entity_type": "contact", **BOB})
    first = contacts.observations()[0]
    assert first["schema_version"] == "1.1.0"
    assert first["fields"] == {"email": "a@b.c", "nick": "x"}
