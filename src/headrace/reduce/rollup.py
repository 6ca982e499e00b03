"""The panes of a rollup: states per pane of time, group and measure, one row each, sorted.

An event counts in a rollup if it matches ``include``, has exactly one time, and no two values of any dimension. A
time beyond what ISO 8601 dates can say (8.64e15 ms from 1970) is in no pane; an odd row has no time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from headrace.deadline import Deadline
from headrace.query.search import (
    Count,
    Distinct,
    Measure,
    OperatorMeasure,
    Quantiles,
    Rollup,
    Search,
    Summary,
    SummaryParts,
)
from headrace.query.search_document import LONGEST_MS
from headrace.query.tree import Node
from headrace.reduce import duck, histogram, plain
from headrace.reduce.groups import keys, require_groups
from headrace.reduce.measures import (
    CountReducer,
    DistinctReducer,
    EventColumns,
    Expression,
    MeasureReducer,
    OperatorReducer,
    QuantilesReducer,
)
from headrace.reduce.plain import Groups
from headrace.reduce.state import KEYS, PANES, STATE, merge_sketches
from headrace.reduce.summaries import SummaryPartsReducer, SummaryReducer

#: The first and the last millisecond that panes hold.
FARTHEST = LONGEST_MS

Span = plain.Span

#: Sketches of so many groups are made or merged between two checks of the deadline.
_SLICE = 1_024
_SORTED = [(name, "ascending") for name in KEYS.names]
_FOLDED = {
    "sum": "sum",
    "sum_int": "sum",
    "min": "min",
    "max": "max",
    "min_int": "min",
    "max_int": "max",
}


def reducers(rollup: Rollup, search: Search) -> dict[str, MeasureReducer]:
    """The reducers by measure, in the order of their names."""
    return {name: _reducer(rollup, name, measure, search) for name, measure in sorted(rollup.measures.items())}


def _reducer(rollup: Rollup, name: str, measure: Measure, search: Search) -> MeasureReducer:
    match measure:
        case Count():
            return CountReducer(measure, search)
        case Summary():
            return SummaryReducer(measure, search)
        case SummaryParts():
            return SummaryPartsReducer(rollup.name, name, measure)
        case Quantiles():
            return QuantilesReducer(measure, search)
        case Distinct():
            return DistinctReducer(measure, search)
        case OperatorMeasure():
            return OperatorReducer(measure, rollup.timestamp, search)
    raise TypeError(f"{measure!r} is no measure")


def include_queries(rollup: Rollup) -> list[Node]:
    """Every query that decides what a rollup counts."""
    included = (measure.query for measure in rollup.measures.values())
    return [tree for tree in (rollup.include, *included) if tree is not None]


def panes(
    columns: pa.Table,
    rollup: Rollup,
    search: Search,
    *,
    intervals: Collection[int] | None = None,
    where: Node | None = None,
    spans: Sequence[Span] | None = None,
    query_columns: Mapping[Node, str] = MappingProxyType({}),
    max_groups: int | None = None,
    deadline: Deadline | None = None,
) -> pa.Table:
    """The panes of events, for all intervals or some, in milliseconds.

    Only events that match ``where`` and whose time is in one of the half-open ``spans`` count. ``known`` names boolean
    columns of the table that say where a query is true, for columns that the query itself would need and are missing.
    More than ``max_groups`` groups of one interval raise TooManyGroups before their states are made, and OutOfTime is
    raised where the deadline passes while sketches are made.
    """
    chosen = [tree for tree in (rollup.include, where) if tree is not None]
    ever = [(-FARTHEST, FARTHEST + 1)]
    inside = ever if spans is None else [(_in_range(start), _in_range(end)) for start, end in spans]
    wanted = {interval.millis for interval in rollup.intervals} if intervals is None else set(intervals)
    measures = reducers(rollup, search)
    if plain.is_plain(columns.schema, rollup, measures, chosen, query_columns):
        groups = partial(
            plain.groups, columns, rollup, measures, spans=inside, chosen=chosen, query_columns=query_columns
        )
    else:
        source = EventColumns(columns.schema, search, query_columns)
        condition = _condition(source, rollup, chosen, inside)
        groups = partial(_groups, columns, rollup, measures, source, condition, deadline=deadline)
    tables = [_panes(rollup, interval, groups(interval, max_groups=max_groups)) for interval in sorted(wanted)]
    return pa.concat_tables([PANES.empty_table(), *tables]).sort_by(_SORTED)


def merge_panes(tables: Sequence[pa.Table], deadline: Deadline | None = None) -> pa.Table:
    """The panes of all the events of several tables of panes; raises OutOfTime where the deadline passes."""
    together = pa.concat_tables([PANES.empty_table(), *tables]).combine_chunks()
    if together.group_by(KEYS.names, use_threads=False).aggregate([]).num_rows == together.num_rows:
        return together.sort_by(_SORTED)
    numbered = together.append_column("row", pa.array(np.arange(together.num_rows)))
    groups = numbered.group_by(KEYS.names, use_threads=False).aggregate([*_FOLDED.items(), ("row", "list")])
    rows = groups.column("row_list").combine_chunks()
    merged = {name: groups.column(f"{name}_{fold}") for name, fold in _FOLDED.items()}
    counts = together.column("count").fill_null(0).to_numpy()[rows.values.to_numpy()]
    merged["count"] = pa.array(histogram.totals(counts, rows.offsets.to_numpy()[:-1]))
    merged["histogram"] = histogram.merge_lists(_gather(together.column("histogram"), rows))
    merged["sketch"] = _map_slices(_gather(together.column("sketch"), rows), _merge_sketch_lists, deadline)
    columns = [merged[name] if name in merged else groups.column(name) for name in PANES.names]
    return pa.table(columns, schema=PANES).sort_by(_SORTED)


def _condition(source: EventColumns, rollup: Rollup, chosen: Sequence[Node], spans: Sequence[Span]) -> str:
    time = source.single_value(rollup.timestamp)
    inside = [f"({time} >= {start} AND {time} < {end})" for start, end in spans]
    holds = [f"({' OR '.join(inside or ['false'])})"]
    holds += [source.single_valued(name) for name in rollup.dimensions]
    holds += [source.holds(tree) for tree in chosen]
    return " AND ".join(holds)


def _groups(
    columns: pa.Table,
    rollup: Rollup,
    measures: Mapping[str, MeasureReducer],
    source: EventColumns,
    condition: str,
    interval: int,
    *,
    max_groups: int | None,
    deadline: Deadline | None,
) -> Groups:
    """The groups of any columns, from DuckDB."""
    time = source.single_value(rollup.timestamp)
    selected = [f"{time} - (({time} % {interval}) + {interval}) % {interval} AS pane"]
    selected += [f"{source.single_value(name)} AS d{at}" for at, name in enumerate(rollup.dimensions)]
    group_by = tuple(selected)
    expressions = {name: reducer.expressions(source) for name, reducer in measures.items()}
    for at, made in enumerate(expressions.values()):
        selected += [f"{expression.sql} AS m{at}_{name}" for name, expression in made.items()]
    gathers_lists = any(expression.make_states for made in expressions.values() for expression in made.values())
    if gathers_lists and max_groups is not None and columns.num_rows > max_groups:
        # Lists take much more memory than the groups themselves.
        distinct = f"SELECT DISTINCT {', '.join(group_by)} FROM events WHERE {condition}"
        counted = duck.query(f"SELECT count(*) AS n FROM ({distinct})", {"events": columns}, deadline)
        require_groups(counted.column("n")[0].as_py(), max_groups)
    sql = f"SELECT {', '.join(selected)} FROM events WHERE {condition} GROUP BY ALL"
    groups = duck.query(sql, {"events": columns}, deadline)
    require_groups(groups.num_rows, max_groups)
    states = {
        measure: {
            name: _states(groups.column(f"m{at}_{name}"), expression, deadline) for name, expression in made.items()
        }
        for at, (measure, made) in enumerate(expressions.items())
    }
    return Groups(groups.column("pane"), [groups.column(f"d{at}") for at in range(len(rollup.dimensions))], states)


def _panes(rollup: Rollup, interval: int, groups: Groups) -> pa.Table:
    """One row for every group and measure."""
    count = len(groups.pane)
    head = [pa.repeat(rollup.name, count), pa.repeat(interval, count), groups.pane, keys(groups.dimensions, count)]
    absent = {field.name: pa.nulls(count, field.type) for field in STATE}
    tables = [
        pa.table([*head, pa.repeat(measure, count), *(absent | states).values()], schema=PANES)
        for measure, states in groups.measures.items()
    ]
    return pa.concat_tables(tables)


def _states(column: pa.ChunkedArray, expression: Expression, deadline: Deadline | None) -> pa.ChunkedArray:
    return (
        column
        if expression.make_states is None
        else _map_slices(column.combine_chunks(), expression.make_states, deadline)
    )


def _merge_sketch_lists(lists: pa.ListArray) -> pa.Array:
    """One sketch for every list of them; null for a list without any."""
    if lists.values.null_count == len(lists.values):
        return pa.nulls(len(lists), pa.binary())
    present = ([part for part in parts if part is not None] for parts in lists.to_pylist())
    return pa.array([merge_sketches(parts) if parts else None for parts in present], pa.binary())


def _map_slices(
    lists: pa.ListArray, make: Callable[[pa.ListArray], pa.Array], deadline: Deadline | None
) -> pa.ChunkedArray:
    """What is made of lists, some of them at a time."""
    chunks = []
    for start in range(0, max(1, len(lists)), _SLICE):
        if deadline is not None:
            deadline.check()
        chunks.append(make(lists.slice(start, _SLICE)))
    return pa.chunked_array(chunks)


def _gather(column: pa.ChunkedArray, rows: pa.ListArray) -> pa.ListArray:
    """The values of the rows of every list."""
    return pa.ListArray.from_arrays(rows.offsets, column.combine_chunks().take(rows.values))


def _in_range(time: int) -> int:
    """A bound that DuckDB can compare with; beyond the farthest time it makes no difference."""
    return max(-FARTHEST, min(time, FARTHEST + 1))
