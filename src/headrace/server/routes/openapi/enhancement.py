"""The paths of what fragments speak for, and of what becomes of it."""

from __future__ import annotations

from typing import get_args

from headrace.schema.entity.nodes import SOURCE_KINDS, TYPES
from headrace.server.routes.openapi.entity_types import DONE, NAMED, SCOPE, TYPE, VERSION
from headrace.server.routes.openapi.words import (
    COUNTER,
    FLAG,
    NAMES,
    OBJECT,
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
from headrace.storage.enhancements import ChangeKind, State, Status

SHARE: Node = {"type": "number", "minimum": 0, "maximum": 1}
NUMBER: Node = {"type": "integer", "minimum": 1, "maximum": 1_000_000}
FIELDS: Node = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 1_000}
FIELD_TYPE: Node = {"enum": list(TYPES)}
REASONS: Node = {"type": "array", "items": record(code=TEXT, message=TEXT)}
_CHANGED: dict[str, Node] = {
    "bump": {"enum": ["none", "patch", "minor", "major"]},
    "fields_added": NAMES,
    "fields_removed": NAMES,
}
_PATTERN: Node = {"type": "string", "minLength": 1, "maxLength": 100}
_BANNED = closed_record("pattern", pattern=_PATTERN, entity_type=either(TEXT), user_id=either(TEXT))
CANDIDATE = record(
    fragment_key=TEXT,
    change={"enum": ["add_field", "add_converters"]},
    field_type=either(FIELD_TYPE),
    converters={"type": "array", "items": OBJECT},
    frequency=COUNTER,
    type_share=SHARE,
    types={"type": "object", "additionalProperties": COUNTER},
    sources=COUNTER,
    users=COUNTER,
    entities=COUNTER,
    confidence=SHARE,
    first_seen=WHEN,
    last_seen=WHEN,
    examples={"type": "array"},
    promotable=FLAG,
    status=either({"enum": list(get_args(Status))}),
    reasons=REASONS,
)
_CANDIDATES: Node = {"type": "array", "items": CANDIDATE}
_OWNED: dict[str, Node] = {"entity_type": TEXT, "scope": SCOPE, "user_id": either(TEXT)}
_FOUND = record(
    **_OWNED,
    schema_version=VERSION,
    coverage=record(complete=FLAG, observations=COUNTER, missing=COUNTER, truncated=FLAG),
    candidates=_CANDIDATES,
)
RECOMMENDATION = record(
    key=TEXT,
    field=TEXT,
    change={"enum": list(get_args(ChangeKind))},
    status={"enum": list(get_args(Status))},
    can_rollback=FLAG,
    schema_version=either(VERSION),
    who=TEXT,
    at=WHEN,
    evidence=OBJECT,
)
_RUN: dict[str, Node] = {
    "run_id": TEXT,
    "state": {"enum": list(get_args(State))},
    "attempts": COUNTER,
    "reason": either(TEXT),
}
MIGRATION = record(
    **_OWNED,
    **_RUN,
    fields=NAMES,
    through=COUNTER,
    until=either(COUNTER),
    migrated=COUNTER,
    repeated=COUNTER,
    unfit=COUNTER,
    undone=FLAG,
)
_PLANNED = record(dry_run={"const": True}, fragments={"type": "object", "additionalProperties": COUNTER})
_SETTINGS: dict[str, Node] = {
    "enabled": FLAG,
    "mode": {"enum": ["apply", "recommend"]},
    "threshold": NUMBER,
    "min_sources": NUMBER,
    "min_type_share": SHARE,
    "min_confidence": SHARE,
    "global_conservative": FLAG,
    "trusted_source_relaxation": FLAG,
    "trusted_sources": {"type": "array", "items": {"enum": list(SOURCE_KINDS)}},
    "blacklist": {"type": "array", "items": {"anyOf": [_PATTERN, _BANNED]}, "maxItems": 200},
    "migrate_existing": FLAG,
}
_SET = record(
    **_OWNED,
    is_set=FLAG,
    settings=record(**_SETTINGS),
    runs={"type": "array", "items": record(**_RUN, begun_at=WHEN, ended_at=either(WHEN), outcome=OBJECT)},
)
_AGREEMENT = record(
    field=TEXT,
    field_type=FIELD_TYPE,
    users=COUNTER,
    entities=COUNTER,
    type_share=SHARE,
    confidence=SHARE,
    promotable=FLAG,
    reasons=REASONS,
)
_WHOSE: dict[str, Node] = {"scope": SCOPE, "user_id": either(USER)}
_LOOK = (
    query("scope", SCOPE, "the caller's own, or everybody's, for which it takes an operator"),
    query("user_id", USER, "somebody else's, for which it takes an operator"),
)
_RUN_ID = path("run_id", TYPE, "the migration")


def _get(name: str, text: str, told: str, found: Node, *parameters: Node) -> Node:
    return operation(name, text, answers("404 409", s200=answer(told, found)), *parameters, *_LOOK)


def _post(name: str, text: str, told: str, found: Node, body: Node) -> Node:
    return operation(name, text, answers("404 409 413 415", s200=answer(told, found)), body=content(body))


def _of_type(rest: str, *parameters: Node, **verbs: Node) -> dict[str, Node]:
    return {f"/v1/entity-types/{{entity_type}}/{rest}": {"parameters": [NAMED, *parameters], **verbs}}


ENHANCEMENT_PATHS: Node = {
    **_of_type(
        "candidates",
        get=_get(
            "get_entity_type_candidates",
            "What fragments would make of the schema",
            "candidates with the evidence, and what speaks against each; the most frequent first",
            _FOUND,
            query("promotable", {"enum": ["true", "false"]}, "only those that nothing speaks against"),
        ),
    ),
    **_of_type(
        "enhance",
        post=_post(
            "enhance_entity_type",
            "Promote what nothing speaks against; a dry run, unless `dry_run` is false",
            "the version that was made, or would be",
            record(**DONE, **_CHANGED, promoted=_CANDIDATES, migration=either({"anyOf": [MIGRATION, _PLANNED]})),
            closed_record(fields=either(FIELDS), force=FLAG, migrate_existing=FLAG, dry_run=FLAG, **_WHOSE),
        ),
    ),
    **_of_type(
        "enhancement",
        get=_get("get_entity_type_enhancement", "How a type grows by itself", "the settings that hold", _SET),
        post=_post(
            "set_entity_type_enhancement",
            "Say how a type grows by itself",
            "the settings that hold from now on",
            _SET,
            closed_record(**_SETTINGS, **_WHOSE),
        ),
    ),
    **_of_type(
        "recommendations",
        get=_get(
            "get_entity_type_recommendations",
            "What was recommended, and what was decided about it",
            "recommendations by field",
            record(entity_type=TEXT, recommendations={"type": "array", "items": RECOMMENDATION}),
        ),
        post=_post(
            "decide_entity_type_recommendation",
            "Approve or reject what fragments of a key speak for",
            "what is decided",
            RECOMMENDATION,
            closed_record("field status", field=TEXT, status={"enum": ["pending", "approved", "rejected"]}, **_WHOSE),
        ),
    ),
    **_of_type(
        "migrate",
        post=_post(
            "migrate_entity_type",
            "Move values that were stored before there was a field for them",
            "how far it is; one that takes longer goes on",
            {"anyOf": [MIGRATION, _PLANNED]},
            closed_record("fields", fields=FIELDS, dry_run=FLAG, **_WHOSE),
        ),
    ),
    **_of_type(
        "migrations",
        get=_get(
            "get_entity_type_migrations",
            "The migrations of a type",
            "the newest first",
            record(entity_type=TEXT, migrations={"type": "array", "items": MIGRATION}),
        ),
    ),
    **_of_type(
        "migrations/{run_id}",
        _RUN_ID,
        get=_get("get_entity_type_migration", "A migration of a type", "how far it is", MIGRATION),
    ),
    **_of_type(
        "migrations/{run_id}/undo",
        _RUN_ID,
        post=_post(
            "undo_entity_type_migration",
            "Let a migration count no more",
            "it is undone",
            MIGRATION,
            closed_record(**_WHOSE),
        ),
    ),
    **_of_type(
        "reconcile",
        post=_post(
            "reconcile_entity_type",
            "Let everybody have the fields that users agree on; a dry run, unless `dry_run` is false",
            "the version that was made, or would be",
            record(**DONE, **_CHANGED, agreements={"type": "array", "items": _AGREEMENT}),
            closed_record(dry_run=FLAG),
        ),
    ),
}
