"""Columns of events are what decoding each event says, however its values are spelled."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from headrace.errors import BadRequest
from headrace.format import offset as offsets
from headrace.schema.registry import Registry
from headrace.spark.columns import CORRUPT, TypedColumns, check_schema, envelope_schema, offset_texts, typed_schema

PROPERTIES: dict[str, Any] = {
    "n": {"type": "integer"},
    "d": {"type": ["number", "null"]},
    "s": {"type": "string"},
    "b": {"type": "boolean"},
    "at": {"type": "string", "format": "date-time"},
    "x": {},
    "o": {"type": "object"},
}
REGISTRY = Registry.empty("s").advanced({"type": "object", "properties": PROPERTIES}, None, 0)
SCHEMA = typed_schema(REGISTRY, 1)

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-5, 5),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=6),
    st.sampled_from(
        ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123456789+02:00", "soon", "12", "0001-01-01T00:00:00Z"]
    ),
)
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
EVENTS = st.fixed_dictionaries({}, optional={name: VALUES for name in PROPERTIES})


def read(texts: list[str], schema: StructType = SCHEMA) -> list[dict[str, Any]]:
    arrays = TypedColumns(REGISTRY, 1, schema).read(pa.array(texts, pa.string()))
    columns = dict(zip(schema.fieldNames(), (array.to_pylist() for array in arrays), strict=True))
    return [{name: column[row] for name, column in columns.items()} for row in range(len(texts))]


def expected(name: str, value: Any) -> tuple[Any, bool]:
    """The value of a column, and whether it fits; the JSON text of a mixed one is decoded."""
    if value is None:
        return None, True
    number = not isinstance(value, bool) and isinstance(value, int | float)
    match name:
        case "n":
            fits = number and value == value // 1 and -(2**63) <= value < 2**63
            return (int(value) if fits else None), fits
        case "d":
            return (float(value) if number else None), number
        case "b":
            return (value, True) if isinstance(value, bool) else (None, False)
        case "s":
            return (value, True) if isinstance(value, str) else (None, False)
        case "at":
            try:
                assert isinstance(value, str)
                assert "T" in value
                return datetime.fromisoformat(value).astimezone(UTC), True
            except (AssertionError, ValueError):
                return None, False
    return value, True


def check(events: list[dict[str, Any]], texts: list[str]) -> None:
    for event, text, row in zip(events, texts, read(texts), strict=True):
        fits = True
        for name in PROPERTIES:
            value, good = expected(name, event.get(name))
            fits &= good
            found = row[name]
            if name in ("x", "o") and found is not None:
                found = json.loads(found)
            assert found == value, (name, text)
            assert type(found) is type(value), (name, text)
        assert row[CORRUPT] == (None if fits else text)


@settings(max_examples=60)
@given(st.lists(EVENTS, min_size=1, max_size=8), st.booleans(), st.booleans())
def test_columns_are_what_the_events_say(events: list[dict[str, Any]], ascii_only: bool, many: bool) -> None:
    texts = [json.dumps(event, ensure_ascii=ascii_only) for event in events]
    repeats = 300 // len(events) if many else 1  # many events are read by DuckDB, a few one by one
    check(events * repeats, texts * repeats)


@pytest.mark.parametrize("count", [1, 300])
def test_numbers_and_texts_that_are_spelled_oddly(count: int) -> None:
    odd = [
        ('{"n":1.0,"x":1.5}', {"n": 1, "x": "1.5"}),
        ('{"n":1e3,"x":1e-400}', {"n": 1000, "x": "1e-400"}),
        ('{"n":9007199254740993.0,"x":123456789012345678901234567890}',
         {"n": 9007199254740993, "x": "123456789012345678901234567890"}),
        ('{"o":{"k":12345678901234567890123}}', {"o": '{"k":12345678901234567890123}'}),
        ('{"s":"\\ud83d\\ude00\\u0041"}', {"s": "😀A"}),
        ('{"x":"text","n":null}', {"x": '"text"'}),
        ('{"d":1e400}', {CORRUPT: '{"d":1e400}'}),
        ('{"n":1.5}', {CORRUPT: '{"n":1.5}'}),
    ]  # fmt: skip
    for row, (text, values) in zip(read([text for text, _ in odd] * count), odd * count, strict=True):
        assert {name: value for name, value in row.items() if value is not None} == values, text


def test_only_the_columns_that_are_wanted() -> None:
    schema = StructType([StructField("s", StringType()), StructField("n", IntegerType())])
    texts = ['{"n":1,"s":"a"}', '{"n":3000000000,"s":"b"}', '{"n":-2147483648}']
    assert read(texts, schema) == [{"s": "a", "n": 1}, {"s": "b", "n": None}, {"s": None, "n": -(2**31)}]
    assert read(texts, StructType([StructField("n", StringType())]))[1] == {"n": "3000000000"}
    assert read([], schema) == []


@given(
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 50)), max_size=4), st.lists(st.integers(0, 2**63 - 2))
)
def test_offsets_are_those_of_the_stream(more: list[tuple[int, int]], seqs: list[int]) -> None:
    firsts = sorted(first for _, first in more)
    epochs = [(0, 0), *zip(sorted(epoch for epoch, _ in more), firsts, strict=True)]
    found = offset_texts(pa.array(seqs, pa.int64()), epochs).to_pylist()
    wanted = [
        offsets.encode(next(epoch for epoch, first in reversed(epochs) if seq + 1 > first), seq + 1) for seq in seqs
    ]
    assert found == wanted


def test_columns_that_cannot_be_are_refused() -> None:
    with pytest.raises(BadRequest, match="there is no column 'y'"):
        check_schema(StructType([StructField("y", LongType())]), SCHEMA, typed=True)
    with pytest.raises(BadRequest, match="is string, not bigint"):
        check_schema(StructType([StructField("key", LongType())]), envelope_schema(is_json=True), typed=False)
    with pytest.raises(BadRequest, match="names no properties"):
        typed_schema(Registry.empty("s").advanced({"type": "array"}, None, 0), 1)
    corrupt = {"type": "object", "properties": {CORRUPT: {}}}
    with pytest.raises(BadRequest, match="mode=envelope"):
        typed_schema(Registry.empty("s").advanced(corrupt, None, 0), 1)
