"""The paths of a stream's registry."""

from __future__ import annotations

from headrace.server.openapi.streams import NAME
from headrace.server.openapi.words import (
    TEXT,
    WHOLE,
    Node,
    answer,
    answers,
    closed_record,
    content,
    either,
    operation,
    query,
    record,
)

_SCHEMA: Node = {"type": ["object", "boolean"]}
_VERSIONED: Node = {"type": "object", "propertyNames": {"pattern": "^[1-9][0-9]*$"}}
_POINTER: Node = {"type": "string", "pattern": "^(/([^~/]|~[01])*)*$"}
_ROUTING_KEY = closed_record("jsonPointer required", jsonPointer=_POINTER, required={"type": "boolean"})
_PLAN = record(
    subject=TEXT,
    from_version=WHOLE,
    to_version=WHOLE,
    classification={"enum": ["identical", "additive", "widening", "destructive", "forbidden"]},
    requires_force={"type": "boolean"},
    changes={"type": "array", "items": record("schema_pointer", pointer=TEXT, what=TEXT, reason=TEXT)},
    reasons={"type": "array", "items": TEXT},
    lens=either(record("document", written={"type": "boolean"})),
    impact={"type": "array"},
    refusals={"type": "array", "items": record(code=TEXT, pointer=TEXT, message=TEXT)},
)
REGISTRY = record(
    apiVersion={"const": "durable.streams/schema-registry/v1"},
    schema=TEXT,
    currentVersion=WHOLE,
    boundaries={"type": "array", "items": record(offset=WHOLE, version=WHOLE)},
    schemas=_VERSIONED,
    lenses=_VERSIONED,
)
REGISTRY["properties"] |= {"routingKey": _ROUTING_KEY, "search": {"type": "object"}, "diff": _PLAN}
_FOUND: Node = {"$ref": "#/components/schemas/Registry"}
_OUTCOME: Node = {"anyOf": [_FOUND, _PLAN]}
_UPDATE: Node = closed_record(
    apiVersion={"const": "durable.streams/schema-registry/v1"},
    schema=_SCHEMA,
    lens={"type": "object"},
    routingKey=either(_ROUTING_KEY),
    search=either({"type": "object"}),
)
_GET = operation(
    "show_schema", "The registry: schemas, lenses, search fields", answers("404 410", s200=answer("found", _FOUND))
)
_POST = operation(
    "change_schema",
    "Change the schema, the routing key or the search fields",
    answers("404 409 410 413 415 429", s200=answer("the registry and its diff; of a dry run the plan", _OUTCOME)),
    query("dry_run", {"type": "string", "enum": ["true", "false", "1", "0"]}, "only say what would change"),
    body=content(_UPDATE),
)
_HISTORY = operation(
    "list_schema_history",
    "Every revision of the registry, the oldest first",
    answers(
        "404 410",
        s200=answer(
            "found",
            record(
                stream=TEXT,
                revisions={"type": "array", "items": record(revision=WHOLE, at=TEXT, registry=_FOUND)},
            ),
        ),
    ),
)

SCHEMA_PATHS: Node = {
    "/v1/stream/{name}/_schema": {"parameters": [NAME], "get": _GET, "post": _POST},
    "/v1/stream/{name}/_schema/history": {"parameters": [NAME], "get": _HISTORY},
}
