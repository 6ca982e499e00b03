"""Edits of a schema by field: each one changes the schema, and adds the lens operation that older events need for it.

A field is the name of a member of the event, or a JSON Pointer.
"""

from __future__ import annotations

import copy
import json
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from headrace.errors import BadRequest
from headrace.schema import pointer
from headrace.schema.lens.document import API_VERSION
from headrace.schema.pointer import Pointer

#: Types by the names that fields are given on a command line; a question mark behind one allows null too.
FIELD_TYPES: dict[str, dict[str, Any]] = {
    **{name: {"type": name} for name in ("string", "integer", "number", "boolean", "object", "array")},
    "date-time": {"type": "string", "format": "date-time"},
    "date": {"type": "string", "format": "date"},
}
#: Keywords beside which the members of an object can be edited, because none of them may name one.
_EDITABLE_BESIDE = {
    *("$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "description", "default", "examples"),
    *("deprecated", "readOnly", "writeOnly", "type", "properties", "required", "additionalProperties"),
    *("minProperties", "maxProperties"),
}
_ANNOTATIONS = ("title", "description", "$comment", "deprecated", "readOnly", "writeOnly")
#: How values become ones of another type: the functions forward and backward; None where they stay as they are.
_CONVERSIONS: dict[tuple[str, str], tuple[str, str] | None] = {
    ("integer", "number"): None,
    ("integer", "string"): ("int_to_string", "string_to_int"),
    ("string", "integer"): ("string_to_int", "int_to_string"),
    ("integer", "date-time"): ("unix_millis_to_rfc3339", "rfc3339_to_unix_millis"),
    ("date-time", "integer"): ("rfc3339_to_unix_millis", "unix_millis_to_rfc3339"),
}


class NewField(NamedTuple):
    """A field to add: its schema, and what older events have there; UNSET for nothing."""

    name: str
    schema: dict[str, Any]
    default: Any = UNSET


class _Member(NamedTuple):
    """Where a field is declared: the object schema around it, and its name there."""

    parent: dict[str, Any]
    name: str
    #: Whether every event that fits the schema has the object around it.
    has_parent: bool

    @property
    def is_declared(self) -> bool:
        return self.name in self.parent.get("properties", {})

    @property
    def is_always_there(self) -> bool:
        return self.has_parent and self.parent.get("type") == "object" and self.name in self.parent.get("required", ())

    @property
    def is_open(self) -> bool:
        """Whether events may have it although it is not declared."""
        return self.parent.get("additionalProperties", True) is not False

    def declare(self, schema: Any) -> None:
        self.parent.setdefault("properties", {})[self.name] = schema

    def require(self) -> None:
        self.parent["required"] = [*self.parent.get("required", ()), self.name]

    def take(self) -> Any:
        """Remove it; returns its schema."""
        schema = self.parent["properties"].pop(self.name)
        required = [name for name in self.parent.get("required", ()) if name != self.name]
        if "required" in self.parent:
            self.parent["required"] = required
        return schema

    def rename(self, name: str) -> None:
        """Give it another name, at the same place among its siblings."""
        names = {self.name: name}
        properties = self.parent["properties"]
        self.parent["properties"] = {names.get(key, key): schema for key, schema in properties.items()}
        if "required" in self.parent:
            self.parent["required"] = [names.get(key, key) for key in self.parent["required"]]


class FieldEdits:
    """The next schema, and the operations of the lens that leads to it."""

    def __init__(self, schema: Any) -> None:
        self.schema: Any = {} if schema is True else copy.deepcopy(schema)
        self.ops: list[dict[str, Any]] = []
        #: Pointers at which older events may hold a value, undeclared, that the new version does not show.
        self.hidden: list[str] = []

    def lens(self, stream: str, version: int) -> dict[str, Any] | None:
        """The lens that leads from a version to the next; None where older events stay as they are."""
        if not self.ops:
            return None
        return {"apiVersion": API_VERSION, "schema": stream, "from": version, "to": version + 1, "ops": self.ops}

    def rename(self, field: str, to: str) -> None:
        """Move a field to another name; a pointer moves it elsewhere."""
        source = _read_field(field)
        target = _read_field(to) if to.startswith("/") else (*source[:-1], to)
        member = self._declared(source)
        other = self._undeclared(target)
        is_optional = not member.is_always_there
        self._clear(target, other, is_replaced=not is_optional)
        if source[:-1] == target[:-1]:
            member.rename(target[-1])
        else:
            is_required = member.name in member.parent.get("required", ())
            other.declare(member.take())
            if is_required:
                other.require()
        operation = {"op": "rename", "from": pointer.text(source), "to": pointer.text(target)}
        self.ops.append(operation | ({"optional": True} if is_optional else {}))

    def remove(self, field: str, default: str | None = None) -> None:
        """Take a field out of every event; readers of older versions get a default, a text, for those that come."""
        path = _read_field(field)
        member = self._declared(path)
        options = {} if member.is_always_there else {"optional": True}
        schema = member.take()
        options |= {} if default is None else {"default": read_default(default, schema, field)}
        self.ops.append({"op": "remove", "path": pointer.text(path), "schema": schema, **options})

    def convert(self, field: str, to: str) -> None:
        """Give a field another type, and its values with it."""
        path = _read_field(field)
        member = self._declared(path)
        before = member.parent["properties"][member.name]
        name = _name_type(before)
        wanted = _read_type(to, field)
        if to.endswith("?") and name == to[:-1]:
            steps = None
        elif (name, to) in _CONVERSIONS:
            steps = _CONVERSIONS[name, to]
        else:
            possible = ", ".join(f"{old} to {new}" for old, new in _CONVERSIONS)
            reason = f"{field} cannot become {to}: it is {_describe_type(before)}. Values are converted from {possible}"
            raise BadRequest(f"{reason}; other conversions need a lens of your own.", field=field)
        annotations = {key: before[key] for key in _ANNOTATIONS if key in before}
        is_optional = not member.is_always_there
        member.declare({**before, "type": wanted["type"]} if steps is None else {**annotations, **wanted})
        if steps is not None:
            from_type, to_type = FIELD_TYPES[name]["type"], wanted["type"]
            operation = {"op": "convert", "path": pointer.text(path), "fromType": from_type, "toType": to_type}
            functions = {"forward": {"builtin": steps[0]}, "backward": {"builtin": steps[1]}}
            self.ops.append({**operation, **functions, **({"optional": True} if is_optional else {})})

    def add(self, new: NewField) -> None:
        """Declare a field, which events may have; older events get its default."""
        path = _read_field(new.name)
        member = self._undeclared(path)
        if new.default is UNSET:
            self._clear(path, member, is_replaced=False)
        else:
            operation = {"op": "add", "path": pointer.text(path), "schema": new.schema, "default": new.default}
            options = {"overwrite": True} if member.is_open else {}
            options |= {} if member.has_parent else {"optional": True}
            self.ops.append({**operation, **options})
            self._clear(path, member, is_replaced=True)
        member.declare(new.schema)

    def require(self, field: str) -> None:
        """Demand a field of every event from now on."""
        member = self._declared(_read_field(field))
        if member.name not in member.parent.get("required", ()):
            member.require()

    def _clear(self, path: Pointer, member: _Member, *, is_replaced: bool) -> None:
        """Take away what older events may hold, undeclared, where a field is to be; a replaced value needs no step."""
        if not member.is_open:
            return
        where = pointer.text(path)
        self.hidden.append(where)
        if not is_replaced:
            self.ops.append({"op": "remove", "path": where, "schema": True, "optional": True})

    def _declared(self, path: Pointer) -> _Member:
        member = self._member(path)
        if not member.is_declared:
            names = ", ".join(member.parent.get("properties", ())) or "none"
            raise BadRequest(f"The schema has no field {pointer.text(path)}; there are: {names}.", field=path[-1])
        return member

    def _undeclared(self, path: Pointer) -> _Member:
        member = self._member(path)
        if member.is_declared:
            raise BadRequest(f"The schema has a field {pointer.text(path)} already.", field=path[-1])
        return member

    def _member(self, path: Pointer) -> _Member:
        """Where a field is declared, or can be."""
        node, has_parent = self.schema, True
        for number, name in enumerate(path):
            where = pointer.text(path[:number]) or "the event"
            if not isinstance(node, dict):
                raise BadRequest(f"The schema of {where} describes no fields.", field=path[-1])
            if "object" not in node.get("type", "object"):
                raise BadRequest(f"The schema of {where} is that of {_describe_type(node)}.", field=path[-1])
            if others := node.keys() - _EDITABLE_BESIDE:
                reason = f"The schema of {where} uses {', '.join(sorted(others))}, which may refer to its fields"
                raise BadRequest(f"{reason}: write the schema and the lens yourself.", field=path[-1])
            if number == len(path) - 1:
                return _Member(node, name, has_parent)
            if name not in node.get("properties", {}):
                raise BadRequest(f"The schema has no field {pointer.text(path[: number + 1])}.", field=path[-1])
            has_parent = has_parent and node.get("type") == "object" and name in node.get("required", ())
            node = node["properties"][name]
        raise BadRequest("Name a field: the whole event is none.", field="")


def read_new_field(text: str) -> NewField:
    """A field as ``NAME:TYPE`` or ``NAME:TYPE=DEFAULT``; the type is a name, or a JSON Schema."""
    name, colon, described = text.partition(":")
    if not (name and colon and described):
        raise BadRequest(f"{text!r} is no field: write NAME:TYPE or NAME:TYPE=DEFAULT.", field=name or text)
    if described.startswith("{"):
        schema, default = _read_json_schema(described, name)
    else:
        type_name, equals, default = described.partition("=")
        schema, default = _read_type(type_name, name), (default if equals else UNSET)
    return NewField(name, schema, default if default is UNSET else read_default(default, schema, name))


def read_default(text: str, schema: Any, field: str) -> Any:
    """A value of a field as text: a string is written as it is, anything else as JSON."""
    types = schema.get("type", []) if isinstance(schema, dict) else []
    types = [types] if isinstance(types, str) else types
    if "string" in types and not ("null" in types and text == "null"):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as reason:
        described = " or ".join(types) or "JSON value"
        raise BadRequest(f"The default {text!r} of {field} is no {described}.", field=field) from reason


def _read_json_schema(described: str, name: str) -> tuple[Any, Any]:
    try:
        schema, end = json.JSONDecoder().raw_decode(described)
    except (ValueError, RecursionError) as reason:
        raise BadRequest(f"The schema of {name} is not JSON: {reason}.", field=name) from reason
    rest = described[end:]
    if rest and not rest.startswith("="):
        raise BadRequest(f"{rest!r} follows the schema of {name}: write =DEFAULT there.", field=name)
    return schema, rest[1:] if rest else UNSET


def _read_type(text: str, field: str) -> dict[str, Any]:
    named = FIELD_TYPES.get(text.removesuffix("?"))
    if named is None:
        names = ", ".join(FIELD_TYPES)
        raise BadRequest(f"{field} has the type {text!r}, and types are: {names}; with ? also null.", field=field)
    return {**named, "type": [named["type"], "null"]} if text.endswith("?") else dict(named)


def _name_type(schema: Any) -> str:
    """The name of the type that a schema has; empty for none or several."""
    declared = schema.get("type") if isinstance(schema, dict) else None
    if not isinstance(declared, str):
        return ""
    return "date-time" if declared == "string" and schema.get("format") == "date-time" else declared


def _describe_type(schema: Any) -> str:
    declared = schema.get("type") if isinstance(schema, dict) else None
    return " or ".join(declared) if isinstance(declared, list) else _name_type(schema) or "of any type"


def _read_field(text: str) -> Pointer:
    names = pointer.parse(text) if text.startswith("/") else (text,)
    if not text or names is None:
        raise BadRequest(f"{text!r} is neither the name of a field nor a JSON Pointer.", field=text)
    return names
