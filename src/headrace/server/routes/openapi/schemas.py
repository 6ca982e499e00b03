"""The paths of a stream's registry."""

from __future__ import annotations

from headrace.schema.trial import MAX_NAMED
from headrace.server.routes.openapi.streams import NAME
from headrace.server.routes.openapi.words import (
    MINTED,
    TEXT,
    WHOLE,
    Node,
    answer,
    answers,
    closed_record,
    content,
    either,
    operation,
    path,
    query,
    record,
)

FLAG: Node = {"type": "string", "enum": ["true", "false", "1", "0"]}
_ID = path("id", {"type": "string", "minLength": 1}, "the verification")
_MOMENT: Node = {"type": "string", "format": "date-time"}
_SCHEMA: Node = {"type": ["object", "boolean"]}
_VERSIONED: Node = {"type": "object", "propertyNames": {"pattern": "^[1-9][0-9]*$"}}
_POINTER: Node = {"type": "string", "pattern": "^(/([^~/]|~[01])*)*$"}
_ROUTING_KEY = closed_record("jsonPointer required", jsonPointer=_POINTER, required={"type": "boolean"})
BINDING = record(version=WHOLE, jsonPointer=_POINTER)
_IMPACT = record(
    subject=TEXT,
    effect={"enum": ["changed", "lost"]},
    from_version=WHOLE,
    op=either(_POINTER),
    reason=TEXT,
)
PLAN = record(
    subject=TEXT,
    from_version=WHOLE,
    to_version=WHOLE,
    classification={"enum": ["identical", "additive", "widening", "destructive", "forbidden"]},
    requires_force={"type": "boolean"},
    changes={"type": "array", "items": record("schema_pointer", pointer=TEXT, what=TEXT, reason=TEXT)},
    reasons={"type": "array", "items": TEXT},
    lens=either(record("document", written={"type": "boolean"})),
    impact={"type": "array", "items": _IMPACT},
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
REGISTRY["properties"] |= {"routingKey": _ROUTING_KEY, "search": {"type": "object"}, "diff": PLAN}
_FOUND: Node = {"$ref": "#/components/schemas/Registry"}
_OUTCOME: Node = {"anyOf": [_FOUND, PLAN]}
_MISFIT = record(offset=MINTED, seq=WHOLE, cause={"enum": ["lens", "schema"]}, pointer=TEXT, reason=TEXT)
VERIFICATION = record(
    id=TEXT,
    stream=TEXT,
    state={"enum": ["running", "done", "failed"]},
    from_version=WHOLE,
    to_version=WHOLE,
    begun_at=_MOMENT,
    ended_at=either(_MOMENT),
    reason=either(TEXT),
    events=WHOLE,
    total=WHOLE,
    through_offset=MINTED,
    failing=record(lens=WHOLE, schema=WHOLE),
    failures={"type": "array", "items": _MISFIT, "maxItems": MAX_NAMED},
)
_VERIFICATION: Node = {"$ref": "#/components/schemas/Verification"}
_BEGUN: Node = {"allOf": [PLAN, record(verification=_VERIFICATION)]}
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
    answers(
        "404 409 410 413 415 429",
        s200=answer("the registry and its diff; of a dry run the plan", _OUTCOME),
        s202=answer("the plan, which is held against stored events from now on", _BEGUN),
    ),
    query("dry_run", FLAG, "only say what would change"),
    query("on_data", FLAG, "hold the change against stored events; only with dry_run"),
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
_VERIFY = operation(
    "get_verification",
    "How far a change is held against stored events, and what was found",
    answers("404 410", s200=answer("as it is now", _VERIFICATION)),
)

SCHEMA_PATHS: Node = {
    "/v1/stream/{name}/_schema": {"parameters": [NAME], "get": _GET, "post": _POST},
    "/v1/stream/{name}/_schema/history": {"parameters": [NAME], "get": _HISTORY},
    "/v1/stream/{name}/_schema/verifications/{id}": {"parameters": [NAME, _ID], "get": _VERIFY},
}
