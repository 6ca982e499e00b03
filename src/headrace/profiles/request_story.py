"""One request, described by its events and its spans: the query, the trace, the summary and the timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from headrace.errors import BadRequest
from headrace.profiles.otel_traces.normalise import first_value
from headrace.query.document_reader import Part
from headrace.types import parse_timestamp_us

IDS = ("requestId", "traceId", "spanId")
_LIMITS = {"events": (100, 500), "spans": (5_000, 10_000)}
_INCLUDE = {"events": True, "trace": True, "timeline": True, "raw": False}
_MAX_ID = 512
_MAX_PADDING_MS = 86_400_000


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
    max_events: int
    max_spans: int


def read_question(body: Any) -> RequestQuestion:
    """The question of a JSON document; raises BadRequest that names everything that is wrong."""
    part = Part(body)
    if part.knows(("streams", "lookup", "time", "include", "limits")):
        by, wanted = _lookup(part["lookup"])
        include = {name: _flag(part["include"], name) for name in _INCLUDE}
        if part["include"].is_present:
            part["include"].knows(_INCLUDE)
        events = _stream(part["streams"], "events", wanted=include["events"])
        traces = _stream(part["streams"], "traces", wanted=include["trace"])
        if part["streams"].is_present:
            part["streams"].knows(("events", "traces"))
        from_ms, to_ms = _time(part["time"])
        limits = {name: _limit(part["limits"], name) for name in _LIMITS}
        if part["limits"].is_present:
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
        max_events=limits["events"],
        max_spans=limits["spans"],
    )


def _lookup(part: Part) -> tuple[str, str]:
    if not part.knows(IDS):
        return "", ""
    ids = [name for name in IDS if part[name].is_present and part[name].value is not None]
    if len(ids) != 1:
        part.note(f"must have exactly one of {', '.join(IDS)}")
        return "", ""
    text = part[ids[0]].text()
    if text is not None and not 0 < len(text.strip()) <= _MAX_ID:
        part[ids[0]].note(f"must have 1 to {_MAX_ID} letters")
    return ids[0], (text or "").strip()


def _flag(part: Part, name: str) -> bool:
    member = part[name]
    return member.flag() if member.is_present else _INCLUDE[name]


def _stream(part: Part, role: str, *, wanted: bool) -> str | None:
    member = part[role]
    if not wanted:
        return None
    name = member.text() or ""
    if member.is_present and member.value == "":
        member.note("must not be empty")
    return name


def _limit(part: Part, name: str) -> int:
    member, (usual, maximum) = part[name], _LIMITS[name]
    if not member.is_present:
        return usual
    number = member.integer()
    if number is not None and not 1 <= number <= maximum:
        member.note(f"must lie between 1 and {maximum}")
    return number or usual


def _time(part: Part) -> tuple[int | None, int | None]:
    if not part.is_present or not part.knows(("from", "to", "paddingMs")):
        return None, None
    padding = part["paddingMs"].integer() or 0 if part["paddingMs"].is_present else 0
    if not 0 <= padding <= _MAX_PADDING_MS:
        part["paddingMs"].note(f"must lie between 0 and {_MAX_PADDING_MS}")
    start, end = _moment(part["from"]), _moment(part["to"])
    if start is not None and end is not None and end < start:
        part["to"].note("must not come before from")
    return None if start is None else start - padding, None if end is None else end + padding


def _moment(part: Part) -> int | None:
    text = part.text() if part.is_present else None
    if text is None:
        return None
    try:
        return parse_timestamp_us(text, "time") // 1000
    except BadRequest:
        part.note("must be an RFC 3339 time")
        return None


class Tree(Protocol):
    """Spans and their children, by key."""

    @property
    def spans(self) -> Mapping[str, dict[str, Any]]:
        """The spans."""

    @property
    def children(self) -> Mapping[str, Sequence[str]]:
        """The keys of the children of each."""


def critical_path(tree: Tree, root: str) -> list[str]:
    """Keys from a root on; siblings that overlap do not add up."""
    order = [root]
    for key in order:
        order.extend(tree.children[key])
    weights: dict[str, float] = {}
    for key in reversed(order):
        below = max((weights[child] for child in tree.children[key]), default=0.0)
        weights[key] = _alone(tree, key) + below
    path = [root]
    while children := tree.children[path[-1]]:
        path.append(max(children, key=weights.__getitem__))
    return path


def _alone(tree: Tree, key: str) -> float:
    """How long a span took without any of its children, in nanoseconds."""
    start, end = _interval(tree.spans[key])
    covered, until = 0, start
    for first, last in sorted(_interval(tree.spans[child]) for child in tree.children[key]):
        ends = min(last, end)
        covered += max(0, ends - max(first, until))
        until = max(until, ends)
    return max(0, end - start) - covered


def _interval(span: dict[str, Any]) -> tuple[int, int]:
    return int(span["startUnixNano"]), int(span["endUnixNano"])


Span = dict[str, Any]

#: How deep the tree is nested; what lies deeper is a root of its own, with the depth that it has.
MAX_DEPTH = 100


class Trace:
    """The spans of one request, each once."""

    def __init__(self, spans: list[Span]) -> None:
        self.duplicates: list[str] = []
        self.spans: dict[str, Span] = {}
        for span in sorted(spans, key=_order):
            first_span = self.spans.setdefault(span["identity"]["spanKey"], span)
            if first_span is not span:
                self.duplicates.append(span["spanId"])
        self._parents = {key: self._parent(span) for key, span in self.spans.items()}
        self.missing = sorted(
            {
                span["parentSpanId"]
                for key, span in self.spans.items()
                if span["parentSpanId"] is not None and self._parents[key] is None
            }
        )
        self.children: dict[str, list[str]] = {key: [] for key in self.spans}
        for key, parent in self._parents.items():
            if parent is not None:
                self.children[parent].append(key)
        self.roots = self._roots()
        self.root = max(self.roots, key=self._likely, default=None)

    def _parent(self, span: Span) -> str | None:
        key = f"{span['traceId']}:{span['parentSpanId']}"
        return key if key in self.spans and key != span["identity"]["spanKey"] else None

    def _roots(self) -> list[str]:
        """Spans without a parent here; of spans that are each other's ancestors the first."""
        roots = [key for key, parent in self._parents.items() if parent is None]
        seen: set[str] = set()
        waiting = list(roots)
        for key in [*self.spans]:
            while waiting:
                reached = waiting.pop()
                if reached not in seen:
                    seen.add(reached)
                    waiting += self.children[reached]
            if key not in seen:
                parent = self._parents[key]
                if parent is not None:
                    self.children[parent].remove(key)
                roots.append(key)
                waiting.append(key)
        return roots

    def _likely(self, key: str) -> tuple[bool, bool, bool, bool, float]:
        """How likely a root span is that of the request itself."""
        span = self.spans[key]
        has_http = span["http"]["method"] is not None or span["http"]["statusCode"] is not None
        return (
            span["parentSpanId"] is None,
            span["kind"] == "server",
            has_http,
            span["requestId"] is not None,
            span["duration"],
        )

    def tree(self) -> list[dict[str, Any]]:
        """The spans as nodes with children, roots first to begin first."""
        nodes: list[dict[str, Any]] = []
        waiting = [(key, 0, nodes) for key in reversed(self.roots)]
        while waiting:
            key, depth, siblings = waiting.pop()
            node = _node(self.spans[key], depth)
            siblings.append(node)
            destination = nodes if depth and depth % MAX_DEPTH == MAX_DEPTH - 1 else node["children"]
            waiting += [(child, depth + 1, destination) for child in reversed(self.children[key])]
        return nodes

    def services(self) -> dict[str, Any]:
        """Which services took part, and which called which."""
        nodes: dict[Any, dict[str, Any]] = {}
        edges: dict[tuple[Any, Any], dict[str, Any]] = {}
        for key, span in self.spans.items():
            service = span["service"]
            _count(nodes.setdefault(service, {"service": service, "spans": 0, "errors": 0}), span)
            parent = self._parents[key]
            caller = None if parent is None else self.spans[parent]["service"]
            if parent is not None and caller != service:
                edge = edges.setdefault((caller, service), {"from": caller, "to": service, "spans": 0, "errors": 0})
                _count(edge, span)
        return {"nodes": list(nodes.values()), "edges": list(edges.values())}

    def path(self) -> list[str]:
        """The way from the root that took longest."""
        return [] if self.root is None else [self.spans[key]["spanId"] for key in critical_path(self, self.root)]

    def errors(self) -> list[dict[str, Any]]:
        """What failed."""
        return [
            {name: span[name] for name in ("spanId", "service", "name", "timestamp")} | span["error"]
            for span in self.spans.values()
            if span["error"]["isError"]
        ]


def _order(span: Span) -> tuple[int, float, str]:
    return int(span["startUnixNano"]), -span["duration"], span["name"]


def _count(tally: dict[str, Any], span: Span) -> None:
    tally["spans"] += 1
    tally["errors"] += span["error"]["isError"]


def _node(span: Span, depth: int) -> dict[str, Any]:
    return {
        "spanId": span["spanId"],
        "parentSpanId": span["parentSpanId"],
        "children": [],
        "depth": depth,
        "service": span["service"],
        "name": span["name"],
        "kind": span["kind"],
        "startTime": span["timestamp"],
        "endTime": span["endTimestamp"],
        "duration": span["duration"],
        "statusCode": span["status"]["code"],
    }


Event = dict[str, Any]
_SEVERITIES = {"error": "error", "warn": "warn", "debug": "debug"}


def primary(events: list[Event], trace_id: str | None) -> Event | None:
    """The main event of a request: preferably of its trace, and with a status."""
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
    return [item for _, item in sorted(items, key=lambda entry: _sortable(entry[0]))]


def _sortable(time: str) -> str:
    """Moments of different precision in the order of time."""
    seconds, _, fraction = time.rstrip("Zz").partition(".")
    return f"{seconds}.{fraction:<09}"


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
    raw_span = {"raw": span} if raw else {}
    details = {"kind": span["kind"], "duration": span["duration"], "status": span["status"]["code"], **raw_span}
    items = [
        (span["timestamp"], _item(span, stream, "otel.span.start", span["timestamp"], span["name"], details)),
        (span["endTimestamp"], _item(span, stream, "otel.span.end", span["endTimestamp"], span["name"], details)),
    ]
    for event in span["events"]:
        time = event["timestamp"] or span["timestamp"]
        raised = event["name"] == "exception"
        title = first_value(event["attributes"], ("exception.message",)) if raised else None
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
