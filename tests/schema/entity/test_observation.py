from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from headrace.schema.entity.observation import Observation, decode, encode, observation_id
from headrace.schema.entity.split import Fragment, Splitter
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
