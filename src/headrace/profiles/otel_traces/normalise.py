"""Makes canonical spans: members are normalised, and redacted, cut or dropped as the rules of the stream say."""

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
    """Redacts and cuts the attributes of spans by the rules of one stream."""

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
        redacted_paths: list[str] = []
        for base, attributes in _sets(span):
            if not self._redactor.is_clean(attributes):
                self._redactor.redact(attributes, redacted_paths, base)
            redacted_paths += (f"{base}{name}" for name in self._hidden(attributes))
            dropped["values"] += self._cut_texts(attributes)
        earlier_paths = set(paths)
        paths += [path for path in dict.fromkeys(redacted_paths) if path not in earlier_paths]

    def derived(self, group: str, name: str, value: Any) -> Any:
        """A member that was derived from attributes, or given beside them, under the same rules."""
        if not isinstance(value, str):
            return value
        if (group, name) == ("db", "statement"):
            if not self._keeps_statements:
                return None
            return _shorten(value, self._limits.max_statement_bytes)
        if group == "http" and name in {"path", "url"} and not self._keeps_queries:
            value = _plain(value)
        return _shorten(value, self._limits.max_attribute_value_bytes)

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

    def _cut_texts(self, value: Any) -> int:
        """Cut texts that are too long, at any depth; answers how many there were."""
        most, cuts, waiting = self._limits.max_attribute_value_bytes, 0, [value]
        while waiting:
            holder = waiting.pop()
            for name, member in holder.items() if isinstance(holder, dict) else enumerate(holder):
                if isinstance(member, str):
                    if len(member) * 4 > most and (short := _shorten(member, most)) != member:
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
        for number, member in enumerate(span[name]):
            yield f"{name}.{number}.attributes.", member["attributes"]


def _plain(address: str) -> str:
    """An address without a query, a fragment, and whoever was named before its host."""
    return _USER.sub(r"\1", _END.split(address, maxsplit=1)[0])


def _shorten(text: str, most: int) -> str:
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
        attributes = span_members.take_container(raw_span, "attributes", mistyped, dict)
        events = [_read_event(each, listed) for each in span_members.take_container(raw_span, "events", mistyped, list)]
        links = [_read_link(each, listed) for each in span_members.take_container(raw_span, "links", mistyped, list)]
        names = _read_names(raw_span.pop("eventNames", None), mistyped)
        own = {name: span_members.take_text(raw_span, name, mistyped) for name in (*RESOURCE, "requestId")}
        groups = {
            name: _read_members(name, span_members.take_container(raw_span, name, mistyped, dict), mistyped)
            for name in _MEMBERS
        }
        paths = _read_paths(raw_span.pop("redaction", None), mistyped)
        if raw_span.pop("identity", None) not in (None, {"spanKey": f"{made['traceId']}:{made['spanId']}"}):
            raise Misfit("/identity", "follows from the ids, and says something else")
        span_members.add(attributes, {**raw_span, **mistyped}, listed)
        whole = {"attributes": attributes, "resource": resource, "instrumentationScope": scope}
        self._cleaner.clean({**whole, "events": events, "links": links}, paths, dropped)
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
        own_values = {name: own[name] or span_members.first_value(resource, keys) for name, keys in RESOURCE.items()}
        ids = self._rules.request_id_attributes
        return {**own_values, "requestId": own["requestId"] or span_members.first_value(attributes, ids)}

    def _group(
        self, group: str, members: dict[str, Any], attributes: dict[str, Any], paths: list[str]
    ) -> dict[str, Any]:
        """What a span says of one subject, else what its attributes do."""
        group_values: dict[str, Any] = {}
        for name, keys in GROUPS[group].items():
            value = members.get(name)
            if value is not None:
                group_values[name] = self._cleaner.derived(group, name, value)
                if group_values[name] != value and f"{group}.{name}" not in paths:
                    paths.append(f"{group}.{name}")
            else:
                value = span_members.first_value(attributes, keys, whole=name in WHOLE)
                group_values[name] = self._cleaner.derived(group, name, value)
        return group_values


def _read_members(group: str, raw_members: dict[str, Any], mistyped: dict[str, Any]) -> dict[str, Any]:
    """The members of a group that are what they should be; the others go to the odd ones."""
    members: dict[str, Any] = {}
    for name, value in raw_members.items():
        kind = _MEMBERS[group].get(name)
        if kind is not None and isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
            members[name] = value
        elif value is not None:
            mistyped[f"{group}.{name}"] = value
    return members


def _fits(value: Any, whole: bool) -> bool:
    return isinstance(value, int if whole else str) and not isinstance(value, bool)


def _read_ids(raw_span: dict[str, Any]) -> dict[str, Any]:
    for name, value in (("schemaVersion", 1), ("signal", "trace.span")):
        if raw_span.pop(name, value) != value:
            raise Misfit(f"/{name}", f"must be {value}")
    trace, span = (
        span_members.take_identifier(raw_span, "traceId", 32),
        span_members.take_identifier(raw_span, "spanId", 16),
    )
    parent = raw_span.pop("parentSpanId", None)
    parent_id = span_members.identifier(parent, 16)
    if parent_id is None and parent not in (None, "", "0" * 16):
        raise Misfit("/parentSpanId", "parentSpanId must have 16 hexadecimal digits")
    return {"traceId": trace, "spanId": span, "parentSpanId": parent_id}


def _read_description(raw_span: dict[str, Any], mistyped: dict[str, Any]) -> dict[str, Any]:
    state = span_members.take_text(raw_span, "traceState", mistyped) or None
    flags = raw_span.pop("traceFlags", None)
    if flags is not None and not _fits(flags, True):
        mistyped["traceFlags"], flags = flags, None
    name = raw_span.pop("name", "")
    if not isinstance(name, str):
        raise Misfit("/name", "name must be a text")
    kind = raw_span.pop("kind", None)
    known_kind = span_members.choose_word(kind, KINDS)
    if known_kind is None and kind is not None:
        mistyped["kind"] = kind
    return {"traceState": state, "traceFlags": flags, "name": name.strip(), "kind": known_kind or KINDS[0]}


def _read_times(raw_span: dict[str, Any]) -> dict[str, Any]:
    start = span_members.parse_nanos(_take_either(raw_span, "startUnixNano", "startTimeUnixNano"))
    if start is None:
        raise Misfit("/startUnixNano", "startUnixNano must be a number of nanoseconds")
    said = _take_either(raw_span, "endUnixNano", "endTimeUnixNano")
    end = span_members.parse_nanos(said)
    if end is None and said is not None:
        raise Misfit("/endUnixNano", "endUnixNano must be a number of nanoseconds")
    for derived in ("timestamp", "endTimestamp"):
        raw_span.pop(derived, None)
    lasted = raw_span.pop("duration", None)
    if not end:
        end = start + round(lasted * 1e6) if _is_duration(lasted) else start
    millis = max(0, end - start) / 1e6
    return {
        "timestamp": span_members.moment(start),
        "endTimestamp": span_members.moment(end),
        "startUnixNano": str(start),
        "endUnixNano": str(end),
        "duration": int(millis) if millis.is_integer() else millis,
    }


def _is_duration(duration: Any) -> bool:
    return isinstance(duration, int | float) and not isinstance(duration, bool) and 0 <= duration <= _LONGEST_MS


def _take_either(raw_span: dict[str, Any], name: str, other: str) -> Any:
    first, second = raw_span.pop(name, None), raw_span.pop(other, None)
    return second if first is None else first


def _read_status(raw_span: dict[str, Any], mistyped: dict[str, Any]) -> dict[str, Any]:
    status = span_members.take_container(raw_span, "status", mistyped, dict)
    said = status.pop("code", None)
    code = span_members.choose_word(said, CODES)
    message = span_members.take_text(status, "message", mistyped) or None
    if code is None and said is not None:
        mistyped["status.code"] = said
    for name, value in status.items():
        mistyped[f"status.{name}"] = value
    return {"code": code or CODES[0], "message": message}


def _read_dropped(raw_span: dict[str, Any], mistyped: dict[str, Any]) -> dict[str, int]:
    before = span_members.take_container(raw_span, "dropped", mistyped, dict)
    dropped = {name: span_members.take_count(before, name) for name in DROPPED}
    for name in ("attributes", "events", "links"):
        dropped[name] += span_members.take_count(raw_span, f"dropped{name.capitalize()}Count")
    for name, value in before.items():
        mistyped[f"dropped.{name}"] = value
    return dropped


def _read_resource(
    raw_span: dict[str, Any], mistyped: dict[str, Any], dropped: dict[str, int], listed: Listed
) -> dict[str, Any]:
    # Spans of one export share their resource: it is copied before anything is taken out of it.
    resource = dict(span_members.take_container(raw_span, "resource", mistyped, dict))
    dropped["resourceAttributes"] += span_members.take_count(resource, "droppedAttributesCount")
    attributes = dict(span_members.take_container(resource, "attributes", mistyped, dict))
    url = span_members.take_text(resource, "schemaUrl", mistyped)
    span_members.add(attributes, resource, listed)
    return {"attributes": attributes, "schemaUrl": url or None}


def _read_scope(
    raw_span: dict[str, Any], mistyped: dict[str, Any], dropped: dict[str, int], listed: Listed
) -> dict[str, Any]:
    scope = dict(span_members.take_container(raw_span, "instrumentationScope", mistyped, dict))
    dropped["scopeAttributes"] += span_members.take_count(scope, "droppedAttributesCount")
    attributes = dict(span_members.take_container(scope, "attributes", mistyped, dict))
    words = {name: span_members.take_text(scope, name, mistyped) or None for name in ("name", "version", "schemaUrl")}
    span_members.add(attributes, scope, listed)
    return {**words, "attributes": attributes}


def _read_event(raw_event: Any, listed: Listed) -> dict[str, Any]:
    if not isinstance(raw_event, dict):
        raise Misfit("/events", "an event of a span must be an object")
    mistyped: dict[str, Any] = {}
    attributes = span_members.take_container(raw_event, "attributes", mistyped, dict)
    said = raw_event.pop("timeUnixNano", None)
    at = span_members.parse_nanos(said)
    if at is None and said is not None:
        mistyped["timeUnixNano"] = said
    name, stamp = (
        span_members.take_text(raw_event, "name", mistyped) or "",
        span_members.take_text(raw_event, "timestamp", mistyped),
    )
    span_members.add(attributes, {**raw_event, **mistyped}, listed)
    return {
        "timeUnixNano": None if at is None else str(at),
        "timestamp": stamp if at is None else span_members.moment(at),
        "name": name,
        "attributes": attributes,
    }


def _read_link(raw_link: Any, listed: Listed) -> dict[str, Any]:
    if not isinstance(raw_link, dict):
        raise Misfit("/links", "a link of a span must be an object")
    mistyped: dict[str, Any] = {}
    attributes = span_members.take_container(raw_link, "attributes", mistyped, dict)
    ids: dict[str, Any] = {}
    for name, letters in (("traceId", 32), ("spanId", 16)):
        said = raw_link.pop(name, None)
        ids[name] = span_members.identifier(said, letters)
        if ids[name] is None and said is not None:
            mistyped[name] = said
    ids["traceState"] = span_members.take_text(raw_link, "traceState", mistyped) or None
    span_members.add(attributes, {**raw_link, **mistyped}, listed)
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
    """Whether a span failed, and what its last exception says of that."""
    nothing: dict[str, Any] = {}
    raised = next((event["attributes"] for event in reversed(events) if event["name"] == _EXCEPTION), nothing)
    error: dict[str, Any] = {"isError": error_members.get("isError", status["code"] == "error")}
    for name in ("type", "message", "stacktrace"):
        said = error_members.get(name) or span_members.first_value(raised, (f"exception.{name}",))
        error[name] = said or span_members.first_value(attributes, (f"error.{name}",))
    if error["message"] is None and error["isError"]:
        error["message"] = status["message"]
    return error
