"""From a span as it comes to the canonical one.

What a span says of itself comes before what its attributes say: nothing is lost, and a canonical span stays as it is
even where its attributes were not kept. What has no place of its own goes to the attributes.
"""

from __future__ import annotations

from typing import Any

from headrace.profiles.hook import Misfit
from headrace.profiles.otel_traces import reading
from headrace.profiles.otel_traces.cleaning import Cleaner
from headrace.profiles.otel_traces.rules import Rules
from headrace.profiles.otel_traces.span import CODES, DROPPED, GROUPS, KINDS, RESOURCE, WHOLE
from headrace.profiles.redaction import Listed

_EXCEPTION = "exception"
_LONGEST_MS = 10**13
#: The members of groups, and their types.
_MEMBERS: dict[str, dict[str, type]] = {
    **{group: {name: int if name in WHOLE else str for name in members} for group, members in GROUPS.items()},
    "error": {"isError": bool, "type": str, "message": str, "stacktrace": str},
}


class Normaliser:
    """The rules of one stream."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._cleaner = Cleaner(rules)

    def span(self, given: dict[str, Any]) -> dict[str, Any]:
        """The canonical span; raises Misfit. What is given is used up."""
        odd: dict[str, Any] = {}
        ids = _identified(given)
        times = _timed(given)
        made = {**ids, **_described(given, odd), **times, "status": _status(given, odd)}
        dropped = _dropped(given, odd)
        listed = self._cleaner.listed
        resource, scope = _resource(given, odd, dropped, listed), _scope(given, odd, dropped, listed)
        attributes = reading.container(given, "attributes", odd, dict)
        events = [_event(one, listed) for one in reading.container(given, "events", odd, list)]
        links = [_link(one, listed) for one in reading.container(given, "links", odd, list)]
        names = _names(given.pop("eventNames", None), odd)
        own = {name: reading.taken(given, name, odd) for name in (*RESOURCE, "requestId")}
        groups = {name: _members(name, reading.container(given, name, odd, dict), odd) for name in _MEMBERS}
        paths = _paths(given.pop("redaction", None), odd)
        if given.pop("identity", None) not in (None, {"spanKey": f"{made['traceId']}:{made['spanId']}"}):
            raise Misfit("/identity", "follows from the ids, and says something else")
        reading.add(attributes, {**given, **odd}, listed)
        whole = {"attributes": attributes, "resource": resource, "instrumentationScope": scope}
        self._cleaner.clean({**whole, "events": events, "links": links}, paths, dropped)
        made |= self._own(own, resource["attributes"], attributes)
        made |= {name: self._group(name, groups[name], attributes, paths) for name in GROUPS}
        store = self._rules.store
        made["error"] = _error(groups["error"], made["status"], attributes, events)
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

    def _own(self, own: dict[str, Any], resource: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
        found = {name: own[name] or reading.told(resource, keys) for name, keys in RESOURCE.items()}
        ids = self._rules.request_id_attributes
        return {**found, "requestId": own["requestId"] or reading.told(attributes, ids)}

    def _group(self, group: str, given: dict[str, Any], attributes: dict[str, Any], paths: list[str]) -> dict[str, Any]:
        """What a span says of one subject, else what its attributes do."""
        found: dict[str, Any] = {}
        for name, keys in GROUPS[group].items():
            value = given.get(name)
            if value is not None:
                found[name] = self._cleaner.derived(group, name, value)
                if found[name] != value and f"{group}.{name}" not in paths:
                    paths.append(f"{group}.{name}")
            else:
                value = reading.told(attributes, keys, whole=name in WHOLE)
                found[name] = self._cleaner.derived(group, name, value)
        return found


def _members(group: str, given: dict[str, Any], odd: dict[str, Any]) -> dict[str, Any]:
    """The members of a group that are what they should be; the others go to the odd ones."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        kind = _MEMBERS[group].get(name)
        if kind is not None and isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
            found[name] = value
        elif value is not None:
            odd[f"{group}.{name}"] = value
    return found


def _fits(value: Any, whole: bool) -> bool:
    return isinstance(value, int if whole else str) and not isinstance(value, bool)


def _identified(given: dict[str, Any]) -> dict[str, Any]:
    for name, value in (("schemaVersion", 1), ("signal", "trace.span")):
        if given.pop(name, value) != value:
            raise Misfit(f"/{name}", f"must be {value}")
    trace, span = reading.needed(given, "traceId", 32), reading.needed(given, "spanId", 16)
    parent = given.pop("parentSpanId", None)
    found = reading.identifier(parent, 16)
    if found is None and parent not in (None, "", "0" * 16):
        raise Misfit("/parentSpanId", "parentSpanId must have 16 hexadecimal digits")
    return {"traceId": trace, "spanId": span, "parentSpanId": found}


def _described(given: dict[str, Any], odd: dict[str, Any]) -> dict[str, Any]:
    state = reading.taken(given, "traceState", odd) or None
    flags = given.pop("traceFlags", None)
    if flags is not None and not _fits(flags, True):
        odd["traceFlags"], flags = flags, None
    name = given.pop("name", "")
    if not isinstance(name, str):
        raise Misfit("/name", "name must be a text")
    kind = given.pop("kind", None)
    known = reading.chosen(kind, KINDS)
    if known is None and kind is not None:
        odd["kind"] = kind
    return {"traceState": state, "traceFlags": flags, "name": name.strip(), "kind": known or KINDS[0]}


def _timed(given: dict[str, Any]) -> dict[str, Any]:
    start = reading.nanos(_either(given, "startUnixNano", "startTimeUnixNano"))
    if start is None:
        raise Misfit("/startUnixNano", "startUnixNano must be a number of nanoseconds")
    said = _either(given, "endUnixNano", "endTimeUnixNano")
    end = reading.nanos(said)
    if end is None and said is not None:
        raise Misfit("/endUnixNano", "endUnixNano must be a number of nanoseconds")
    for derived in ("timestamp", "endTimestamp"):
        given.pop(derived, None)
    lasted = given.pop("duration", None)
    if not end:
        end = start + round(lasted * 1e6) if _lasts(lasted) else start
    millis = max(0, end - start) / 1e6
    return {
        "timestamp": reading.moment(start),
        "endTimestamp": reading.moment(end),
        "startUnixNano": str(start),
        "endUnixNano": str(end),
        "duration": int(millis) if millis.is_integer() else millis,
    }


def _lasts(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given <= _LONGEST_MS


def _either(given: dict[str, Any], name: str, other: str) -> Any:
    first, second = given.pop(name, None), given.pop(other, None)
    return second if first is None else first


def _status(given: dict[str, Any], odd: dict[str, Any]) -> dict[str, Any]:
    status = reading.container(given, "status", odd, dict)
    said = status.pop("code", None)
    code = reading.chosen(said, CODES)
    message = reading.taken(status, "message", odd) or None
    if code is None and said is not None:
        odd["status.code"] = said
    for name, value in status.items():
        odd[f"status.{name}"] = value
    return {"code": code or CODES[0], "message": message}


def _dropped(given: dict[str, Any], odd: dict[str, Any]) -> dict[str, int]:
    before = reading.container(given, "dropped", odd, dict)
    dropped = {name: reading.count(before, name) for name in DROPPED}
    for name in ("attributes", "events", "links"):
        dropped[name] += reading.count(given, f"dropped{name.capitalize()}Count")
    for name, value in before.items():
        odd[f"dropped.{name}"] = value
    return dropped


def _resource(given: dict[str, Any], odd: dict[str, Any], dropped: dict[str, int], listed: Listed) -> dict[str, Any]:
    # Spans of one export share their resource: it is copied before anything is taken out of it.
    resource = dict(reading.container(given, "resource", odd, dict))
    dropped["resourceAttributes"] += reading.count(resource, "droppedAttributesCount")
    attributes = dict(reading.container(resource, "attributes", odd, dict))
    url = reading.taken(resource, "schemaUrl", odd)
    reading.add(attributes, resource, listed)
    return {"attributes": attributes, "schemaUrl": url or None}


def _scope(given: dict[str, Any], odd: dict[str, Any], dropped: dict[str, int], listed: Listed) -> dict[str, Any]:
    scope = dict(reading.container(given, "instrumentationScope", odd, dict))
    dropped["scopeAttributes"] += reading.count(scope, "droppedAttributesCount")
    attributes = dict(reading.container(scope, "attributes", odd, dict))
    words = {name: reading.taken(scope, name, odd) or None for name in ("name", "version", "schemaUrl")}
    reading.add(attributes, scope, listed)
    return {**words, "attributes": attributes}


def _event(given: Any, listed: Listed) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise Misfit("/events", "an event of a span must be an object")
    odd: dict[str, Any] = {}
    attributes = reading.container(given, "attributes", odd, dict)
    said = given.pop("timeUnixNano", None)
    at = reading.nanos(said)
    if at is None and said is not None:
        odd["timeUnixNano"] = said
    name, stamp = reading.taken(given, "name", odd) or "", reading.taken(given, "timestamp", odd)
    reading.add(attributes, {**given, **odd}, listed)
    return {
        "timeUnixNano": None if at is None else str(at),
        "timestamp": stamp if at is None else reading.moment(at),
        "name": name,
        "attributes": attributes,
    }


def _link(given: Any, listed: Listed) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise Misfit("/links", "a link of a span must be an object")
    odd: dict[str, Any] = {}
    attributes = reading.container(given, "attributes", odd, dict)
    found: dict[str, Any] = {}
    for name, letters in (("traceId", 32), ("spanId", 16)):
        said = given.pop(name, None)
        found[name] = reading.identifier(said, letters)
        if found[name] is None and said is not None:
            odd[name] = said
    found["traceState"] = reading.taken(given, "traceState", odd) or None
    reading.add(attributes, {**given, **odd}, listed)
    return {**found, "attributes": attributes}


def _names(given: Any, odd: dict[str, Any]) -> list[str]:
    if given is None:
        return []
    if isinstance(given, list) and all(isinstance(name, str) for name in given):
        return given
    odd["eventNames"] = given
    return []


def _paths(given: Any, odd: dict[str, Any]) -> list[str]:
    if given is None:
        return []
    if isinstance(given, dict) and set(given) == {"keys"}:
        return _names(given["keys"], odd)
    odd["redaction"] = given
    return []


def _error(
    given: dict[str, Any], status: dict[str, Any], attributes: dict[str, Any], events: list[dict[str, Any]]
) -> dict[str, Any]:
    """Whether a span failed, and what its last exception says of that."""
    nothing: dict[str, Any] = {}
    raised = next((event["attributes"] for event in reversed(events) if event["name"] == _EXCEPTION), nothing)
    found: dict[str, Any] = {"isError": given.get("isError", status["code"] == "error")}
    for name in ("type", "message", "stacktrace"):
        said = given.get(name) or reading.told(raised, (f"exception.{name}",))
        found[name] = said or reading.told(attributes, (f"error.{name}",))
    if found["message"] is None and found["isError"]:
        found["message"] = status["message"]
    return found
