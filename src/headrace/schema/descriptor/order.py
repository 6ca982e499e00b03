"""Topological order of nodes: upstreams first, whatever the order of the payload."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from headrace.deadline import check_deadline
from headrace.schema.descriptor.nodes import Derivation, Event, Node
from headrace.schema.descriptor.problem import DescriptorProblem, NodeProblem
from headrace.schema.descriptor.structure import ParsedDescriptor


class InvalidNode(Derivation, frozen=True, tag="unfit", tag_field="kind"):
    """Stands in for a node whose descriptor has problems; one of an event names itself as its upstream."""

    of: Literal["event", "derivation", "table"] = "event"
    problems: tuple[DescriptorProblem, ...] = ()


def make_invalid_node(shape: ParsedDescriptor, problems: tuple[DescriptorProblem, ...]) -> InvalidNode:
    """The stand-in for the node of a descriptor with problems."""
    kind: Literal["event", "derivation", "table"] = shape.kind  # type: ignore[assignment]
    return InvalidNode(shape.name, shape.members.get("upstream", shape.name), of=kind, problems=problems)


def upstream(node: Node) -> str | None:
    """The name of the node that a node's rows come from; None for a source."""
    if isinstance(node, Event) or (isinstance(node, InvalidNode) and node.of == "event"):
        return None
    return node.upstream


def sort_nodes(nodes: Mapping[str, Node]) -> list[str]:
    """All names, upstreams first, if ``find_order_problems`` finds no problem."""
    sorted_names: dict[str, None] = {}
    for name in nodes:
        check_deadline()
        sorted_names |= dict.fromkeys(reversed(_path_to_source(nodes, name, sorted_names)))
    return list(sorted_names)


def find_order_problems(nodes: Mapping[str, Node]) -> list[NodeProblem]:
    """Missing upstreams and cycles, each at the first node of the payload that leads to it."""
    problems = [
        NodeProblem(name, "missing_upstream", "upstreams", f"there is no node {before!r}")
        for name, node in nodes.items()
        if (before := upstream(node)) is not None and before not in nodes
    ]
    seen: set[str] = set()
    for name in nodes:
        path = _path_to_source(nodes, name, seen)
        before = upstream(nodes[path[-1]]) if path else None
        if before in path:
            circle = " from ".join(map(repr, [*path[path.index(before) :], before]))
            problems.append(
                NodeProblem(before, "registration_cycle", "upstreams", f"this follows from itself: {circle}")
            )
        seen.update(path)
    return problems


def _path_to_source(nodes: Mapping[str, Node], name: str, seen: Collection[str]) -> list[str]:
    """The nodes from one to its source, up to a missing or seen one; a cycle is walked once."""
    path: list[str] = []
    here: str | None = name
    while here is not None and here in nodes and here not in seen and here not in path:
        check_deadline()
        path.append(here)
        here = upstream(nodes[here])
    return path


def downstream(nodes: Mapping[str, Node], names: Collection[str]) -> list[str]:
    """The nodes that follow from any of these, directly or not, in the order of ``nodes``."""
    reached = set(names)
    while True:
        check_deadline()
        more = {name for name, node in nodes.items() if name not in reached and upstream(node) in reached}
        if not more:
            return [name for name in nodes if name in reached and name not in names]
        reached |= more
