"""Reads queries about one request: its identifier, the streams and times to look in, and the limits."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.errors import BadRequest
from headrace.query.document_reader import Part
from headrace.types import parse_timestamp_us

IDS = ("requestId", "traceId", "spanId")
_LIMITS = {"events": (100, 500), "spans": (5_000, 10_000)}
_INCLUDE = {"events": True, "trace": True, "timeline": True, "raw": False}
_LONGEST_ID = 512
_MOST_PADDING_MS = 86_400_000


class RequestQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question that can be answered; moments are milliseconds, padded."""

    by: str
    id: str
    events: str | None
    traces: str | None
    from_ms: int | None
    to_ms: int | None
    timeline: bool
    raw: bool
    most_events: int
    most_spans: int


def read(body: Any) -> RequestQuestion:
    """The question of a JSON document; raises BadRequest that names everything that is wrong."""
    part = Part(body)
    if part.knows(("streams", "lookup", "time", "include", "limits")):
        by, wanted = _lookup(part["lookup"])
        include = {name: _flag(part["include"], name) for name in _INCLUDE}
        if part["include"].is_given:
            part["include"].knows(_INCLUDE)
        events = _stream(part["streams"], "events", wanted=include["events"])
        traces = _stream(part["streams"], "traces", wanted=include["trace"])
        if part["streams"].is_given:
            part["streams"].knows(("events", "traces"))
        from_ms, to_ms = _time(part["time"])
        limits = {name: _limit(part["limits"], name) for name in _LIMITS}
        if part["limits"].is_given:
            part["limits"].knows(_LIMITS)
        if not (include["events"] or include["trace"]):
            part["include"].note("must leave events or trace")
    if part.problems:
        problems = [problem._asdict() for problem in part.problems]
        first = part.problems[0]
        name = first.pointer[1:].replace("/", ".")
        raise BadRequest(f"{name or 'the body'} {first.reason}", field=name or "body", problems=problems)
    return RequestQuestion(
        by=by,
        id=wanted,
        events=events,
        traces=traces,
        from_ms=from_ms,
        to_ms=to_ms,
        timeline=include["timeline"],
        raw=include["raw"],
        most_events=limits["events"],
        most_spans=limits["spans"],
    )


def _lookup(part: Part) -> tuple[str, str]:
    if not part.knows(IDS):
        return "", ""
    ids = [name for name in IDS if part[name].is_given and part[name].value is not None]
    if len(ids) != 1:
        part.note(f"must have exactly one of {', '.join(IDS)}")
        return "", ""
    text = part[ids[0]].text()
    if text is not None and not 0 < len(text.strip()) <= _LONGEST_ID:
        part[ids[0]].note(f"must have 1 to {_LONGEST_ID} letters")
    return ids[0], (text or "").strip()


def _flag(part: Part, name: str) -> bool:
    member = part[name]
    return member.flag() if member.is_given else _INCLUDE[name]


def _stream(part: Part, role: str, *, wanted: bool) -> str | None:
    member = part[role]
    if not wanted:
        return None
    name = member.text() or ""
    if member.is_given and member.value == "":
        member.note("must not be empty")
    return name


def _limit(part: Part, name: str) -> int:
    member, (usual, most) = part[name], _LIMITS[name]
    if not member.is_given:
        return usual
    number = member.whole()
    if number is not None and not 1 <= number <= most:
        member.note(f"must lie between 1 and {most}")
    return number or usual


def _time(part: Part) -> tuple[int | None, int | None]:
    if not part.is_given or not part.knows(("from", "to", "paddingMs")):
        return None, None
    padding = part["paddingMs"].whole() or 0 if part["paddingMs"].is_given else 0
    if not 0 <= padding <= _MOST_PADDING_MS:
        part["paddingMs"].note(f"must lie between 0 and {_MOST_PADDING_MS}")
    start, end = _moment(part["from"]), _moment(part["to"])
    if start is not None and end is not None and end < start:
        part["to"].note("must not come before from")
    return None if start is None else start - padding, None if end is None else end + padding


def _moment(part: Part) -> int | None:
    text = part.text() if part.is_given else None
    if text is None:
        return None
    try:
        return parse_timestamp_us(text, "time") // 1000
    except BadRequest:
        part.note("must be an RFC 3339 time")
        return None
