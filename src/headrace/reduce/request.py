"""Reads aggregate requests; raises BadRequest with everything that is wrong with one."""

from __future__ import annotations

from reprlib import repr as shown
from typing import Any

import msgspec

from headrace.errors import BadRequest
from headrace.query.document_reader import Part
from headrace.query.request import query
from headrace.query.search import Rollup, Search
from headrace.query.tree import Node
from headrace.reduce.answer import Aggregate
from headrace.reduce.rollup import FARTHEST
from headrace.types import parse_timestamp_us

_KEYS = ("rollup", "from", "to", "interval", "q", "group_by", "measures")


class AggregateRequest(msgspec.Struct, frozen=True):
    """An aggregate that can be computed, over the events that match ``where``; ``interval`` is how it was spelled."""

    aggregate: Aggregate
    interval: str
    where: Node | None = None


def read(body: Any, search: Search) -> AggregateRequest:
    """The request of a JSON document; raises BadRequest that names the member."""
    document = Part(body)
    if not document.knows(_KEYS):
        raise _refused(document)
    rollup = _rollup(document["rollup"], search)
    start, end = _time(document["from"]), _time(document["to"])
    if start is not None and end is not None and end <= start:
        document["to"].note("must be after from")
    if rollup is None or document.problems:
        raise _refused(document)
    assert start is not None and end is not None, "noted otherwise"
    interval = _interval(document["interval"], rollup)
    group_by = _names(document["group_by"], rollup.dimensions, "dimension")
    measures = _names(document["measures"], rollup.measures, "measure")
    if document["measures"].is_present and not measures:
        document["measures"].note("must name at least one measure")
    if document.problems:
        raise _refused(document)
    aggregate = Aggregate(
        rollup=rollup, interval=interval, start=start, end=end, group_by=tuple(group_by), measures=tuple(measures)
    )
    return AggregateRequest(aggregate, document["interval"].value, _where(document["q"], search))


def _rollup(part: Part, search: Search) -> Rollup | None:
    name = part.text()
    if name is not None and name not in search.rollups:
        names = ", ".join(sorted(search.rollups)) or "none"
        part.note(f"{shown(name)} is no rollup of this stream; there are: {names}")
    return search.rollups.get(name or "")


def _time(part: Part) -> int | None:
    """Milliseconds since 1970: of a number of them, of a timestamp, or of nanoseconds in digits."""
    value = part.value if part.is_present else None
    if isinstance(value, str):
        try:
            value = parse_timestamp_us(value, part.at[-1]) // 1000
        except BadRequest as reason:
            part.note(reason.message.partition(": ")[2])
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -FARTHEST <= value <= FARTHEST:
        part.note("must be a timestamp or a number of milliseconds")
        return None
    return int(value // 1)


def _interval(part: Part, rollup: Rollup) -> int:
    millis_by_name = {interval.text: interval.millis for interval in rollup.intervals}
    name = part.text()
    if name is not None and name not in millis_by_name:
        part.note(f"{shown(name)} is none of {', '.join(millis_by_name)}")
    return millis_by_name.get(name or "", 0)


def _names(part: Part, allowed: Any, what: str) -> list[str]:
    names: set[str] = set()
    for element in part.elements() if part.is_present else ():
        name = element.text()
        if name is not None and name not in allowed:
            element.note(
                f"{shown(name)} is no {what} of this rollup; there are: {', '.join(sorted(allowed)) or 'none'}"
            )
        elif name is not None:
            names.add(name)
    return sorted(names)


def _where(part: Part, search: Search) -> Node | None:
    text = part.text() if part.is_present and part.value is not None else None
    if part.problems:
        raise _refused(part)
    return None if text is None else query(text, search)


def _refused(document: Part) -> BadRequest:
    first = document.problems[0]
    name = first.pointer[1:]
    problems = [problem._asdict() for problem in document.problems]
    return BadRequest(f"{name or 'the body'} {first.reason}", field=name or "body", problems=problems)
