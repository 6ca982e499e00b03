"""What a table is made from, back to its source, and which fields with which types its rows have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.schema.descriptor.nodes import Event, Node, Op, Table, Type
from headrace.schema.descriptor.propagate import types_after


class Chain(NamedTuple):
    """The source of a node, the steps from it to the node in order, and the fields after them."""

    root: Event
    ops: tuple[Op, ...]
    types: dict[str, Type]


class Resolved(NamedTuple):
    """A table with the source of its rows, the steps from it to the table in order, and the fields after them."""

    table: Table
    root: Event
    ops: tuple[Op, ...]
    types: dict[str, Type]
    key_types: tuple[Type, ...]


def chain(nodes: Mapping[str, Node], name: str) -> Chain:
    """Where the rows of a node come from; the nodes are valid."""
    node = nodes[name]
    steps: list[tuple[Op, ...]] = []
    while not isinstance(node, Event):
        steps.append(node.ops)
        node = nodes[node.upstream]
    ops = tuple(op for part in reversed(steps) for op in part)
    return Chain(node, ops, types_after(ops, {name: field.type for name, field in node.schema.items()}))


def resolve(nodes: Mapping[str, Node], table: str) -> Resolved:
    """A table with all that it is made from; the nodes are valid."""
    node = nodes[table]
    if not isinstance(node, Table):
        raise TypeError(f"{table} is no table")
    root, ops, types = chain(nodes, table)
    return Resolved(node, root, ops, types, tuple(types[name] for name in node.key))
