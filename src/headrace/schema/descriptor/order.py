"""The order in which nodes follow from each other: upstreams first, whatever the order of the payload."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from headrace.deadline import check_deadline
from headrace.schema.descriptor.nodes import Derivation, Event, Node
from headrace.schema.descriptor.problem import DescriptorProblem, NodeProblem
from headrace.schema.descriptor.structure import ParsedDescriptor


class InvalidNode(Derivation, frozen=True, tag="unfit", tag_field="kind"):
    """A descriptor that cannot be a node; one of an event names itself as its upstream."""

    of: Literal["event", "derivation", "table"] = "event"
    problems: tuple[DescriptorProblem, ...] = ()


def make_invalid_node(shape: ParsedDescriptor, problems: tuple[DescriptorProblem, ...]) -> InvalidNode:
    """The stand-in for a descriptor."""
    kind: Literal["event", "derivation", "table"] = shape.kind  # type: ignore[assignment]
    return InvalidNode(shape.name, shape.members.get("upstream", shape.name), of=kind, problems=problems)


def upstream(node: Node) -> str | None:
    """The name of the node that a node's rows come from; None for a source."""
    if isinstance(node, Event) or (isinstance(node, InvalidNode) and node.of == "event"):
        return None
    return node.upstream


def sort_nodes(nodes: Mapping[str, Node]) -> list[str]:
    """All names, upstreams first, for nodes that ``find_order_problems`` finds nothing wrong with."""
    found: dict[str, None] = {}
    for name in nodes:
        check_deadline()
        found |= dict.fromkeys(reversed(_way(nodes, name, found)))
    return list(found)


def find_order_problems(nodes: Mapping[str, Node]) -> list[NodeProblem]:
    """Upstreams that there are not, and circles, each where the payload first comes upon it."""
    found = [
        NodeProblem(name, "missing_upstream", "upstreams", f"there is no node {before!r}")
        for name, node in nodes.items()
        if (before := upstream(node)) is not None and before not in nodes
    ]
    seen: set[str] = set()
    for name in nodes:
        way = _way(nodes, name, seen)
        before = upstream(nodes[way[-1]]) if way else None
        if before in way:
            circle = " from ".join(map(repr, [*way[way.index(before) :], before]))
            found.append(NodeProblem(before, "registration_cycle", "upstreams", f"this follows from itself: {circle}"))
        seen.update(way)
    return found


def _way(nodes: Mapping[str, Node], name: str, seen: Collection[str]) -> list[str]:
    """From a node to its source, as far as there are nodes that were not seen; a circle is gone round once."""
    way: list[str] = []
    here: str | None = name
    while here is not None and here in nodes and here not in seen and here not in way:
        check_deadline()
        way.append(here)
        here = upstream(nodes[here])
    return way


def downstream(nodes: Mapping[str, Node], names: Collection[str]) -> list[str]:
    """The nodes that follow from any of these, directly or not, in the order of ``nodes``."""
    reached = set(names)
    while True:
        check_deadline()
        more = {name for name, node in nodes.items() if name not in reached and upstream(node) in reached}
        if not more:
            return [name for name in nodes if name in reached and name not in names]
        reached |= more
