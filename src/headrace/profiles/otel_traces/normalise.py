"""Make canonical spans: members are normalised, and redacted, cut or dropped by the rules of the stream."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from headrace.profiles.hook import Misfit
from headrace.profiles.otel_traces.rules import Cleaner, Rules
from headrace.profiles.otel_traces.span import (
    CODES,
    DROPPED,
    GROUPS,
    INTEGER_MEMBERS,
    KINDS,
    RESOURCE,
)
from headrace.profiles.redaction import REDACTED, Listed
from headrace.types import rfc3339

_HEX = re.compile(r"[0-9a-f]+", re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,20}", re.ASCII)
_MAX_NANOS = 2**64 - 1


def identifier(raw: Any, letters: int) -> str | None:
    """An identifier of so many hexadecimal digits, not all of them zero; None for anything else."""
    if not isinstance(raw, str):
        return None
    digits = raw.strip().lower()
    if len(digits) != letters or not _HEX.fullmatch(digits) or digits == "0" * letters:
        return None
    return digits


def take_identifier(raw_span: dict[str, Any], name: str, letters: int) -> str:
    """An identifier that a span must have."""
    digits = identifier(raw_span.pop(name, None), letters)
    if digits is None:
        raise Misfit(f"/{name}", f"{name} must have {letters} hexadecimal digits, not all of them zero")
    return digits


def parse_nanos(raw: Any) -> int | None:
    """A moment in nanoseconds since 1970, as a number or as digits."""
    if isinstance(raw, bool):
        return None
    if isinstance(raw, int):
        return raw if 0 <= raw <= _MAX_NANOS else None
    if isinstance(raw, str) and _DIGITS.fullmatch(text := raw.strip()):
        number = int(text)
        return number if number <= _MAX_NANOS else None
    return None


def moment(nanoseconds: int) -> str:
    """The text of a moment."""
    return rfc3339(nanoseconds // 1000)


def choose_word(raw: Any, names: tuple[str, ...]) -> str | None:
    """One of several words, which OTLP also numbers or spells with a prefix in capitals."""
    if isinstance(raw, int) and not isinstance(raw, bool):
        return names[raw] if 0 <= raw < len(names) else None
    if isinstance(raw, str):
        word = raw.strip().lower().removeprefix("span_kind_").removeprefix("status_code_")
        return word if word in names else None
    return None


def take_text(members: dict[str, Any], name: str, mistyped: dict[str, Any]) -> str | None:
    """A text, or null; a value of another type goes to ``mistyped``."""
    value = members.pop(name, None)
    if value is None or isinstance(value, str):
        return value
    mistyped[name] = value
    return None


def take_container(members: dict[str, Any], name: str, mistyped: dict[str, Any], kind: type) -> Any:
    """An object or an array, an empty one where there is none; a value of another type goes to ``mistyped``."""
    value = members.pop(name, None)
    if isinstance(value, kind):
        return value
    if value is not None:
        mistyped[name] = value
    return kind()


def take_count(members: dict[str, Any], name: str) -> int:
    """The number of items that the sender dropped, as it reports it; 0 where it reports none."""
    value = members.pop(name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def add(attributes: dict[str, Any], more: dict[str, Any], listed: Listed) -> None:
    """Keep what has no place of its own among the attributes, under names that are free.

    Where a listed name is taken, both are redacted as one.
    """
    for name, value in more.items():
        free = name
        while free in attributes:
            free += "_"
        if free is name or not listed(name):
            attributes[free] = value


def first_value(attributes: dict[str, Any], names: Iterable[str], *, integral: bool = False) -> Any:
    """The value of the first of these attributes that has one, as a text or as a whole number."""
    for name in names:
        value = attributes.get(name)
        if isinstance(value, list) and value:
            value = value[0]
        if value is None or value == REDACTED:
            continue
        if integral:
            if isinstance(value, str) and _DIGITS.fullmatch(value):
                value = int(value)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        elif isinstance(value, str) and value.strip():
            return value.strip()
        elif isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
    return None


_EXCEPTION = "exception"
_MAX_DURATION_MS = 10**13
#: The members of groups, and their types.
_MEMBERS: dict[str, dict[str, type]] = {
    **{group: {name: int if name in INTEGER_MEMBERS else str for name in members} for group, members in GROUPS.items()},
    "error": {"isError": bool, "type": str, "message": str, "stacktrace": str},
}


class SpanNormaliser:
    """Makes canonical spans by the rules of one stream."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._cleaner = Cleaner(rules)

    def span(self, raw_span: dict[str, Any]) -> dict[str, Any]:
        """The canonical span; raises Misfit. What is given is used up."""
        mistyped: dict[str, Any] = {}
        ids = _read_ids(raw_span)
        times = _read_times(raw_span)
        made = {**ids, **_read_description(raw_span, mistyped), **times, "status": _read_status(raw_span, mistyped)}
        dropped = _read_dropped(raw_span, mistyped)
        listed = self._cleaner.listed
        resource, scope = (
            _read_resource(raw_span, mistyped, dropped, listed),
            _read_scope(raw_span, mistyped, dropped, listed),
        )
        attributes = take_container(raw_span, "attributes", mistyped, dict)
        events = [_read_event(each, listed) for each in take_container(raw_span, "events", mistyped, list)]
        links = [_read_link(each, listed) for each in take_container(raw_span, "links", mistyped, list)]
        names = _read_names(raw_span.pop("eventNames", None), mistyped)
        own = {name: take_text(raw_span, name, mistyped) for name in (*RESOURCE, "requestId")}
        groups = {
            name: _read_members(name, take_container(raw_span, name, mistyped, dict), mistyped) for name in _MEMBERS
        }
        paths = _read_paths(raw_span.pop("redaction", None), mistyped)
        if raw_span.pop("identity", None) not in (None, {"spanKey": f"{made['traceId']}:{made['spanId']}"}):
            raise Misfit("/identity", "follows from the ids, and says something else")
        add(attributes, {**raw_span, **mistyped}, listed)
        attribute_sets = {"attributes": attributes, "resource": resource, "instrumentationScope": scope}
        self._cleaner.clean({**attribute_sets, "events": events, "links": links}, paths, dropped)
        made |= self._own_members(own, resource["attributes"], attributes)
        made |= {name: self._group(name, groups[name], attributes, paths) for name in GROUPS}
        store = self._rules.store
        made["error"] = _read_error(groups["error"], made["status"], attributes, events)
        names = list(dict.fromkeys([*names, *(event["name"] for event in events)]))
        self._cleaner.limit(attributes, events, links, dropped)
        return {
            "schemaVersion": 1,
            "signal": "trace.span",
            **made,
            "resource": {**resource, "attributes": resource["attributes"] if store.raw_resource_attributes else {}},
            "instrumentationScope": scope,
            "attributes": attributes if store.raw_span_attributes else {},
            "events": events if store.raw_events else [],
            "eventNames": names,
            "links": links if store.raw_links else [],
            "dropped": dropped,
            "redaction": {"keys": paths},
            "identity": {"spanKey": f"{made['traceId']}:{made['spanId']}"},
        }

    def _own_members(self, own: dict[str, Any], resource: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
        own_values = {name: own[name] or first_value(resource, keys) for name, keys in RESOURCE.items()}
        ids = self._rules.request_id_attributes
        return {**own_values, "requestId": own["requestId"] or first_value(attributes, ids)}

    def _group(
        self, group: str, members: dict[str, Any], attributes: dict[str, Any], paths: list[str]
    ) -> dict[str, Any]:
        """The members of a group: those of the span, else those derived from its attributes."""
        group_values: dict[str, Any] = {}
        for name, keys in GROUPS[group].items():
            value = members.get(name)
            if value is not None:
                group_values[name] = self._cleaner.derived(group, name, value)
                if group_values[name] != value and f"{group}.{name}" not in paths:
                    paths.append(f"{group}.{name}")
            else:
                value = first_value(attributes, keys, integral=name in INTEGER_MEMBERS)
                group_values[name] = self._cleaner.derived(group, name, value)
        return group_values


def _read_members(group: str, raw_members: dict[str, Any], mistyped: dict[str, Any]) -> dict[str, Any]:
    """The members of a group that have the right type; the others go to ``mistyped``."""
    members: dict[str, Any] = {}
    for name, value in raw_members.items():
        kind = _MEMBERS[group].get(name)
        if kind is not None and isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
            members[name] = value
        elif value is not None:
            mistyped[f"{group}.{name}"] = value
    return members


def _fits(value: Any, integral: bool) -> bool:
    return isinstance(value, int if integral else str) and not isinstance(value, bool)


def _read_ids(raw_span: dict[str, Any]) -> dict[str, Any]:
    for name, value in (("schemaVersion", 1), ("signal", "trace.span")):
        if raw_span.pop(name, value) != value:
            raise Misfit(f"/{name}", f"must be {value}")
    trace, span = (
        take_identifier(raw_span, "traceId", 32),
        take_identifier(raw_span, "spanId", 16),
    )
    parent = raw_span.pop("parentSpanId", None)
    parent_id = identifier(parent, 16)
    if parent_id is None and parent not in (None, "", "0" * 16):
        raise Misfit("/parentSpanId", "parentSpanId must have 16 hexadecimal digits")
    return {"traceId": trace, "spanId": span, "parentSpanId": parent_id}


def _read_description(raw_span: dict[str, Any], mistyped: dict[str, Any]) -> dict[str, Any]:
    state = take_text(raw_span, "traceState", mistyped) or None
    flags = raw_span.pop("traceFlags", None)
    if flags is not None and not _fits(flags, True):
        mistyped["traceFlags"], flags = flags, None
    name = raw_span.pop("name", "")
    if not isinstance(name, str):
        raise Misfit("/name", "name must be a text")
    kind = raw_span.pop("kind", None)
    span_kind = choose_word(kind, KINDS)
    if span_kind is None and kind is not None:
        mistyped["kind"] = kind
    return {"traceState": state, "traceFlags": flags, "name": name.strip(), "kind": span_kind or KINDS[0]}


def _read_times(raw_span: dict[str, Any]) -> dict[str, Any]:
    start = parse_nanos(_take_either(raw_span, "startUnixNano", "startTimeUnixNano"))
    if start is None:
        raise Misfit("/startUnixNano", "startUnixNano must be a number of nanoseconds")
    raw_value = _take_either(raw_span, "endUnixNano", "endTimeUnixNano")
    end = parse_nanos(raw_value)
    if end is None and raw_value is not None:
        raise Misfit("/endUnixNano", "endUnixNano must be a number of nanoseconds")
    for derived in ("timestamp", "endTimestamp"):
        raw_span.pop(derived, None)
    lasted = raw_span.pop("duration", None)
    if not end:
        end = start + round(lasted * 1e6) if _is_duration(lasted) else start
    millis = max(0, end - start) / 1e6
    return {
        "timestamp": moment(start),
        "endTimestamp": moment(end),
        "startUnixNano": str(start),
        "endUnixNano": str(end),
        "duration": int(millis) if millis.is_integer() else millis,
    }


def _is_duration(duration: Any) -> bool:
    return isinstance(duration, int | float) and not isinstance(duration, bool) and 0 <= duration <= _MAX_DURATION_MS


def _take_either(raw_span: dict[str, Any], name: str, other: str) -> Any:
    first, second = raw_span.pop(name, None), raw_span.pop(other, None)
    return second if first is None else first


def _read_status(raw_span: dict[str, Any], mistyped: dict[str, Any]) -> dict[str, Any]:
    status = take_container(raw_span, "status", mistyped, dict)
    raw_value = status.pop("code", None)
    code = choose_word(raw_value, CODES)
    message = take_text(status, "message", mistyped) or None
    if code is None and raw_value is not None:
        mistyped["status.code"] = raw_value
    for name, value in status.items():
        mistyped[f"status.{name}"] = value
    return {"code": code or CODES[0], "message": message}


def _read_dropped(raw_span: dict[str, Any], mistyped: dict[str, Any]) -> dict[str, int]:
    before = take_container(raw_span, "dropped", mistyped, dict)
    dropped = {name: take_count(before, name) for name in DROPPED}
    for name in ("attributes", "events", "links"):
        dropped[name] += take_count(raw_span, f"dropped{name.capitalize()}Count")
    for name, value in before.items():
        mistyped[f"dropped.{name}"] = value
    return dropped


def _read_resource(
    raw_span: dict[str, Any], mistyped: dict[str, Any], dropped: dict[str, int], listed: Listed
) -> dict[str, Any]:
    # Spans of one export share their resource: it is copied before anything is taken out of it.
    resource = dict(take_container(raw_span, "resource", mistyped, dict))
    dropped["resourceAttributes"] += take_count(resource, "droppedAttributesCount")
    attributes = dict(take_container(resource, "attributes", mistyped, dict))
    url = take_text(resource, "schemaUrl", mistyped)
    add(attributes, resource, listed)
    return {"attributes": attributes, "schemaUrl": url or None}


def _read_scope(
    raw_span: dict[str, Any], mistyped: dict[str, Any], dropped: dict[str, int], listed: Listed
) -> dict[str, Any]:
    scope = dict(take_container(raw_span, "instrumentationScope", mistyped, dict))
    dropped["scopeAttributes"] += take_count(scope, "droppedAttributesCount")
    attributes = dict(take_container(scope, "attributes", mistyped, dict))
    words = {name: take_text(scope, name, mistyped) or None for name in ("name", "version", "schemaUrl")}
    add(attributes, scope, listed)
    return {**words, "attributes": attributes}


def _read_event(raw_event: Any, listed: Listed) -> dict[str, Any]:
    if not isinstance(raw_event, dict):
        raise Misfit("/events", "an event of a span must be an object")
    mistyped: dict[str, Any] = {}
    attributes = take_container(raw_event, "attributes", mistyped, dict)
    raw_value = raw_event.pop("timeUnixNano", None)
    at = parse_nanos(raw_value)
    if at is None and raw_value is not None:
        mistyped["timeUnixNano"] = raw_value
    name, stamp = (
        take_text(raw_event, "name", mistyped) or "",
        take_text(raw_event, "timestamp", mistyped),
    )
    add(attributes, {**raw_event, **mistyped}, listed)
    return {
        "timeUnixNano": None if at is None else str(at),
        "timestamp": stamp if at is None else moment(at),
        "name": name,
        "attributes": attributes,
    }


def _read_link(raw_link: Any, listed: Listed) -> dict[str, Any]:
    if not isinstance(raw_link, dict):
        raise Misfit("/links", "a link of a span must be an object")
    mistyped: dict[str, Any] = {}
    attributes = take_container(raw_link, "attributes", mistyped, dict)
    ids: dict[str, Any] = {}
    for name, letters in (("traceId", 32), ("spanId", 16)):
        raw_value = raw_link.pop(name, None)
        ids[name] = identifier(raw_value, letters)
        if ids[name] is None and raw_value is not None:
            mistyped[name] = raw_value
    ids["traceState"] = take_text(raw_link, "traceState", mistyped) or None
    add(attributes, {**raw_link, **mistyped}, listed)
    return {**ids, "attributes": attributes}


def _read_names(names: Any, mistyped: dict[str, Any]) -> list[str]:
    if names is None:
        return []
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return names
    mistyped["eventNames"] = names
    return []


def _read_paths(redaction: Any, mistyped: dict[str, Any]) -> list[str]:
    if redaction is None:
        return []
    if isinstance(redaction, dict) and set(redaction) == {"keys"}:
        return _read_names(redaction["keys"], mistyped)
    mistyped["redaction"] = redaction
    return []


def _read_error(
    error_members: dict[str, Any], status: dict[str, Any], attributes: dict[str, Any], events: list[dict[str, Any]]
) -> dict[str, Any]:
    """Whether a span failed, and the details of its last exception."""
    nothing: dict[str, Any] = {}
    raised = next((event["attributes"] for event in reversed(events) if event["name"] == _EXCEPTION), nothing)
    error: dict[str, Any] = {"isError": error_members.get("isError", status["code"] == "error")}
    for name in ("type", "message", "stacktrace"):
        raw_value = error_members.get(name) or first_value(raised, (f"exception.{name}",))
        error[name] = raw_value or first_value(attributes, (f"error.{name}",))
    if error["message"] is None and error["isError"]:
        error["message"] = status["message"]
    return error
