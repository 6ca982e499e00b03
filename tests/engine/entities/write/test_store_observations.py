"""Storing observations: what becomes of entities, and what is refused, decided in one commit."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import msgspec
import pytest

from engine.entities.store import CONTACT, Store
from headrace.engine.entities.write.store_observations import TypesOutdated
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.errors import (
    BadRequest,
    BatchTooLarge,
    ConstraintViolation,
    IdempotencyCollision,
    NotFound,
    StoreResolutionFailed,
)
from headrace.schema.entity.identity import entity_id
from headrace.schema.view import validator as compiled

ADA = {"entity_type": "contact", "email": "ada@example.com", "name": "Ada", "age": 36}
BOB = {"entity_type": "contact", "email": "bob@example.com", "name": "Bob"}


def with_policy(**options: Any) -> dict[str, Any]:
    return {**copy.deepcopy(CONTACT), **options}


def issues(refused: pytest.ExceptionInfo[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = refused.value.facts["issues"]
    return found


def test_an_entity_is_created_then_updated_and_the_same_again_changes_nothing(contacts: Store) -> None:
    assert contacts.actions(contacts.store(ADA, BOB)) == ["created", "created"]
    assert contacts.actions(contacts.store({**ADA, "age": 37})) == ["updated"]
    before = contacts.observations()
    assert contacts.actions(contacts.store(ADA, BOB)) == ["unchanged", "unchanged"]
    assert contacts.observations() == before and len(before) == 3


def test_an_answer_says_all_there_is_to_know_of_an_entity(contacts: Store) -> None:
    answer = contacts.store({"entity_type": "Contact", "email": "Ada@Example.com", "nick": "a", "born": 0})
    told = answer["entities"][0]
    stored = contacts.observations()[0]
    assert told == {
        "entity_id": entity_id("local", "contact:ada@example.com"),
        "entity_type": "contact",
        "action": "created",
        "observation_id": stored["id"],
        "schema_version": "1.0.0",
        "canonical_name": "contact:ada@example.com",
        "identity_basis": "schema_rule",
        "identity_rule": "email",
        "unknown_fields": ["nick"],
        "required_fields_missing": [],
    }
    assert answer["source_id"] == stored["source_id"] and answer["unknown_fields_count"] == 1
    assert [(one["code"], one["fields"], one["items"]) for one in answer["store_warnings"]] == [
        ("UNKNOWN_FIELD", ["nick"], [0])
    ]


def test_warnings_that_many_entities_share_are_given_once(contacts: Store) -> None:
    odd = [{"entity_type": "contact", "email": f"{n}@example.com", "x": n} for n in range(5)]
    assert [one["items"] for one in contacts.store(*odd)["store_warnings"]] == [[0, 1, 2, 3, 4]]


def test_values_are_split_into_fields_and_fragments_and_nothing_is_lost(contacts: Store) -> None:
    given = {
        "email": "a@b.c", "age": "old", "born": 1_700_000_000_123_456_789, "active": None, "tags": [1, {"x": None}],
        "address": {"street": "s", "no": 9_007_199_254_740_993}, "nick": None, "height": 1.5,
    }  # fmt: skip
    contacts.store({"entity_type": "contact", **given})
    stored = contacts.observations()[0]
    assert stored["fields"] == {
        "email": "a@b.c", "born": "2023-11-14T22:13:20.123Z", "active": None, "tags": [1, {"x": None}],
        "address": {"street": "s", "no": 9_007_199_254_740_993},
    }  # fmt: skip
    assert stored["fragments"] == [
        {"key": "age", "value": "old", "reason": "unknown_field"},
        {
            "key": "born", "value": 1_700_000_000_123_456_789, "reason": "converted_value_original",
            "converted_to": "date",
        },
        {"key": "nick", "value": None, "reason": "unknown_field"},
        {"key": "height", "value": 1.5, "reason": "unknown_field"},
    ]  # fmt: skip
    rebuilt = {**stored["fields"], **{one["key"]: one["value"] for one in stored["fragments"]}}
    assert rebuilt == given


def test_a_type_that_nobody_registered_gets_a_schema_of_the_users_own(store: Store) -> None:
    answer = store.store({"entity_type": "Red Wine", "name": "Rioja", "year": 2019}, user="ann")
    assert answer["entities"][0] | {"entity_id": "", "observation_id": ""} == {
        "entity_id": "", "entity_type": "red_wine", "action": "created", "observation_id": "",
        "schema_version": "1.0.0", "canonical_name": "red_wine:rioja", "identity_basis": "heuristic_name",
        "identity_rule": "name", "unknown_fields": [], "required_fields_missing": [],
    }  # fmt: skip
    kind = store.engine.types.find("red_wine")
    assert kind is not None and kind.effective("ann") is not None and kind.effective("ben") is None


def test_an_alias_means_the_type_that_has_it(store: Store) -> None:
    store.register(with_policy(aliases=["human being"]))
    assert store.store({**ADA, "entity_type": "Human-Being"})["entities"][0]["entity_type"] == "contact"
    assert store.store(ADA)["entities"][0]["action"] == "updated"  # of another source


def test_a_constraint_that_rejects_refuses_the_whole_request(contacts: Store) -> None:
    with pytest.raises(ConstraintViolation) as refused:
        contacts.store(ADA, {**BOB, "age": 151}, {**BOB, "age": -1})
    assert [(issue["item"], issue["field"]) for issue in issues(refused)] == [(1, "age"), (2, "age")]
    assert refused.value.facts["item"] == 1 and refused.value.facts["field"] == "age"
    assert contacts.observations() == [] and contacts.rows("SELECT * FROM entities") == []


def test_a_constraint_that_warns_stores_the_value(store: Store) -> None:
    store.register(with_policy(constraint_violation_policy="warn"))
    answer = store.store({**ADA, "age": 151})
    assert [(one["code"], one["fields"]) for one in answer["store_warnings"]] == [("CONSTRAINT_VIOLATION", ["age"])]
    assert store.observations()[0]["fields"]["age"] == 151


def test_an_identity_that_cannot_be_told_refuses_everything_with_a_hint(store: Store) -> None:
    store.register(with_policy(canonical_name_strict=True))
    with pytest.raises(StoreResolutionFailed) as refused:
        store.store(ADA, {"entity_type": "contact", "name": "Bob"}, {"entity_type": "contact", "age": 151})
    first, second, third = issues(refused)
    assert first["code"] == "ERR_CANONICAL_NAME_UNRESOLVED"
    assert first["item"] == 1
    assert first["hint"]["required_identity_fields"]["required"] == ["email"] and "email" in first["hint"]["text"]
    assert second["code"] == "ERR_CONSTRAINT_VIOLATION"
    assert second["item"] == 2
    assert third["code"] == "ERR_CANONICAL_NAME_UNRESOLVED"
    assert third["item"] == 2
    assert store.observations() == []


def test_required_fields_that_are_missing_are_told_and_nothing_more(contacts: Store) -> None:
    answer = contacts.store({"entity_type": "contact", "name": "Eve"})
    assert answer["entities"][0]["required_fields_missing"] == ["email"]
    codes = [one["code"] for one in answer["store_warnings"]]
    assert codes == ["MISSING_REQUIRED_FIELD", "MISSING_IDENTITY_FIELDS"]


def test_an_entity_that_exists_is_refused_where_the_schema_says_so_and_a_replay_is_not(store: Store) -> None:
    store.register(with_policy(name_collision_policy="reject"))
    store.store(ADA)
    assert store.actions(store.store(ADA)) == ["unchanged"]
    with pytest.raises(StoreResolutionFailed) as refused:
        store.store(BOB, {**ADA, "age": 1})
    assert [(one["code"], one["item"], one["reason"]) for one in issues(refused)] == [
        ("ERR_MERGE_REFUSED", 1, "schema_policy")
    ]
    with pytest.raises(StoreResolutionFailed):
        store.store(BOB, {**BOB, "age": 1})
    assert len(store.observations()) == 1


def test_an_entity_that_exists_is_warned_of_where_the_schema_says_so(store: Store) -> None:
    store.register(with_policy(name_collision_policy="warn"))
    store.store(ADA)
    answer = store.store({**ADA, "age": 1})
    assert store.actions(answer) == ["updated"]
    assert [(one["code"], one["items"]) for one in answer["store_warnings"]] == [("NAME_COLLISION", [0])]


def test_strict_refuses_to_merge_for_a_request_or_for_one_entity(contacts: Store) -> None:
    contacts.store(ADA)
    for said in ({"strict": True}, {}):
        entity = {**ADA, "age": 1} if said else {**ADA, "age": 1, "_meta": {"strict": True}}
        with pytest.raises(StoreResolutionFailed) as refused:
            contacts.store(BOB, entity, **said)
        assert [(one["item"], one["reason"]) for one in issues(refused)] == [(1, "strict")]
    assert contacts.actions(contacts.store(BOB, strict=True)) == ["created"]


def test_only_one_of_many_at_once_creates_what_may_not_be_merged(store: Store) -> None:
    store.register(with_policy(name_collision_policy="reject"))
    stores = store.engine.entity_store
    wishes = [store.wish([{**ADA, "age": age}]) for age in range(16)]

    async def all_at_once() -> list[Any]:
        work = (stores.store(wish, lambda typed=typed: typed) for wish, typed in wishes)  # type: ignore[misc]
        return await asyncio.gather(*work, return_exceptions=True)

    outcomes = store.rig.run(all_at_once())
    refused = [one for one in outcomes if isinstance(one, StoreResolutionFailed)]
    assert len(refused) == 15 and len(store.observations()) == 1


def test_what_was_accepted_under_an_older_schema_is_accepted_again_in_the_commit(contacts: Store) -> None:
    wish, typed = contacts.wish([{**ADA, "nick": "a"}])
    contacts.register(with_policy(fields={**CONTACT["fields"], "nick": {"type": "string"}}), version="1.1.0")
    observe = contacts.rig.run(contacts.engine.entity_store.store(wish, lambda: typed))
    told = msgspec.json.decode(observe.body)["entities"][0]
    assert told["schema_version"] == "1.1.0"
    assert told["unknown_fields"] == []
    assert contacts.observations()[0]["schema_version"] == "1.1.0"
    assert contacts.observations()[0]["fields"]["nick"] == "a"


def test_a_replay_after_a_change_of_the_schema_is_still_a_replay(contacts: Store) -> None:
    contacts.store({**ADA, "nick": "a"})
    contacts.register(with_policy(fields={**CONTACT["fields"], "nick": {"type": "string"}}), version="1.1.0")
    assert contacts.actions(contacts.store({**ADA, "nick": "a"})) == ["unchanged"]
    assert [one["schema_version"] for one in contacts.observations()] == ["1.0.0"]


def test_the_time_of_an_observation_tells_it_apart_where_it_is_given(contacts: Store) -> None:
    contacts.store(ADA, observed_at="2026-01-01T00:00:00Z")
    assert contacts.actions(contacts.store(ADA, observed_at="2026-01-01T00:00:00Z")) == ["unchanged"]
    assert contacts.actions(contacts.store(ADA, observed_at="2026-01-02T00:00:00Z")) == ["updated"]
    contacts.rig.clock.us += 1
    assert contacts.actions(contacts.store(ADA)) == ["updated"]
    contacts.rig.clock.us += 1
    assert contacts.actions(contacts.store(ADA)) == ["unchanged"]
    times = [one["observed_at_us"] for one in contacts.observations()]
    assert times == [1_767_225_600_000_000, 1_767_312_000_000_000, contacts.rig.clock.us - 1]


def test_what_is_said_of_one_entity_wins_over_what_is_said_of_all(contacts: Store) -> None:
    meta = {
        "observed_at": "2026-01-02T00:00:00.5Z", "source_priority": 7, "observation_source": "human",
        "specificity_score": 0.25, "source_id": "paper",
    }  # fmt: skip
    contacts.store({**ADA, "_meta": meta}, BOB, source_priority=3, observation_source="sensor", specificity_score=1)
    ada, bob = contacts.observations()
    names = ("observed_at_us", "source_priority", "observation_source", "specificity_score", "source_id")
    assert [ada[name] for name in names] == [1_767_312_000_500_000, 7, "human", 0.25, "paper"]
    assert [bob[name] for name in names[1:4]] == [3, "sensor", 1.0] and "_meta" not in ada["fields"]


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"source_priority": "high"}, "source_priority"),
        ({"source_priority": 2**31}, "source_priority"),
        ({"observation_source": "rumour"}, "observation_source"),
        ({"specificity_score": 1.5}, "specificity_score"),
        ({"observed_at": "yesterday"}, "observed_at"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "k\n"}, "idempotency_key"),
        ({"source_id": "a\x00b"}, "source_id"),
        ({"source_id": "src_" + "0" * 64}, "source_id"),
        ({"commit": "no"}, "commit"),
        ({"relations": []}, "relations"),
    ],
)
def test_what_is_said_wrongly_is_refused_by_name(contacts: Store, said: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        contacts.store(ADA, **said)
    assert refused.value.facts["field"] == field
    if field not in ("commit", "relations"):
        with pytest.raises(BadRequest):
            contacts.store({**ADA, "_meta": said})
    assert contacts.observations() == []


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b'{"entities":[]}', b'{"entities":{}}', b'{"entities":[1]}', b'{"entities":[{"name":"x"}]}',
        b'{"entities":[{"entity_type":""}]}', b'{"entities":[{"entity_type":1}]}', b'{"entities":[{}],"entities":[{}]}',
        b'{"entities":[{"entity_type":"a","name":"x","name":"y"}]}', b"\xff",
        b'{"entities":[{"entity_type":"a","n":0.12345678901234567890123}]}',
        b'{"entities":[{"entity_type":"a","n":[{"m":0.12345678901234567890123}]}]}',
        b'{"entities":[{"entity_type":"a","n":' + b"[" * 102 + b"]" * 102 + b"}]}",
        b'{"entities":[' + b"[" * 5000, b'{"entities":[{"entity_type":"a"}]},{}',
    ],
)  # fmt: skip
def test_a_body_that_is_no_request_or_would_lose_something_is_refused(store: Store, body: bytes) -> None:
    from headrace.schema.entity import request

    with pytest.raises(BadRequest):
        request.read_store_request(body, "local")


def test_a_request_with_too_many_entities_is_refused(store: Store) -> None:
    with pytest.raises(BatchTooLarge):
        store.asked([{"entity_type": "a"}] * 10_001)
    with pytest.raises(BatchTooLarge):
        store.asked([{"entity_type": f"a{number}"} for number in range(101)])


def test_a_request_that_is_odd_in_many_ways_is_told_some_of_them(contacts: Store) -> None:
    odd = {f"odd{number}": number for number in range(1_200)}
    told = contacts.store({**ADA, **odd})["store_warnings"]
    assert len(told) == 1_001 and (told[-1]["code"], told[-1]["message"][:4]) == ("MORE_WARNINGS", "200 ")


def test_values_as_deep_as_they_may_be_are_stored(contacts: Store) -> None:
    deep: list[Any] = []
    for _ in range(98):
        deep = [deep]
    answer = contacts.store({**ADA, "tags": [deep]})
    assert contacts.source(answer["source_id"]).entities == [{**ADA, "tags": [deep]}]


def test_a_long_name_is_cut_where_it_is_shown_and_tells_apart_what_it_names(store: Store) -> None:
    long = "word " * 1_000
    answer = store.store({"entity_type": "note", "text": long + "a"}, {"entity_type": "note", "text": long + "b"})
    first, second = answer["entities"]
    assert first["entity_id"] != second["entity_id"]
    assert len(first["canonical_name"]) == 1_000 and first["canonical_name"] == second["canonical_name"]


def test_a_priority_that_nothing_looks_at_or_that_is_a_corrections_is_warned_of(store: Store) -> None:
    store.register(CONTACT, tags={"strategy": "highest_priority"})
    codes = {
        one["code"]: one["fields"] for one in store.store({**ADA, "tags": []}, source_priority=5)["store_warnings"]
    }
    assert codes == {"SOURCE_PRIORITY_IGNORED": ["email", "name", "age"]}
    codes = {one["code"]: one["fields"] for one in store.store(ADA, source_priority=1000)["store_warnings"]}
    assert set(codes) == {"SOURCE_PRIORITY_IGNORED", "SOURCE_PRIORITY_ESCALATION"}


def test_entities_of_several_types_are_stored_together_or_not_at_all(contacts: Store) -> None:
    contacts.register({"fields": {"title": {"type": "string"}}, "canonical_name_fields": ["title"]}, "book")
    book = {"entity_type": "book", "title": "Dune"}
    answer = contacts.store(book, ADA, {**book, "year": 1965})
    assert contacts.actions(answer) == ["created", "created", "updated"]
    assert [one["entity_type"] for one in answer["entities"]] == ["book", "contact", "book"]
    with pytest.raises(ConstraintViolation):
        contacts.store({**book, "title": "Emma"}, {**ADA, "age": 200})
    assert len(contacts.observations("book")) == 2 and len(contacts.observations()) == 1


def test_the_same_entity_twice_in_a_request_is_one_observation(contacts: Store) -> None:
    answer = contacts.store(ADA, BOB, ADA)
    assert contacts.actions(answer) == ["created", "created", "unchanged"]
    assert answer["entities"][0]["observation_id"] == answer["entities"][2]["observation_id"]
    assert [one["details"] for one in contacts.observations()] == [{"item": 0, "again": [2]}, {"item": 1}]


def test_observations_are_routed_by_their_entities(contacts: Store) -> None:
    answer = contacts.store(ADA, BOB)
    contacts.store({**ADA, "age": 1}, {**ADA, "age": 2})
    ada = answer["entities"][0]["entity_id"]
    assert [one["fields"].get("age") for one in contacts.observations(key=ada)] == [36, 1, 2]


def test_users_do_not_share_entities_and_ids(contacts: Store) -> None:
    mine, yours = contacts.store(ADA, user="ann"), contacts.store(ADA, user="ben")
    assert mine["entities"][0]["entity_id"] != yours["entities"][0]["entity_id"]
    assert contacts.actions(yours) == ["created"] and mine["source_id"] != yours["source_id"]
    assert mine["entities"][0]["entity_id"] == entity_id("ann", "contact:ada@example.com")


def test_an_entity_may_be_named_by_its_id_if_it_is_there(contacts: Store) -> None:
    ada = contacts.store(ADA)["entities"][0]["entity_id"]
    answer = contacts.store({"entity_type": "contact", "age": 5, "_meta": {"target_id": ada}})
    assert contacts.actions(answer) == ["updated"]
    assert answer["entities"][0]["entity_id"] == ada
    assert answer["entities"][0]["identity_basis"] == "target_id"
    for user, target in (("local", "ent_" + "0" * 24), ("ann", ada)):
        with pytest.raises(StoreResolutionFailed) as refused:
            contacts.store({**BOB, "_meta": {"target_id": target}}, user=user)
        assert [one["code"] for one in issues(refused)] == ["RESOURCE_NOT_FOUND"]


def test_a_dry_run_says_what_would_become_of_everything_and_writes_nothing(contacts: Store) -> None:
    contacts.store(ADA)
    before = [contacts.rows(f"SELECT * FROM {table}") for table in TABLES]
    answer = contacts.store({**ADA, "age": 1}, BOB, {**BOB, "age": 1}, commit=False, idempotency_key="k")
    assert contacts.actions(answer) == ["would_match_existing", "would_create", "would_match_existing"]
    assert answer["dry_run"] is True
    assert [contacts.rows(f"SELECT * FROM {table}") for table in TABLES] == before
    unknown = contacts.store({"entity_type": "wine", "name": "Rioja"}, commit=False)
    assert contacts.actions(unknown) == ["would_create"] and contacts.engine.types.find("wine") is None
    with pytest.raises(ConstraintViolation):
        contacts.store({**ADA, "age": 200}, commit=False)
    committed = contacts.store({**ADA, "age": 1}, BOB, {**BOB, "age": 1}, idempotency_key="k")
    ids = [entity["observation_id"] for entity in committed["entities"]]
    assert ids == [entity["observation_id"] for entity in answer["entities"]]


TABLES = ("entities", "sources", "idempotency", "wal", "dedupe", "schema_registry")


def test_a_request_of_a_known_key_is_answered_as_before_even_when_schemas_have_changed(contacts: Store) -> None:
    first = contacts.observe(ADA, BOB, idempotency_key="k")
    contacts.store({**ADA, "age": 1})
    contacts.register(with_policy(fields={**CONTACT["fields"], "nick": {"type": "string"}}), version="1.1.0")
    again = contacts.observe(ADA, BOB, idempotency_key="k")
    assert again.body == first.body
    assert again.replayed is True
    assert first.replayed is False
    contacts.rig.reopen()
    assert contacts.observe(ADA, BOB, idempotency_key="k").body == first.body
    assert len(contacts.observations()) == 3


def test_a_known_key_of_another_request_is_refused(contacts: Store) -> None:
    contacts.store(ADA, idempotency_key="k")
    for entities, said in (([BOB], {}), ([ADA], {"source_priority": 1}), ([BOB], {"commit": False})):
        with pytest.raises(IdempotencyCollision):
            contacts.store(*entities, idempotency_key="k", **said)
    assert len(contacts.observations()) == 1
    assert contacts.actions(contacts.store(ADA, idempotency_key="k", user="ann")) == ["created"]


def test_an_entity_may_have_a_key_of_its_own(contacts: Store) -> None:
    entity = {**ADA, "_meta": {"idempotency_key": "k"}}
    contacts.store(entity, BOB, source_id="s")
    assert contacts.actions(contacts.store(entity, source_id="s")) == ["unchanged"]
    with pytest.raises(IdempotencyCollision) as refused:
        contacts.store({**BOB, "age": 1}, {**entity, "age": 1}, source_id="s")
    assert refused.value.facts["item"] == 1 and len(contacts.observations()) == 2


def test_a_type_whose_schema_went_away_gets_one_of_the_users_own(contacts: Store) -> None:
    wish, typed = contacts.wish([ADA])
    contacts.rig.run(contacts.engine.types.deactivate("contact", "1.0.0", "", "test"))
    with pytest.raises(TypesOutdated):
        contacts.rig.run(contacts.engine.entity_store.store(wish, lambda: typed))
    assert contacts.observations() == []
    told = contacts.store(ADA)["entities"][0]
    assert told["action"] == "created"
    assert told["identity_basis"] == "heuristic_name"
    found = contacts.engine.types.effective("contact", "local")
    assert found is not None and found.schema.scope == "user"


def test_what_values_say_about_time_and_other_entities_is_told(store: Store) -> None:
    store.register(
        {
            "fields": {"title": {"type": "string"}, "due": {"type": "date"}, "who": {"type": "array"}},
            "canonical_name_fields": ["title"],
            "temporal_fields": [{"field": "due", "event_type": "deadline"}],
            "reference_fields": [{"field": "who", "target_entity_type": "contact", "relationship_type": "FOR"}],
        },
        "chore",
    )
    told = store.store({"entity_type": "chore", "title": "t", "due": "2026-01-01", "who": ["Ada", "Bob"]})["entities"][
        0
    ]
    assert told["events"] == [{"field": "due", "event_type": "deadline", "at": "2026-01-01"}]
    assert [(link["value"], link["relationship_type"], link["target_id"]) for link in told["links"]] == [
        ("Ada", "FOR", entity_id("local", "contact:ada")),
        ("Bob", "FOR", entity_id("local", "contact:bob")),
    ]


def test_an_entity_that_is_not_there_or_somebody_elses_is_not_found(contacts: Store) -> None:
    ada = contacts.store(ADA)["entities"][0]["entity_id"]
    for user, entity in (("ann", ada), ("local", "ent_x")):
        with pytest.raises(NotFound):
            contacts.engine.entity_store.find(entity, user)


def test_everything_that_is_stored_fits_the_schema_of_the_stream(contacts: Store) -> None:
    meta = {"observed_at": "2026-01-01T00:00:00Z", "idempotency_key": "k", "specificity_score": 0.5}
    odd = {**BOB, "entity_type": "Contact", "nick": None, "born": 5, "_meta": meta}
    ada = contacts.store(ADA, ADA, odd, source_id="s")["entities"][0]["entity_id"]
    contacts.decide("correction", ada, age=None, nick=[1], key="k2")
    contacts.decide("deletion", ada)
    contacts.decide("restoration", ada)
    stream = contacts.rig.find("entities/contact")
    assert stream.head.registry is not None
    stored = contacts.rig.read("entities/contact")
    assert len(stored) == 5 and validator(stream.head.registry).failures(b",".join(stored)) == []


def validator(registry: StreamRegistry) -> Any:
    return compiled(msgspec.json.encode(registry.registry.current_schema))
