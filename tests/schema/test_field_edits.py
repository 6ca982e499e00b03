"""Edits of fields: what they write, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import BadRequest
from headrace.schema.field_edits import FieldEdits, NewField, read_default, read_new_field

WORD, WHOLE = {"type": "string"}, {"type": "integer"}
OPEN = {"type": "object", "properties": {"id": WORD, "qty": WHOLE}, "required": ["id"]}
CLOSED = {**OPEN, "additionalProperties": False}


def test_rename_keeps_the_order_of_fields() -> None:
    edits = FieldEdits(CLOSED)
    edits.rename("id", "key")
    assert list(edits.schema["properties"]) == ["key", "qty"]
    assert edits.schema["required"] == ["key"]
    assert edits.ops == [{"op": "rename", "from": "/id", "to": "/key"}]
    assert list(CLOSED["properties"]) == ["id", "qty"]


def test_rename_of_a_field_that_may_be_missing_is_optional() -> None:
    edits = FieldEdits(CLOSED)
    edits.rename("qty", "quantity")
    assert edits.ops == [{"op": "rename", "from": "/qty", "to": "/quantity", "optional": True}]
    assert edits.hidden == []


def test_pointer_moves_a_field_into_an_object() -> None:
    edits = FieldEdits(CLOSED)
    edits.add(NewField("user", {"type": "object"}, {}))
    edits.rename("id", "/user/id")
    assert edits.schema["properties"]["user"] == {"type": "object", "properties": {"id": WORD}, "required": ["id"]}
    assert edits.schema["required"] == []


def test_field_that_older_events_may_have_undeclared_is_overwritten_and_named() -> None:
    edits = FieldEdits(OPEN)
    edits.add(read_new_field("region:string=eu"))
    edits.add(read_new_field("flag:boolean"))
    assert edits.ops == [
        {"op": "add", "path": "/region", "schema": WORD, "default": "eu", "overwrite": True},
        {"op": "remove", "path": "/flag", "schema": True, "optional": True},
    ]
    assert edits.hidden == ["/region", "/flag"]


def test_change_that_older_events_do_not_notice_has_no_lens() -> None:
    edits = FieldEdits(CLOSED)
    edits.add(read_new_field("note:string?"))
    edits.convert("qty", "number")
    assert edits.lens("s", 1) is None
    assert edits.schema["properties"]["note"] == {"type": ["string", "null"]}
    assert edits.schema["properties"]["qty"] == {"type": "number"}


@pytest.mark.parametrize("schema", [True, {}, {"type": "object"}])
def test_schema_without_fields_gets_one(schema: Any) -> None:
    edits = FieldEdits(schema)
    edits.add(read_new_field("a:string"))
    assert edits.schema["properties"] == {"a": WORD}


def test_removed_field_has_a_default_for_older_readers() -> None:
    edits = FieldEdits(CLOSED)
    edits.remove("qty", "3")
    assert edits.ops == [{"op": "remove", "path": "/qty", "schema": WHOLE, "optional": True, "default": 3}]


def test_conversion_keeps_the_description_and_drops_what_no_longer_applies() -> None:
    edits = FieldEdits({"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "title": "N"}}})
    edits.convert("n", "string")
    assert edits.schema["properties"]["n"] == {"title": "N", "type": "string"}
    (convert,) = edits.ops
    assert (convert["fromType"], convert["toType"], convert["optional"]) == ("integer", "string", True)


@pytest.mark.parametrize(
    ("text", "schema", "default"),
    [
        ("a:string=", WORD, ""),
        ("a:string=x=y:z", WORD, "x=y:z"),
        ("a:string=null", WORD, "null"),
        ("a:string?=null", {"type": ["string", "null"]}, None),
        ("a:integer=-7", WHOLE, -7),
        ("a:number=2.50", {"type": "number"}, 2.5),
        ("a:boolean=true", {"type": "boolean"}, True),
        ("a:array=[]", {"type": "array"}, []),
        ('a:{"enum": ["x=", 1]}="x="', {"enum": ["x=", 1]}, "x="),
        ("a:date-time=2026-11-19T20:00:00Z", {**WORD, "format": "date-time"}, "2026-11-19T20:00:00Z"),
    ],
)
def test_field_is_read_with_its_default(text: str, schema: Any, default: Any) -> None:
    assert read_new_field(text) == NewField("a", schema, default)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a", "NAME:TYPE"),
        (":string", "NAME:TYPE"),
        ("a:", "NAME:TYPE"),
        ("a:strnig", "has the type 'strnig', and types are: string, integer"),
        ("a:integer=x", "The default 'x' of a is no integer."),
        ("a:{oops", "is not JSON"),
        ('a:{"type": "string"}x', "write =DEFAULT there"),
    ],
)
def test_field_that_cannot_be_read_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        read_new_field(text)
    assert reason in refusal.value.message


def test_default_of_any_type_is_json() -> None:
    assert read_default("[1]", True, "a") == [1]


@pytest.mark.parametrize(
    ("schema", "edit", "reason"),
    [
        (OPEN, ("rename", "nope", "x"), "The schema has no field /nope; there are: id, qty."),
        (OPEN, ("rename", "id", "qty"), "The schema has a field /qty already."),
        (OPEN, ("rename", "id", "id"), "The schema has a field /id already."),
        (OPEN, ("remove", ""), "neither the name of a field nor a JSON Pointer"),
        (OPEN, ("remove", "/~2"), "neither the name of a field nor a JSON Pointer"),
        (OPEN, ("require", "nope"), "no field /nope"),
        (OPEN, ("remove", "/id/x"), "The schema of /id is that of string."),
        (OPEN, ("remove", "/user/x"), "The schema has no field /user."),
        (OPEN, ("convert", "id", "boolean"), "id cannot become boolean: it is string"),
        (OPEN, ("convert", "id", "strnig"), "has the type 'strnig'"),
        ({**OPEN, "allOf": []}, ("remove", "id"), "uses allOf, which may refer to its fields"),
        (False, ("remove", "id"), "describes no fields"),
        ({"type": "array"}, ("remove", "id"), "The schema of the event is that of array."),
    ],
)
def test_edit_that_cannot_be_made_is_refused(schema: Any, edit: tuple[str, ...], reason: str) -> None:
    kind, *operands = edit
    with pytest.raises(BadRequest) as refusal:
        getattr(FieldEdits(schema), kind)(*operands)
    assert reason in refusal.value.message
