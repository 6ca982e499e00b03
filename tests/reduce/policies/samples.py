"""Observations and schemas that several tests start from."""

from __future__ import annotations

from typing import Any

from headrace.reduce.policies.build import fold_observations
from headrace.reduce.policies.reducer import EVERYONE, EntityState, Snapshot, TypeReducer
from headrace.schema.entity.nodes import Definition, Field, Policy, ReducerConfig, Schema
from headrace.schema.entity.observation import Observation

FIRST_US = 1_700_000_000_000_000


def observed(id: str = "o1", at: int = 0, /, **changes: Any) -> Observation:
    """An observation at a moment; what is no member of observations is a field."""
    members = {name: changes.pop(name) for name in list(changes) if name in Observation.__struct_fields__}
    whole = {
        "kind": "observation",
        "entity_id": "ent_1",
        "entity_type": "contact",
        "user_id": "local",
        "schema_version": "1.0.0",
        "source_id": f"src_{id}",
        "source_priority": 1000 if members.get("kind") == "correction" else 100,
        "observation_source": "llm_summary",
        "fields": changes,
    }
    return Observation(id=id, observed_at_us=FIRST_US + at, **{**whole, **members})


def config(*kinds: str, **policies: str) -> ReducerConfig:
    """Policies by field, each a strategy with or without a tie breaker after a colon."""
    read = {name: Policy(*text.split(":")) for name, text in policies.items()}  # type: ignore[arg-type]
    return ReducerConfig(read, kinds)


def schema(config: ReducerConfig, **fields: Field | str) -> Schema:
    """A schema of fields, given by their types or whole."""
    made = {name: field if isinstance(field, Field) else Field(field) for name, field in fields.items()}  # type: ignore[arg-type]
    return Schema(
        entity_type="contact",
        schema_version="1.1.0",
        schema_definition=Definition(fields=made, identity_opt_out="heuristic_canonical_name"),
        reducer_config=config,
    )


def row(reducer: TypeReducer, *observations: Observation) -> EntityState:
    """The state of the only entity that is told of."""
    (found,) = fold_observations(
        reducer, ((seq, FIRST_US + seq, given) for seq, given in enumerate(observations))
    ).values()
    return found


def snapshot(config: ReducerConfig, *observations: Observation, seen: Schema | None = None) -> Snapshot:
    """What the only entity that is told of is shown as."""
    reducer = TypeReducer({EVERYONE: config})
    found = reducer.finish(row(reducer, *observations), version_name=EVERYONE, schema=seen)
    assert found is not None
    return found
