"""Correlation: the request, the trace and the span that an event belongs to, wherever it says so."""

from __future__ import annotations

import re
from typing import Any

from headrace.profiles.redaction import REDACTED

#: The way to a value in the context: names from the outside in.
Way = tuple[str, ...]
Ids = tuple[str | None, str | None, str | None]

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_PARENTS: tuple[Way, ...] = (("traceparent",), ("traceContext", "traceparent"), ("headers", "traceparent"))
_HINTS = frozenset({"requestId", *(way[0] for way in _PARENTS)})
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


class Correlation:
    """Where identifiers are looked for: in the fields that the settings name, then where they usually are."""

    def __init__(
        self, request_fields: tuple[str, ...] = (), trace_fields: tuple[str, ...] = (), *, traceparent: bool = True
    ) -> None:
        """Fields are dotted paths; ``context.`` may lead them."""
        self._request = tuple(_way(field) for field in request_fields)
        self._trace = tuple(_way(field) for field in trace_fields if _last(field) == "traceId")
        self._span = tuple(_way(field) for field in trace_fields if _last(field) == "spanId")
        self._parents = (*(_way(field) for field in trace_fields if _last(field) == "traceparent"), *_PARENTS)
        self._traceparent = traceparent
        self.is_plain = not (request_fields or trace_fields)

    def may_add(
        self, request_id: str | None, trace_id: str | None, span_id: str | None, context: dict[str, Any]
    ) -> bool:
        """Whether :meth:`ids` may find others than an event has of its own."""
        if request_id is None or trace_id is None or span_id is None:
            return not self.is_plain or not _HINTS.isdisjoint(context)
        return not self.is_plain

    def looks_into(self, name: str) -> bool:
        """Whether :meth:`ids` may find something in a member of the context, where no field is named to it."""
        return name in _HINTS

    def ids(self, request_id: str | None, trace_id: str | None, span_id: str | None, context: dict[str, Any]) -> Ids:
        """The identifiers of an event, given those that it has of its own and its context."""
        if not self.is_plain:
            given = {"requestId": request_id, "traceId": trace_id, "spanId": span_id}
            request_id = self._chosen(self._request, "requestId", given, context)
            trace_id = self._chosen(self._trace, "traceId", given, context)
            span_id = self._chosen(self._span, "spanId", given, context)
        if request_id is None and "requestId" in context:
            request_id = _text(context["requestId"])
        if (trace_id is None or span_id is None) and context:
            trace_id, span_id = self._traced(trace_id, span_id, context)
        return request_id, trace_id, span_id

    def _chosen(
        self, ways: tuple[Way, ...], name: str, given: dict[str, str | None], context: dict[str, Any]
    ) -> str | None:
        """What a configured field says, else what the event has; a value that gives way to another is kept."""
        own = given[name]
        for way in ways:
            found = given[way[0]] if len(way) == 1 and way[0] in given else _find(context, way)
            if found is not None:
                if own is not None and own != found:
                    _keep(context, name, own)
                return found
        return own

    def _traced(
        self, trace_id: str | None, span_id: str | None, context: dict[str, Any]
    ) -> tuple[str | None, str | None]:
        if "traceContext" in context:
            trace_id = trace_id or _find(context, ("traceContext", "traceId"))
            span_id = span_id or _find(context, ("traceContext", "spanId"))
        if self._traceparent and (trace_id is None or span_id is None):
            for way in self._parents:
                parent = parsed(_find(context, way)) if way[0] in context else None
                if parent is not None and trace_id in {None, parent[0]}:
                    return parent[0], span_id or parent[1]
        return trace_id, span_id


def parsed(text: str | None) -> tuple[str, str] | None:
    """The trace and the span of a W3C ``traceparent``; None for anything else."""
    match = None if text is None else _TRACEPARENT.fullmatch(text.lower())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    return None if match[2] == _NO_TRACE or match[3] == _NO_SPAN else (match[2], match[3])


def _way(field: str) -> Way:
    names = tuple(field.split("."))
    return names[1:] if len(names) > 1 and names[0] == "context" else names


def _last(field: str) -> str:
    return field.rpartition(".")[2]


def _find(context: dict[str, Any], way: Way) -> str | None:
    value: Any = context
    for name in way:
        if type(value) is not dict:
            return None
        value = value.get(name)
    return _text(value)


def _text(value: Any) -> str | None:
    if type(value) is not str or value == REDACTED:
        return None
    return value.strip() or None


def _keep(context: dict[str, Any], name: str, value: str) -> None:
    free = name
    while free in context and context[free] != value:
        free += "_"
    context[free] = value
