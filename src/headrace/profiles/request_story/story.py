"""The story of a request: its summary, and everything that happened in the order of time."""

from __future__ import annotations

from typing import Any

from headrace.profiles.otel_traces import span_members
from headrace.profiles.request_story.trace import Span, Trace

Event = dict[str, Any]
_SEVERITIES = {"error": "error", "warn": "warn", "debug": "debug"}


def primary(events: list[Event], trace_id: str | None) -> Event | None:
    """The event that tells of the request itself: of its trace, if any is, and with a status rather than without."""
    traced = [event for event in events if trace_id and event["traceId"] == trace_id] or events
    return next((event for event in traced if event["status"] is not None), next(iter(traced), None))


def summary(event: Event | None, root: Span | None) -> dict[str, Any]:
    """What a request was, from its event first and its root span second."""
    logged: Event = event or {}
    span: Any = root or {"http": {}, "error": {}}
    failed = {name: logged.get(name) for name in ("why", "fix", "link")}
    return {
        "requestId": logged.get("requestId") or span.get("requestId"),
        "traceId": logged.get("traceId") or span.get("traceId"),
        "method": logged.get("method") or span["http"].get("method"),
        "path": logged.get("path") or span["http"].get("path"),
        "route": span["http"].get("route"),
        "status": _first(logged.get("status"), span["http"].get("statusCode")),
        "service": logged.get("service") or span.get("service"),
        "environment": logged.get("environment") or span.get("environment"),
        "duration": _first(logged.get("duration"), span.get("duration")),
        "startTime": span.get("timestamp") or logged.get("timestamp"),
        "endTime": span.get("endTimestamp"),
        "level": logged.get("level") or ("error" if span["error"].get("isError") else "info" if root else None),
        "message": logged.get("message") or span.get("name"),
        "error": {
            "isError": logged.get("level") == "error" or bool(span["error"].get("isError")),
            "type": span["error"].get("type"),
            "message": span["error"].get("message") or (logged.get("message") if any(failed.values()) else None),
            **failed,
        },
    }


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def timeline(
    events: list[tuple[str, Event]], trace: Trace, streams: tuple[str | None, str | None], *, raw: bool
) -> list[Any]:
    """Everything that happened; ``raw`` adds the records themselves."""
    items: list[tuple[str, dict[str, Any]]] = []
    for offset, event in events:
        items.append((event["timestamp"], _event_item(event, streams[0], offset, raw)))
    for span in trace.spans.values():
        items += _span_items(span, streams[1], raw)
    return [item for _, item in sorted(items, key=lambda one: _sortable(one[0]))]


def _sortable(time: str) -> str:
    """Moments of different precision in the order of time."""
    whole, _, fraction = time.rstrip("Zz").partition(".")
    return f"{whole}.{fraction:<09}"


def _event_item(event: Event, stream: str | None, offset: str, raw: bool) -> dict[str, Any]:
    title = event["message"] or " ".join(filter(None, (event["method"], event["path"]))) or event["level"]
    return {
        "time": event["timestamp"],
        "kind": "evlog.event",
        "title": title,
        "service": event["service"],
        "severity": _SEVERITIES.get(event["level"], "info"),
        "requestId": event["requestId"],
        "traceId": event["traceId"],
        "spanId": event["spanId"],
        "source": {"stream": stream, "profile": "evlog", "offset": offset},
        "data": {"status": event["status"], "duration": event["duration"], **({"raw": event} if raw else {})},
    }


def _span_items(span: Span, stream: str | None, raw: bool) -> list[tuple[str, dict[str, Any]]]:
    whole = {"raw": span} if raw else {}
    details = {"kind": span["kind"], "duration": span["duration"], "status": span["status"]["code"], **whole}
    items = [
        (span["timestamp"], _item(span, stream, "otel.span.start", span["timestamp"], span["name"], details)),
        (span["endTimestamp"], _item(span, stream, "otel.span.end", span["endTimestamp"], span["name"], details)),
    ]
    for event in span["events"]:
        time = event["timestamp"] or span["timestamp"]
        raised = event["name"] == "exception"
        title = span_members.first_value(event["attributes"], ("exception.message",)) if raised else None
        kind = "otel.exception" if raised else "otel.span.event"
        data = {"attributes": event["attributes"]}
        items.append((time, _item(span, stream, kind, time, title or event["name"], data)))
    return items


def _item(span: Span, stream: str | None, kind: str, time: str, title: str, data: dict[str, Any]) -> dict[str, Any]:
    failed = kind == "otel.exception" or (span["error"]["isError"] and kind == "otel.span.end")
    return {
        "time": time,
        "kind": kind,
        "title": title,
        "service": span["service"],
        "severity": "error" if failed else "info",
        "requestId": span["requestId"],
        "traceId": span["traceId"],
        "spanId": span["spanId"],
        "source": {"stream": stream, "profile": "otel-traces"},
        "data": data,
    }
