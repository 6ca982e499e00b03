"""The paths that store what is known of entities, and of the sources it came from."""

from __future__ import annotations

from headrace.schema.entity.nodes import SOURCE_KINDS
from headrace.schema.entity.request import MAX_CHARACTERS, MAX_ENTITIES, PRINTABLE
from headrace.server.routes.observations import MOST_FIELDS
from headrace.server.routes.openapi.words import (
    COUNTER,
    FLAG,
    MOMENT,
    NAMES,
    TEXT,
    TRUE,
    USER,
    WHEN,
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

NAME: Node = {"type": "string", "minLength": 1, "maxLength": MAX_CHARACTERS, "pattern": PRINTABLE}
_FOR = either({**USER, "pattern": PRINTABLE})
_SAYING: dict[str, Node] = {
    "observed_at": either(MOMENT),
    "source_id": either(NAME),
    "source_priority": either({"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}),
    "observation_source": either({"enum": list(SOURCE_KINDS)}),
    "specificity_score": either({"type": "number", "minimum": 0, "maximum": 1}),
    "idempotency_key": either(NAME),
    "strict": FLAG,
}
ENTITY: Node = {
    "type": "object",
    "description": "the fields of an entity by name, and what is said of it besides",
    "required": ["entity_type"],
    "properties": {
        "entity_type": {"type": "string", "minLength": 1},
        "_meta": closed_record(**_SAYING, target_id=either(NAME)),
    },
}
REQUEST = closed_record(
    "entities",
    entities={"type": "array", "minItems": 1, "maxItems": MAX_ENTITIES, "items": ENTITY},
    **_SAYING,
    commit=FLAG,
    user_id=_FOR,
)
WARNING = record(code=TEXT, message=TEXT, fields=NAMES, entity_type=TEXT, items={"type": "array", "items": COUNTER})
_WARNINGS: Node = {"type": "array", "items": WARNING}
_ACTIONS = ["created", "updated", "unchanged", "would_create", "would_match_existing"]
STORED = record(
    entities={
        "type": "array",
        "items": record(
            entity_id=TEXT,
            entity_type=TEXT,
            action={"enum": _ACTIONS},
            observation_id=TEXT,
            schema_version=TEXT,
            canonical_name=TEXT,
            identity_basis=TEXT,
            identity_rule=TEXT,
            unknown_fields=NAMES,
            required_fields_missing=NAMES,
        ),
    },
    source_id=TEXT,
    unknown_fields_count=COUNTER,
    store_warnings=_WARNINGS,
)
_DECISION: dict[str, Node] = {"entity_type": either(NAME), "idempotency_key": either(NAME), "user_id": _FOR}
_VALUE: Node = {"description": "what the field is; null says that there is nothing"}
CORRECTION: Node = {
    "anyOf": [
        closed_record("field value", field=NAME, value=_VALUE, **_DECISION),
        closed_record(
            "fields", fields={"type": "object", "minProperties": 1, "maxProperties": MOST_FIELDS}, **_DECISION
        ),
    ]
}
DECIDED = record(
    entity_id=TEXT,
    entity_type=TEXT,
    action={"enum": ["corrected", "deleted", "restored"]},
    observation_id=TEXT,
    schema_version=TEXT,
    fields=NAMES,
    store_warnings=_WARNINGS,
)
SOURCE = record(
    source_id=TEXT,
    content_addressed=FLAG,
    complete=FLAG,
    stored_at=WHEN,
    entities={"type": "array", "items": ENTITY},
    observations={
        "type": "array",
        "items": record(
            observation_id=TEXT,
            entity_id=TEXT,
            entity_type=TEXT,
            schema_version=TEXT,
            schema_scope={"enum": ["global", "user"]},
            observed_at=WHEN,
            item=COUNTER,
        ),
    },
)
_REPLAYED: Node = {
    "Idempotency-Replayed": {"description": "the request was answered before, and is answered the same", "schema": TRUE}
}
_ENTITY = path("id", TEXT, "the id of an entity")


def _decides(name: str, text: str, body: Node) -> Node:
    done = answers("404 408 409 413 415 429", s200=answer("it is on disk", DECIDED, _REPLAYED))
    return {"parameters": [_ENTITY], "post": operation(name, text, done, body=body)}


_OPTIONAL: Node = {**content(closed_record(**_DECISION)), "required": False}
OBSERVATION_PATHS: Node = {
    "/v1/observations": {
        "post": operation(
            "store_observations",
            "Store what is known of entities: all of it, or nothing",
            answers("408 409 413 415 429", s200=answer("all of it is on disk, or would be", STORED, _REPLAYED)),
            body=content(REQUEST),
        )
    },
    "/v1/entities/{id}/correct": _decides("correct_entity", "Say what fields of an entity are", content(CORRECTION)),
    "/v1/entities/{id}/delete": _decides("delete_entity", "Let an entity be deleted", _OPTIONAL),
    "/v1/entities/{id}/restore": _decides("restore_entity", "Let a deleted entity be there again", _OPTIONAL),
    "/v1/sources/{id}": {
        "parameters": [path("id", TEXT, "the id of a source")],
        "get": operation(
            "get_source",
            "What a request brought, as it was given",
            answers("404 408 413", s200=answer("the entities, and what became of them", SOURCE)),
            query("user_id", USER, "whose source it is; for admins"),
        ),
    },
}
