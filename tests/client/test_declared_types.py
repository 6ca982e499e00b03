"""Values of declared types are the same in Python and in columns of Arrow, whose types do not depend on values."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.declared_types import (
    DeclaredType,
    parse_moment_us,
    parse_type,
    type_value,
    type_values,
    typed_table,
)
from headrace.errors import HeadraceError

ZONES = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=ZONES)
#: Values of each type in Python, and how JSON has them.
SCALARS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], Any]] = {
    "str": (pa.string(), st.text(max_size=3), lambda value: value),
    "i64": (pa.int64(), st.integers(-(2**63), 2**63 - 1), lambda value: value),
    "f64": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False), lambda value: value),
    "bool": (pa.bool_(), st.booleans(), lambda value: value),
    "bytes": (pa.binary(), st.binary(max_size=3), lambda value: base64.b64encode(value).decode()),
    "datetime": (pa.timestamp("us", "UTC"), MOMENTS, lambda value: value.isoformat().replace("+00:00", "Z")),
}


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[str, Any, list[Any], list[Any]]:
    """A type by its name and by Arrow's, and the same values in Python and in JSON."""
    name = draw(st.sampled_from(sorted(SCALARS)))
    kind, scalars, to_json = SCALARS[name]
    values = draw(st.lists(st.none() | scalars, max_size=3))
    texts = [None if value is None else to_json(value) for value in values]
    match draw(st.sampled_from(["plain", "list", "map", "struct"])):
        case "list":
            return f"list<{name}>", pa.list_(kind), [values, None], [texts, None]
        case "map":
            keys = [str(number) for number in range(len(values))]
            columns = [dict(zip(keys, column, strict=True)) for column in (values, texts)]
            return f"map<{name}>", pa.map_(pa.string(), kind), [columns[0]], [columns[1]]
        case "struct":
            made = pa.list_(pa.struct([("value", kind), ("count", pa.int64())]))
            columns = [[{"value": value, "count": 1} for value in column] for column in (values, texts)]
            return f"list<struct<value: {name}, count: i64>>", made, [columns[0]], [columns[1]]
    return name, kind, values, texts


@given(typed_values())
def test_rows_and_columns_have_the_values_that_json_stands_for(made: tuple[str, Any, list[Any], list[Any]]) -> None:
    name, kind, values, texts = made
    assert [type_value(parse_type(name), text) for text in texts] == values
    table = typed_table([{"a": text} for text in texts], {"a": name, "b": "i64"})
    assert table.schema.types == [kind, pa.int64()]
    column = table.column("a").to_pylist()
    assert [dict(value) for value in column] == values if name.startswith("map") else column == values
    assert table.column("b").null_count == len(texts)
    assert typed_table([], {"a": name}).schema.types == [kind]


def test_a_name_of_a_type_is_parsed() -> None:
    top = DeclaredType(
        "struct", (("value", DeclaredType("datetime")), ("shares", DeclaredType("map", (("", DeclaredType("f64")),))))
    )
    assert parse_type("list<struct<value: datetime, shares: map<f64>>>") == DeclaredType("list", (("", top),))
    assert parse_type("list<struct<value: datetime, shares: map<f64>>>").is_typed
    assert not parse_type("list<i64>").is_typed


def test_moments_keep_microseconds_and_other_values_stay() -> None:
    types = {"at": "datetime", "token": "bytes", "n": "i64"}
    at = "2026-11-15T10:00:00.123456789+01:00"
    assert type_values({"at": at, "token": "/w==", "n": 1, "new": "x"}, types) == {
        **{"at": datetime(2026, 11, 15, 9, 0, 0, 123456, tzinfo=UTC), "token": b"\xff"},
        **{"n": 1, "new": "x"},
    }
    odd = {"at": "yesterday", "token": "??"}
    assert type_values(odd, types) == odd
    assert type_values({"at": 5, "token": None}, types) == {"at": 5, "token": None}
    # Moments that no datetime in UTC can hold stay as they are, and a column has them.
    first = "0001-01-01T00:00:00+23:59"
    assert type_values({"at": first}, types) == {"at": first}
    assert typed_table([{"at": first}], {"at": "datetime"}).column(0).cast(pa.int64()).to_pylist() == [
        parse_moment_us("0001-01-01T00:00:00Z") - (23 * 60 + 59) * 60_000_000
    ]


def test_a_column_of_other_values_says_that_the_table_changed() -> None:
    with pytest.raises(HeadraceError, match="at is datetime by now, and has other values"):
        typed_table([{"at": "yesterday"}], {"at": "datetime"})
