"""Rows of answers as tables of Arrow, pandas and polars; these libraries are imported when a table is asked for.

A column has the Arrow type that holds all its values. Where there is none, because values of several JSON types share a
name, each value is its JSON text, so that nothing is lost or converted.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec

from headrace.client.answers import Batch
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

Row = dict[str, Any]
Item = TypeVar("Item")
#: The column of events that are no objects, and of streams of bytes.
VALUE = "value"


class Tabular:
    """A mixin for answers that are rows."""

    __slots__ = ()

    def rows(self) -> list[Row]:
        """The rows, each by the names of its columns."""
        raise NotImplementedError

    def to_arrow(self) -> pyarrow.Table:
        """The rows as an Arrow table."""
        return arrow_table(self.rows())

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a pandas DataFrame."""
        return pandas_frame(self.to_arrow())

    def to_polars(self) -> polars.DataFrame:
        """The rows as a polars DataFrame."""
        return polars_frame(self.to_arrow())


class Batches(Tabular):
    """Batches of a read, one after the other; or all that are left of them as one table."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        return next(self._batches)

    def rows(self) -> list[Row]:
        """The events of all batches that are left."""
        return [row for batch in self for row in batch_rows(batch)]


class Listing(Tabular, Generic[Item]):
    """The items of a list, one after the other; or all that are left of them as one table."""

    def __init__(self, items: Iterator[Item], make_row: Callable[[Item], Row]) -> None:
        self._items, self._make_row = items, make_row

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        return next(self._items)

    def rows(self) -> list[Row]:
        """A row for each item that is left."""
        return [self._make_row(item) for item in self]


class AsyncTabular:
    """A mixin for answers that are rows, which are awaited."""

    __slots__ = ()

    async def rows(self) -> list[Row]:
        """The rows, each by the names of its columns."""
        raise NotImplementedError

    async def to_arrow(self) -> pyarrow.Table:
        """The rows as an Arrow table."""
        return arrow_table(await self.rows())

    async def to_pandas(self) -> pandas.DataFrame:
        """The rows as a pandas DataFrame."""
        return pandas_frame(await self.to_arrow())

    async def to_polars(self) -> polars.DataFrame:
        """The rows as a polars DataFrame."""
        return polars_frame(await self.to_arrow())


class AsyncBatches(AsyncTabular):
    """Batches of a read, one after the other; or all that are left of them as one table."""

    def __init__(self, batches: AsyncIterator[Batch]) -> None:
        self._batches = batches

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        return await anext(self._batches)

    async def rows(self) -> list[Row]:
        """The events of all batches that are left."""
        return [row async for batch in self for row in batch_rows(batch)]


class AsyncListing(AsyncTabular, Generic[Item]):
    """The items of a list, one after the other; or all that are left of them as one table."""

    def __init__(self, items: AsyncIterator[Item], make_row: Callable[[Item], Row]) -> None:
        self._items, self._make_row = items, make_row

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        return await anext(self._items)

    async def rows(self) -> list[Row]:
        """A row for each item that is left."""
        return [self._make_row(item) async for item in self]


def batch_rows(batch: Batch) -> Iterable[Row]:
    """The events of a batch as rows."""
    return map(event_row, batch.items)


def event_row(event: Any) -> Row:
    """An event as a row: its members if it is an object."""
    return event if isinstance(event, dict) else {VALUE: event}


def arrow_table(rows: Sequence[Row], types: Mapping[str, Any] | None = None) -> pyarrow.Table:
    """Rows as a table; a row that lacks a column has a null there.

    Columns that ``types`` has are there in any case, with the type of Arrow that it says, if their values have one.
    """
    pa = import_library("pyarrow")
    types = types or {}
    names = dict.fromkeys([*types, *(name for row in rows for name in row)])
    return pa.table({name: _column(pa, [row.get(name) for row in rows], types.get(name)) for name in names})


def _column(pa: Any, values: list[Any], kind: Any = None) -> Any:
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        # No type holds all of them exactly.
        texts = [None if value is None else msgspec.json.encode(value).decode() for value in values]
        return pa.array(texts, pa.string())


def pandas_frame(table: pyarrow.Table) -> pandas.DataFrame:
    """A table as a pandas DataFrame."""
    import_library("pandas")
    frame: pandas.DataFrame = table.to_pandas()
    return frame


def join_columns(left: pyarrow.Table, right: pyarrow.Table) -> pyarrow.Table:
    """The columns of two tables with the same rows."""
    for name, column in zip(right.column_names, right.columns, strict=True):
        left = left.append_column(name, column)
    return left


def nullable_pandas_frame(table: pyarrow.Table) -> pandas.DataFrame:
    """A table as a pandas DataFrame in which integers and booleans stay such where there are nulls; maps are dicts."""
    pa, pd = import_library("pyarrow"), import_library("pandas")
    nullable = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    frame: pandas.DataFrame = table.to_pandas(types_mapper=nullable.get, maps_as_pydicts="strict")
    return frame


def polars_frame(table: pyarrow.Table) -> polars.DataFrame:
    """A table as a polars DataFrame."""
    frame: polars.DataFrame = import_library("polars").from_arrow(table)
    return frame


def import_library(name: str) -> Any:
    """A library that only frames need."""
    try:
        return importlib.import_module(name)
    except ImportError as reason:
        raise HeadraceError(f"{name} is not installed; run: pip install {name}") from reason
