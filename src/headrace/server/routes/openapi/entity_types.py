"""The paths of entity types."""

from __future__ import annotations

from typing import get_args

from headrace.engine.entities.types.journal import Action
from headrace.server.routes.entity_types import MOST
from headrace.server.routes.openapi.words import (
    COUNTER,
    FLAG,
    NAMES,
    OBJECT,
    OBJECTS,
    TEXT,
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

SCOPE: Node = {"enum": ["global", "user"]}
VERSION: Node = {"type": "string", "pattern": r"^(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})(\.(0|[1-9][0-9]{0,8}))?$"}
TYPE: Node = {"type": "string", "minLength": 1}
ENTITY_TYPE = record(
    schema_id=TEXT,
    entity_type=TEXT,
    schema_version=VERSION,
    scope=SCOPE,
    user_id=either(TEXT),
    active=FLAG,
    base_version=either(VERSION),
    created_at=WHEN,
    schema_definition=OBJECT,
    reducer_config=OBJECT,
    metadata=OBJECT,
)
_REF: Node = {"$ref": "#/components/schemas/EntityType"}
_ONE = record(stream=TEXT, change=COUNTER, **ENTITY_TYPE["properties"])
_NEXT = either(TEXT)
_WARNING = record(code=TEXT, message=TEXT, fields=NAMES)
DONE: dict[str, Node] = {
    "success": FLAG,
    "dry_run": FLAG,
    "changed": FLAG,
    "schema_id": either(TEXT),
    "entity_type": TEXT,
    "schema_version": VERSION,
    "previous_version": either(VERSION),
    "scope": SCOPE,
    "user_id": either(TEXT),
    "active": FLAG,
    "change": either(COUNTER),
    "warnings": {"type": "array", "items": _WARNING},
    "plan": record(
        subject=TEXT,
        from_version=TEXT,
        to_version=TEXT,
        classification=TEXT,
        changes=OBJECTS,
        reasons=NAMES,
        impact=OBJECTS,
        refusals=OBJECTS,
        registry=OBJECT,
    ),
}
DONE["rekey"] = either(
    record(
        checked=COUNTER,
        kept=COUNTER,
        renamed=COUNTER,
        merging=COUNTER,
        unresolved=COUNTER,
        complete=FLAG,
        examples=OBJECTS,
    )
)
_WHOSE: dict[str, Node] = {"scope": SCOPE, "user_specific": FLAG, "user_id": USER, "dry_run": FLAG}
REGISTRATION = closed_record(
    "entity_type schema_version schema_definition reducer_config",
    entity_type=TEXT,
    schema_version=VERSION,
    schema_definition=OBJECT,
    reducer_config=OBJECT,
    metadata=OBJECT,
    activate=FLAG,
    force=FLAG,
    **_WHOSE,
)
UPDATE = closed_record(
    fields_to_add=OBJECTS,
    fields_to_remove=NAMES,
    converters_to_add=OBJECTS,
    canonical_name_fields={"type": "array"},
    schema_version=VERSION,
    metadata=OBJECT,
    activate=FLAG,
    migrate_existing=FLAG,
    migrate_user_id=TEXT,
    force=FLAG,
    **_WHOSE,
)
_SWITCH = closed_record("schema_version", schema_version=VERSION, **_WHOSE)
CHANGE = record(
    change=COUNTER,
    at=WHEN,
    who=TEXT,
    action={"enum": list(get_args(Action))},
    scope=SCOPE,
    user_id=either(TEXT),
    schema_id=either(TEXT),
    from_version=either(VERSION),
    to_version=either(VERSION),
    activated=either(VERSION),
    changes=OBJECTS,
    reasons=NAMES,
)
_USER = query("user_id", USER, "whose types are looked at; of somebody else's only by an operator")
_LIMIT = query("limit", {"type": "integer", "minimum": 1, "maximum": MOST}, "as many at most")
_DRY = query("dry_run", {"enum": ["true", "false"]}, "say what would be done, and do nothing")
NAMED = path("entity_type", TYPE, "the type, or another name of it")


def _post(name: str, text: str, body: Node, done: str, **more: Node) -> Node:
    found = answers("404 408 409 413 415", s200=answer(done, record(**DONE, **more)))
    return operation(name, text, found, _DRY, body=content(body))


ENTITY_TYPE_PATHS: Node = {
    "/v1/entity-types": {
        "get": operation(
            "list_entity_types",
            "The active versions of all types: the global ones, and the caller's own",
            answers(
                s200=answer(
                    "versions by type; `effective` is what holds for the caller",
                    record(entity_types={"type": "array", "items": _REF}, next=_NEXT),
                )
            ),
            query("after", TEXT, "types after this one"),
            query("keyword", TEXT, "types whose name or metadata has it"),
            _LIMIT,
            _USER,
        ),
        "post": _post(
            "register_entity_type", "Store a version of a type", REGISTRATION, "what was stored, or would be"
        ),
    },
    "/v1/entity-types/{entity_type}": {
        "parameters": [NAMED],
        "get": operation(
            "get_entity_type",
            "The version that holds for the caller",
            answers("404", s200=answer("the version", _ONE)),
            query("schema_version", VERSION, "this version, whether it is active or not"),
            query("scope", SCOPE, "the global version, or the caller's own"),
            _USER,
        ),
    },
    "/v1/entity-types/{entity_type}/versions": {
        "parameters": [NAMED],
        "get": operation(
            "get_entity_type_versions",
            "Every version that the caller sees, the newest first",
            answers("404", s200=answer("versions", record(versions={"type": "array", "items": _REF}, next=_NEXT))),
            query("after", TEXT, "versions after the one of this schema_id"),
            _LIMIT,
            _USER,
        ),
    },
    "/v1/entity-types/{entity_type}/history": {
        "parameters": [NAMED],
        "get": operation(
            "get_entity_type_history",
            "Who changed what, and when",
            answers(
                "404",
                s200=answer(
                    "changes in order",
                    record(entity_type=TEXT, changes={"type": "array", "items": CHANGE}, next=either(COUNTER)),
                ),
            ),
            query("after", COUNTER, "changes after this one"),
            _LIMIT,
            _USER,
        ),
    },
    "/v1/entity-types/{entity_type}/export": {
        "parameters": [NAMED],
        "get": operation(
            "export_entity_type",
            "Every version that the caller sees as a file, with the same bytes each time",
            answers(
                "404",
                s200=answer("files", record(files={"type": "array", "items": record(path=TEXT, content=TEXT)})),
            ),
            _USER,
        ),
    },
    "/v1/entity-types/{entity_type}/update": {
        "parameters": [NAMED],
        "post": _post(
            "update_entity_type",
            "Add and remove fields, add converters, replace the identity rule: the next version",
            UPDATE,
            "the version that was made, or would be; the same as before where nothing changes",
            bump={"enum": ["none", "patch", "minor", "major"]},
            fields_added=NAMES,
            fields_removed=NAMES,
            migration=either(OBJECT),
        ),
    },
    "/v1/entity-types/{entity_type}/activate": {
        "parameters": [NAMED],
        "post": _post("activate_entity_type", "Make a version the active one of its owner", _SWITCH, "it is active"),
    },
    "/v1/entity-types/{entity_type}/deactivate": {
        "parameters": [NAMED],
        "post": _post("deactivate_entity_type", "Let a version be active no longer", _SWITCH, "it is not active"),
    },
}
