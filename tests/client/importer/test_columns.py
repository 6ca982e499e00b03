"""Columns of texts: the narrowest kind that all values have, whatever the chunks, and JSON that loses nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.importer.columns import ColumnFacts, Kind, encode_rows
from headrace.client.importer.facts import FieldFacts, read_facts

NUMBERS = st.sampled_from(["0", "-1", "12", "1.50", "-0.5", "1e3", "99999999999999999999", "18446744073709551615"])
BOOLEANS = st.sampled_from(["true", "False", "TRUE"])
UTC_MOMENTS = st.sampled_from(["2026-01-01T00:00:00Z", "2026-12-31T23:59:59.123Z"])
MOMENTS = UTC_MOMENTS | st.sampled_from(
    ["2026-01-01 10:00", "2026-01-01t10:00:00.5+0100", "2026-01-01T10:00-05:30", "2026-02-28 00:00:00z"]
)
TEXTS = st.sampled_from(
    [
        "007",
        ".5",
        "1.",
        "+1",
        "NaN",
        "2026-01-01",
        "2026-02-30T00:00:00Z",
        'a "b"\\',
        "tab\tline\n",
        "\x01\x1f",
        "é🦆",
        "x",
    ]
) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
COLUMNS = st.one_of(
    st.lists(st.none() | values, max_size=12) for values in (NUMBERS, BOOLEANS, UTC_MOMENTS, MOMENTS, TEXTS)
) | st.lists(st.none() | NUMBERS | BOOLEANS | MOMENTS | TEXTS, max_size=6)
RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})")


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connected:
        yield connected


def read(connection: duckdb.DuckDBPyConnection, values: list[str | None], cut: int = 0) -> ColumnFacts:
    """The facts of a column that comes in two chunks."""
    facts = ColumnFacts()
    for part in (values[:cut], values[cut:]):
        facts.add(connection, pa.array(part, pa.string()))
    return facts


def parse_moment(text: str) -> datetime | None:
    """The oracle for moments: a date and a time, in UTC where there is no zone."""
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?([Zz]|[+-]\d{2}:?\d{2})?", text):
        return None
    try:
        moment = datetime.fromisoformat(text.upper().replace(" ", "T"))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def is_number(text: str) -> bool:
    """The oracle for numbers: what JSON takes for one."""
    try:
        return text == text.strip() and isinstance(json.loads(text, parse_constant=str), int | float) and text != "true"
    except ValueError:
        return False


def expected_kind(values: list[str]) -> Kind:
    if not values:
        return "null"
    if all(value.lower() in ("true", "false") for value in values):
        return "boolean"
    if all(is_number(value) and value not in ("true", "false") for value in values):
        return "number"
    return "moment" if all(parse_moment(value) for value in values) else "text"


@given(values=COLUMNS, cut=st.integers(0, 12))
def test_a_column_has_the_narrowest_kind_of_all_its_values(
    connection: duckdb.DuckDBPyConnection, values: list[str | None], cut: int
) -> None:
    facts = read(connection, values, cut)
    assert facts.kind == expected_kind([value for value in values if value is not None])
    assert (facts.rows, facts.count) == (len(values), len(values) - values.count(None))


@given(values=COLUMNS, cut=st.integers(0, 12))
def test_rows_are_json_that_loses_nothing(
    connection: duckdb.DuckDBPyConnection, values: list[str | None], cut: int
) -> None:
    facts, name = read(connection, values, cut), 'a "column"'
    rows = encode_rows(pa.record_batch({name: pa.array(values, pa.string())}), {name: facts})
    for text, value in zip(rows.to_pylist(), values, strict=True):
        [(key, decoded)] = json.loads(text, object_pairs_hook=list)
        assert key == name
        check_value(facts.kind, value, decoded, text)


def check_value(kind: Kind, value: str | None, decoded: Any, text: str) -> None:
    if value is None:
        assert decoded is None
    elif kind == "boolean":
        assert decoded is (value.lower() == "true")
    elif kind == "number":
        assert text.endswith(f":{value}}}")
    elif kind == "moment":
        assert RFC3339.fullmatch(decoded)
        assert datetime.fromisoformat(decoded) == parse_moment(value)
    else:
        assert decoded == value


@given(values=COLUMNS, cut=st.integers(0, 12))
def test_facts_are_those_of_the_rows_as_json(
    connection: duckdb.DuckDBPyConnection, values: list[str | None], cut: int
) -> None:
    facts = read(connection, values, cut)
    field = facts.field()
    rows = encode_rows(pa.record_batch({"n": pa.array(values, pa.string())}), {"n": facts})
    of_json = read_facts(connection, rows).members.get("n", FieldFacts())
    assert set(field.types) - {"number", "integer"} == set(of_json.types) - {"number", "integer"}
    assert ("number" in field.types) == ("number" in of_json.types)
    assert field.count == of_json.count
    if facts.kind in ("moment", "text"):
        assert field.types["string"] == of_json.types["string"]
        counted = field.date_times + field.dates == field.types["string"]
        assert counted == (of_json.date_times + of_json.dates == of_json.types["string"])
        assert (field.rfc3339 == field.types["string"]) == (of_json.rfc3339 == of_json.types["string"])


def test_values_that_come_late_count(connection: duckdb.DuckDBPyConnection) -> None:
    moments = pa.array(['{"at":null}'] * 5_000 + ['{"at":"2026-01-01T00:00:00Z"}'] * 3, pa.string())
    at = read_facts(connection, moments).members["at"]
    assert (at.types["null"], at.rfc3339) == (5_000, 3)
    assert read(connection, ["1"] * 5_000 + ["x"]).kind == "text"
    assert read(connection, ["2026-01-01T00:00:00Z"] * 5_000 + ["2026-02-30T00:00:00Z"]).kind == "text"
