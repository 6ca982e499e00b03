"""What is taken out of a span before it is stored: what is listed, what databases were told, and what is too much."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from headrace.profiles.hook import Misfit
from headrace.profiles.otel_traces import span_members
from headrace.profiles.otel_traces.rules import REDACTED_KEYS, Rules
from headrace.profiles.otel_traces.span import (
    ADDRESSES,
    CODES,
    DROPPED,
    GROUPS,
    KINDS,
    QUERIES,
    RESOURCE,
    STATEMENTS,
    WHOLE,
)
from headrace.profiles.redaction import REDACTED, Listed, Redactor

_USER = re.compile("^([A-Za-z][A-Za-z0-9+.-]*://)[^/]*@")
_END = re.compile("[?#]")


class Cleaner:
    """The rules of one stream."""

    def __init__(self, rules: Rules) -> None:
        self._keys = frozenset((*REDACTED_KEYS, *rules.redact_keys))
        self._redactor = Redactor(self.listed)
        self._limits = rules.attribute_limits
        self._keeps_statements = rules.db_statement_mode == "raw"
        self._keeps_queries = rules.url_mode == "raw"

    def listed(self, name: str) -> bool:
        """Whether a key is listed, as a whole or by its last part."""
        lowered = name.lower()
        return lowered in self._keys or lowered.rpartition(".")[2] in self._keys

    def clean(self, span: dict[str, Any], paths: list[str], dropped: dict[str, int]) -> None:
        """Redact, and cut long texts, in every set of attributes; ``paths`` and ``dropped`` say what was done."""
        found: list[str] = []
        for base, attributes in _sets(span):
            if not self._redactor.is_clean(attributes):
                self._redactor.redact(attributes, found, base)
            found += (f"{base}{name}" for name in self._hidden(attributes))
            dropped["values"] += self._cut(attributes)
        known = set(paths)
        paths += [path for path in dict.fromkeys(found) if path not in known]

    def derived(self, group: str, name: str, value: Any) -> Any:
        """A member that was derived from attributes, or given beside them, under the same rules."""
        if not isinstance(value, str):
            return value
        if (group, name) == ("db", "statement"):
            if not self._keeps_statements:
                return None
            return _short(value, self._limits.max_statement_bytes)
        if group == "http" and name in {"path", "url"} and not self._keeps_queries:
            value = _plain(value)
        return _short(value, self._limits.max_attribute_value_bytes)

    def limit(
        self,
        attributes: dict[str, Any],
        events: list[dict[str, Any]],
        links: list[dict[str, Any]],
        dropped: dict[str, int],
    ) -> None:
        """Leave out what is more than may be kept, and count it."""
        limits = self._limits
        for name in list(attributes)[limits.max_attributes_per_span :]:
            del attributes[name]
            dropped["attributes"] += 1
        for kept, name, most in (
            (events, "events", limits.max_events_per_span),
            (links, "links", limits.max_links_per_span),
        ):
            dropped[name] += max(0, len(kept) - most)
            del kept[most:]

    def _hidden(self, attributes: dict[str, Any]) -> Iterator[str]:
        """Take out statements and queries, where they are not to be kept."""
        if not self._keeps_statements:
            for name in STATEMENTS:
                if attributes.get(name) is not None:
                    attributes[name] = REDACTED
                    yield name
        if not self._keeps_queries:
            for name in QUERIES:
                if attributes.get(name) is not None:
                    attributes[name] = REDACTED
                    yield name
            for name in ADDRESSES:
                address = attributes.get(name)
                if isinstance(address, str) and (plain := _plain(address)) != address:
                    attributes[name] = plain
                    yield name

    def _cut(self, value: Any) -> int:
        """Cut texts that are too long, at any depth; answers how many there were."""
        most, cuts, waiting = self._limits.max_attribute_value_bytes, 0, [value]
        while waiting:
            holder = waiting.pop()
            for name, member in holder.items() if isinstance(holder, dict) else enumerate(holder):
                if isinstance(member, str):
                    if len(member) * 4 > most and (short := _short(member, most)) != member:
                        holder[name] = short
                        cuts += 1
                elif isinstance(member, dict | list):
                    waiting.append(member)
        return cuts


def _sets(span: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every set of attributes of a span, and the path to it."""
    yield "attributes.", span["attributes"]
    yield "resource.attributes.", span["resource"]["attributes"]
    yield "instrumentationScope.attributes.", span["instrumentationScope"]["attributes"]
    for name in ("events", "links"):
        for number, one in enumerate(span[name]):
            yield f"{name}.{number}.attributes.", one["attributes"]


def _plain(address: str) -> str:
    """An address without a query, a fragment, and whoever was named before its host."""
    return _USER.sub(r"\1", _END.split(address, maxsplit=1)[0])


def _short(text: str, most: int) -> str:
    spelled = text.encode()
    return text if len(spelled) <= most else spelled[:most].decode(errors="ignore")


_EXCEPTION = "exception"
_LONGEST_MS = 10**13
#: The members of groups, and their types.
_MEMBERS: dict[str, dict[str, type]] = {
    **{group: {name: int if name in WHOLE else str for name in members} for group, members in GROUPS.items()},
    "error": {"isError": bool, "type": str, "message": str, "stacktrace": str},
}


class SpanNormaliser:
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
        attributes = span_members.take_container(given, "attributes", odd, dict)
        events = [_event(one, listed) for one in span_members.take_container(given, "events", odd, list)]
        links = [_link(one, listed) for one in span_members.take_container(given, "links", odd, list)]
        names = _names(given.pop("eventNames", None), odd)
        own = {name: span_members.take_text(given, name, odd) for name in (*RESOURCE, "requestId")}
        groups = {name: _members(name, span_members.take_container(given, name, odd, dict), odd) for name in _MEMBERS}
        paths = _paths(given.pop("redaction", None), odd)
        if given.pop("identity", None) not in (None, {"spanKey": f"{made['traceId']}:{made['spanId']}"}):
            raise Misfit("/identity", "follows from the ids, and says something else")
        span_members.add(attributes, {**given, **odd}, listed)
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
        found = {name: own[name] or span_members.first_value(resource, keys) for name, keys in RESOURCE.items()}
        ids = self._rules.request_id_attributes
        return {**found, "requestId": own["requestId"] or span_members.first_value(attributes, ids)}

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
                value = span_members.first_value(attributes, keys, whole=name in WHOLE)
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
    trace, span = span_members.take_identifier(given, "traceId", 32), span_members.take_identifier(given, "spanId", 16)
    parent = given.pop("parentSpanId", None)
    found = span_members.identifier(parent, 16)
    if found is None and parent not in (None, "", "0" * 16):
        raise Misfit("/parentSpanId", "parentSpanId must have 16 hexadecimal digits")
    return {"traceId": trace, "spanId": span, "parentSpanId": found}


def _described(given: dict[str, Any], odd: dict[str, Any]) -> dict[str, Any]:
    state = span_members.take_text(given, "traceState", odd) or None
    flags = given.pop("traceFlags", None)
    if flags is not None and not _fits(flags, True):
        odd["traceFlags"], flags = flags, None
    name = given.pop("name", "")
    if not isinstance(name, str):
        raise Misfit("/name", "name must be a text")
    kind = given.pop("kind", None)
    known = span_members.choose_word(kind, KINDS)
    if known is None and kind is not None:
        odd["kind"] = kind
    return {"traceState": state, "traceFlags": flags, "name": name.strip(), "kind": known or KINDS[0]}


def _timed(given: dict[str, Any]) -> dict[str, Any]:
    start = span_members.parse_nanos(_either(given, "startUnixNano", "startTimeUnixNano"))
    if start is None:
        raise Misfit("/startUnixNano", "startUnixNano must be a number of nanoseconds")
    said = _either(given, "endUnixNano", "endTimeUnixNano")
    end = span_members.parse_nanos(said)
    if end is None and said is not None:
        raise Misfit("/endUnixNano", "endUnixNano must be a number of nanoseconds")
    for derived in ("timestamp", "endTimestamp"):
        given.pop(derived, None)
    lasted = given.pop("duration", None)
    if not end:
        end = start + round(lasted * 1e6) if _lasts(lasted) else start
    millis = max(0, end - start) / 1e6
    return {
        "timestamp": span_members.moment(start),
        "endTimestamp": span_members.moment(end),
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
    status = span_members.take_container(given, "status", odd, dict)
    said = status.pop("code", None)
    code = span_members.choose_word(said, CODES)
    message = span_members.take_text(status, "message", odd) or None
    if code is None and said is not None:
        odd["status.code"] = said
    for name, value in status.items():
        odd[f"status.{name}"] = value
    return {"code": code or CODES[0], "message": message}


def _dropped(given: dict[str, Any], odd: dict[str, Any]) -> dict[str, int]:
    before = span_members.take_container(given, "dropped", odd, dict)
    dropped = {name: span_members.take_count(before, name) for name in DROPPED}
    for name in ("attributes", "events", "links"):
        dropped[name] += span_members.take_count(given, f"dropped{name.capitalize()}Count")
    for name, value in before.items():
        odd[f"dropped.{name}"] = value
    return dropped


def _resource(given: dict[str, Any], odd: dict[str, Any], dropped: dict[str, int], listed: Listed) -> dict[str, Any]:
    # Spans of one export share their resource: it is copied before anything is taken out of it.
    resource = dict(span_members.take_container(given, "resource", odd, dict))
    dropped["resourceAttributes"] += span_members.take_count(resource, "droppedAttributesCount")
    attributes = dict(span_members.take_container(resource, "attributes", odd, dict))
    url = span_members.take_text(resource, "schemaUrl", odd)
    span_members.add(attributes, resource, listed)
    return {"attributes": attributes, "schemaUrl": url or None}


def _scope(given: dict[str, Any], odd: dict[str, Any], dropped: dict[str, int], listed: Listed) -> dict[str, Any]:
    scope = dict(span_members.take_container(given, "instrumentationScope", odd, dict))
    dropped["scopeAttributes"] += span_members.take_count(scope, "droppedAttributesCount")
    attributes = dict(span_members.take_container(scope, "attributes", odd, dict))
    words = {name: span_members.take_text(scope, name, odd) or None for name in ("name", "version", "schemaUrl")}
    span_members.add(attributes, scope, listed)
    return {**words, "attributes": attributes}


def _event(given: Any, listed: Listed) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise Misfit("/events", "an event of a span must be an object")
    odd: dict[str, Any] = {}
    attributes = span_members.take_container(given, "attributes", odd, dict)
    said = given.pop("timeUnixNano", None)
    at = span_members.parse_nanos(said)
    if at is None and said is not None:
        odd["timeUnixNano"] = said
    name, stamp = span_members.take_text(given, "name", odd) or "", span_members.take_text(given, "timestamp", odd)
    span_members.add(attributes, {**given, **odd}, listed)
    return {
        "timeUnixNano": None if at is None else str(at),
        "timestamp": stamp if at is None else span_members.moment(at),
        "name": name,
        "attributes": attributes,
    }


def _link(given: Any, listed: Listed) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise Misfit("/links", "a link of a span must be an object")
    odd: dict[str, Any] = {}
    attributes = span_members.take_container(given, "attributes", odd, dict)
    found: dict[str, Any] = {}
    for name, letters in (("traceId", 32), ("spanId", 16)):
        said = given.pop(name, None)
        found[name] = span_members.identifier(said, letters)
        if found[name] is None and said is not None:
            odd[name] = said
    found["traceState"] = span_members.take_text(given, "traceState", odd) or None
    span_members.add(attributes, {**given, **odd}, listed)
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
        said = given.get(name) or span_members.first_value(raised, (f"exception.{name}",))
        found[name] = said or span_members.first_value(attributes, (f"error.{name}",))
    if found["message"] is None and found["isError"]:
        found["message"] = status["message"]
    return found
