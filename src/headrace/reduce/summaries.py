"""Summaries as measures of rollups: count, sum, least, greatest and histogram of a number, or of summaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.query.search import Kind, Search, Summary, SummaryParts
from headrace.query.sql import identifier
from headrace.query.tree import Node
from headrace.reduce import histogram, parts
from headrace.reduce.measures import (
    NOTHING,
    Answer,
    EventColumns,
    EventGroups,
    Expression,
    Longs,
    MeasureReducer,
    number,
    single_value,
    to_integer,
    to_mask,
    to_values,
)
from headrace.reduce.state import MAX_COUNT, STATE, State

_NUMBERS = (pa.int64(), pa.float64())
#: Codes may have so many values for each row, and some more.
_SPARSE, _MORE = 8, 65_536
_SHORT = 2**16
_LOW = 2**32 - 1
#: All exponents of doubles are below this.
_EXPONENTS = 1024
_POWERS = [2**at for at in range(_EXPONENTS)]
_LABELS = [str(power) for power in _POWERS]
_PERCENTS = {name: int(name.removeprefix("p")) for name in histogram.percentiles({})}
#: Up to here a hundred times a count fits into 64 bits.
_COUNTABLE = 2.0**56


class SummaryReducer(MeasureReducer):
    """Count, sum, least and greatest of the events that have exactly one number."""

    def __init__(self, measure: Summary, search: Search) -> None:
        self._field = search[measure.field]
        self._has_histogram = measure.histogram
        self._is_integer = self._field.kind is Kind.INTEGER

    def lift(self, document: Any, at: int = 0) -> State:
        """The summary of one number."""
        number = single_value(self._field, document)
        if number is None:
            return NOTHING
        counted = {histogram.exponent(number): 1} if self._has_histogram else None
        if self._is_integer:
            return State(count=1, sum_int=number, min_int=number, max_int=number, histogram=counted)
        return State(count=1, sum=number, min=number, max=number, histogram=counted)

    def expressions(self, source: EventColumns) -> dict[str, Expression]:
        """The components, integers exactly."""
        value = source.single_value(self._field.name)
        kind = "_int" if self._is_integer else ""
        total = f"sum({value})::DECIMAL(38, 0)" if self._is_integer else f"sum({value})"
        made = {
            "count": f"count({value})",
            f"sum{kind}": total,
            f"min{kind}": f"min({value})",
            f"max{kind}": f"max({value})",
        }
        if self._has_histogram:
            bucket = histogram.exponent_of_integer if self._is_integer else histogram.exponent_of_float
            counted = f"histogram({bucket(value)}) FILTER ({value} IS NOT NULL)"
            made["histogram"] = f"({counted})::MAP(INTEGER, BIGINT)"
        return {name: Expression(sql) for name, sql in made.items()}

    def finish(self, state: State | None, now: int = 0) -> Answer:
        """The summary; percentiles are null without a histogram."""
        state = NOTHING if state is None else state
        if self._is_integer:
            return _summary(state, state.sum_int, state.min_int, state.max_int, has_histogram=self._has_histogram)
        return _summary(state, state.sum, state.min, state.max, has_histogram=self._has_histogram)

    def finish_columns(self, panes: pa.Table) -> Iterable[Answer]:
        """The summaries."""
        return _summaries(panes, self._is_integer, self._has_histogram)

    def is_plain(self, types: Mapping[str, pa.DataType], query_columns: Mapping[Node, str]) -> bool:
        """Where the field has at most one number."""
        return types[f"f.{self._field.name}"] in _NUMBERS

    def fold_groups(self, events: EventGroups) -> dict[str, pa.Array]:
        """The components, integers exactly."""
        column = events.column(f"f.{self._field.name}")
        return _fold_column(column, events.number, events.groups, self._has_histogram)


class SummaryPartsReducer(MeasureReducer):
    """A summary of the events that are summaries themselves."""

    def __init__(self, rollup: str, name: str, measure: SummaryParts) -> None:
        self._rollup = rollup
        self._name = name
        self._measure = measure

    def lift(self, document: Any, at: int = 0) -> State:
        """The summary that the event is."""
        summary = parts.read_summary(self._measure, document)
        if summary is None:
            return NOTHING
        return State(
            count=summary.count, sum=summary.sum, min=summary.min, max=summary.max, histogram=summary.histogram
        )

    def expressions(self, source: EventColumns) -> dict[str, Expression]:
        """The components, from columns of their own."""
        count, total, least, greatest, counted = (
            identifier(parts.column(self._rollup, self._name, part)) for part in parts.TYPES
        )
        return {
            "count": Expression(f"least(coalesce(sum({count}), 0), {MAX_COUNT})::BIGINT"),
            "sum": Expression(f"sum({total})"),
            "min": Expression(f"min({least})"),
            "max": Expression(f"max({greatest})"),
            "histogram": Expression(f"list({counted}) FILTER ({counted} IS NOT NULL)", histogram.merge_lists),
        }

    def finish(self, state: State | None, now: int = 0) -> Answer:
        """The summary."""
        state = NOTHING if state is None else state
        return _summary(state, state.sum, state.min, state.max, has_histogram=self._measure.histogram is not None)

    def finish_columns(self, panes: pa.Table) -> Iterable[Answer]:
        """The summaries."""
        return _summaries(panes, False, self._measure.histogram is not None)


def _summary(
    state: State, total: float | None, least: float | None, greatest: float | None, *, has_histogram: bool
) -> dict[str, Any]:
    count = state.count or 0
    counted: Mapping[int, int] = state.histogram or {}
    answer = {
        "count": count,
        "sum": number(total or 0),
        "min": number(least),
        "max": number(greatest),
        "avg": _average(total, count),
        **histogram.percentiles(counted),
    }
    return {**answer, "histogram": histogram.label_counts(counted)} if has_histogram else answer


def _average(total: float | None, count: int) -> float | None:
    try:
        return number((total or 0) / count) if count else None
    except OverflowError:
        return None


def _fold_column(column: pa.Array, number: Longs, groups: int, has_histogram: bool) -> dict[str, pa.Array]:
    if column.null_count:
        number, column = number[to_mask(column.is_valid())], column.drop_null()
    values: NDArray[Any] = column.to_numpy()
    count = np.bincount(number, minlength=groups)
    made = {"count": pa.array(count), **_fold_groups(_in_order(values, number, groups), count)}
    if has_histogram:
        made["histogram"] = _histogram(_exponents(values), number, groups)
    return made


def _in_order(values: NDArray[Any], number: Longs, groups: int) -> NDArray[Any]:
    """The values group by group."""
    if (number[1:] >= number[:-1]).all():
        return values
    short = number.astype(np.uint16) if groups <= _SHORT else number  # short numbers are sorted by radix
    return values[np.argsort(short, kind="stable")]


def _fold_groups(values: NDArray[Any], count: Longs) -> dict[str, pa.Array]:
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


def _exact(high: Longs, low: Longs) -> NDArray[Any]:
    """Sums of 64-bit integers from the sums of their halves, of any size."""
    return np.array(
        [
            Decimal((high_half << 32) + low_half)
            for high_half, low_half in zip(high.tolist(), low.tolist(), strict=True)
        ],
        object,
    )


def _exponents(values: NDArray[Any]) -> Longs:
    """See `histogram.exponent`."""
    if values.dtype != np.int64:
        return _exponent(np.maximum(np.abs(values), 1))
    # The magnitude of the least integer fits without a sign only.
    magnitude = np.maximum(np.abs(values).view(np.uint64), np.uint64(1))
    rounded = _exponent(magnitude.astype(np.float64))
    rounded -= magnitude >> rounded.astype(np.uint64) == 0  # as a double it may have become the next power
    return rounded


def _exponent(magnitude: NDArray[np.float64]) -> Longs:
    return np.frexp(magnitude)[1].astype(np.int64) - np.int64(1)


def _histogram(exponents: Longs, number: Longs, groups: int) -> pa.MapArray:
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


def _summaries(panes: pa.Table, is_integer: bool, has_histogram: bool) -> Iterator[Answer]:
    counts = _counts(panes)
    numbers = _integers(panes, counts) if is_integer else _floats(panes, counts)
    counted = panes.column("histogram").combine_chunks()
    labelled = _label_histograms(counted) if has_histogram else repeat(None)
    for count, total, least, greatest, average, p50, p95, p99, labels in zip(
        counts.tolist(), *numbers, *_percentiles(counted), labelled, strict=False
    ):
        answer = {
            "count": count,
            "sum": total,
            "min": least,
            "max": greatest,
            "avg": average,
            "p50": p50,
            "p95": p95,
            "p99": p99,
        }
        if labels is not None:
            answer["histogram"] = labels
        yield answer


def _counts(panes: pa.Table) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = panes.column("count").fill_null(0).to_numpy()
    return counts


def _floats(panes: pa.Table, counts: NDArray[np.int64]) -> list[list[Any]]:
    """Sum, least, greatest and average."""
    total = panes.column("sum").fill_null(0.0).to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        average = total / counts
    return [_numbers(total), *(_numbers(panes.column(name).to_numpy()) for name in ("min", "max")), _numbers(average)]


def _integers(panes: pa.Table, counts: NDArray[np.int64]) -> list[list[Any]]:
    """The same of integers, exactly."""
    total = [to_integer(value) or 0 for value in to_values(panes.column("sum_int"))]
    pairs = zip(total, counts.tolist(), strict=True)
    average = [number(total / count) if count else None for total, count in pairs]
    return [total, *(list(to_values(panes.column(name))) for name in ("min_int", "max_int")), average]


def _numbers(values: NDArray[np.float64]) -> list[Any]:
    """Numbers as JSON has them, see `reducer.number`."""
    listed: list[Any] = values.tolist()
    for at in np.flatnonzero(~np.isfinite(values)).tolist():
        listed[at] = None
    for at in np.flatnonzero((np.trunc(values) == values) & (np.abs(values) < 2**53)).tolist():
        listed[at] = int(listed[at])
    return listed


def _label_histograms(histograms: pa.MapArray) -> Iterator[dict[str, int]]:
    """The histograms as they are answered."""
    labels = [_LABELS[at] for at in histograms.keys.to_pylist()]
    counts = histograms.items.to_pylist()
    for start, end in pairwise(histograms.offsets.to_pylist()):
        yield dict(zip(labels[start:end], counts[start:end], strict=True))


def _percentiles(histograms: pa.MapArray) -> list[list[int | None]]:
    """The labels of all percentiles, one list for each."""
    counts, offsets = histograms.items.to_numpy(), histograms.offsets.to_numpy()
    if counts.sum(dtype=np.float64) >= _COUNTABLE:
        by_histogram = [histogram.percentiles(dict(pairs or ())) for pairs in histograms.to_pylist()]
        return [[percentiles[name] for percentiles in by_histogram] for name in _PERCENTS]
    until, starts = np.append(0, np.cumsum(counts)), offsets[:-1]
    before, filled = until[starts], np.diff(offsets) > 0
    totals = until[offsets[1:]] - before
    powers = [_POWERS[at] for at in histograms.keys.to_pylist()]
    labels: list[list[int | None]] = []
    for percent in _PERCENTS.values():
        # The first bucket up to which there are enough; until[n] counts those before bucket n.
        buckets = np.maximum(np.searchsorted(until, before - (-percent * totals // 100)) - 1, starts)
        listed = zip(buckets.tolist(), filled.tolist(), strict=True)
        labels.append([powers[bucket] if is_filled else None for bucket, is_filled in listed])
    return labels
