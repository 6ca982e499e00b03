"""What an entity is shown as, worked out in one pass over all its observations, rule by rule."""

from __future__ import annotations

import json
from typing import Any

from headrace.schema.entity.nodes import Schema
from headrace.schema.entity.observation import Observation

KINDS = ["sensor", "workflow_state", "llm_summary", "human", "import", "sync"]

Shown = tuple[dict[str, Any], dict[str, str]]


def shown(observations: list[Observation], config: dict[str, Any], schema: Schema | None) -> Shown | None:
    """The values and their provenance; ``config`` is as on the wire."""
    ordered = sorted(observations, key=lambda o: (-o.observed_at_us, o.id))
    fates = [o for o in ordered if o.kind in ("deletion", "restoration")]
    if fates:
        latest = [o for o in fates if o.observed_at_us == fates[0].observed_at_us]
        if all(o.kind == "deletion" for o in latest):
            return None
    telling = [o for o in ordered if o not in fates]
    names = schema.schema_definition.fields if schema is not None else sorted({n for o in telling for n in o.fields})
    values, provenance = {}, {}
    for name in names:
        policy = config["merge_policies"].get(name, {"strategy": "last_write"})
        kinds = config.get("observation_source_priority") or KINDS
        priorities = config.get("source_priorities") or {}
        found = field([o for o in telling if name in o.fields], name, policy, kinds, priorities)
        if found is not None:
            values[name], provenance[name] = found
    return values, provenance


def field(
    having: list[Observation], name: str, policy: dict[str, str], kinds: list[str], priorities: dict[str, int]
) -> tuple[Any, str] | None:
    """The value of a field and where it is from, of observations in the base order."""
    corrections = [o for o in having if o.kind == "correction"]
    if not having:
        return None
    if corrections:
        value = corrections[0].fields[name]
        if value is not None and policy["strategy"] == "merge_array":
            value = elements(value)
        return None if value is None else (value, corrections[0].id)
    if policy["strategy"] == "merge_array":
        return union(having, name, priorities)
    winner = sorted(having, key=lambda o: order(o, policy, kinds, priorities))[0]
    return None if winner.fields[name] is None else (winner.fields[name], winner.id)


def priority_of(o: Observation, priorities: dict[str, int]) -> int:
    """What the configuration says of the source, else what came with the observation."""
    return priorities.get(o.source_id or "", o.source_priority)


def order(o: Observation, policy: dict[str, str], kinds: list[str], priorities: dict[str, int]) -> Any:
    priority = priority_of(o, priorities)
    rank = kinds.index(o.observation_source) if o.observation_source in kinds else len(kinds)
    by_priority = policy.get("tie_breaker") == "source_priority"
    if policy["strategy"] == "highest_priority":
        return (-priority, rank, o.id) if by_priority else (-priority, rank, -o.observed_at_us, o.id)
    if policy["strategy"] == "most_specific":
        specificity = 0 if o.specificity_score is None else o.specificity_score
        return -specificity, -priority if by_priority else 0, rank, -o.observed_at_us, o.id
    return -o.observed_at_us, o.id


def union(having: list[Observation], name: str, priorities: dict[str, int]) -> tuple[list[Any], str]:
    greatest = max(priority_of(o, priorities) for o in having)
    top = [o for o in having if priority_of(o, priorities) == greatest]
    values: list[Any] = []
    ids: list[str] = []
    for o in top:
        for element in elements(o.fields[name]):
            if not any(alike(element, known) for known in values):
                values.append(element)
                ids.append(o.id)
    return values, ",".join(dict.fromkeys(ids)) or top[0].id


def elements(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            return list(json.loads(value))
        except ValueError:
            return [value]
    return [] if value is None else [value]


def alike(left: Any, right: Any) -> bool:
    """Whether two values are the same JSON: numbers by what they are worth, truth values are no numbers."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(alike(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(alike, left, right))
    return bool(left == right)
