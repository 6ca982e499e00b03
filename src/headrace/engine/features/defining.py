"""Finding out how a table is defined now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.engine.features.registry import EVENTS, Current
from headrace.reduce.features.definition import TableDefinition
from headrace.schema.descriptor.nodes import Event, Node


def defined_in(current: Current, table: str) -> TableDefinition:
    """A table of a registry; raises UnknownTable where it has none of this name."""
    current.table(table)
    nodes = {node.name: node for node in _upstreams(current.nodes, table)}
    root = current.root_of(table)
    return TableDefinition(table, root, EVENTS + root, nodes, dict(current.lives[table]), current.cold(root))


def _upstreams(nodes: Mapping[str, Node], name: str) -> Iterator[Node]:
    node = nodes[name]
    yield node
    if not isinstance(node, Event):
        yield from _upstreams(nodes, node.upstream)
