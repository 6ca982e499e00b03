"""Answers as tables: they have what HTTP answers, in any of three libraries, and read back to the same rows."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.client.frames import arrow_table
from headrace.errors import HeadraceError

EVENTS = [
    {"at": "2026-11-01T10:00:00Z", "service": "web", "ms": 12.5, "tags": ["a"], "user": {"id": 1}},
    {"at": "2026-11-01T10:20:00Z", "service": "api", "ms": 480, "big": 2**70, "mixed": 1},
    {"at": "2026-11-01T11:00:00Z", "service": "web", "ms": 7, "mixed": "x"},
]
SEARCH = {
    "primaryTimestampField": "at",
    "fields": {
        "at": {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/at"}], "column": True},
        "service": {"kind": "keyword", "bindings": [{"version": 1, "jsonPointer": "/service"}], "exact": True},
        "ms": {
            **{"kind": "float", "bindings": [{"version": 1, "jsonPointer": "/ms"}]},
            **{"column": True, "aggregatable": True},
        },
    },
    "rollups": {
        "overview": {
            "dimensions": ["service"],
            "intervals": ["1h"],
            "measures": {"count": {"kind": "count"}, "ms": {"kind": "quantiles", "field": "ms"}},
        }
    },
}


@pytest.fixture
def stream(client: hr.Client, name: str) -> hr.Stream:
    made = client.stream(name)
    made.create()
    made.evolve({"type": "object"}, search=SEARCH)
    made.append(EVENTS)
    return made


def test_a_read_is_a_table(stream: hr.Stream) -> None:
    table = stream.read().to_arrow()
    assert table.column_names == ["at", "service", "ms", "tags", "user", "big", "mixed"]
    assert table.column("ms").to_pylist() == [12.5, 480, 7]
    assert table.column("user").to_pylist() == [{"id": 1}, None, None]
    assert table.column("big").to_pylist() == [None, str(2**70), None]
    assert table.column("mixed").to_pylist() == [None, "1", '"x"']


def test_the_three_libraries_have_the_same_rows(stream: hr.Stream) -> None:
    columns = ["at", "service", "ms"]
    expected = [{name: event[name] for name in columns} for event in EVENTS]
    assert stream.read().to_pandas()[columns].to_dict("records") == expected
    assert stream.read().to_polars().select(columns).to_dicts() == expected


def test_an_awaiting_client_has_tables_too(stream: hr.Stream) -> None:
    async def read() -> Any:
        async with hr.AsyncClient(stream._client.settings.url) as client:
            return await client.stream(stream.name).read().to_pandas()

    assert list(asyncio.run(read())["ms"]) == [12.5, 480, 7]


def test_batches_that_were_taken_are_not_in_the_table(stream: hr.Stream) -> None:
    batches = stream.read()
    assert len(next(batches).items) == 3
    assert batches.to_arrow().num_rows == 0


def test_hits_are_a_table_with_offsets(stream: hr.Stream) -> None:
    result = stream.search("service:web")
    table = result.to_arrow()
    assert table.column("_offset").to_pylist() == [hit.offset for hit in result.hits]
    assert table.column("ms").to_pylist() == [hit.source["ms"] for hit in result.hits]


def test_buckets_are_a_table_of_groups_and_statistics(stream: hr.Stream) -> None:
    table = stream.aggregate(
        "overview", "2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z", "1h", group_by=["service"]
    ).to_arrow()
    rows = table.select(["start", "service", "count", "ms.p95"]).to_pylist()
    assert rows == [
        {"start": "2026-11-01T10:00:00.000Z", "service": "api", "count": 1, "ms.p95": 480},
        {"start": "2026-11-01T10:00:00.000Z", "service": "web", "count": 1, "ms.p95": 12.5},
        {"start": "2026-11-01T11:00:00.000Z", "service": "web", "count": 1, "ms.p95": 7},
    ]


def test_events_that_are_no_objects_have_one_column(client: hr.Client, name: str) -> None:
    made = client.stream(name)
    made.create()
    made.append([1, 2])
    assert made.read().to_arrow().to_pylist() == [{"value": 1}, {"value": 2}]


def test_a_library_that_is_missing_is_named(stream: hr.Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(HeadraceError, match="pip install polars"):
        stream.read().to_polars()


LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=3)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=2), max_leaves=3)


@given(rows=st.lists(st.dictionaries(st.sampled_from("abc"), VALUES), max_size=5))
def test_a_table_has_every_value_exactly(rows: list[dict[str, Any]]) -> None:
    table = arrow_table(rows)
    for name in table.column_names:
        values = [row.get(name) for row in rows]
        column = table.column(name)
        if column.to_pylist() != values:
            assert column.type == pa.string()
            assert [None if text is None else json.loads(text) for text in column.to_pylist()] == values
