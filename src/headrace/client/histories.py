"""Rows of the past on the wire: many keys, each at a moment of its own, answered at once or after a while."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.client import answers
from headrace.client.answers import Answer
from headrace.client.errors import HistoryFailed
from headrace.client.features import Key, Row
from headrace.client.requests import Moment, Request, moment, segment
from headrace.types import JSON

#: The most rows of one question.
HISTORY_ROWS = 10_000


class History(msgspec.Struct, frozen=True):
    """How a question stands; ``results`` are its rows once they are found."""

    id: str = ""
    state: str = "done"
    reason: str | None = None
    complete: bool = True
    events_from: str | None = None
    results: list[dict[str, Any]] = []


class _Begun(msgspec.Struct):
    history: History


def ask(table: str, rows: Sequence[tuple[Key, Moment]], features: Sequence[str] | None) -> Request:
    """POST: the rows of these keys, each as it was at its moment."""
    asked = {"rows": [{"key": key, "at": moment(at)} for key, at in rows]}
    body = asked if features is None else {**asked, "features": list(features)}
    return Request("POST", _path(table), {"content-type": JSON}, msgspec.json.encode(body), changes=False)


def look(table: str, id: str) -> Request:
    """GET: how a question stands."""
    return Request("GET", f"{_path(table)}/{segment(id)}")


def begun(answer: Answer) -> History:
    """The answer to a question, or where it will be found."""
    if answer.checked().status == 202:
        return answers.decoded(answer.body, _Begun).history
    return answers.decoded(answer.body, History)


def standing(answer: Answer) -> History:
    """How a question stands now."""
    return answers.decoded(answer.checked().body, History)


def rows(history: History) -> list[Row]:
    """The rows of a question that is answered, in the order in which they were asked for."""
    if history.state != "done":
        raise HistoryFailed(f"the rows were not found: {history.reason}", history=history.id)
    found = []
    for features in history.results:
        row = Row(features)
        row.complete, row.events_from = history.complete, history.events_from
        found.append(row)
    return found


def _path(table: str) -> str:
    return f"/v1/tables/{segment(table)}/history"
