"""What an entity type is to others: the registry of its stream, which never changes, and its versions as files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from headrace.engine.entities.entity_type import ENTITIES, schema_of
from headrace.schema.entity import registration
from headrace.schema.registry import KeySetting, Registry
from headrace.storage.entity_types import SchemaRow

_TEXT = {"type": "string"}
_TEXT_OR_NOTHING = {"type": ["string", "null"]}
_OBJECT = {"type": "object"}
_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "id": _TEXT,
        "kind": _TEXT,
        "entity_id": _TEXT,
        "entity_type": _TEXT,
        "user_id": _TEXT,
        "schema_version": _TEXT,
        "source_id": _TEXT_OR_NOTHING,
        "observed_at_us": {"type": "integer"},
        "source_priority": {"type": "integer"},
        "observation_source": _TEXT,
        "specificity_score": {"type": ["number", "null"]},
        "fields": _OBJECT,
        "fragments": {"type": "array"},
        "canonical_name": _TEXT_OR_NOTHING,
        "identity_basis": _TEXT_OR_NOTHING,
        "identity_rule": _TEXT_OR_NOTHING,
        "idempotency_key": _TEXT_OR_NOTHING,
        "run_id": _TEXT_OR_NOTHING,
        "details": _OBJECT,
    },
    "required": [
        *("id", "kind", "entity_id", "entity_type", "user_id", "schema_version", "source_id", "observed_at_us"),
        *("source_priority", "observation_source"),
    ],
    "additionalProperties": False,
}
_EXACT = ("entity_id", "user_id", "source_id", "schema_version", "kind", "observation_source")
_WORD = {"kind": "keyword", "exact": True}
_NUMBER = {"kind": "integer", "exact": True, "column": True, "sortable": True}
#: No observation has it, as moments are numbers of microseconds: they are searched in the order of their offsets.
_NO_MOMENT = "event_time"


def registry_of(entity_type: str) -> Registry:
    """The registry of a type's stream."""
    registry = Registry.empty(ENTITIES + entity_type).advanced(_SCHEMA, None, 0)
    return msgspec.structs.replace(registry, routing_key=KeySetting("/entity_id", True), search=_search())


def _search() -> dict[str, Any]:
    kinds = {**dict.fromkeys(_EXACT, _WORD), "observed_at_us": _NUMBER, _NO_MOMENT: {"kind": "date", "column": True}}
    bound = {name: [{"version": 1, "jsonPointer": f"/{name}"}] for name in kinds}
    return {
        "primaryTimestampField": _NO_MOMENT,
        "fields": {name: {**kind, "bindings": bound[name]} for name, kind in kinds.items()},
    }


class File(NamedTuple):
    """The file of a version: its path and its content."""

    path: str
    content: bytes


def files(rows: Iterable[SchemaRow]) -> Iterator[File]:
    """The file of each version, in the order of their paths."""
    made = (schema_of(row) for row in rows)
    yield from sorted(File(registration.path(schema), registration.export(schema)) for schema in made)
