"""Columns tables one below the other, and bounds of columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.format.companion.tables import Zone, concat, zone


def test_where_one_table_has_lists_the_whole_has_lists() -> None:
    scalars = pa.table({"f.a": pa.array([1, None, 3], pa.int64()), "f.b": pa.array([True, None, False])})
    lists = pa.table({"f.a": pa.array([[4, 5], None], pa.list_(pa.int64())), "f.b": pa.array([None, True])})
    for tables, wanted in [
        ([scalars, lists], [[1], None, [3], [4, 5], None]),
        ([lists, scalars], [[4, 5], None, [1], None, [3]]),
        ([lists, scalars.slice(1, 1)], [[4, 5], None, None]),
        ([scalars.slice(2), lists.slice(1)], [[3], None]),
    ]:
        whole = concat(tables)
        assert whole.column("f.a").to_pylist() == wanted
        whole.validate(full=True)
        assert whole.schema.field("f.b").type == pa.bool_()


def test_tables_alike_stay_as_they_are() -> None:
    table = pa.table({"f.a": pa.array([1, None], pa.int64())})
    assert concat([table, table]).to_pylist() == [{"f.a": 1}, {"f.a": None}] * 2
    assert concat([table]).equals(table)


@pytest.mark.parametrize(
    ("values", "kind", "wanted"),
    [
        ([3, None, -1], pa.int64(), Zone(-1, 3, 1)),
        ([[3, 9], None, [1]], pa.list_(pa.int64()), Zone(1, 9, 1)),
        ([None, None], pa.string(), Zone(None, None, 2)),
        ([], pa.int64(), Zone(None, None, 0)),
        (["b", "a" * 64], pa.string(), Zone("a" * 64, "b", 0)),
        (["b", "a" * 65], pa.string(), Zone(None, None, 0)),
        ([True, None], pa.bool_(), Zone(True, True, 1)),
        ([[(1, 2)], None], pa.map_(pa.int32(), pa.int64()), Zone(None, None, 1)),
    ],
)
def test_bounds_are_those_of_the_values_unless_they_are_long(values: list[Any], kind: Any, wanted: Zone) -> None:
    assert zone(pa.array(values, kind)) == wanted
