"""The states of plain columns, natively: what DuckDB computes too, several times as fast.

Plain are counts and summaries of columns without lists. Everything else is left to DuckDB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.query.search import Rollup
from headrace.query.tree import Node
from headrace.reduce.groups import require_groups
from headrace.reduce.measures import EventGroups, Longs, MeasureReducer, combine_chunks, to_mask

Span = tuple[int, int]

_DIMENSIONS = (pa.string(), pa.int64(), pa.bool_())
#: Codes may have so many values for each row, and some more.
_SPARSE, _MORE = 8, 65_536


class Groups(NamedTuple):
    """Groups of events: the start of the pane of each, its dimensions, and the components of the states of measures."""

    pane: pa.Array
    dimensions: list[pa.Array]
    measures: dict[str, dict[str, pa.Array]]


def is_plain(
    schema: pa.Schema,
    rollup: Rollup,
    measures: Mapping[str, MeasureReducer],
    chosen: Sequence[Node],
    query_columns: Mapping[Node, str],
) -> bool:
    """Whether `groups` can compute the states of a rollup whose events these queries select."""
    kinds = dict(zip(schema.names, schema.types, strict=True))
    return (
        all(reducer.is_plain(kinds, query_columns) for reducer in measures.values())
        and all(tree in query_columns for tree in chosen)
        and kinds[f"f.{rollup.timestamp}"] == pa.int64()
        and all(kinds[f"f.{name}"] in _DIMENSIONS for name in rollup.dimensions)
    )


def groups(
    columns: pa.Table,
    rollup: Rollup,
    measures: Mapping[str, MeasureReducer],
    interval: int,
    *,
    spans: Sequence[Span],
    chosen: Sequence[Node],
    query_columns: Mapping[Node, str],
    max_groups: int | None,
) -> Groups:
    """The groups of events that have a time in the spans, and for which all these queries are known to hold."""
    columns = _filter_events(columns, f"f.{rollup.timestamp}", spans, [query_columns[tree] for tree in chosen])
    time = combine_chunks(columns.column(f"f.{rollup.timestamp}")).to_numpy()
    pane = time - time % interval
    dimensions = [combine_chunks(columns.column(f"f.{name}")) for name in rollup.dimensions]
    number, first = _number_groups([_by_pane(pane, interval), *map(_by_value, dimensions)])
    count = len(first)
    require_groups(count, max_groups)
    events = EventGroups(columns, number, count, query_columns)
    made = {name: reducer.fold_groups(events) for name, reducer in measures.items()}
    return Groups(pa.array(pane[first]), [column.take(pa.array(first)) for column in dimensions], made)


def _filter_events(columns: pa.Table, timestamp: str, spans: Sequence[Span], marks: Sequence[str]) -> pa.Table:
    column = combine_chunks(columns.column(timestamp))
    time, mask = column.fill_null(0).to_numpy(), to_mask(column.is_valid())
    inside = [(time >= start) & (time < end) for start, end in spans]
    mask &= np.logical_or.reduce(inside) if inside else False
    for name in marks:
        mask &= to_mask(columns.column(name))
    return columns if mask.all() else columns.filter(pa.array(mask))


# -- which group an event is in


class _Codes(NamedTuple):
    """For every row a number below ``size``, the same for the same value."""

    numbers: Longs
    size: int


def _by_pane(pane: Longs, interval: int) -> _Codes:
    if not len(pane):
        return _Codes(pane, 1)
    least = int(pane.min())
    return _renumber(_Codes((pane - least) // interval, (int(pane.max()) - least) // interval + 1))


def _by_value(column: pa.Array) -> _Codes:
    indexed = column.dictionary_encode(null_encoding="encode")
    return _Codes(indexed.indices.to_numpy().astype(np.int64), max(1, len(indexed.dictionary)))


def _renumber(codes: _Codes) -> _Codes:
    """The same with few numbers that stand for nothing."""
    if codes.size <= _SPARSE * len(codes.numbers) + _MORE:
        return codes
    values, numbers = np.unique(codes.numbers, return_inverse=True)
    return _Codes(numbers, len(values))


def _number_groups(parts: Sequence[_Codes]) -> tuple[Longs, Longs]:
    """The number of the group of every row, and the first row of every group."""
    codes, *others = parts
    for part in others:
        codes = _renumber(_Codes(codes.numbers * part.size + part.numbers, codes.size * part.size))
    present = np.flatnonzero(np.bincount(codes.numbers, minlength=codes.size))
    places = np.zeros(codes.size, np.int64)
    places[present] = np.arange(len(present))
    number = places[codes.numbers]
    first = np.empty(len(present), np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    return number, first
