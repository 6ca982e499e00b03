"""Edits of fields, on generated schemas and events, held against a plain reading of what each edit says."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import jsonschema_rs
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schema.field_edits import FIELD_TYPES, FieldEdits, NewField
from headrace.schema.lens.document import parse
from headrace.schema.lens.forward import forward
from headrace.schema.lens.ops import Lens
from headrace.schema.lens.proof import prove
from schema.lens.wire import through

Event = dict[str, Any]

NAMES = ["a", "b", "c", "d", "e~/f"]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.sampled_from(["", "x", "eu"]),
    "integer": st.integers(-5, 5),
    "number": st.sampled_from([1, 2.5, -1e9]),
    "boolean": st.booleans(),
    "array": st.just([]),
    "object": st.just({}),
    "date-time": st.sampled_from(["2026-11-19T20:00:00Z", "1999-12-31T23:59:59.5+01:00"]),
    "date": st.just("2026-11-19"),
}
ANYTHING = st.sampled_from([None, 7, "text", [1], {"a": 1}, True])


class Edit(NamedTuple):
    """One edit: its kind, the names that lead to the field, and its operands."""

    kind: str
    path: tuple[str, ...]
    operand: Any = None
    default: Any = None

    def make(self, edits: FieldEdits) -> None:
        where = "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in self.path)
        if self.kind == "rename":
            edits.rename(where, self.operand)
        elif self.kind == "remove":
            edits.remove(where)
        elif self.kind == "convert":
            edits.convert(where, self.operand)
        elif self.default is None:
            edits.add(NewField(where, FIELD_TYPES[self.operand]))
        else:
            edits.add(NewField(where, FIELD_TYPES[self.operand], self.default))
            edits.require(where)

    def expect(self, event: Event) -> None:
        """Change an event as the edit says."""
        parent, name = event, self.path[-1]
        for step in self.path[:-1]:
            if step not in parent:
                return
            parent = parent[step]
        if self.kind == "rename":
            moved = {self.operand: parent.pop(name)} if name in parent else {}
            parent.pop(self.operand, None)
            parent.update(moved)
        elif self.kind == "remove" or (self.kind == "add" and self.default is None):
            parent.pop(name, None)
        elif self.kind == "add":
            parent[name] = self.default
        elif name in parent and self.operand == "string":
            parent[name] = str(parent[name])


class Case(NamedTuple):
    """A schema, events that fit it, and edits that can be made of it."""

    schema: dict[str, Any]
    events: list[Event]
    edits: list[Edit]


@st.composite
def object_schemas(draw: st.DrawFn, depth: int = 1) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=4))
    properties: dict[str, Any] = {name: FIELD_TYPES[draw(st.sampled_from(sorted(FIELD_TYPES)))] for name in names}
    if depth:
        properties["user"] = draw(object_schemas(depth - 1))
    required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
    closed = {"additionalProperties": False} if draw(st.booleans()) else {}
    return {"type": "object", "properties": properties, "required": required, **closed}


@st.composite
def fitting_events(draw: st.DrawFn, schema: dict[str, Any]) -> Event:
    event = {}
    for name, inner in schema["properties"].items():
        if name in schema["required"] or draw(st.booleans()):
            event[name] = draw(fitting_events(inner) if "properties" in inner else VALUES[_type_name(inner)])
    if schema.get("additionalProperties") is not False:
        others = draw(st.dictionaries(st.sampled_from([*NAMES, "g"]), ANYTHING, max_size=3))
        event.update({name: value for name, value in others.items() if name not in schema["properties"]})
    return event


@st.composite
def cases(draw: st.DrawFn) -> Case:
    schema = draw(object_schemas())
    events = draw(st.lists(fitting_events(schema), min_size=1, max_size=4))
    fields = {(name,): inner for name, inner in schema["properties"].items()}
    fields |= {("user", name): inner for name, inner in schema["properties"]["user"]["properties"].items()}
    edits = []
    for _ in range(draw(st.integers(1, 3))):
        edit = draw(possible_edits(fields))
        inner = fields.get(edit.path)
        if edit.kind in ("rename", "remove"):
            del fields[edit.path]
        if edit.kind == "rename":
            fields[(*edit.path[:-1], edit.operand)] = inner
        elif edit.kind != "remove":
            fields[edit.path] = FIELD_TYPES[edit.operand]
        edits.append(edit)
    return Case(schema, events, edits)


@st.composite
def possible_edits(draw: st.DrawFn, fields: dict[tuple[str, ...], Any]) -> Edit:
    parents = [(), ("user",)]
    leaves = [path for path in fields if path != ("user",)]
    kind = draw(st.sampled_from(["rename", "remove", "convert", "add"]))
    integers = [path for path in leaves if fields[path].get("type") == "integer"]
    if kind == "convert" and integers:
        return Edit("convert", draw(st.sampled_from(integers)), draw(st.sampled_from(["string", "number"])))
    if kind == "remove" and leaves:
        return Edit("remove", draw(st.sampled_from(leaves)))
    if kind == "rename" and leaves:
        path = draw(st.sampled_from(leaves))
        free = [name for name in [*NAMES, "g"] if (*path[:-1], name) not in fields]
        return Edit("rename", path, draw(st.sampled_from(free)).replace("/", "")) if free else Edit("remove", path)
    free_paths = [(*parent, name) for parent in parents for name in [*NAMES, "g"] if (*parent, name) not in fields]
    type_name = draw(st.sampled_from(sorted(FIELD_TYPES)))
    default = draw(st.none() | VALUES[type_name])
    return Edit("add", draw(st.sampled_from(free_paths)), type_name, default)


def _type_name(schema: dict[str, Any]) -> str:
    return next(name for name, described in FIELD_TYPES.items() if described == schema)


def _judge(schema: Any) -> Callable[[Any], bool]:
    return jsonschema_rs.validator_for(schema, validate_formats=True).is_valid


@settings(max_examples=500)
@given(cases())
def test_edits_are_proven_and_change_events_as_they_say(case: Case) -> None:
    edits = FieldEdits(case.schema)
    for edit in case.edits:
        edit.make(edits)
    assert jsonschema_rs.validator_for(case.schema, validate_formats=True).is_valid(case.events[0])
    fits = jsonschema_rs.validator_for(edits.schema, validate_formats=True)
    document = edits.lens("s", 1)
    lens = None if document is None else parse(document)
    ops = lens.ops if isinstance(lens, Lens) else ()
    assert not isinstance(lens, list)
    assert prove(case.schema, edits.schema, ops, _judge).problems == []
    for event in case.events:
        expected = copy.deepcopy(event)
        for edit in case.edits:
            edit.expect(expected)
        carried = json.loads(through(forward(ops), json.dumps(event).encode()))
        assert carried == expected
        assert fits.is_valid(carried)
