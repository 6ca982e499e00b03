"""Observations, their ids, and the tombstones of erased ones."""

from __future__ import annotations

from typing import Any, get_args
from uuid import UUID

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.entities.types.document import registry_of
from headrace.schema.entity.accept import Fragment, Splitter
from headrace.schema.entity.observation import Kind, Observation, decode, encode, observation_id, tombstone
from schema.entity.samples import defined, schema

SAID: dict[str, Any] = {"entity_id": "ent_1", "fields": {"a": 1, "b": None}, "source_id": "s"}


def test_an_observation_comes_back_as_it_was_appended() -> None:
    observation = Observation(
        id="x",
        kind="observation",
        entity_id="ent_1",
        entity_type="contact",
        user_id="u",
        schema_version="1.0.0",
        source_id=None,
        observed_at_us=1_700_000_000_000_000,
        source_priority=100,
        observation_source="human",
        fields={"a": 2**63, "cleared": None, "deep": {"x": [1.0, 10**30]}},
        fragments=(Fragment("n", None, "unknown_field"), Fragment("m", "5", "converted_value_original", "number")),
    )
    assert decode(encode(observation)) == observation
    assert encode(decode(encode(observation))) == encode(observation)


def test_the_id_is_a_uuid_and_the_same_whenever_the_same_is_said() -> None:
    one = observation_id(**SAID)
    assert str(UUID(one)) == one
    assert one == observation_id(**{**SAID, "fields": {"b": None, "a": 1}})


@pytest.mark.parametrize(
    "change",
    [
        {"entity_id": "ent_2"},
        {"fields": {"a": 1}},
        {"fields": {"a": True, "b": None}},
        {"fields": {"a": "1", "b": None}},
        {"source_id": None},
        {"observed_at_us": 5},
        {"kind": "correction"},
        {"idempotency_key": "k"},
        {"source_priority": 0},
        {"observation_source": "human"},
        {"specificity_score": 0.5},
        {"run_id": "r"},
        {"fragments": (Fragment("c", 1, "unknown_field"),)},
        {"details": {"into": "ent_3"}},
    ],
)
def test_the_id_is_another_when_anything_else_is_said(change: dict[str, Any]) -> None:
    assert observation_id(**{**SAID, **change}) != observation_id(**SAID)


def test_a_replay_after_a_change_of_the_schema_is_still_a_replay() -> None:
    given = {"name": "Ada", "age": "36", "shoe": 38}
    ids = set()
    for version in (schema(), defined({"name": "string"}), defined({"shoe": "number"})):
        fields, fragments = Splitter(version.schema_definition).split(given)
        ids.add(observation_id(entity_id="ent_1", fields=fields, fragments=fragments))
    assert len(ids) == 1


KINDS: list[Kind] = [kind for kind in get_args(Kind) if kind != "erased"]


@given(st.sampled_from(KINDS), st.text(min_size=1, max_size=3), st.text(max_size=20), st.none() | st.text(max_size=3))
def test_it_has_the_length_of_what_it_takes_the_place_of_and_says_nothing(
    kind: Kind, user: str, value: str, source: str | None
) -> None:
    entity = "ent_" + "0" * 24
    said = Observation(
        id=observation_id(entity_id=entity, fields={}), kind=kind, entity_id=entity, entity_type="t", user_id=user,
        schema_version="1.0.0", source_id=source, observed_at_us=0, source_priority=0, observation_source="",
        fields={"a": value} if value else {},
    )  # fmt: skip
    body = encode(said)
    left = tombstone("t", len(body))
    assert len(left) == len(body)
    found = decode(left)
    assert found.kind == "erased" and (found.id, found.entity_id, found.user_id) == ("", "", "")
    assert not found.fields and not found.fragments and not found.details


def test_it_fits_the_schema_of_its_stream() -> None:
    registry = registry_of("person")
    schema = msgspec.to_builtins(registry.schemas[registry.current_version])
    jsonschema_rs.validate(schema, msgspec.json.decode(tombstone("person", 400)))
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema, {"kind": "erased"})
