"""Generate documents from nodes: descriptors for clients, and the schema, search configuration and lens of a source.

A source determines a JSON Schema, a search configuration, and the lens from one form of it to the next. Fields with a
default are filled in before an event is stored, so a required one is there in every event. An optional field may be
left out or null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from headrace.operators.catalogue import DECLARATIONS
from headrace.schema.descriptor.nodes import (
    BASE64,
    GREATEST,
    LEAST,
    Derivation,
    Event,
    EventField,
    Feature,
    Node,
    RowOp,
    Type,
    format_duration_ms,
)
from headrace.schema.lens import document
from headrace.schema.lens.ops import Add, Lens, Remove, Rename

_MEMBERS = {
    "filter": "expr",
    "select": "fields",
    "drop": "fields",
    "rename": "mapping",
    "with_columns": "exprs",
    "cast": "type_map",
    "fillna": "defaults",
}


def write_node(node: Node) -> dict[str, Any]:
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
    for name in ("keep_events_for", "cold_after", "dedupe_window", "late_after"):
        millis = getattr(node, f"{name}_ms")
        if millis is not None:
            document[name] = format_duration_ms(millis)
    for name in ("dedupe_key", "timestamp_field", "timestamp_unit", "stream"):
        if (value := getattr(node, name)) is not None:
            document[name] = value
    return document


def write_field(field: EventField) -> str | dict[str, Any]:
    """The descriptor of a field: the name of its type, or an object where it has more members than the type."""
    if field.required and field.default is None and field.pointer is None:
        return field.type
    default = {} if field.default is None else {"default": field.default}
    pointer = {} if field.pointer is None else {"pointer": field.pointer}
    return {"type": field.type, "required": field.required, **default, **pointer}


def write_op(op: RowOp) -> dict[str, Any]:
    """The descriptor of a step."""
    member = _MEMBERS[op.op]
    value = getattr(op, member)
    return {"op": op.op, member: list(value) if member == "fields" else value}


def write_feature(feature: Feature) -> dict[str, Any]:
    """The descriptor of a feature: its operator, and the parameters that differ from the defaults."""
    parameters = DECLARATIONS[feature.op].params
    params = {
        name: format_duration_ms(value) if parameters[name].kind == "duration" else value
        for name, value in feature.params.items()
        if value != parameters[name].default
    }
    return {"op": feature.op, "params": params}


_MAX_DOUBLE = 1.7976931348623157e308

_SCHEMAS: dict[Type, dict[str, Any]] = {
    "str": {"type": "string"},
    "f64": {"type": "number", "minimum": -_MAX_DOUBLE, "maximum": _MAX_DOUBLE},
    "i64": {"type": "integer", "minimum": LEAST, "maximum": GREATEST},
    "bool": {"type": "boolean"},
    "bytes": {"type": "string", "contentEncoding": "base64", "pattern": BASE64},
    "datetime": {"type": "string", "format": "date-time"},
}

_SEARCH_OPTIONS: dict[Type, dict[str, Any]] = {
    "str": {"kind": "keyword", "exact": True, "prefix": True, "sortable": True},
    "f64": {"kind": "float", "exact": True, "column": True, "sortable": True, "aggregatable": True},
    "i64": {"kind": "integer", "exact": True, "column": True, "sortable": True, "aggregatable": True},
    "bool": {"kind": "bool", "exact": True},
    "datetime": {"kind": "date", "exact": True, "column": True, "sortable": True},
}
#: Names that a query can spell.
_SEARCHABLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{0,63}")
#: No event has a field of this name, so a source without moments is searched in the order of its offsets.
_NO_MOMENT = "event_time"


def json_schema(event: Event) -> dict[str, Any]:
    """The JSON Schema of the events of a source, without other members."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {name: _property_schema(field) for name, field in event.schema.items()},
        "required": [name for name, field in event.schema.items() if field.required],
        "additionalProperties": False,
    }


def _property_schema(field: EventField) -> dict[str, Any]:
    schema = _SCHEMAS[field.type]
    property_schema = schema if field.required else {**schema, "type": [schema["type"], "null"]}
    return property_schema if field.default is None else {**property_schema, "default": field.default}


def make_search_config(event: Event, version: int) -> dict[str, Any]:
    """The search configuration of a source from a schema version on; fields get every index that their type allows."""
    types = {
        name: field.type
        for name, field in event.schema.items()
        if field.type in _SEARCH_OPTIONS and _SEARCHABLE_NAME.fullmatch(name) is not None
    }
    moment = next((name for name, type in types.items() if type == "datetime"), _NO_MOMENT)
    types.setdefault(moment, "datetime")
    bound = {name: [{"version": version, "jsonPointer": f"/{name}"}] for name in types}
    return {
        "primaryTimestampField": moment,
        "defaultFields": [{"field": name} for name, type in types.items() if type == "str"],
        "fields": {
            name: {**_SEARCH_OPTIONS[type], "exists": True, "bindings": bound[name]} for name, type in types.items()
        },
    }


def make_lens(old: Event, new: Event) -> dict[str, Any] | None:
    """The document of the lens from the first version of a source to the second; None where no lens is sound.

    It leads from version 1 to version 2; a caller whose versions have other numbers sets ``from`` and ``to``.
    """
    names = find_renamed_fields(old.schema, new.schema)
    gone = [name for name in old.schema if name not in new.schema and name not in names]
    if not all(_still_fits(field, new.schema[name]) for name, field in old.schema.items() if name in new.schema):
        return None
    added = {name: field for name, field in new.schema.items() if name not in {*old.schema, *names.values()}}
    if any(field.required and field.default is None for field in added.values()):
        return None
    ops = (
        *(Rename(source=(name,), target=(to,), optional=not old.schema[name].required) for name, to in names.items()),
        *(_remove_op(name, old.schema[name]) for name in gone),
        *(
            Add(path=(name,), schema=_property_schema(field), default=field.default)
            for name, field in added.items()
            if field.default is not None
        ),
    )
    return document.dump(Lens(schema=f"events/{new.name}", source=1, target=2, ops=ops))


def _remove_op(name: str, field: EventField) -> Remove:
    default = UNSET if field.default is None else field.default
    return Remove(path=(name,), schema=_property_schema(field), default=default, optional=not field.required)


def find_renamed_fields(old: Mapping[str, EventField], new: Mapping[str, EventField]) -> dict[str, str]:
    """The renamed fields, old to new: a type with exactly one removed and exactly one added field."""
    renamed = {}
    for kind in sorted({(field.type, field.required) for field in old.values()}):
        gone, fresh = (
            [name for name, field in some.items() if name not in other and (field.type, field.required) == kind]
            for some, other in ((old, new), (new, old))
        )
        if len(gone) == len(fresh) == 1:
            renamed[gone[0]] = fresh[0]
    return renamed


def widens(old: Type, new: Type) -> bool:
    """Whether every value of the first type is a value of the second."""
    return old == new or (old, new) == ("i64", "f64")


def _still_fits(old: EventField, new: EventField) -> bool:
    """Whether every value, or absence, that the old field allowed is still allowed."""
    return widens(old.type, new.type) and (old.required or not new.required)
