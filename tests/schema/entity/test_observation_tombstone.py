"""What stands where an observation was erased."""

from __future__ import annotations

from typing import get_args

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.entities.types.document import registry_of
from headrace.schema.entity.observation import Kind, Observation, decode, encode, observation_id, tombstone

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
