"""Schemas that several tests start from."""

from __future__ import annotations

from typing import Any

from headrace.schema.entity import registration
from headrace.schema.entity.nodes import Schema
from headrace.schema.problem import RequestProblem

NANOS = {"from": "number", "to": "date", "function": "timestamp_nanos_to_iso", "deterministic": True}
NUMERIC = {"from": "string", "to": "number", "function": "string_to_number", "deterministic": True}

CONTACT: dict[str, Any] = {
    "fields": {
        "name": {"type": "string", "required": True},
        "email": {"type": "string", "validator": "email"},
        "age": {"type": "number", "converters": [NUMERIC], "constraints": {"min": 0, "max": 150}},
        "born": {"type": "date", "converters": [NANOS]},
        "tags": {"type": "array"},
        "notes": {"type": "string", "description": "anything"},
        "company": {"type": "string"},
    },
    "canonical_name_fields": ["email"],
    "temporal_fields": [{"field": "born", "event_type": "birth"}],
    "reference_fields": [{"field": "company", "target_entity_type": "company", "relationship_type": "WORKS_AT"}],
    "aliases": ["person"],
    "query_synonyms": ["friend"],
    "identity_search_fields": ["name", "email"],
    "content_field": "notes",
    "store_warnings": [{"code": "NO_TAGS", "fields": ["tags"], "message": "give some tags"}],
    "duplicate_detection_fields": ["name"],
    "duplicate_detection_threshold": 0.9,
    "agent_instructions": "be kind",
}
POLICIES: dict[str, Any] = {
    "merge_policies": {
        "tags": {"strategy": "merge_array"},
        "name": {"strategy": "highest_priority", "tie_breaker": "source_priority"},
    },
    "observation_source_priority": ["human", "sensor"],
}


def payload(**changes: Any) -> dict[str, Any]:
    """A registration that is right, with members changed; None leaves one out."""
    whole = {
        "entity_type": "contact",
        "schema_version": "1.0.0",
        "schema_definition": CONTACT,
        "reducer_config": POLICIES,
        "metadata": {"label": "Contact"},
    }
    return {name: value for name, value in {**whole, **changes}.items() if value is not None}


def schema(**changes: Any) -> Schema:
    """The schema of a registration that is right."""
    found = registration.read_registration(payload(**changes))
    assert isinstance(found, registration.TypeRegistration), found
    return found.schema


def defined(fields: dict[str, Any], **options: Any) -> Schema:
    """A schema of fields and declarations, without policies."""
    document = {
        "fields": {name: {"type": given} if isinstance(given, str) else given for name, given in fields.items()}
    }
    if "canonical_name_fields" not in options:
        options = {"identity_opt_out": "heuristic_canonical_name", **options}
    return schema(schema_definition={**document, **options}, reducer_config={"merge_policies": {}}, metadata=None)


def codes(found: object) -> dict[str, str]:
    """The codes of problems by path."""
    assert isinstance(found, list), found
    assert all(isinstance(problem, RequestProblem) for problem in found)
    return {problem.path: problem.code for problem in found}
