"""Frames become rows of JSON that have every value, whichever library they are of, and are appended once."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.client import frame_rows, row_batches
from headrace.client.errors import RowRefusal, RowsRefused
from headrace.client.frame_rows import FrameRows
from headrace.errors import BadRequest, NotFound

if TYPE_CHECKING:
    from tests.client.conftest import Line


def encode(frame: Any, *, omit_nulls: bool = False) -> list[Any]:
    """The rows of a frame, with their numbers as they are spelled."""
    chunks = list(FrameRows(frame, omit_nulls=omit_nulls).chunks())
    assert [number for chunk in chunks for number in chunk.numbers.to_pylist()] == list(
        range(sum(len(chunk.rows) for chunk in chunks))
    )
    return [json.loads(text, parse_float=Decimal) for chunk in chunks for text in chunk.rows.to_pylist()]


# -- every value, by an oracle that knows Python's values only

UTC_TIMES = st.integers(-(2**61), 2**61)
SCALARS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "i64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "u64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "i8": (pa.int8(), st.integers(-128, 127)),
    "f64": (pa.float64(), st.floats()),
    "f32": (pa.float32(), st.floats(width=32)),
    "text": (pa.string(), st.text(max_size=5)),
    "large_text": (pa.large_string(), st.text(max_size=5)),
    "bytes": (pa.binary(), st.binary(max_size=5)),
    "bool": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates()),
    "time": (pa.time64("us"), st.times()),
    "ns": (pa.timestamp("ns"), UTC_TIMES),
    "ns_utc": (pa.timestamp("ns", "UTC"), UTC_TIMES),
    "us_berlin": (pa.timestamp("us", "Europe/Berlin"), st.integers(-(2**55), 2**55)),
    "s": (pa.timestamp("s"), st.integers(-(2**35), 2**37)),
    "decimal": (pa.decimal128(38, 9), st.decimals(-(10**20), 10**20, places=9)),
    "choice": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from("abc")),
}
NANOSECONDS = {"s": 10**9, "us": 1000, "ns": 1}


def expected(value: Any, kind: Any) -> Any:
    """What a value is in JSON, with Decimal for numbers that have a point."""
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return None
    if pa.types.is_timestamp(kind):
        seconds, rest = divmod(value * NANOSECONDS[kind.unit], 10**9)
        moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
        digits = f"{rest:09}".rstrip("0")
        return f"{moment.isoformat()}{f'.{digits}' if digits else ''}"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, list):
        return [expected(part, kind.value_type) for part in value]
    if isinstance(value, dict):
        return {name: expected(part, kind.field(name).type) for name, part in value.items()}
    return value


def same(actual: Any, wanted: Any) -> bool:
    """Whether a value of JSON is the expected one; digits behind the point end where they are zero."""
    if isinstance(actual, str) and isinstance(wanted, str) and actual != wanted:
        head, _, digits = actual.removesuffix("Z").partition(".")
        digits = digits.rstrip("0")
        return (f"{head}.{digits}" if digits else head) == wanted
    if isinstance(wanted, float):
        return float(actual) == wanted
    if isinstance(wanted, list):
        return len(actual) == len(wanted) and all(map(same, actual, wanted))
    if isinstance(wanted, dict):
        return actual.keys() == wanted.keys() and all(same(actual[name], wanted[name]) for name in wanted)
    return bool(actual == wanted) and isinstance(actual, bool) == isinstance(wanted, bool)


@st.composite
def columns(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    """A type of Arrow, nested now and then, and values of it."""
    kind, values = SCALARS[draw(st.sampled_from(sorted(SCALARS)))]
    shape = draw(st.sampled_from(["plain", "plain", "list", "struct"]))
    if shape == "list" and not pa.types.is_dictionary(kind):
        kind, values = pa.list_(kind), st.lists(st.none() | values, max_size=3)
    elif shape == "struct" and not pa.types.is_dictionary(kind):
        kind, values = pa.struct([("a", kind)]), st.fixed_dictionaries({"a": st.none() | values})
    return kind, draw(st.lists(st.none() | values, min_size=3, max_size=3))


@given(st.lists(columns(), min_size=1, max_size=4), st.booleans())
def test_rows_have_every_value_in_all_libraries(made: list[tuple[Any, list[Any]]], omit_nulls: bool) -> None:
    names = [f"c{number}" for number in range(len(made))]
    table = pa.table([pa.array(values, kind) for kind, values in made], names=names)
    rows = encode(table, omit_nulls=omit_nulls)
    for number, row in enumerate(rows):
        wanted = {name: expected(values[number], kind) for name, (kind, values) in zip(names, made, strict=True)}
        if omit_nulls:
            # NaN is left out like any null.
            wanted = {name: value for name, value in wanted.items() if value is not None}
        assert same(row, wanted), (row, wanted)
    assert encode(table.to_pandas(types_mapper=pd.ArrowDtype), omit_nulls=omit_nulls) == rows
    if not any("Berlin" in str(kind) for kind, _ in made):
        polars_rows = encode(pl.from_arrow(table), omit_nulls=omit_nulls)
        assert all(map(same, polars_rows, rows))


@given(st.lists(st.none() | st.integers(-(2**80), 2**80) | st.text(max_size=3) | st.booleans(), max_size=5))
def test_objects_of_pandas_have_every_value(values: list[Any]) -> None:
    frame = pd.DataFrame({"a": pd.Series(values, dtype=object), "n": range(len(values))})
    assert encode(frame) == [{"a": value, "n": number} for number, value in enumerate(values)]


# -- pandas, polars and Arrow, case by case


def test_missing_values_of_pandas_are_null_or_left_out() -> None:
    frame = pd.DataFrame(
        {
            "float": [1.5, float("nan")],
            "inf": [1.5, float("inf")],
            "int": pd.array([1, pd.NA], dtype="Int64"),
            "text": ["a", None],
            "object": [1, "x"],
            "moment": [pd.Timestamp("2026-11-15T10:00:00.123456789"), pd.NaT],
        }
    )
    frame.loc[1, "object"] = pd.NA
    first = {
        "float": Decimal("1.5"),
        "inf": Decimal("1.5"),
        "int": 1,
        "text": "a",
        "object": 1,
        "moment": "2026-11-15T10:00:00.123456789Z",
    }
    assert encode(frame) == [first, dict.fromkeys(first)]
    assert encode(frame, omit_nulls=True) == [first, {}]


def test_values_of_python_in_pandas_keep_their_kind() -> None:
    day, noon = datetime.date(2026, 11, 15), datetime.datetime(2026, 11, 15, 12)
    values = {
        "mixed": [1, "1", b"\xff"],
        "days": [day, noon, None],
        "moments": [noon, noon.replace(tzinfo=datetime.UTC), pd.Timestamp("2026-11-15T12:00:00.000000001Z")],
        "numbers": [True, 2.5, 2**53 + 1],
        "maps": [{"a": np.int64(1)}, {"b": day}, None],
        "ids": [uuid.UUID(int=1), None, uuid.UUID(int=2)],
    }
    frame = pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in values.items()})
    assert encode(frame) == [
        {
            **{"mixed": 1, "days": "2026-11-15", "moments": "2026-11-15T12:00:00Z", "numbers": True},
            **{"maps": {"a": 1}, "ids": str(uuid.UUID(int=1))},
        },
        {
            **{"mixed": "1", "days": "2026-11-15T12:00:00Z", "moments": "2026-11-15T12:00:00Z"},
            **{"numbers": Decimal("2.5"), "maps": {"b": "2026-11-15"}, "ids": None},
        },
        {
            **{"mixed": "/w==", "days": None, "moments": "2026-11-15T12:00:00.000000001Z"},
            **{"numbers": 2**53 + 1, "maps": None, "ids": str(uuid.UUID(int=2))},
        },
    ]


def test_an_index_is_a_column_where_it_has_a_name() -> None:
    frame = pd.DataFrame({"a": [1]})
    assert encode(frame.set_axis(["x"])) == [{"a": 1}]
    assert encode(frame.set_axis(pd.Index(["x"], name="id"))) == [{"id": "x", "a": 1}]
    several = pd.MultiIndex.from_tuples([("x", 1)], names=["id", None])
    assert encode(frame.set_axis(several)) == [{"id": "x", "a": 1}]


def test_polars_and_arrow_have_types_of_their_own() -> None:
    frame = pl.DataFrame(
        {
            "big": pl.Series([2**100, None], dtype=pl.Int128),
            "nan": [float("nan"), 1.5],
            "choice": pl.Series(["a", None], dtype=pl.Categorical),
            "enum": pl.Series(["a", "b"], dtype=pl.Enum(["a", "b"])),
            "time": [datetime.time(1, 2, 3), None],
        }
    )
    assert encode(frame, omit_nulls=True) == [
        {"big": 2**100, "choice": "a", "enum": "a", "time": "01:02:03"},
        {"nan": Decimal("1.5"), "enum": "b"},
    ]
    table = pa.table(
        {
            "wide": pa.array([Decimal("123456789012345678901234567890123456789012.5")], pa.decimal256(76, 3)),
            "half": pa.array([1.5], pa.float16()),
            "id": pa.array([uuid.UUID(int=7).bytes], pa.uuid()),
            "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1.00000000000000000000001}'])),
            "map": pa.array([[("k", float("nan"))]], pa.map_(pa.string(), pa.float64())),
        }
    )
    assert encode(table) == [
        {
            "wide": Decimal("123456789012345678901234567890123456789012.5"),
            "half": Decimal("1.5"),
            "id": str(uuid.UUID(int=7)),
            "json": {"a": Decimal("1.00000000000000000000001")},
            "map": {"k": None},
        }
    ]
    assert encode(pa.record_batch({"a": [1]})) == [{"a": 1}]


def test_names_of_columns_are_free() -> None:
    names = ["", "a", "A", 'qu"ote', "it's", "é\n", "$x"]
    assert encode(pa.table([[number] for number in range(len(names))], names=names)) == [
        {name: number for number, name in enumerate(names)}
    ]
    assert encode(pd.DataFrame({0: [1]})) == [{"0": 1}]


def test_rows_stay_in_order_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_rows, "CHUNK_ROWS", 1_000)
    count = 20_500
    frame = pd.DataFrame({"n": np.arange(count), "t": [f"row {n}" for n in range(count)]})
    wanted = [{"n": n, "t": f"row {n}"} for n in range(count)]
    assert encode(frame) == wanted
    assert encode(pl.from_pandas(frame)) == wanted
    assert encode(pa.table(frame).to_reader(max_chunksize=77)) == wanted


def test_wide_rows_are_encoded_in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_rows, "CHUNK_BYTES", 10_000)
    frame = pd.DataFrame({"t": ["x" * 1_000] * 500})
    assert max(len(chunk.rows) for chunk in FrameRows(frame).chunks()) < 500
    assert len(encode(frame)) == 500


@pytest.mark.parametrize(
    ("frame", "kind", "reason"),
    [
        (pd.DataFrame({"d": [pd.Timedelta("1s")]}), TypeError, "column 'd' .* a duration has no form in JSON"),
        (pd.DataFrame({"p": pd.period_range("2026-01", periods=1, freq="M")}), TypeError, "column 'p' .*pandas.period"),
        (pd.DataFrame({"c": [1j]}), TypeError, "column 'c' of type complex128 cannot be JSON"),
        (pd.DataFrame({"o": [1, object()]}), TypeError, "row 1, field 'o': object cannot be JSON"),
        (pd.DataFrame({"x": [[1], [1, float("nan")]]}), ValueError, "row 1, field 'x.1': nan is a number that JSON"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), ValueError, "several columns 'a'"),
        (pd.DataFrame([[1]], columns=pd.MultiIndex.from_tuples([("a", "b")])), TypeError, "several levels"),
        (pd.DataFrame(index=[1, 2]), ValueError, "no columns"),
        (pl.DataFrame({"o": [object()]}), TypeError, "column 'o' has values that only Python knows"),
        (pl.LazyFrame({"a": [1]}), TypeError, r"pass frame.collect\(\)"),
        (pl.Series([1]), TypeError, "a frame is a DataFrame of pandas or polars"),
        ([{"a": 1}], TypeError, "not builtins.list"),
        (pa.table({"s": pa.array([{"d": datetime.timedelta(1)}])}), TypeError, "column 's' .* a duration"),
    ],
)
def test_what_is_no_frame_of_json_is_refused(frame: Any, kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        encode(frame)


# -- appended to a stream


@pytest.fixture
def stream(client: hr.Client, name: str) -> hr.Stream:
    made = client.stream(name)
    made.create()
    return made


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_batches, "BATCH_ROWS", 50)


def numbers(stream: hr.Stream) -> list[int]:
    return [event["n"] for batch in stream.read() for event in batch.items]


FRAME = pd.DataFrame({"n": range(500)})


@pytest.mark.parametrize("frame", [FRAME, pl.from_pandas(FRAME), pa.table(FRAME), pa.table(FRAME).to_reader()])
def test_a_frame_is_appended_in_order(stream: hr.Stream, small_batches: None, frame: Any) -> None:
    result = stream.append_frame(frame)
    assert (result.appended, result.already_there) == (500, 0)
    assert result.next_offset == stream.info().next_offset
    assert numbers(stream) == list(range(500))


def test_a_frame_without_rows_appends_nothing(stream: hr.Stream) -> None:
    assert stream.append_frame(FRAME.iloc[:0]).next_offset is None
    assert numbers(stream) == []


def test_the_same_frame_is_appended_again_unless_it_has_an_id(stream: hr.Stream, small_batches: None) -> None:
    stream.append_frame(FRAME)
    assert stream.append_frame(FRAME).appended == 500
    assert stream.append_frame(FRAME, producer_id="load").appended == 500
    again = stream.append_frame(pl.from_pandas(FRAME), producer_id="load")
    assert (again.appended, again.already_there) == (0, 500)
    # More rows are another frame.
    assert stream.append_frame(pd.DataFrame({"n": range(501)}), producer_id="load").appended == 501
    assert len(numbers(stream)) == 2001


def test_a_stopped_append_goes_on_where_it_was(stream: hr.Stream, small_batches: None) -> None:
    begun = frame_rows.FrameAppend(stream.name, FRAME, producer_id="load")
    for _ in range(4):
        request = begun.next_request()
        assert request is not None
        begun.accept(stream._client.send(request))
    result = stream.append_frame(FRAME, producer_id="load")
    assert (result.appended, result.already_there) == (300, 200)
    assert numbers(stream) == list(range(500))


@pytest.mark.parametrize("after", [0, 3])
def test_lost_answers_append_nothing_twice(line: Line, stream: hr.Stream, small_batches: None, after: int) -> None:
    with hr.Client(line.url) as client:
        line.lose_answers(2, after=after)
        result = client.stream(stream.name).append_frame(FRAME)
    assert line.lost == 2
    assert result.appended + result.already_there == 500
    assert numbers(stream) == list(range(500))


def test_rows_that_are_refused_are_named_and_the_others_appended(stream: hr.Stream, small_batches: None) -> None:
    stream.evolve({"type": "object", "properties": {"n": {"type": "integer", "not": {"multipleOf": 100}}, "a/b": {}}})
    frame = pd.DataFrame({"n": pd.Series([str(n) if n in (7, 123) else n for n in range(1, 200)], dtype=object)})
    with pytest.raises(RowsRefused, match="3 of 199 rows were refused, the others are appended; counted from 0, row 6"):
        stream.append_frame(frame)
    with pytest.raises(RowsRefused) as refused:
        stream.append_frame(frame)
    rows = dict.fromkeys((refusal.row, refusal.field) for refusal in refused.value.refusals)
    assert list(rows) == [(6, "n"), (99, "n"), (122, "n")]
    assert "integer" in refused.value.refusals[0].reason
    assert refused.value.facts["appended"] == 196
    assert numbers(stream) == [n for n in range(1, 200) if n not in (7, 100, 123)] * 2
    assert str(RowRefusal(3, "", "wrong")) == "row 3: wrong"


def test_a_frame_of_which_nothing_fits_ends_at_once(stream: hr.Stream, small_batches: None) -> None:
    stream.evolve({"type": "object", "properties": {"n": {"type": "string"}}})
    with pytest.raises(BadRequest, match="none of 50 rows from row 0 on fits"):
        stream.append_frame(FRAME)
    assert numbers(stream) == []


def test_what_can_be_read_once_has_no_id(stream: hr.Stream) -> None:
    with pytest.raises(TypeError, match="a reader gives its rows once"):
        stream.append_frame(pa.table(FRAME).to_reader(), producer_id="load")

    class Changing:
        """Gives its rows once, and does not say so."""

        def __init__(self) -> None:
            self.left = [pa.table(FRAME), pa.table(FRAME.iloc[:0])]

        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return self.left.pop(0).__arrow_c_stream__(requested_schema)

    with pytest.raises(ValueError, match="gave other rows"):
        stream.append_frame(Changing(), producer_id="load")
    assert numbers(stream) == []


def test_other_failures_are_raised(client: hr.Client, stream: hr.Stream) -> None:
    with pytest.raises(NotFound):
        client.stream(f"{stream.name}-missing").append_frame(FRAME)
    with pytest.raises(TypeError, match="there is no option 'omit_null'; did you mean 'omit_nulls'"):
        stream.append_frame(FRAME, omit_null=True)  # type: ignore[call-arg]


def test_rows_may_have_a_key(stream: hr.Stream) -> None:
    stream.append_frame(FRAME, key="a")
    assert sum(len(batch.items) for batch in stream.read(key="a")) == 500


def test_an_awaiting_client_appends_frames_too(stream: hr.Stream) -> None:
    async def append() -> Any:
        async with hr.AsyncClient(stream._client.settings.url) as client:
            return await client.stream(stream.name).append_frame(FRAME)

    assert asyncio.run(append()).appended == 500
    assert numbers(stream) == list(range(500))


def test_a_frame_that_is_appended_is_read_again(stream: hr.Stream) -> None:
    frame = pl.DataFrame(
        {
            "n": [1, None, 3],
            "f": [1.5, 2.25, None],
            "t": ["a", "é", None],
            "b": [True, None, False],
            "l": [[1, 2], [], None],
        }
    )
    stream.append_frame(frame)
    assert stream.read().to_polars().equals(frame)
    assert stream.read().to_arrow().to_pylist() == frame.to_dicts()
    pd.testing.assert_frame_equal(stream.read().to_pandas()[["f", "t"]], frame.select("f", "t").to_pandas())
