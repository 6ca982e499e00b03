"""The paths of the past of feature tables."""

from __future__ import annotations

from headrace.server.routes.feature_tables import HISTORY, MOST_ROWS
from headrace.server.routes.openapi.words import (
    COUNTER,
    FLAG,
    MINTED,
    MOMENT,
    TEXT,
    Node,
    answer,
    answers,
    closed_record,
    content,
    either,
    operation,
    path,
    record,
)

_TIME: Node = {"type": "string", "format": "date-time"}
_ROWS: Node = {"type": "array", "items": {"type": "object"}}
_TABLE = path("table", {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,127}$"}, "the table")
_COVERAGE: Node = {
    "Headrace-Coverage": {
        "description": "whether rows speak of all events since the births of their features",
        "schema": {"enum": ["complete", "partial"]},
    }
}
_ASKED = closed_record(
    "rows",
    rows={"type": "array", "maxItems": MOST_ROWS, "items": closed_record("at", key={}, at=MOMENT)},
    features=either({"type": "array", "items": TEXT}),
)
_TOLD = record(
    id=TEXT,
    table=TEXT,
    state={"enum": ["running", "done", "failed"]},
    begun=_TIME,
    ended=either(_TIME),
    rows=COUNTER,
    total=COUNTER,
    reason=either(TEXT),
)
_FOUND = record(results=_ROWS, complete=FLAG, since=MINTED, events_from=either(_TIME))

TABLE_PATHS: Node = {
    HISTORY: {
        "parameters": [_TABLE],
        "post": operation(
            "ask_history",
            "Rows of a table as they were, for many keys and moments",
            answers(
                "404 408 413 415 429 503",
                s200=answer("rows in order; empty for a key that was not seen", _FOUND, _COVERAGE),
                s202=answer("there is much to fold: ask again at the address that is told", record(history=_TOLD)),
            ),
            body=content(_ASKED),
        ),
    },
    f"{HISTORY}/{{id}}": {
        "parameters": [_TABLE, path("id", TEXT, "the question")],
        "get": operation(
            "get_history",
            "How a question about the past stands, and its rows once they are found",
            answers("404", s200=answer("the question", _TOLD, _COVERAGE)),
        ),
    },
}
