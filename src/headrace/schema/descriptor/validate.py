"""The checks that need all nodes: order, then each descriptor, then types; only the first failing one reports."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from headrace.deadline import check_deadline
from headrace.operators.catalogue import DECLARATIONS
from headrace.schema.descriptor.check import is_name
from headrace.schema.descriptor.nodes import UNFIT, Derivation, Event, Feature, Node, RowOp, Table, Type, coerce_value
from headrace.schema.descriptor.structure import ParsedDescriptor
from headrace.schema.expression import ExpressionError, parse
from headrace.schema.expression.type_check import TARGETS, castable, infer_type
from headrace.schema.problem import DottedLocation, RequestProblem, join_path


class NodeProblem(NamedTuple):
    """A problem of a node, before the path of the node in the payload is known."""

    node: str
    code: str
    rest: str
    message: str


class InvalidNode(Derivation, frozen=True, tag="unfit", tag_field="kind"):
    """A placeholder for a node whose descriptor has problems; the placeholder of a source is its own upstream."""

    of: Literal["event", "derivation", "table"] = "event"
    problems: tuple[RequestProblem, ...] = ()


def make_invalid_node(shape: ParsedDescriptor, problems: tuple[RequestProblem, ...]) -> InvalidNode:
    """Return the placeholder for the node of a descriptor with problems."""
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
    """Missing upstreams and cycles, each reported at the first node of the payload from which it is reached."""
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
    """All direct and indirect descendants of some nodes, in the order of ``nodes``."""
    reached = set(names)
    while True:
        check_deadline()
        more = {name for name, node in nodes.items() if name not in reached and upstream(node) in reached}
        if not more:
            return [name for name in nodes if name in reached and name not in names]
        reached |= more


Types: TypeAlias = dict[str, Type]

#: How many nodes a node may be away from its source.
MAX_DISTANCE = 64


def check_types(nodes: Mapping[str, Node]) -> list[NodeProblem]:
    """All type problems, node by node, upstreams first; what depends on unknown fields is not checked."""
    node_problems: list[NodeProblem] = []
    types_by_node: dict[str, Types | None] = {}
    by_event_time: dict[str, bool] = {}
    distance: dict[str, int] = {}
    for name in sort_nodes(nodes):
        check_deadline()
        node = nodes[name]
        problems: list[RequestProblem] = []
        distance[name] = 0 if isinstance(node, Event) else 1 + distance[node.upstream]
        if distance[name] == MAX_DISTANCE + 1:
            reason = f"this is more than {MAX_DISTANCE} nodes away from its source"
            DottedLocation("upstreams", problems).refuse("schema_propagation_failure", reason)
        types_by_node[name] = (
            None if distance[name] > MAX_DISTANCE else _node_types(node, types_by_node, DottedLocation("", problems))
        )
        by_event_time[name] = (
            node.timestamp_field is not None if isinstance(node, Event) else by_event_time[node.upstream]
        )
        if isinstance(node, Table) and by_event_time[name]:
            _check_order(node, DottedLocation("agg", problems))
        node_problems += [NodeProblem(name, problem.code, problem.path, problem.message) for problem in problems]
    return node_problems


def types_after(ops: Iterable[RowOp], types: Mapping[str, Type]) -> Types:
    """The fields after valid steps; ValueError for others."""
    problems: list[RequestProblem] = []
    final_types = _apply_ops(ops, dict(types), DottedLocation("", problems))
    if final_types is None:
        raise ValueError(problems[0].message)
    return final_types


def _node_types(node: Node, types_by_node: Mapping[str, Types | None], location: DottedLocation) -> Types | None:
    if isinstance(node, Event):
        return {name: field.type for name, field in node.schema.items()}
    before = types_by_node[node.upstream]
    if before is None:
        return None
    types = _apply_ops(node.ops, dict(before), location.at("ops"))
    if isinstance(node, Table) and types is not None:
        _check_table(node, types, location)
    return types


def _apply_ops(ops: Iterable[RowOp], types: Types, location: DottedLocation) -> Types | None:
    """The fields after steps; None where problems leave them unknown."""
    for number, op in enumerate(ops):
        check_deadline()
        here = location.at(number)
        before = len(location.problems)
        types = _STEPS[op.op](op, types, here)
        if not types:
            here.refuse("schema_propagation_failure", f"{op.op} leaves no field")
        if len(location.problems) > before and op.op != "filter":
            return None
    return types


def _expression_type(
    text: str, types: Mapping[str, Type], location: DottedLocation, *, wanted: str = ""
) -> Type | None:
    """The type of an expression; records its problems."""
    check_deadline()
    try:
        expr = parse(text)
    except ExpressionError as error:
        at = f" (at character {error.position})" if error.position >= 0 else ""
        location.refuse("invalid_expression", f"{error.message}{at}")
        return None
    inferred, faults = infer_type(expr, types)
    for fault in faults:
        location.refuse(fault.code, fault.message)
    if not faults and wanted and inferred not in (wanted, None):
        location.refuse("schema_mismatch", f"this is {inferred}, and must be {wanted}")
    return None if inferred == "unknown" else inferred


def _apply_filter(op: RowOp, types: Types, location: DottedLocation) -> Types:
    _expression_type(op.expr or "", types, location.at("expr"), wanted="bool")
    return types


def _apply_select(op: RowOp, types: Types, location: DottedLocation) -> Types:
    _check_fields_exist(op.fields, types, location.at("fields"))
    return {name: types[name] for name in op.fields if name in types}


def _check_fields_exist(names: Iterable[str], types: Types, location: DottedLocation) -> None:
    for name in names:
        check_deadline()
        if name not in types:
            location.refuse(
                "unknown_field_reference", f"there is no field {name!r} here; there are: {', '.join(types)}"
            )


def _apply_drop(op: RowOp, types: Types, location: DottedLocation) -> Types:
    return {name: kind for name, kind in types.items() if name not in op.fields}


def _apply_rename(op: RowOp, types: Types, location: DottedLocation) -> Types:
    _check_fields_exist(op.mapping, types, location.at("mapping"))
    staying = types.keys() - op.mapping.keys()
    for number, (name, new) in enumerate(op.mapping.items()):
        check_deadline()
        if new in staying or new in list(op.mapping.values())[:number]:
            location.at("mapping").at(name).refuse("schema_propagation_failure", f"there is a field {new!r} already")
    return {op.mapping.get(name, name): kind for name, kind in types.items()}


def _apply_with_columns(op: RowOp, types: Types, location: DottedLocation) -> Types:
    """Columns are made in the order of their names, each from the row with those before it."""
    column_types = dict(types)
    for name in sorted(op.exprs):
        column_types[name] = _expression_type(op.exprs[name], column_types, location.at("exprs").at(name)) or "str"
    return column_types


def _apply_cast(op: RowOp, types: Types, location: DottedLocation) -> Types:
    column_types = dict(types)
    for name, target in op.type_map.items():
        here = location.at("type_map").at(name)
        if name not in types:
            _check_fields_exist([name], types, here)
        elif not castable(types[name], target):
            here.refuse("invalid_cast_target", f"{types[name]} cannot be taken as {target}")
        else:
            column_types[name] = TARGETS[target]
    return column_types


def _apply_fillna(op: RowOp, types: Types, location: DottedLocation) -> Types:
    for name, value in op.defaults.items():
        here = location.at("defaults").at(name)
        if name not in types:
            _check_fields_exist([name], types, here)
        elif coerce_value(value, types[name]) is UNFIT:
            here.refuse("schema_mismatch", f"{value!r} is no {types[name]}")
    return types


_STEPS = {
    "filter": _apply_filter,
    "select": _apply_select,
    "drop": _apply_drop,
    "rename": _apply_rename,
    "with_columns": _apply_with_columns,
    "cast": _apply_cast,
    "fillna": _apply_fillna,
}


def _check_table(node: Table, types: Types, location: DottedLocation) -> None:
    for number, name in enumerate(node.key):
        here = location.at("key").at(number)
        if name not in types:
            here.refuse("table_key_invalid", f"there is no field {name!r} here; there are: {', '.join(types)}")
        elif types[name] == "f64":
            here.refuse("table_key_invalid", f"{name!r} is f64; numbers with fractions make no key")
    for name, feature in node.features.items():
        _check_feature(feature, types, location.at("agg").at(name).at("params"))


def _check_order(table: Table, location: DottedLocation) -> None:
    """Refuse operators that need the order of the log, over a source whose events have a time of their own."""
    for name, feature in table.features.items():
        if reason := DECLARATIONS[feature.op].needs_log:
            message = (
                f"{feature.op} needs events in the order of the log, and its source has a timestamp_field: {reason}"
            )
            location.at(name).at("op").refuse("operator_needs_log", message)


def _check_feature(feature: Feature, types: Types, location: DottedLocation) -> None:
    for key, parameter in DECLARATIONS[feature.op].params.items():
        if key not in feature.params:
            continue
        value, here = feature.params[key], location.at(key)
        if parameter.kind == "where":
            _expression_type(value, types, here, wanted="bool")
        elif parameter.kind == "field" and not is_name(value):
            here.refuse("schema_mismatch", f"{value!r} is no field; make a column of it with with_columns first")
        elif parameter.kind == "field" and value not in types:
            _check_fields_exist([value], types, here)
        elif parameter.kind == "field" and types[value] not in parameter.types:
            wanted = " or ".join(parameter.types)
            here.refuse("schema_mismatch", f"{feature.op} takes {wanted}, and {value!r} is {types[value]}")
        elif parameter.kind == "categories" and feature.params.get("field") in types:
            _check_categories(value, types[feature.params["field"]], here)


def _check_categories(values: list[Any], kind: Type, location: DottedLocation) -> None:
    for number, value in enumerate(values):
        if coerce_value(value, kind) is UNFIT:
            location.at(number).refuse("schema_mismatch", f"{value!r} is no {kind}")


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
    """Resolve a node to its source and steps; the nodes must be valid."""
    node = nodes[name]
    steps: list[tuple[RowOp, ...]] = []
    while not isinstance(node, Event):
        steps.append(node.ops)
        node = nodes[node.upstream]
    ops = tuple(op for part in reversed(steps) for op in part)
    return NodeChain(node, ops, types_after(ops, {name: field.type for name, field in node.schema.items()}))


def resolve_table(nodes: Mapping[str, Node], table: str) -> ResolvedTable:
    """Resolve a table to its source and steps; the nodes must be valid."""
    node = nodes[table]
    if not isinstance(node, Table):
        raise TypeError(f"{table} is no table")
    root, ops, types = resolve_chain(nodes, table)
    return ResolvedTable(node, root, ops, types, tuple(types[name] for name in node.key))


_FIRST = "duplicate_name"


def validate(nodes: Mapping[str, Node], payload_nodes: Mapping[str, Node]) -> list[RequestProblem]:
    """All problems of the first stage that finds any; ``payload_nodes`` are in the order of the payload.

    A node that is not in the payload is named ``registry.<name>`` in paths.
    """
    repeated = [problem for problem in _collect_problems(payload_nodes) if problem.code == _FIRST]
    problems = [*repeated, *_locate_problems(find_order_problems(nodes), payload_nodes)]
    if not problems:
        problems = [*_collect_problems(payload_nodes), *_locate_problems(_find_table_upstreams(nodes), payload_nodes)]
    return problems or _locate_problems(check_types(nodes), payload_nodes)


def _collect_problems(payload_nodes: Mapping[str, Node]) -> list[RequestProblem]:
    return [problem for node in payload_nodes.values() if isinstance(node, InvalidNode) for problem in node.problems]


def _locate_problems(findings: Iterable[NodeProblem], payload_nodes: Mapping[str, Node]) -> list[RequestProblem]:
    paths = {name: f"descriptors[{number}]" for number, name in enumerate(payload_nodes)}
    return [
        RequestProblem(code, join_path(paths.get(name, f"registry.{name}"), rest), message)
        for name, code, rest, message in findings
    ]


def _find_table_upstreams(nodes: Mapping[str, Node]) -> Iterable[NodeProblem]:
    """Report the nodes whose upstream is a table."""
    for name, node in nodes.items():
        before = nodes.get(upstream(node) or "")
        if isinstance(before, Table) or (isinstance(before, InvalidNode) and before.of == "table"):
            reason = f"{before.name!r} is a table, and rows come from events and derivations"
            yield NodeProblem(name, "aggregation_on_table_not_supported", "upstreams", reason)


def result_type(feature: Feature, types: Mapping[str, Type]) -> str:
    """The result type of a feature: that of a field, or a list, a map or a struct of such, as ``list<i64>``."""
    result = DECLARATIONS[feature.op].result
    return result.replace("field", types[feature.params["field"]]) if "field" in result else result


def inputs(feature: Feature) -> tuple[str, ...]:
    """The fields a feature takes values from, apart from its ``where``."""
    parameters = DECLARATIONS[feature.op].params
    return tuple(
        feature.params[name] for name, param in parameters.items() if param.kind == "field" and name in feature.params
    )
