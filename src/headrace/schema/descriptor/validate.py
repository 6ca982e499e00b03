"""The stages that need all nodes: order, then each descriptor, then types; the first that finds anything says all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from headrace.deadline import check_deadline
from headrace.schema.descriptor.check import is_name
from headrace.schema.descriptor.nodes import Event, Feature, Node, RowOp, Table, Type
from headrace.schema.descriptor.operators import OPERATORS
from headrace.schema.descriptor.order import InvalidNode, find_order_problems, sort_nodes, upstream
from headrace.schema.descriptor.problem import DescriptorLocation, DescriptorProblem, NodeProblem, join_path
from headrace.schema.descriptor.values import UNFIT, coerce_value
from headrace.schema.expression import ExpressionError, parse
from headrace.schema.expression.type_check import TARGETS, castable, infer_type

Types: TypeAlias = dict[str, Type]

#: How many nodes a node may be away from its source.
FARTHEST = 64


def check_types(nodes: Mapping[str, Node]) -> list[NodeProblem]:
    """All that does not fit, node by node, upstreams first; what follows from fields in doubt is not judged."""
    found: list[NodeProblem] = []
    known: dict[str, Types | None] = {}
    distance: dict[str, int] = {}
    for name in sort_nodes(nodes):
        check_deadline()
        node = nodes[name]
        problems: list[DescriptorProblem] = []
        distance[name] = 0 if isinstance(node, Event) else 1 + distance[node.upstream]
        if distance[name] == FARTHEST + 1:
            reason = f"this is more than {FARTHEST} nodes away from its source"
            DescriptorLocation("upstreams", problems).refuse("schema_propagation_failure", reason)
        known[name] = None if distance[name] > FARTHEST else _node(node, known, DescriptorLocation("", problems))
        found += [NodeProblem(name, problem.code, problem.path, problem.message) for problem in problems]
    return found


def types_after(ops: Iterable[RowOp], types: Mapping[str, Type]) -> Types:
    """The fields after steps that fit."""
    problems: list[DescriptorProblem] = []
    found = _through(ops, dict(types), DescriptorLocation("", problems))
    if found is None:
        raise ValueError(problems[0].message)
    return found


def _node(node: Node, known: Mapping[str, Types | None], place: DescriptorLocation) -> Types | None:
    if isinstance(node, Event):
        return {name: field.type for name, field in node.schema.items()}
    before = known[node.upstream]
    if before is None:
        return None
    types = _through(node.ops, dict(before), place.at("ops"))
    if isinstance(node, Table) and types is not None:
        _table(node, types, place)
    return types


def _through(ops: Iterable[RowOp], types: Types, place: DescriptorLocation) -> Types | None:
    """The fields after steps; None where it is in doubt which they are."""
    for number, op in enumerate(ops):
        check_deadline()
        here = place.at(number)
        before = len(place.problems)
        types = _STEPS[op.op](op, types, here)
        if not types:
            here.refuse("schema_propagation_failure", f"{op.op} leaves no field")
        if len(place.problems) > before and op.op != "filter":
            return None
    return types


def _expression(text: str, types: Mapping[str, Type], place: DescriptorLocation, *, wanted: str = "") -> Type | None:
    """The type of an expression; problems are noted."""
    check_deadline()
    try:
        expr = parse(text)
    except ExpressionError as error:
        at = f" (at character {error.position})" if error.position >= 0 else ""
        place.refuse("invalid_expression", f"{error.message}{at}")
        return None
    found, faults = infer_type(expr, types)
    for fault in faults:
        place.refuse(fault.code, fault.message)
    if not faults and wanted and found not in (wanted, None):
        place.refuse("schema_mismatch", f"this is {found}, and must be {wanted}")
    return None if found == "unknown" else found


def _filter(op: RowOp, types: Types, place: DescriptorLocation) -> Types:
    _expression(op.expr or "", types, place.at("expr"), wanted="bool")
    return types


def _select(op: RowOp, types: Types, place: DescriptorLocation) -> Types:
    _exist(op.fields, types, place.at("fields"))
    return {name: types[name] for name in op.fields if name in types}


def _exist(names: Iterable[str], types: Types, place: DescriptorLocation) -> None:
    for name in names:
        check_deadline()
        if name not in types:
            place.refuse("unknown_field_reference", f"there is no field {name!r} here; there are: {', '.join(types)}")


def _drop(op: RowOp, types: Types, place: DescriptorLocation) -> Types:
    return {name: kind for name, kind in types.items() if name not in op.fields}


def _rename(op: RowOp, types: Types, place: DescriptorLocation) -> Types:
    _exist(op.mapping, types, place.at("mapping"))
    staying = types.keys() - op.mapping.keys()
    for number, (name, new) in enumerate(op.mapping.items()):
        check_deadline()
        if new in staying or new in list(op.mapping.values())[:number]:
            place.at("mapping").at(name).refuse("schema_propagation_failure", f"there is a field {new!r} already")
    return {op.mapping.get(name, name): kind for name, kind in types.items()}


def _with_columns(op: RowOp, types: Types, place: DescriptorLocation) -> Types:
    """Columns are made in the order of their names, each from the row with those before it."""
    known = dict(types)
    for name in sorted(op.exprs):
        known[name] = _expression(op.exprs[name], known, place.at("exprs").at(name)) or "str"
    return known


def _cast(op: RowOp, types: Types, place: DescriptorLocation) -> Types:
    known = dict(types)
    for name, target in op.type_map.items():
        here = place.at("type_map").at(name)
        if name not in types:
            _exist([name], types, here)
        elif not castable(types[name], target):
            here.refuse("invalid_cast_target", f"{types[name]} cannot be taken as {target}")
        else:
            known[name] = TARGETS[target]
    return known


def _fillna(op: RowOp, types: Types, place: DescriptorLocation) -> Types:
    for name, value in op.defaults.items():
        here = place.at("defaults").at(name)
        if name not in types:
            _exist([name], types, here)
        elif coerce_value(value, types[name]) is UNFIT:
            here.refuse("schema_mismatch", f"{value!r} is no {types[name]}")
    return types


_STEPS = {
    "filter": _filter,
    "select": _select,
    "drop": _drop,
    "rename": _rename,
    "with_columns": _with_columns,
    "cast": _cast,
    "fillna": _fillna,
}


def _table(node: Table, types: Types, place: DescriptorLocation) -> None:
    for number, name in enumerate(node.key):
        here = place.at("key").at(number)
        if name not in types:
            here.refuse("table_key_invalid", f"there is no field {name!r} here; there are: {', '.join(types)}")
        elif types[name] == "f64":
            here.refuse("table_key_invalid", f"{name!r} is f64; numbers with fractions make no key")
    for name, feature in node.features.items():
        _feature(feature, types, place.at("agg").at(name).at("params"))


def _feature(feature: Feature, types: Types, place: DescriptorLocation) -> None:
    for key, parameter in OPERATORS[feature.op].params.items():
        if key not in feature.params:
            continue
        value, here = feature.params[key], place.at(key)
        if parameter.kind == "where":
            _expression(value, types, here, wanted="bool")
        elif parameter.kind == "field" and not is_name(value):
            here.refuse("schema_mismatch", f"{value!r} is no field; make a column of it with with_columns first")
        elif parameter.kind == "field" and value not in types:
            _exist([value], types, here)
        elif parameter.kind == "field" and types[value] not in parameter.types:
            wanted = " or ".join(parameter.types)
            here.refuse("schema_mismatch", f"{feature.op} takes {wanted}, and {value!r} is {types[value]}")
        elif parameter.kind == "categories" and feature.params.get("field") in types:
            _categories(value, types[feature.params["field"]], here)


def _categories(values: list[Any], kind: Type, place: DescriptorLocation) -> None:
    for number, value in enumerate(values):
        if coerce_value(value, kind) is UNFIT:
            place.at(number).refuse("schema_mismatch", f"{value!r} is no {kind}")


class NodeChain(NamedTuple):
    """The source of a node, the steps from it to the node in order, and the fields after them."""

    root: Event
    ops: tuple[RowOp, ...]
    types: dict[str, Type]


class ResolvedTable(NamedTuple):
    """A table with the source of its rows, the steps from it to the table in order, and the fields after them."""

    table: Table
    root: Event
    ops: tuple[RowOp, ...]
    types: dict[str, Type]
    key_types: tuple[Type, ...]


def resolve_chain(nodes: Mapping[str, Node], name: str) -> NodeChain:
    """Where the rows of a node come from; the nodes are valid."""
    node = nodes[name]
    steps: list[tuple[RowOp, ...]] = []
    while not isinstance(node, Event):
        steps.append(node.ops)
        node = nodes[node.upstream]
    ops = tuple(op for part in reversed(steps) for op in part)
    return NodeChain(node, ops, types_after(ops, {name: field.type for name, field in node.schema.items()}))


def resolve_table(nodes: Mapping[str, Node], table: str) -> ResolvedTable:
    """A table with all that it is made from; the nodes are valid."""
    node = nodes[table]
    if not isinstance(node, Table):
        raise TypeError(f"{table} is no table")
    root, ops, types = resolve_chain(nodes, table)
    return ResolvedTable(node, root, ops, types, tuple(types[name] for name in node.key))


_FIRST = "duplicate_name"


def validate(nodes: Mapping[str, Node], given: Mapping[str, Node]) -> list[DescriptorProblem]:
    """All problems of the first stage that finds any; ``given`` are the nodes of the payload, in its order.

    A node that is not given is named ``registry.<name>`` in paths.
    """
    repeated = [problem for problem in _noted(given) if problem.code == _FIRST]
    problems = [*repeated, *_placed(find_order_problems(nodes), given)]
    if not problems:
        problems = [*_noted(given), *_placed(_on_tables(nodes), given)]
    return problems or _placed(check_types(nodes), given)


def _noted(given: Mapping[str, Node]) -> list[DescriptorProblem]:
    return [problem for node in given.values() if isinstance(node, InvalidNode) for problem in node.problems]


def _placed(findings: Iterable[NodeProblem], given: Mapping[str, Node]) -> list[DescriptorProblem]:
    places = {name: f"descriptors[{number}]" for number, name in enumerate(given)}
    return [
        DescriptorProblem(code, join_path(places.get(name, f"registry.{name}"), rest), message)
        for name, code, rest, message in findings
    ]


def _on_tables(nodes: Mapping[str, Node]) -> Iterable[NodeProblem]:
    """Nodes that follow from a table."""
    for name, node in nodes.items():
        before = nodes.get(upstream(node) or "")
        if isinstance(before, Table) or (isinstance(before, InvalidNode) and before.of == "table"):
            reason = f"{before.name!r} is a table, and rows come from events and derivations"
            yield NodeProblem(name, "aggregation_on_table_not_supported", "upstreams", reason)
