"""The paths of the feature registry, of pushes and of rows."""

from __future__ import annotations

from headrace.server.routes.features import MOST_REQUESTS
from headrace.server.routes.openapi.words import (
    COUNTER,
    FAILURES,
    FLAG,
    MINTED,
    MOMENT,
    NAMES,
    OBJECT,
    OBJECTS,
    TEXT,
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
from headrace.server.routes.registration import APP as app_pattern
from headrace.server.routes.registration import MOST_VERSIONS

NAME: Node = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,127}$"}
APP: Node = {"type": "string", "pattern": app_pattern}
PROBLEM = record(code=TEXT, path=TEXT, message=TEXT)
PLAN = record(features=OBJECTS, streams=OBJECTS)
PLAN["properties"]["refusals"] = {"type": "array", "items": PROBLEM}
_DIFF: dict[str, Node] = {
    "registry_version": COUNTER,
    "added": NAMES,
    "removed": NAMES,
    "changed": {"type": "array", "items": record(name=TEXT)},
    "plan": PLAN,
}
ENVELOPE = record(status={"enum": ["ok", "conflict", "invalid"]}, **_DIFF)
REFUSED = record(
    status={"enum": ["conflict", "invalid"]},
    **_DIFF,
    error=record(code=TEXT, message=TEXT, errors={"type": "array", "items": PROBLEM}),
)
_TERMS: dict[str, Node] = {
    "force": FLAG,
    "dry_run": FLAG,
    "backfill": either(FLAG),
    "expected_version": either(COUNTER),
    "cascade": FLAG,
}
REGISTRATION = closed_record(descriptors=OBJECTS, nodes=OBJECTS, app=APP, **_TERMS)
ROLLBACK = closed_record("version", version=COUNTER, app=either(APP), **_TERMS)
REGISTRY = record(
    registry_version=COUNTER,
    descriptors={"type": "array", "items": record(kind={"enum": ["event", "derivation", "table"]}, name=NAME)},
    apps={"type": "object", "additionalProperties": APP},
    features={
        "type": "object",
        "additionalProperties": {"type": "object", "additionalProperties": record(life=TEXT, birth=COUNTER)},
    },
)
VERSION = record(
    **_DIFF,
    at={"type": "string", "format": "date-time"},
    who=TEXT,
    app=TEXT,
    action={"enum": ["register", "rollback", "recovery"]},
    force=FLAG,
)
HISTORY = record(registry_version=COUNTER, versions={"type": "array", "items": VERSION})

_TAKEN = {"ack": FLAG, "offset": MINTED, "idempotent_replay": FLAG}
_OUTCOME: Node = {"anyOf": [record(**_TAKEN), {"$ref": "#/components/schemas/Error"}]}
PUSHED: Node = {
    "anyOf": [
        record(registry_version=COUNTER, **_TAKEN),
        record(registry_version=COUNTER, results={"type": "array", "items": _OUTCOME}),
    ]
}
_KEY: Node = {"description": "one value, or an array of them; nothing for a global table"}
_ASKED: dict[str, Node] = {"table": TEXT, "key": _KEY, "features": either(NAMES), "explain": FLAG}
GET = closed_record("table", **_ASKED, as_of=either(MOMENT))
BATCH = closed_record(
    "requests", requests={"type": "array", "maxItems": MOST_REQUESTS, "items": closed_record("table", **_ASKED)}
)
_COVERAGE: Node = {
    "Headrace-Coverage": {
        "description": "whether every feature speaks of all events since its birth",
        "schema": {"enum": ["complete", "backfilling", "partial"]},
    }
}
_EVENTS_FROM: Node = {
    "Headrace-Events-From": {
        "description": "with `as_of`: when the first event was appended that is still there",
        "schema": {"type": "string", "format": "date-time"},
    }
}


def _changes(done: str) -> Node:
    body: Node = {"anyOf": [REFUSED, {"$ref": "#/components/schemas/Error"}]}
    refused = {str(status): answer(FAILURES[status], body) for status in (400, 409)}
    return {**answers("408 413 415", s200=answer(done, ENVELOPE)), **refused}


FEATURE_PATHS: Node = {
    "/v1/register": {
        "post": operation(
            "register_features",
            "Make the nodes of an app what the payload says",
            _changes("what changed, or would change"),
            body=content(REGISTRATION),
        )
    },
    "/v1/registry": {
        "get": operation(
            "get_feature_registry",
            "Every node, as it could be registered again",
            answers(s200=answer("the registry", REGISTRY)),
            query("app", APP, "nodes of this app only"),
        )
    },
    "/v1/registry/history": {
        "get": operation(
            "get_feature_history",
            "Who changed what, and when",
            answers(s200=answer("versions in order", HISTORY)),
            query("after", COUNTER, "versions after this one"),
            query("limit", {"type": "integer", "minimum": 1, "maximum": MOST_VERSIONS}, "versions at most"),
        )
    },
    "/v1/ping": {
        "post": operation(
            "ping",
            "Which server answers, and which version its registry has",
            answers(s200=answer("both", record(server_version=TEXT, registry_version=COUNTER))),
        )
    },
    "/v1/reset": {
        "post": operation(
            "reset_features",
            "Remove every node of every app, on a server for tests",
            answers("403 408 409", s200=answer("what was removed", ENVELOPE)),
        )
    },
    "/v1/registry/rollback": {
        "post": operation(
            "rollback_features",
            "Change the registry back to what an earlier version was",
            _changes("what changed, or would change"),
            body=content(ROLLBACK),
        )
    },
    "/v1/push/{event}": {
        "parameters": [path("event", NAME, "the event source")],
        "post": operation(
            "push_event",
            "Store events of a source",
            answers("404 408 413 415 429", s200=answer("each event is on disk, or was refused", PUSHED)),
            body=content({"anyOf": [OBJECT, OBJECTS]}),
        ),
    },
    "/v1/get": {
        "post": operation(
            "get_row",
            "The features of one key",
            answers(
                "404 408 415 429", s200=answer("the row; empty for an unseen key", OBJECT, _COVERAGE | _EVENTS_FROM)
            ),
            body=content(GET),
        )
    },
    "/v1/batch_get": {
        "post": operation(
            "get_rows",
            "The features of many keys at one moment",
            answers("404 408 413 415 429", s200=answer("rows in order", record(results=OBJECTS), _COVERAGE)),
            body=content(BATCH),
        )
    },
}
