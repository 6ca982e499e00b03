"""The paths on which entities are removed for good."""

from __future__ import annotations

from headrace.server.routes.erasures import LISTED, MOST_LISTED
from headrace.server.routes.openapi.entities import GIVEN, ID
from headrace.server.routes.openapi.words import (
    COUNTER,
    NAMES,
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

_HELD: Node = {"type": "array", "items": record(name=TEXT, bytes=COUNTER, observations=COUNTER)}
PLAN: Node = record(
    ids={"type": "array", "items": ID},
    observations=COUNTER,
    log_rows=COUNTER,
    segments=_HELD,
    companions=_HELD,
    states=_HELD,
    sources=NAMES,
    idempotency_answers=COUNTER,
)
REPORT: Node = {
    "type": "object",
    "properties": {
        "log_rows": COUNTER,
        "rewritten": {"type": "object", "additionalProperties": TEXT},
        "removed": NAMES,
    },
}
ERASURE: Node = record(
    erasure_id=TEXT,
    entity_id=ID,
    entity_type=TEXT,
    state={"enum": ["running", "done"]},
    step={"enum": ["log", "offered", "objects", "rows", "files", "pages", "done"]},
    complete={"type": "boolean"},
    begun_at=WHEN,
    completed_at=either(WHEN),
    plan=PLAN,
    report=REPORT,
)
_ERASURE: Node = {"$ref": "#/components/schemas/Erasure"}
_USER = query("user_id", USER, "whose erasures, for an admin")
_LIMIT: Node = {"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": LISTED}

ERASURE_PATHS: Node = {
    "/v1/entities/{id}/erase": {
        "parameters": [path("id", TEXT, "the id of an entity")],
        "post": operation(
            "erase_entity",
            "an entity, and everything that was merged into it, is removed for good from wherever it lies",
            answers(
                "404 409 413 415 429",
                s200=answer("what would be removed", record(dry_run={"const": True}, entity_id=ID, plan=PLAN)),
                s202=answer("it is gone for everybody, and its data is being removed", _ERASURE),
            ),
            body=content(closed_record(dry_run={"type": "boolean", "default": False}, user_id=either(USER))),
        ),
    },
    "/v1/erasures": {
        "get": operation(
            "list_erasures",
            "the erasures of a user, the newest first",
            answers(
                "404",
                s200=answer("a page", record(erasures={"type": "array", "items": _ERASURE}, after=either(TEXT))),
            ),
            query("after", GIVEN, "the last erasure of the page before"),
            query("limit", _LIMIT, "how many at most"),
            _USER,
        )
    },
    "/v1/erasures/{id}": {
        "parameters": [path("id", TEXT, "the id of an erasure")],
        "get": operation(
            "get_erasure",
            "how far an erasure is, and what came of it; complete once nothing holds the data",
            answers("404", s200=answer("the erasure", _ERASURE)),
            _USER,
        ),
    },
}
