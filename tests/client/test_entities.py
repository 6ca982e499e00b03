"""Entities from Python, against a server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import headrace as hr
from headrace import errors
from headrace.client import entity_requests
from headrace.client.entities import Entities
from headrace.client.retry import check_repeatable

if TYPE_CHECKING:
    from tests.conftest import ServerProcess

_numbers = itertools.count(1)

DEFINITION: dict[str, Any] = {
    "fields": {"name": {"type": "string", "required": True}, "tags": {"type": "array"}, "age": {"type": "number"}},
    "canonical_name_fields": ["name"],
}
POLICIES = {"merge_policies": {"tags": {"strategy": "merge_array"}}}


@pytest.fixture
def entities(server: ServerProcess) -> Iterator[Entities]:
    with hr.App(server.url) as app:
        yield app.entities


@pytest.fixture
def contact(entities: Entities) -> str:
    """A type that no other test has, with an active version."""
    name = f"sdk_contact{next(_numbers)}"
    entities.register(name, "1.0.0", DEFINITION, POLICIES, activate=True)
    return name


def test_what_is_stored_is_got_with_where_it_is_from(entities: Entities, contact: str) -> None:
    first = entities.store({"entity_type": contact, "name": "Ada", "tags": ["a"], "mood": "good"})
    second = entities.store({"entity_type": contact, "name": "ada", "tags": ["b"], "age": 36})
    [ada] = first.entities
    assert ada.action == "created"
    assert ada.unknown_fields == ["mood"]
    assert second.entities[0].action == "updated"
    found = entities.get(ada.entity_id)
    assert found.snapshot == {"name": "ada", "tags": ["b", "a"], "age": 36}
    assert found.provenance["age"] == second.entities[0].observation_id
    assert entities.provenance(ada.entity_id, "age")["observations"][0]["source_id"] == second.source_id
    assert entities.source(first.source_id)["entities"] == [
        {"entity_type": contact, "name": "Ada", "tags": ["a"], "mood": "good"}
    ]
    told = [one["id"] for one in entities.observations(ada.entity_id, order="oldest")]
    assert told == [ada.observation_id, second.entities[0].observation_id]


def test_the_past_is_there(entities: Entities, contact: str) -> None:
    for day, age in ((1, 30), (2, 31)):
        entities.store({"entity_type": contact, "name": "Bob", "age": age}, observed_at=f"2026-01-0{day}T00:00:00Z")
    [bob] = entities.list(contact)
    assert entities.get(bob.entity_id, as_of="2026-01-01T12:00:00Z").snapshot["age"] == 30
    assert entities.get(bob.entity_id, schema_version="1.0.0").snapshot["age"] == 31


def test_many_are_stored_once_however_often_they_are_sent(entities: Entities, contact: str) -> None:
    people = [{"entity_type": contact, "name": f"Person {number}"} for number in range(1_200)]
    actions = [one.action for stored in entities.store_many(people) for one in stored.entities]
    again = [one.action for stored in entities.store_many(people) for one in stored.entities]
    assert actions == ["created"] * 1_200
    assert again == ["unchanged"] * 1_200
    assert len(list(entities.list(contact))) == 1_200


def test_decisions_count_whatever_is_observed(entities: Entities, contact: str) -> None:
    [eve] = entities.store({"entity_type": contact, "name": "Eve", "tags": ["x"]}).entities
    entities.correct(eve.entity_id, {"tags": ["y"], "age": 7})
    entities.store({"entity_type": contact, "name": "Eve", "tags": ["z"], "age": 8})
    assert entities.get(eve.entity_id).snapshot == {"name": "Eve", "tags": ["y"], "age": 7}
    entities.delete(eve.entity_id)
    with pytest.raises(errors.EntityNotFound):
        entities.get(eve.entity_id)
    entities.restore(eve.entity_id)
    assert entities.get(eve.entity_id).snapshot["age"] == 7


def test_entities_are_merged_and_split_and_that_is_taken_back(entities: Entities, contact: str) -> None:
    stored = entities.store(
        {"entity_type": contact, "name": "Jon", "age": 1}, {"entity_type": contact, "name": "John", "tags": ["t"]}
    )
    jon, john = (one.entity_id for one in stored.entities)
    assert [pair["similarity"] for pair in entities.duplicates(contact, threshold=0.7)["duplicates"]] == [0.75]
    entities.merge(jon, john)
    assert entities.get(jon).entity_id == john
    assert entities.get(john).snapshot["age"] == 1
    entities.unmerge(jon)
    assert entities.get(jon).snapshot == {"name": "Jon", "age": 1}
    split = entities.split(
        john, {"observation_ids": [stored.entities[1].observation_id]}, to_canonical_name="somebody else"
    )
    assert entities.get(split["to_entity_id"]).snapshot["tags"] == ["t"]
    entities.unsplit(john, split["split_id"])
    assert entities.get(john).snapshot["tags"] == ["t"]


def test_types_change_by_plans(entities: Entities, contact: str) -> None:
    change = {"fields_to_add": [{"field_name": "mood", "field_type": "string"}]}
    planned = entities.update(contact, change, dry_run=True)
    assert planned.dry_run is True
    assert planned.bump == "minor"
    assert planned.schema_version == "1.1.0"
    assert entities.types.get(contact).schema_version == "1.0.0"
    assert entities.update(contact, change).fields_added == ["mood"]
    assert [one.schema_version for one in entities.types.versions(contact)] == ["1.1.0", "1.0.0"]
    assert list(entities.types.export(contact)) == [
        f"schema_snapshots/{contact}/v1.0.0.json",
        f"schema_snapshots/{contact}/v1.1.0.json",
    ]
    assert entities.activate(contact, "1.0.0").active
    assert not entities.types.deactivate(contact, "1.0.0").active
    with pytest.raises(errors.VersionTaken):
        entities.register(contact, "1.1.0", DEFINITION, {"merge_policies": {}})
    assert contact not in {one.entity_type for one in entities.types}


def test_unknown_fields_are_promoted_and_their_values_moved(entities: Entities, contact: str) -> None:
    for number in range(4):
        entities.store({"entity_type": contact, "name": f"P{number}", "city_name": f"Town {number}"})
    [found] = entities.types.candidates(contact)["candidates"]
    assert found["fragment_key"] == "city_name"
    assert found["promotable"] is True
    assert entities.types.enhance(contact, {}, dry_run=True).fields_added == ["city_name"]
    done = entities.types.enhance(contact, {"migrate_existing": True}, dry_run=False, scope="global")
    assert done.fields_added == ["city_name"]
    assert (done.migration and done.migration["migrated"]) == 4
    towns = [one.snapshot["city_name"] for one in entities.list(contact)]
    assert towns == ["Town 0", "Town 1", "Town 2", "Town 3"]
    run_id = str(done.migration and done.migration["run_id"])
    assert entities.types.undo_migration(contact, run_id, scope="global")["undone"]
    assert not any("city_name" in one.snapshot for one in entities.list(contact))


def test_a_store_may_be_sent_again_and_a_correction_may_not() -> None:
    lost = hr.Unreachable("the line was cut")
    assert check_repeatable(entity_requests.store([], {}), lost) is lost
    with pytest.raises(hr.Unreachable):
        check_repeatable(entity_requests.correct("ent_1", {"a": 1}, {}), lost)


def test_an_id_cannot_leave_its_place() -> None:
    assert entity_requests.delete("a/b?c", {}).target == "/v1/entities/a%2Fb%3Fc/delete"


def test_lists_of_entities_and_of_observations_become_tables(entities: Entities) -> None:
    name = f"sdk_contact{next(_numbers)}"
    fields = {**DEFINITION["fields"], "kind": {"type": "string"}, "entity_id": {"type": "string"}}
    entities.register(name, "1.0.0", {**DEFINITION, "fields": fields}, POLICIES, activate=True)
    ada = {"entity_type": name, "name": "Ada", "age": 36, "kind": "friend", "entity_id": "x"}
    stored = entities.store(ada, observed_at="2026-01-01T00:00:00Z", source=f"crm of {name}")
    entities.store({"entity_type": name, "name": "Bob", "tags": ["b"]}, observed_at="2026-01-02T00:00:00Z")
    table = entities.list(name).to_arrow()
    ids = [entity.entity_id for entity in entities.list(name)]
    assert table["entity_id"].to_pylist() == ids and table["field.entity_id"].to_pylist() == ["x", None]
    assert table["age"].to_pylist() == [36, None] and table["tags"].to_pylist() == [None, ["b"]]
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2)]
    assert table["last_observation_at"].to_pylist() == days
    assert entities.list(name).to_pandas()["name"].tolist() == entities.list(name).to_polars()["name"].to_list()
    [row] = entities.observations(stored.entities[0].entity_id).rows()
    assert (row["source"], row["kind"], row["field.kind"]) == (f"crm of {name}", "observation", "friend")
    assert stored.source == row["source"] and row["observed_at"] == days[0]


def test_entities_of_a_type_have_columns_of_its_types(entities: Entities) -> None:
    name = f"sdk_visit{next(_numbers)}"
    fields = {
        "name": {"type": "string", "required": True},
        "visits": {"type": "number", "validator": "integer"},
        "score": {"type": "number"},
        "active": {"type": "boolean"},
        "seen": {"type": "date", "validator": "iso_datetime"},
        "day": {"type": "date"},
        "tags": {"type": "array"},
    }
    version = {"fields": fields, "canonical_name_fields": ["name"]}
    entities.register(name, "1.0.0", version, POLICIES, activate=True)
    kinds = [pa.string(), pa.int64(), pa.float64(), pa.bool_(), pa.timestamp("us", "UTC"), pa.string(), pa.null()]
    empty = entities.list(name).to_arrow()
    assert empty.schema.names[-7:] == list(fields) and empty.schema.types[-7:] == kinds
    ada = {"visits": np.int64(3), "score": np.float32(2), "active": np.bool_(True), "tags": np.array(["a", "b"])}
    seen = {"seen": pd.Timestamp("2026-11-15T10:00:00Z"), "day": np.datetime64("2026-11-15")}
    entities.store(
        {"entity_type": name, "name": np.str_("Ada"), **ada, **seen}, observed_at=np.datetime64("2026-11-16")
    )
    entities.store({"entity_type": name, "name": "Bob"})
    table = entities.list(name).to_arrow()
    assert table.schema.types[-7:] == [*kinds[:-1], pa.list_(pa.string())]
    wanted = ["Ada", 3, 2.0, True, datetime(2026, 11, 15, 10, tzinfo=UTC), "2026-11-15", ["a", "b"]]
    assert list(table.select(list(fields)).to_pylist()[0].values()) == wanted
    assert list(table.select(list(fields)).to_pylist()[1].values()) == ["Bob", *[None] * 6]
    [first, _] = entities.list(name)
    assert first.last_observation_at == "2026-11-16T00:00:00Z"
    assert first.snapshot["seen"] == "2026-11-15T10:00:00Z"
    assert entities.types.get(name).type_values(first.snapshot)["seen"] == wanted[4]


def test_a_value_that_json_cannot_have_is_named_by_its_entity(entities: Entities) -> None:
    rows: list[dict[str, Any]] = [{"entity_type": "t", "name": str(number)} for number in range(3)]
    with pytest.raises(TypeError, match="row 0, field 'age': object cannot be JSON"):
        entities.store({"entity_type": "t", "age": object()})
    with pytest.raises(ValueError, match="row 3, field 'age': nan is a number"):
        list(entities.store_many([*rows, {"entity_type": "t", "age": float("nan")}]))
