"""Inferred schemas: every row is admitted, no type is wider than the rows need, and cuts make no difference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb
import jsonschema_rs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.importer.facts import FieldFacts, read_facts
from headrace.client.importer.proposal import json_schema, propose
from headrace.query import search_document

NAMES = st.sampled_from(["a", "b", "a b", "c/d", "~", 'q"', "k'", "é"])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=8)
    | st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01 00:00", "2026-01-01", "2026-13-01"])
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=8
)
ROWS = st.lists(st.dictionaries(NAMES, VALUES, max_size=5), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connected:
        yield connected


def facts_of(connection: duckdb.DuckDBPyConnection, rows: list[Any]) -> FieldFacts:
    return read_facts(connection, pa.array([json.dumps(row) for row in rows], pa.string()))


def json_type(value: Any) -> str:
    """The JSON type of a value as it is spelled."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    return "null" if value is None else names[type(value)]


def expected_types(values: list[Any]) -> set[str]:
    """The oracle: the types of some values, where a number may be whole."""
    types = {json_type(value) for value in values}
    return types - {"integer"} if "number" in types else types


def check_narrow(schema: dict[str, Any], values: list[Any]) -> None:
    """Every type, member and element that a schema allows is there in some value."""
    allowed = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    assert set(allowed) == expected_types(values)
    objects = [value for value in values if isinstance(value, dict)]
    if objects:
        names = {name for value in objects for name in value}
        assert set(schema["properties"]) == names
        assert schema["additionalProperties"] is False
        always = {name for name in names if all(name in value for value in objects)}
        assert set(schema.get("required", [])) == always
        for name, member in schema["properties"].items():
            check_narrow(member, [value[name] for value in objects if name in value])
    elements = [element for value in values if isinstance(value, list) for element in value]
    if elements:
        check_narrow(schema["items"], elements)
    elif "array" in allowed:
        assert schema["maxItems"] == 0


@given(rows=ROWS)
def test_the_schema_admits_every_row_and_is_no_wider(connection: duckdb.DuckDBPyConnection, rows: list[Any]) -> None:
    schema = json_schema(facts_of(connection, rows))
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    for row in rows:
        validator.validate(row)
    check_narrow(schema, rows)


@given(rows=ROWS, cut=st.integers(0, 6))
def test_facts_of_two_parts_merge_to_those_of_the_whole(
    connection: duckdb.DuckDBPyConnection, rows: list[Any], cut: int
) -> None:
    left, right = (facts_of(connection, part) if part else FieldFacts() for part in (rows[:cut], rows[cut:]))
    merged, whole = json_schema(left.merge(right)), json_schema(facts_of(connection, rows))
    assert normalized(merged) == normalized(whole)


def normalized(schema: Any) -> Any:
    """A schema whose lists do not depend on the order in which members were seen."""
    if isinstance(schema, dict):
        return {name: normalized(value) for name, value in schema.items()}
    return sorted(schema) if isinstance(schema, list) else schema


@given(rows=ROWS)
def test_the_search_document_is_one_that_the_server_takes(
    connection: duckdb.DuckDBPyConnection, rows: list[Any]
) -> None:
    proposal = propose(facts_of(connection, rows))
    if proposal.search is not None:
        parsed = search_document.parse_search_document(proposal.search, current_version=1)
        assert not isinstance(parsed, list), parsed
