"""Finished answers of many groups at once: what ``finish`` of a reducer says of each state, natively."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.query.search import Count, Kind, Measure, Rollup, Search, Summary, SummaryParts
from headrace.reduce import histogram
from headrace.reduce.measures import reducers
from headrace.reduce.reducer import Reducer, number
from headrace.reduce.state import STATE, State

Answer = dict[str, Any]

#: The exponents of doubles end before.
_EXPONENTS = 1024
_POWERS = [2**at for at in range(_EXPONENTS)]
_LABELS = [str(power) for power in _POWERS]
_SHARES = {name: int(name.removeprefix("p")) for name in histogram.percentiles({})}
#: Up to here a hundred times a count fits into 64 bits.
_COUNTABLE = 2.0**56


def finished(panes: pa.Table, rollup: Rollup, search: Search) -> list[Answer]:
    """The answer of every row of merged panes, in the order of the rows."""
    found: list[Answer] = [{}] * panes.num_rows
    for name, reducer in reducers(rollup, search).items():
        rows = pc.indices_nonzero(pc.equal(panes.column("measure"), name))
        made = _answers(rollup.measures[name], search, reducer, panes.select(STATE.names).take(rows))
        for row, answer in zip(rows.to_pylist(), made, strict=True):
            found[row] = answer
    return found


def states(panes: pa.Table) -> Iterator[State]:
    """The state of every row."""
    columns = {name: _listed(panes.column(name)) for name in STATE.names}
    columns["sum_int"] = map(_integer, columns["sum_int"])
    columns["histogram"] = (None if value is None else dict(value) for value in columns["histogram"])
    return (State(*components) for components in zip(*columns.values(), strict=True))


def _answers(measure: Measure, search: Search, reducer: Reducer, panes: pa.Table) -> Iterable[Answer]:
    match measure:
        case Count():
            return [{"count": count} for count in _counts(panes).tolist()]
        case Summary(field=field, histogram=has_histogram):
            return _summaries(panes, search[field].kind is Kind.INTEGER, has_histogram)
        case SummaryParts():
            return _summaries(panes, False, measure.histogram is not None)
    return map(reducer.finish, states(panes))


def _summaries(panes: pa.Table, is_integer: bool, has_histogram: bool) -> Iterator[Answer]:
    counts = _counts(panes)
    numbers = _integers(panes, counts) if is_integer else _floats(panes, counts)
    counted = panes.column("histogram").combine_chunks()
    labelled = _labelled(counted) if has_histogram else repeat(None)
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
    total = [_integer(value) or 0 for value in _listed(panes.column("sum_int"))]
    pairs = zip(total, counts.tolist(), strict=True)
    average = [number(whole / count) if count else None for whole, count in pairs]
    return [total, *(list(_listed(panes.column(name))) for name in ("min_int", "max_int")), average]


def _numbers(values: NDArray[np.float64]) -> list[Any]:
    """Numbers as JSON has them, see `reducer.number`."""
    listed: list[Any] = values.tolist()
    for at in np.flatnonzero(~np.isfinite(values)).tolist():
        listed[at] = None
    for at in np.flatnonzero((np.trunc(values) == values) & (np.abs(values) < 2**53)).tolist():
        listed[at] = int(listed[at])
    return listed


def _labelled(histograms: pa.MapArray) -> Iterator[dict[str, int]]:
    """The histograms as they are answered."""
    labels = [_LABELS[at] for at in histograms.keys.to_pylist()]
    counts = histograms.items.to_pylist()
    for start, end in pairwise(histograms.offsets.to_pylist()):
        yield dict(zip(labels[start:end], counts[start:end], strict=True))


def _percentiles(histograms: pa.MapArray) -> list[list[int | None]]:
    """The labels of all percentiles, one list for each."""
    counts, offsets = histograms.items.to_numpy(), histograms.offsets.to_numpy()
    if counts.sum(dtype=np.float64) >= _COUNTABLE:
        each = [histogram.percentiles(dict(pairs or ())) for pairs in histograms.to_pylist()]
        return [[one[name] for one in each] for name in _SHARES]
    until, starts = np.append(0, np.cumsum(counts)), offsets[:-1]
    before, filled = until[starts], np.diff(offsets) > 0
    totals = until[offsets[1:]] - before
    powers = [_POWERS[at] for at in histograms.keys.to_pylist()]
    found: list[list[int | None]] = []
    for share in _SHARES.values():
        # The first bucket up to which there are enough; until[n] counts those before bucket n.
        places = np.maximum(np.searchsorted(until, before - (-share * totals // 100)) - 1, starts)
        listed = zip(places.tolist(), filled.tolist(), strict=True)
        found.append([powers[place] if is_filled else None for place, is_filled in listed])
    return found


def _integer(value: Any) -> int | None:
    return None if value is None else int(value)


def _listed(column: pa.ChunkedArray) -> Iterable[Any]:
    return repeat(None, len(column)) if column.null_count == len(column) else column.to_pylist()
