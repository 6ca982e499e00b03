"""Makes envelopes of events: finds the identifiers of request, trace and span, and redacts what is listed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from headrace.profiles.evlog.envelope import LEVELS, Envelope, Redaction
from headrace.profiles.redaction import REDACTED, Listed, Redactor
from headrace.schema.entries import exact_number
from headrace.types import rfc3339

#: The path of a value in the context: names from the outside in.
Path = tuple[str, ...]
Ids = tuple[str | None, str | None, str | None]

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_PARENTS: tuple[Path, ...] = (("traceparent",), ("traceContext", "traceparent"), ("headers", "traceparent"))
_HINTS = frozenset({"requestId", *(path[0] for path in _PARENTS)})
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


class Correlation:
    """Where identifiers are searched: in the fields that the settings name, then in the usual ones."""

    def __init__(
        self, request_fields: tuple[str, ...] = (), trace_fields: tuple[str, ...] = (), *, traceparent: bool = True
    ) -> None:
        """Fields are dotted paths; ``context.`` may lead them."""
        self._request = tuple(_split_path(field) for field in request_fields)
        self._trace = tuple(_split_path(field) for field in trace_fields if _last(field) == "traceId")
        self._span = tuple(_split_path(field) for field in trace_fields if _last(field) == "spanId")
        self._parents = (*(_split_path(field) for field in trace_fields if _last(field) == "traceparent"), *_PARENTS)
        self._traceparent = traceparent
        self.is_plain = not (request_fields or trace_fields)

    def may_add(
        self, request_id: str | None, trace_id: str | None, span_id: str | None, context: dict[str, Any]
    ) -> bool:
        """Whether :meth:`ids` may find others than an event has of its own."""
        if request_id is None or trace_id is None or span_id is None:
            return not self.is_plain or not _HINTS.isdisjoint(context)
        return not self.is_plain

    def is_searched(self, name: str) -> bool:
        """Whether :meth:`ids` searches a member of the context, where no field is configured."""
        return name in _HINTS

    def ids(self, request_id: str | None, trace_id: str | None, span_id: str | None, context: dict[str, Any]) -> Ids:
        """The identifiers of an event, given those that it has of its own and its context."""
        if not self.is_plain:
            own_ids = {"requestId": request_id, "traceId": trace_id, "spanId": span_id}
            request_id = self._choose(self._request, "requestId", own_ids, context)
            trace_id = self._choose(self._trace, "traceId", own_ids, context)
            span_id = self._choose(self._span, "spanId", own_ids, context)
        if request_id is None and "requestId" in context:
            request_id = _text(context["requestId"])
        if (trace_id is None or span_id is None) and context:
            trace_id, span_id = self._trace_ids(trace_id, span_id, context)
        return request_id, trace_id, span_id

    def _choose(
        self, paths: tuple[Path, ...], name: str, own_ids: dict[str, str | None], context: dict[str, Any]
    ) -> str | None:
        """The value of a configured field, else the event's own; a replaced one is kept in the context."""
        own = own_ids[name]
        for path in paths:
            identifier = own_ids[path[0]] if len(path) == 1 and path[0] in own_ids else _find(context, path)
            if identifier is not None:
                if own is not None and own != identifier:
                    _keep(context, name, own)
                return identifier
        return own

    def _trace_ids(
        self, trace_id: str | None, span_id: str | None, context: dict[str, Any]
    ) -> tuple[str | None, str | None]:
        if "traceContext" in context:
            trace_id = trace_id or _find(context, ("traceContext", "traceId"))
            span_id = span_id or _find(context, ("traceContext", "spanId"))
        if self._traceparent and (trace_id is None or span_id is None):
            for path in self._parents:
                parent = parse_traceparent(_find(context, path)) if path[0] in context else None
                if parent is not None and trace_id in {None, parent[0]}:
                    return parent[0], span_id or parent[1]
        return trace_id, span_id


def parse_traceparent(text: str | None) -> tuple[str, str] | None:
    """The trace and the span of a W3C ``traceparent``; None for anything else."""
    match = None if text is None else _TRACEPARENT.fullmatch(text.lower())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    return None if match[2] == _NO_TRACE or match[3] == _NO_SPAN else (match[2], match[3])


def _split_path(field: str) -> Path:
    names = tuple(field.split("."))
    return names[1:] if len(names) > 1 and names[0] == "context" else names


def _last(field: str) -> str:
    return field.rpartition(".")[2]


def _find(context: dict[str, Any], path: Path) -> str | None:
    value: Any = context
    for name in path:
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


TEXTS = (
    "timestamp", "level", "service", "environment", "version", "region", "requestId", "traceId", "spanId",
    "method", "path", "message", "why", "fix", "link",
)  # fmt: skip
LEVEL_OF: dict[Any, Any] = {level: level for level in LEVELS}
NOTHING = Redaction([])
_INTEGER = re.compile(r"[+-]?\d{1,15}", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d{1,30}(\.\d{1,30})?([eE][+-]?\d{1,2})?", re.ASCII)
#: The first and the last moment that have a text, in milliseconds.
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999


class EventNormaliser:
    """Makes envelopes by the rules of one stream."""

    def __init__(self, listed: Listed, correlation: Correlation) -> None:
        self._listed = listed
        self._redactor = Redactor(listed)
        self._correlation = correlation
        #: Whether an event can be seen to have nothing to find.
        self.is_plain = correlation.is_plain

    def envelope(self, event: dict[str, Any], now: str) -> Envelope:
        """The envelope of an event, which is used up."""
        take = event.pop
        raw_texts = [take(name, None) for name in TEXTS]
        mistyped: dict[str, Any] = {}
        try:
            texts: list[Any] = [None if value is None else value.strip() or None for value in raw_texts]
        except AttributeError:
            texts = [_normalise_text(name, value, mistyped) for name, value in zip(TEXTS, raw_texts, strict=True)]
        status, duration, sampling = take("status", None), take("duration", None), take("sampling", None)
        if status is not None and type(status) is not int:
            status = _read_status(status, mistyped)
        if duration is not None and type(duration) is not float and type(duration) is not int:
            duration = _read_duration(duration, mistyped)
        if sampling is not None and type(sampling) is not dict:
            mistyped["sampling"], sampling = sampling, None
        redaction = take("redaction", None)
        paths = [] if redaction is None else _read_paths(redaction, mistyped)
        (
            timestamp, level, service, environment, version, region, request_id, trace_id, span_id,
            method, path, message, why, fix, link,
        ) = texts  # fmt: skip
        if timestamp is None:
            timestamp = _read_timestamp(mistyped, now)
        context = self._context(take("context", None), event, mistyped)
        standard_level = LEVEL_OF.get(level)
        if standard_level is None:
            if level is not None and (standard_level := LEVEL_OF.get(level.lower())) is None:
                _add(context, {"level": level}, self._listed)
            standard_level = standard_level or infer_level(why or fix or link, status)
        made = Envelope(
            timestamp, standard_level, service, environment, version, region, request_id, trace_id, span_id,
            method, path, status, duration, message, why, fix, link, sampling,
            Redaction(paths) if paths else NOTHING, context,
        )  # fmt: skip
        if sampling is not None or not self._redactor.is_clean(context):
            self.redact(made)
        self.identify(made)
        return made

    def redact(self, envelope: Envelope) -> None:
        """Redact listed keys of an envelope, and record their paths."""
        paths: list[str] = []
        self._redactor.redact(envelope.context, paths)
        if envelope.sampling is not None:
            self._redactor.redact(envelope.sampling, paths, "sampling.")
        if paths:
            earlier_paths = envelope.redaction.keys
            if earlier_paths or len(paths) > 1:
                paths = [*earlier_paths, *(path for path in dict.fromkeys(paths) if path not in earlier_paths)]
            envelope.redaction = Redaction(paths)

    def identify(self, envelope: Envelope) -> None:
        """Find the identifiers that an envelope lacks."""
        context, ids = envelope.context, (envelope.request_id, envelope.trace_id, envelope.span_id)
        if self._correlation.may_add(*ids, context):
            envelope.request_id, envelope.trace_id, envelope.span_id = self._correlation.ids(*ids, context)

    def is_settled(self, envelope: Envelope) -> bool:
        """Whether an envelope surely has nothing to redact and no identifier to find."""
        context, ids = envelope.context, (envelope.request_id, envelope.trace_id, envelope.span_id)
        return self._redactor.is_clean(context) and not self._correlation.may_add(*ids, context)

    def may_change(self, name: str, inside: Iterable[str]) -> bool:
        """Whether an event with this member, which has names inside, may have anything to redact or to find."""
        return self._correlation.is_searched(name) or any(map(self._listed, (name, *inside)))

    def _context(self, raw_context: Any, event: dict[str, Any], mistyped: dict[str, Any]) -> dict[str, Any]:
        """The members of an event that are no members of the envelope."""
        if raw_context is None or raw_context == {}:
            context = event
        else:
            context = raw_context if type(raw_context) is dict else {"context": raw_context}
            if event:
                _add(context, event, self._listed)
        if mistyped:
            _add(context, mistyped, self._listed)
        return context


def _normalise_text(name: str, value: Any, mistyped: dict[str, Any]) -> str | None:
    if type(value) is str:
        return value.strip() or None
    if value is not None:
        mistyped[name] = value
    return None


def _add(context: dict[str, Any], more: Mapping[str, Any], listed: Listed) -> None:
    """Put members into the context, under free names; a listed name that is taken is redacted with the other."""
    for name, value in more.items():
        free = name
        while free in context:
            free += "_"
        if free is name or not listed(name):
            context[free] = value


def _read_paths(redaction: Any, mistyped: dict[str, Any]) -> list[str]:
    """What was redacted before."""
    if type(redaction) is dict and len(redaction) == 1:
        keys = redaction.get("keys")
        if type(keys) is list and all(type(key) is str for key in keys):
            return keys
    mistyped["redaction"] = redaction
    return []


def _read_status(status: Any, mistyped: dict[str, Any]) -> int | None:
    if type(status) is str:
        text = status.strip()
        if _INTEGER.fullmatch(text):
            return int(text)
        if not text:
            return None
    elif type(status) is float and status.is_integer() and abs(status) < 2**53:
        return int(status)
    mistyped["status"] = status
    return None


def _read_duration(duration: Any, mistyped: dict[str, Any]) -> Any:
    if type(duration) is Decimal:
        return duration
    if type(duration) is str:
        text = duration.strip()
        if not text:
            return None
        if _NUMBER.fullmatch(text):
            return exact_number(text)
    mistyped["duration"] = duration
    return None


def _read_timestamp(mistyped: dict[str, Any], now: str) -> str:
    """A moment that was given as a number of milliseconds, else now."""
    millis = mistyped.get("timestamp")
    if type(millis) is not int or not _FIRST_MS <= millis <= _LAST_MS:
        return now
    del mistyped["timestamp"]
    return rfc3339(millis * 1000)


def infer_level(explained: str | None, status: int | None) -> Any:
    """The level of an event without one, from its other members."""
    if explained or (status is not None and status >= 500):
        return "error"
    return "warn" if status is not None and status >= 400 else "info"
