"""Frames of pandas, polars and Arrow as rows of JSON, encoded by columns, and appended in batches, each exactly once.

A frame is whatever exports Arrow's C stream. Arrow and DuckDB are imported when a frame is appended, and nothing else.
What a library has for a missing value is null, and so are NaN and infinities, which JSON lacks.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec
import xxhash

from headrace.client.errors import RowRefusal, RowsRefused
from headrace.client.frames import import_library
from headrace.client.json_rows import Column, select_rows
from headrace.client.json_values import to_json
from headrace.client.requests import check_options
from headrace.client.row_batches import (
    BATCH_BYTES,
    BATCH_ROWS,
    Chunk,
    RefusedRow,
    RowAppends,
    RowBatch,
    cut_batches,
    join_rows,
)

if TYPE_CHECKING:
    import pyarrow

#: Rows, and about as many bytes, that are encoded at once.
CHUNK_ROWS, CHUNK_BYTES = 65_536, 64 * 1024 * 1024
_TAKEN = "a DataFrame of pandas or polars, or a table, a record batch or a reader of Arrow"
#: Kinds of Python's values that Arrow has a type for, which keeps each of them.
_KEPT_KINDS = frozenset({"string", "bytes", "boolean", "integer", "floating", "decimal", "date", "time", "empty"})
_EXTENSIONS = frozenset({"arrow.json", "arrow.uuid"})


class FrameOptions(TypedDict, total=False):
    """Options of appending a frame."""

    #: The same frame under the same id is appended once, however often that is begun.
    producer_id: str
    #: The routing key of all rows.
    key: str
    #: Leave out members that are null, which are sent otherwise.
    omit_nulls: bool


class FrameResult(msgspec.Struct, frozen=True):
    """How many rows were appended by this call, and were there from an earlier one with the same ``producer_id``."""

    appended: int
    already_there: int
    #: The end of the stream; None where no row was sent.
    next_offset: str | None


class FrameAppend:
    """The requests that append a frame to a stream."""

    def __init__(self, stream: str, frame: Any, **options: Unpack[FrameOptions]) -> None:
        check_options(FrameOptions, options)
        self._rows = FrameRows(frame, omit_nulls=options.get("omit_nulls", False))
        self._refusals: list[RowRefusal] = []
        self._digest: str | None = None
        key = options.get("key", "")
        producer_id = uuid.uuid4().hex
        if "producer_id" in options:
            if type(frame).__name__ == "RecordBatchReader":
                raise TypeError("a reader gives its rows once: pass reader.read_all(), or no producer_id")
            self._digest = self._hash(key)
            producer_id = f"{options['producer_id']}-{self._digest}"
        self._key = key
        batches = self._batches() if self._digest is None else self._same_batches(self._digest)
        self._appends = RowAppends(stream, producer_id, batches, on_refused=self._add_refusal, key=key)
        self.next_request = self._appends.next_request
        self.accept, self.refuse = self._appends.accept, self._appends.refuse

    def result(self) -> FrameResult:
        """The counts; raises ``RowsRefused`` where rows were refused."""
        appends = self._appends
        result = FrameResult(appends.appended, appends.already_there, appends.next_offset)
        if self._refusals:
            first, count = self._refusals[0], len({refusal.row for refusal in self._refusals})
            words = f"{count:,} of {self._rows.count:,} rows were refused, the others are appended"
            raise RowsRefused(
                f"{words}; counted from 0, {first}", refusals=self._refusals, **msgspec.structs.asdict(result)
            )
        return result

    def _batches(self) -> Iterator[RowBatch]:
        return cut_batches(self._rows.chunks(), lambda bad: None)

    def _same_batches(self, digest: str) -> Iterator[RowBatch]:
        """The batches again; raises ValueError at the end where they are not those that were hashed."""
        hashed = _Hash(self._key)
        for batch in self._batches():
            hashed.add(batch)
            yield batch
        if hashed.digest() != digest:
            raise ValueError("the frame gave other rows when they were read again: pass a table, or no producer_id")

    def _hash(self, key: str) -> str:
        hashed = _Hash(key)
        for batch in self._batches():
            hashed.add(batch)
        return hashed.digest()

    def _add_refusal(self, row: RefusedRow) -> None:
        for pointer, reason in row.failures:
            field = pointer[1:].split("/")[0].replace("~1", "/").replace("~0", "~")
            self._refusals.append(RowRefusal(row.number, field, reason))


class _Hash:
    """A hash of batches, which depends on their rows alone."""

    def __init__(self, key: str) -> None:
        self._hash = xxhash.xxh3_128(f"{BATCH_ROWS} {BATCH_BYTES} {key};".encode())

    def add(self, batch: RowBatch) -> None:
        """Add the rows of a batch."""
        self._hash.update(join_rows(batch.rows))

    def digest(self) -> str:
        """The hash of all that was added."""
        return self._hash.hexdigest()


class FrameRows:
    """The rows of a frame as texts of JSON, in chunks."""

    def __init__(self, frame: Any, *, omit_nulls: bool = False) -> None:
        self._frame = _check_frame(frame)
        self._omit_nulls = omit_nulls
        #: How many rows were read.
        self.count = 0

    def chunks(self) -> Iterator[Chunk]:
        """All rows in order, with their positions in the frame, counted from 0."""
        pa = import_library("pyarrow")
        query = ""
        self.count = 0
        with import_library("duckdb").connect() as connection:
            for table in _tables(self._frame):
                names = table.column_names
                positions = pa.array(range(self.count, self.count + table.num_rows), pa.int64())
                # By number, as SQL takes names that differ in case for the same.
                connection.register("frame", _castable(table).rename_columns([f"c{n}" for n in range(len(names))]))
                described = connection.sql("SELECT * FROM frame LIMIT 0")
                columns = [
                    Column(name, f"c{number}", kind)
                    for number, (name, kind) in enumerate(zip(names, described.types, strict=True))
                ]
                query = select_rows("frame", columns, omit_nulls=self._omit_nulls)
                rows = connection.sql(query).to_arrow_table().column(0).combine_chunks()
                connection.unregister("frame")
                self.count += table.num_rows
                yield Chunk("", positions, rows, [])


def is_frame(value: Any) -> bool:
    """Whether a value is a frame, or nearly one."""
    return hasattr(value, "__arrow_c_stream__") or type(value).__name__ == "LazyFrame"


def frame_table(frame: Any) -> pyarrow.Table:
    """The whole of a frame as a table of Arrow."""
    pa = import_library("pyarrow")
    frame = _check_frame(frame)
    if _library(frame) == "pandas":
        return _pandas_table(frame, 0)
    return pa.RecordBatchReader.from_stream(frame).read_all()


def _check_frame(frame: Any) -> Any:
    """The frame; raises TypeError for anything else, and says what to do."""
    name = type(frame).__name__
    if _library(frame) == "pandas" and name == "DataFrame":
        return frame
    if name == "LazyFrame":
        raise TypeError("a LazyFrame has no rows yet: pass frame.collect()")
    if name == "Series" or not hasattr(frame, "__arrow_c_stream__"):
        raise TypeError(f"a frame is {_TAKEN}, not {type(frame).__module__}.{name}")
    return _polars_frame(frame) if _library(frame) == "polars" else frame


def _library(frame: Any) -> str:
    return type(frame).__module__.partition(".")[0]


def _check_names(names: list[str]) -> None:
    if not names:
        raise ValueError("the frame has no columns")
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"the frame has several columns {repeated!r}: a member of an event has a name of its own")


def _tables(frame: Any) -> Iterator[pyarrow.Table]:
    """The rows of a frame in tables of bounded size."""
    if _library(frame) == "pandas":
        for start in range(0, len(frame), CHUNK_ROWS):
            yield from _parts(_pandas_table(frame.iloc[start : start + CHUNK_ROWS], start))
        return
    pa = import_library("pyarrow")
    pending: list[Any] = []
    reader = pa.RecordBatchReader.from_stream(frame)
    _check_names(reader.schema.names)
    for batch in reader:
        pending.append(batch)
        if sum(batch.num_rows for batch in pending) >= CHUNK_ROWS:
            yield from _parts(pa.Table.from_batches(pending))
            pending = []
    if pending:
        yield from _parts(pa.Table.from_batches(pending))


def _parts(table: pyarrow.Table) -> Iterator[pyarrow.Table]:
    rows = max(1, min(CHUNK_ROWS, table.num_rows * CHUNK_BYTES // max(table.nbytes, CHUNK_BYTES)))
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows).combine_chunks()


# -- pandas and polars


def _pandas_table(frame: Any, first_row: int) -> pyarrow.Table:
    """Some rows of pandas; an index is a column where it has a name."""
    pa = import_library("pyarrow")
    if frame.columns.nlevels > 1:
        raise TypeError("the columns of the frame have several levels: give each column one name")
    indexes = [frame.index.get_level_values(n) for n, name in enumerate(frame.index.names) if name is not None]
    columns = [(str(index.name), index.to_series()) for index in indexes]
    columns += [(str(name), frame.iloc[:, n]) for n, name in enumerate(frame.columns)]
    _check_names([name for name, _ in columns])
    arrays = []
    for name, series in columns:
        try:
            is_object = series.dtype == object
            arrays.append(_object_array(name, series, first_row) if is_object else pa.array(series, from_pandas=True))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as reason:
            raise TypeError(f"column {name!r} of type {series.dtype} cannot be JSON: {reason}") from reason
    return pa.table(arrays, names=[name for name, _ in columns])


def _object_array(name: str, series: Any, first_row: int) -> Any:
    """A column of Python's values: by its Arrow type where all are of one kind that Arrow keeps, else each as JSON."""
    pa, pandas = import_library("pyarrow"), import_library("pandas")
    kind = pandas.api.types.infer_dtype(series, skipna=True)
    # A moment is a date for pandas.
    if kind in _KEPT_KINDS and (kind != "date" or set(map(type, series.dropna())) == {date}):
        try:
            return pa.array(series, from_pandas=True)
        except (pa.ArrowInvalid, OverflowError):
            pass  # integers of more than 64 bits
    texts: list[str | None] = []
    for number, (value, is_missing) in enumerate(zip(series, series.isna(), strict=True), first_row):
        try:
            texts.append(None if is_missing else to_json(_in_utc(value)).decode())
        except (TypeError, ValueError):
            to_json([{name: value}], first_row=number)  # which names the row and the field
            raise
    return _raw_json(pa.array(texts, pa.string()))


def _in_utc(value: Any) -> Any:
    """A moment without a zone is in UTC, as in a column of moments."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


def _polars_frame(frame: Any) -> Any:
    """A frame of polars whose columns Arrow has: integers of 128 bits are their digits."""
    texts = []
    for name, kind in frame.schema.items():
        if str(kind) == "Object":
            raise TypeError(f"column {name!r} has values that only Python knows, which cannot be JSON")
        if str(kind) in ("Int128", "UInt128"):
            texts.append(name)
    if not texts:
        return frame
    pa, polars = import_library("pyarrow"), import_library("polars")
    table = pa.table(frame.cast(dict.fromkeys(texts, polars.String)))
    for name in texts:
        number = table.column_names.index(name)
        chunks = [_raw_json(chunk) for chunk in table.column(number).chunks]
        table = table.set_column(number, name, pa.chunked_array(chunks, pa.json_()))
    return table


def _raw_json(texts: Any) -> Any:
    """Texts that are JSON already."""
    pa = import_library("pyarrow")
    return pa.ExtensionArray.from_storage(pa.json_(), texts.cast(pa.string()))


# -- types of Arrow


def _castable(table: pyarrow.Table) -> pyarrow.Table:
    """A table with types that DuckDB reads without loss."""
    pa = import_library("pyarrow")
    for number, field in enumerate(table.schema):
        try:
            kind = _plain_type(field.type)
            if kind == field.type:
                continue
            column = table.column(number)
            if pa.types.is_decimal256(field.type):
                column = pa.chunked_array([_raw_json(chunk) for chunk in column.chunks], pa.json_())
            elif pa.types.is_dictionary(field.type):
                column = pa.chunked_array([_decode_dictionary(chunk) for chunk in column.chunks]).cast(kind)
            else:
                column = column.cast(kind)
            table = table.set_column(number, field.name, column)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError) as reason:
            raise TypeError(f"column {field.name!r} of type {field.type} cannot be JSON: {reason}") from reason
    return table


def _decode_dictionary(column: Any) -> Any:
    """The values of a dictionary; Arrow decodes none to views, which polars has."""
    pa = import_library("pyarrow")
    values = column.dictionary
    if pa.types.is_string_view(values.type):
        values = values.cast(pa.string())
    return pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()


def _plain_type(kind: Any) -> Any:
    """The type in whose place DuckDB has one; raises TypeError where values have no form in JSON."""
    pa = import_library("pyarrow")
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name not in _EXTENSIONS:
            raise TypeError(f"{kind.extension_name} has no form in JSON: make it text or numbers")
        return kind
    if types.is_duration(kind) or types.is_interval(kind):
        raise TypeError("a duration has no form in JSON: make it a number of seconds")
    if types.is_timestamp(kind):
        return pa.timestamp(kind.unit)  # in UTC
    if types.is_decimal256(kind):
        return pa.json_()
    if types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if types.is_float16(kind):
        return pa.float32()
    if types.is_decimal(kind) and not types.is_decimal128(kind):
        return pa.decimal128(38, kind.scale)
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _list_type(kind)
    if types.is_union(kind) or types.is_run_end_encoded(kind):
        raise TypeError("values of this type have no form in JSON")
    return kind


def _list_type(kind: Any) -> Any:
    """The type of a list with plain elements."""
    pa = import_library("pyarrow")
    element = kind.value_field.with_type(_plain_type(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(element, kind.list_size)
    return pa.large_list(element) if pa.types.is_large_list(kind) else pa.list_(element)
