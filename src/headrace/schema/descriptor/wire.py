"""Write nodes as descriptors, in the documented form; defaults are left out."""

from __future__ import annotations

from typing import Any

from headrace.operators.catalogue import DECLARATIONS
from headrace.schema.descriptor import values
from headrace.schema.descriptor.nodes import Derivation, Event, EventField, Feature, Node, RowOp

_MEMBERS = {
    "filter": "expr",
    "select": "fields",
    "drop": "fields",
    "rename": "mapping",
    "with_columns": "exprs",
    "cast": "type_map",
    "fillna": "defaults",
}


def write(node: Node) -> dict[str, Any]:
    """The descriptor of a node."""
    if isinstance(node, Event):
        return _write_event(node)
    derived: dict[str, Any] = {"kind": "derivation", "name": node.name, "upstreams": [node.upstream]}
    if isinstance(node, Derivation):
        return {**derived, "output_kind": "event", "ops": [write_op(op) for op in node.ops]}
    return {
        **derived,
        "kind": "table",
        "key": list(node.key),
        "agg": {name: write_feature(feature) for name, feature in node.features.items()},
        **({"ops": [write_op(op) for op in node.ops]} if node.ops else {}),
    }


def _write_event(node: Event) -> dict[str, Any]:
    document: dict[str, Any] = {"kind": "event", "name": node.name}
    document["schema"] = {name: write_field(field) for name, field in node.schema.items()}
    for name in ("keep_events_for", "cold_after", "dedupe_window"):
        millis = getattr(node, f"{name}_ms")
        if millis is not None:
            document[name] = values.format_duration_ms(millis)
    if node.dedupe_key is not None:
        document["dedupe_key"] = node.dedupe_key
    return document


def write_field(field: EventField) -> str | dict[str, Any]:
    """The name of its type, or an object where it has more than a type."""
    if field.required and field.default is None:
        return field.type
    default = {} if field.default is None else {"default": field.default}
    return {"type": field.type, "required": field.required, **default}


def write_op(op: RowOp) -> dict[str, Any]:
    """A step."""
    member = _MEMBERS[op.op]
    value = getattr(op, member)
    return {"op": op.op, member: list(value) if member == "fields" else value}


def write_feature(feature: Feature) -> dict[str, Any]:
    """An operator, and the parameters that are not its defaults."""
    parameters = DECLARATIONS[feature.op].params
    params = {
        name: values.format_duration_ms(value) if parameters[name].kind == "duration" else value
        for name, value in feature.params.items()
        if value != parameters[name].default
    }
    return {"op": feature.op, "params": params}
