"""OTLP exports, in JSON or protobuf, as plain spans: what the profile normalises."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.errors import BadRequest
from headrace.profiles.otel_traces import protobuf
from headrace.profiles.otel_traces.protobuf import NESTED, ValueLimits, finite
from headrace.profiles.otel_traces.rules import OtlpLimits
from headrace.types import json_fault

_SPAN = {
    1: ("traceId", "hex"), 2: ("spanId", "hex"), 3: ("traceState", "text"), 4: ("parentSpanId", "hex"),
    5: ("name", "text"), 6: ("kind", "number"), 7: ("startUnixNano", "nanos"), 8: ("endUnixNano", "nanos"),
    10: ("droppedAttributesCount", "number"), 12: ("droppedEventsCount", "number"),
    14: ("droppedLinksCount", "number"), 16: ("traceFlags", "number"),
}  # fmt: skip
_EVENT = {1: ("timeUnixNano", "nanos"), 2: ("name", "text"), 4: ("droppedAttributesCount", "number")}
_LINK = {
    1: ("traceId", "hex"), 2: ("spanId", "hex"), 3: ("traceState", "text"), 5: ("droppedAttributesCount", "number"),
    6: ("traceFlags", "number"),
}  # fmt: skip
_SCOPE = {1: ("name", "text"), 2: ("version", "text"), 4: ("droppedAttributesCount", "number")}
_RESOURCE = {2: ("droppedAttributesCount", "number")}
_STATUS = {2: ("message", "text"), 3: ("code", "number")}
_NESTED_SPAN = {11: ("events", _EVENT, 3), 13: ("links", _LINK, 4)}
_RENAMED: dict[str, str] = {
    "startTimeUnixNano": "startUnixNano",
    "endTimeUnixNano": "endUnixNano",
    "flags": "traceFlags",
}


class Export:
    """The spans of one request, and how many of them were beyond the limit."""

    def __init__(self, limits: OtlpLimits) -> None:
        self._limits = limits
        self._scopes = self._resources = 0
        self.spans: list[dict[str, Any]] = []
        self.beyond = 0

    def resource(self) -> None:
        """One more resource."""
        self._resources += 1
        if self._resources > (limit := self._limits.max_resource_spans_per_request):
            raise BadRequest(f"an export has at most {limit} resourceSpans", field="resourceSpans")

    def scope(self) -> None:
        """One more scope."""
        self._scopes += 1
        if self._scopes > (limit := self._limits.max_scope_spans_per_request):
            raise BadRequest(f"an export has at most {limit} scopeSpans", field="scopeSpans")

    @property
    def is_full(self) -> bool:
        """Whether no more spans are taken; then this one is counted."""
        if len(self.spans) < self._limits.max_spans_per_request:
            return False
        self.beyond += 1
        return True

    def values(self) -> ValueLimits:
        """Bounds for the values of one span."""
        return ValueLimits(self._limits)


def from_protobuf(body: bytes, limits: OtlpLimits) -> Export:
    """Read an ``ExportTraceServiceRequest``."""
    export = Export(limits)
    try:
        for field, value in protobuf.fields(body):
            if field == 1:
                _resource_spans(protobuf.message(value), export)
    except (protobuf.Malformed, RecursionError) as reason:
        raise BadRequest(f"the body is no OTLP export: {reason}", field="body") from reason
    return export


def _resource_spans(data: bytes, export: Export) -> None:
    export.resource()
    message_fields = list(protobuf.fields(data))
    bounds = export.values()
    resource: dict[str, Any] = {"attributes": {}}
    for field, value in message_fields:
        if field == 1:
            resource = _message(protobuf.message(value), _RESOURCE, 1, bounds)
    for field, value in message_fields:
        if field == 3:
            resource["schemaUrl"] = protobuf.text(value)
    for field, value in message_fields:
        if field == 2:
            _scope_spans(protobuf.message(value), resource, export)


def _scope_spans(data: bytes, resource: dict[str, Any], export: Export) -> None:
    export.scope()
    message_fields = list(protobuf.fields(data))
    scope: dict[str, Any] = {"attributes": {}}
    for field, value in message_fields:
        if field == 1:
            scope = _message(protobuf.message(value), _SCOPE, 3, export.values())
    for field, value in message_fields:
        if field == 3:
            scope["schemaUrl"] = protobuf.text(value)
    for field, value in message_fields:
        if field == 2 and not export.is_full:
            span = _span(protobuf.message(value), export.values())
            export.spans.append({**span, "resource": resource, "instrumentationScope": scope})


def _span(data: bytes, bounds: ValueLimits) -> dict[str, Any]:
    span = _message(data, _SPAN, 9, bounds)
    for field, value in protobuf.fields(data):
        if field in _NESTED_SPAN:
            name, readers, attributes = _NESTED_SPAN[field]
            span.setdefault(name, []).append(_message(protobuf.message(value), readers, attributes, bounds))
        elif field == 15:
            span["status"] = _message(protobuf.message(value), _STATUS, 0, bounds)
    if bounds.cuts:
        span["dropped"] = {"values": bounds.cuts}
    return span


def _message(data: bytes, readers: dict[int, tuple[str, str]], attributes: int, bounds: ValueLimits) -> dict[str, Any]:
    """The members of a message that have no members themselves, and its attributes."""
    members: dict[str, Any] = {"attributes": {}} if attributes else {}
    for field, value in protobuf.fields(data):
        if field == attributes:
            key, attribute_value = protobuf.pair(protobuf.message(value), bounds)
            members["attributes"][key] = attribute_value
        elif field in readers:
            name, kind = readers[field]
            members[name] = _READERS[kind](value)
    return members


_READERS: dict[str, Any] = {
    "text": protobuf.text,
    "number": protobuf.number,
    "hex": lambda value: protobuf.message(value).hex(),
    "nanos": lambda value: str(protobuf.number(value)),
}


def from_json(body: bytes, limits: OtlpLimits) -> Export:
    """Read the same in JSON."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as reason:
        raise BadRequest(f"the body is not JSON: {json_fault(reason, body)}", field="body") from reason
    export = Export(limits)
    for resource_spans in _objects(document, "resourceSpans"):
        export.resource()
        resource = _plain(resource_spans.get("resource"), export.values())
        if "schemaUrl" in resource_spans:
            resource["schemaUrl"] = resource_spans["schemaUrl"]
        for part in _objects(resource_spans, "scopeSpans"):
            export.scope()
            scope = _plain(part.get("scope"), export.values())
            if "schemaUrl" in part:
                scope["schemaUrl"] = part["schemaUrl"]
            for span in _objects(part, "spans"):
                if not export.is_full:
                    made = _plain_span(span, export.values())
                    export.spans.append({**made, "resource": resource, "instrumentationScope": scope})
    return export


def _objects(holder: Any, name: str) -> list[dict[str, Any]]:
    objects = holder.get(name, []) if isinstance(holder, dict) else None
    if not isinstance(objects, list) or not all(isinstance(element, dict) for element in objects):
        raise BadRequest(f"{name} must be an array of objects", field=name)
    return objects


def _plain_span(raw_span: dict[str, Any], bounds: ValueLimits) -> dict[str, Any]:
    span = _plain(raw_span, bounds)
    for name in ("events", "links"):
        if name in span:
            span[name] = [_plain(each, bounds) for each in _objects(span, name)]
    if bounds.cuts:
        span["dropped"] = {"values": bounds.cuts}
    return span


def _plain(raw: Any, bounds: ValueLimits) -> dict[str, Any]:
    """An object whose attributes are an object too."""
    if raw is None:
        return {"attributes": {}}
    if not isinstance(raw, dict):
        raise BadRequest("what holds attributes must be an object", field="attributes")
    plain_members = {_RENAMED.get(name, str(name)): value for name, value in raw.items() if name != "attributes"}
    return {**plain_members, "attributes": _attributes(raw.get("attributes") or [], bounds)}


def _attributes(raw_attributes: Iterable[Any], bounds: ValueLimits) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for raw_attribute in raw_attributes:
        if not isinstance(raw_attribute, dict) or not isinstance(raw_attribute.get("key"), str):
            raise BadRequest("an attribute is an object with a key", field="attributes")
        attributes[raw_attribute["key"]] = _any_value(raw_attribute.get("value"), bounds, 1)
    return attributes


def _any_value(any_value: Any, bounds: ValueLimits, depth: int) -> Any:
    if not isinstance(any_value, dict) or not any_value:
        return None
    kind, value = next(iter(any_value.items()))
    if kind == "intValue":
        return _to_integer(value)
    if kind == "doubleValue":
        return _double(value)
    if kind in ("arrayValue", "kvlistValue"):
        if depth >= bounds.depth:
            return bounds.cut(NESTED)
        inner = value.get("values", []) if isinstance(value, dict) else []
        if kind == "arrayValue":
            return [_any_value(element, bounds, depth + 1) for element in bounds.truncate(inner, bounds.elements)]
        return {
            str(element.get("key", "")): _any_value(element.get("value"), bounds, depth + 1)
            for element in bounds.truncate(inner, bounds.members)
            if isinstance(element, dict)
        }
    return value if isinstance(value, str | bool) else None


def _to_integer(value: Any) -> Any:
    try:
        return int(value)
    except (TypeError, ValueError) as reason:
        raise BadRequest(f"intValue: {value!r} is no whole number", field="attributes") from reason


def _double(value: Any) -> Any:
    try:
        return finite(float(value))
    except (TypeError, ValueError) as reason:
        raise BadRequest(f"doubleValue: {value!r} is no number", field="attributes") from reason
