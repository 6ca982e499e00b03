from __future__ import annotations

from typing import Any

import pytest

from headrace.schema.entity.accept import Splitter
from headrace.schema.entity.definition import MAX_ROWS, infer_schema


def types(*rows: dict[str, Any]) -> dict[str, str]:
    found = infer_schema("contact", rows)
    return {} if found is None else {name: field.type for name, field in found.schema_definition.fields.items()}


def test_each_field_has_the_type_of_its_values() -> None:
    row = {"s": "x", "n": 1, "d": "2026-01-31", "b": True, "a": [], "o": {}}
    assert types(row) == {"s": "string", "n": "number", "d": "date", "b": "boolean", "a": "array", "o": "object"}
    found = infer_schema("contact", [row])
    assert found is not None
    assert Splitter(found.schema_definition).split(row) == (row, ())
    assert found.schema_definition.identity_opt_out == "heuristic_canonical_name"
    assert not any(field.required for field in found.schema_definition.fields.values())


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["2026-01-31", "soon"], "string"),
        (["2026-01-31", "2026-01-31", 5], "date"),
        ([1, 2, "x"], "number"),
        ([1, "x"], "string"),
        ([None, 5], "number"),
    ],
)
def test_of_several_types_the_one_of_most_values_is_taken(values: list[Any], kind: str) -> None:
    assert types(*({"x": value} for value in values)) == {"x": kind}


def test_nothing_is_made_of_nothing() -> None:
    assert types() == types({}) == types({"x": None}) == types({"_meta": {}, "": 1}) == {}


def test_only_the_first_rows_are_looked_at() -> None:
    assert types(*[{"x": 1}] * MAX_ROWS, {"y": 1}) == {"x": "number"}
