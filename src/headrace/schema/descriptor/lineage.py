"""What a feature truly depends on: its inputs traced back through the steps, field by field, to its source.

Two definitions with the same trace fold the same events into the same state, however they are spelled: columns that a
feature does not look at, and names along the way, do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from headrace.deadline import check_deadline
from headrace.schema.descriptor.canonical import canonical
from headrace.schema.descriptor.nodes import Feature, Node, Op, Table
from headrace.schema.descriptor.operators import OPERATORS
from headrace.schema.descriptor.resolve import chain
from headrace.schema.expression import parse
from headrace.schema.expression.tree import Expr, Field, fold


class Trace(NamedTuple):
    """How a value comes about, as a hash, and the fields of the source that it comes from."""

    mark: str
    fields: frozenset[str]


def traces(nodes: Mapping[str, Node], table: Table) -> dict[str, Trace]:
    """The trace of every feature of a table; the nodes are valid."""
    root, ops, _ = chain(nodes, table.name)
    columns = {name: Trace(_mark("field", root.name, name), frozenset([name])) for name in root.schema}
    filters: list[Trace] = []
    for op in ops:
        columns = _after(op, columns, filters)
    shared = [*filters, *(columns[name] for name in table.key)]
    frame = _mark("rows", root.name, len(table.key), *(trace.mark for trace in shared))
    fields = _fields(shared)
    return {name: _feature(feature, columns, frame, fields) for name, feature in table.features.items()}


def _feature(feature: Feature, columns: Mapping[str, Trace], frame: str, shared: frozenset[str]) -> Trace:
    told: dict[str, Any] = {}
    used: list[Trace] = []
    for name, parameter in OPERATORS[feature.op].params.items():
        value = feature.params.get(name)
        if value is not None and parameter.kind in ("field", "where"):
            trace = columns[value] if parameter.kind == "field" else _computed(parse(value), columns)
            used.append(trace)
            value = trace.mark
        told[name] = value
    return Trace(_mark("feature", frame, feature.op, told), shared | _fields(used))


def _after(op: Op, columns: dict[str, Trace], filters: list[Trace]) -> dict[str, Trace]:
    """The columns after a step; a filter is noted."""
    match op.op:
        case "filter":
            filters.append(_computed(parse(op.expr or ""), columns))
        case "select":
            return {name: columns[name] for name in op.fields}
        case "drop":
            return {name: trace for name, trace in columns.items() if name not in op.fields}
        case "rename":
            return {op.mapping.get(name, name): trace for name, trace in columns.items()}
        case "with_columns":
            made = dict(columns)
            for name in sorted(op.exprs):
                made[name] = _computed(parse(op.exprs[name]), made)
            return made
        case "cast":
            return columns | {name: _step("cast", to, columns[name]) for name, to in op.type_map.items()}
        case "fillna":
            return columns | {name: _step("fillna", value, columns[name]) for name, value in op.defaults.items()}
    return columns


def _computed(expr: Expr, columns: Mapping[str, Trace]) -> Trace:
    def trace(here: Expr, inner: tuple[Trace, ...]) -> Trace:
        if isinstance(here, Field):
            return columns[here.name]
        said = [type(here).__name__, *(getattr(here, name, None) for name in ("sign", "target"))]
        constant = [type(here.value).__name__, here.value] if hasattr(here, "value") else []
        return Trace(_mark("expression", said, constant, *(part.mark for part in inner)), _fields(inner))

    return fold(expr, trace)


def _step(name: str, told: Any, column: Trace) -> Trace:
    return Trace(_mark(name, told, column.mark), column.fields)


def _fields(parts: list[Trace] | tuple[Trace, ...]) -> frozenset[str]:
    return frozenset(name for trace in parts for name in trace.fields)


def _mark(*said: Any) -> str:
    check_deadline()
    return sha256(canonical(list(said))).hexdigest()
