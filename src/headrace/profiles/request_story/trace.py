"""A trace out of its spans: the tree, the services, the way that took longest, and what failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


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
DEEPEST = 100


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
        """How much a root looks like the request itself."""
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
            destination = nodes if depth and depth % DEEPEST == DEEPEST - 1 else node["children"]
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
