"""The states of plain columns, natively: what DuckDB computes too, several times as fast.

Plain are counts and summaries of columns without lists. Everything else is left to DuckDB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.query.search import Count, Rollup, Summary
from headrace.query.tree import Node
from headrace.reduce.groups import require_groups
from headrace.reduce.state import STATE

Int64s = NDArray[np.int64]
Mask = NDArray[np.bool_]
Span = tuple[int, int]

_DIMENSIONS = (pa.string(), pa.int64(), pa.bool_())
_NUMBERS = (pa.int64(), pa.float64())
#: Codes may have so many values for each row, and some more.
_SPARSE, _MORE = 8, 65_536
_SHORT = 2**16
_LOW = 2**32 - 1


class Groups(NamedTuple):
    """Groups of events: the start of the pane of each, its dimensions, and the components of the states of measures."""

    pane: pa.Array
    dimensions: list[pa.Array]
    measures: dict[str, dict[str, pa.Array]]


def is_plain(schema: pa.Schema, rollup: Rollup, chosen: Sequence[Node], query_columns: Mapping[Node, str]) -> bool:
    """Whether `groups` can tell the states of a rollup, where these queries choose the events."""
    kinds, measures = dict(zip(schema.names, schema.types, strict=True)), rollup.measures.values()
    counted = [measure.include for measure in measures if isinstance(measure, Count)]
    return (
        all(isinstance(measure, Count | Summary) for measure in measures)
        and all(tree is None or tree in query_columns for tree in [*chosen, *counted])
        and kinds[f"f.{rollup.timestamp}"] == pa.int64()
        and all(kinds[f"f.{name}"] in _DIMENSIONS for name in rollup.dimensions)
        and all(kinds[f"f.{measure.field}"] in _NUMBERS for measure in measures if isinstance(measure, Summary))
    )


def groups(
    columns: pa.Table,
    rollup: Rollup,
    interval: int,
    *,
    spans: Sequence[Span],
    chosen: Sequence[Node],
    query_columns: Mapping[Node, str],
    most_groups: int | None,
) -> Groups:
    """The groups of events that have a time in the spans, and for which all these queries are known to hold."""
    columns = _filter_events(columns, f"f.{rollup.timestamp}", spans, [query_columns[tree] for tree in chosen])
    time = _combine(columns.column(f"f.{rollup.timestamp}")).to_numpy()
    pane = time - time % interval
    dimensions = [_combine(columns.column(f"f.{name}")) for name in rollup.dimensions]
    number, first = _number_groups([_by_pane(pane, interval), *map(_by_value, dimensions)])
    count = len(first)
    require_groups(count, most_groups)
    made: dict[str, dict[str, pa.Array]] = {}
    for name, measure in rollup.measures.items():
        if isinstance(measure, Summary):
            made[name] = _summary(_combine(columns.column(f"f.{measure.field}")), number, count, measure.histogram)
        elif isinstance(measure, Count):
            counted = (
                number if measure.include is None else number[_mask(columns.column(query_columns[measure.include]))]
            )
            made[name] = {"count": pa.array(np.bincount(counted, minlength=count))}
    return Groups(pa.array(pane[first]), [column.take(pa.array(first)) for column in dimensions], made)


def _filter_events(columns: pa.Table, timestamp: str, spans: Sequence[Span], marks: Sequence[str]) -> pa.Table:
    column = _combine(columns.column(timestamp))
    time, mask = column.fill_null(0).to_numpy(), _mask(column.is_valid())
    inside = [(time >= start) & (time < end) for start, end in spans]
    mask &= np.logical_or.reduce(inside) if inside else False
    for name in marks:
        mask &= _mask(columns.column(name))
    return columns if mask.all() else columns.filter(pa.array(mask))


# -- which group an event is in


class _Codes(NamedTuple):
    """For every row a number below ``size``, the same for the same value."""

    numbers: Int64s
    size: int


def _by_pane(pane: Int64s, interval: int) -> _Codes:
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


def _number_groups(parts: Sequence[_Codes]) -> tuple[Int64s, Int64s]:
    """The number of the group of every row, and the first row of every group."""
    whole, *others = parts
    for part in others:
        whole = _renumber(_Codes(whole.numbers * part.size + part.numbers, whole.size * part.size))
    present = np.flatnonzero(np.bincount(whole.numbers, minlength=whole.size))
    places = np.zeros(whole.size, np.int64)
    places[present] = np.arange(len(present))
    number = places[whole.numbers]
    first = np.empty(len(present), np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    return number, first


# -- summaries


def _summary(column: pa.Array, number: Int64s, groups: int, has_histogram: bool) -> dict[str, pa.Array]:
    if column.null_count:
        number, column = number[_mask(column.is_valid())], column.drop_null()
    values: NDArray[Any] = column.to_numpy()
    count = np.bincount(number, minlength=groups)
    made = {"count": pa.array(count), **_fold_groups(_in_order(values, number, groups), count)}
    if has_histogram:
        made["histogram"] = _histogram(_exponents(values), number, groups)
    return made


def _in_order(values: NDArray[Any], number: Int64s, groups: int) -> NDArray[Any]:
    """The values group by group."""
    if (number[1:] >= number[:-1]).all():
        return values
    short = number.astype(np.uint16) if groups <= _SHORT else number  # short numbers are sorted by radix
    return values[np.argsort(short, kind="stable")]


def _fold_groups(values: NDArray[Any], count: Int64s) -> dict[str, pa.Array]:
    """Sum, least and greatest of each group, null where it has no values."""
    is_integer, empty = values.dtype == np.int64, count == 0
    starts = (np.cumsum(count) - count)[~empty]

    def fold(function: Any, numbers: NDArray[Any]) -> NDArray[Any]:
        totals = np.zeros(len(count), numbers.dtype)
        if len(starts):
            with np.errstate(over="ignore", invalid="ignore"):  # a sum may leave the range of doubles
                totals[~empty] = function.reduceat(numbers, starts)
        return totals

    kind = "_int" if is_integer else ""
    total = fold(np.add, values) if not is_integer else _exact(fold(np.add, values >> 32), fold(np.add, values & _LOW))
    components = {f"min{kind}": fold(np.minimum, values), f"max{kind}": fold(np.maximum, values), f"sum{kind}": total}
    return {name: pa.array(component, STATE.field(name).type, mask=empty) for name, component in components.items()}


def _exact(high: Int64s, low: Int64s) -> NDArray[Any]:
    """Sums of 64-bit integers from the sums of their halves, of any size."""
    return np.array(
        [
            Decimal((high_half << 32) + low_half)
            for high_half, low_half in zip(high.tolist(), low.tolist(), strict=True)
        ],
        object,
    )


def _exponents(values: NDArray[Any]) -> Int64s:
    """See `histogram.exponent`."""
    if values.dtype != np.int64:
        return _exponent(np.maximum(np.abs(values), 1))
    # The magnitude of the least integer fits without a sign only.
    magnitude = np.maximum(np.abs(values).view(np.uint64), np.uint64(1))
    rounded = _exponent(magnitude.astype(np.float64))
    rounded -= magnitude >> rounded.astype(np.uint64) == 0  # as a double it may have become the next power
    return rounded


def _exponent(magnitude: NDArray[np.float64]) -> Int64s:
    return np.frexp(magnitude)[1].astype(np.int64) - np.int64(1)


def _histogram(exponents: Int64s, number: Int64s, groups: int) -> pa.MapArray:
    span = int(exponents.max(initial=0)) + 1
    places = number * span + exponents
    if groups * span <= _SPARSE * len(number) + _MORE:
        counted = np.bincount(places)
        filled = np.flatnonzero(counted)
        counts = counted[filled]
    else:
        filled, counts = np.unique(places, return_counts=True)
    ends = np.searchsorted(filled // span, np.arange(groups + 1)).astype(np.int32)
    keys = pa.array((filled % span).astype(np.int32))
    return pa.MapArray.from_arrays(pa.array(ends), keys, pa.array(counts), mask=pa.array(np.diff(ends) == 0))


def _combine(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _mask(column: pa.Array | pa.ChunkedArray) -> Mask:
    mask: Mask = np.array(column.fill_null(False).to_numpy(zero_copy_only=False))
    return mask
