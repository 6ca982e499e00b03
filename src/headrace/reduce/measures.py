"""The measures of a rollup, each as a reducer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from headrace.operators import sketches
from headrace.query import predicate
from headrace.query.search import (
    Count,
    Distinct,
    Field,
    Kind,
    Measure,
    Quantiles,
    Rollup,
    Search,
    Summary,
    SummaryParts,
)
from headrace.query.sql import identifier, predicate_sql
from headrace.query.tree import Node
from headrace.query.values import values
from headrace.reduce import histogram, parts
from headrace.reduce.state import MOST, State


class EventColumns:
    """The columns of events; ``known`` names columns that already say where a query is true."""

    def __init__(self, schema: pa.Schema, search: Search, query_columns: Mapping[Node, str]) -> None:
        self._search = search
        self._query_columns = query_columns
        self.many = {field.name: _is_list(field.type) for field in schema}

    def holds(self, tree: Node) -> str:
        """Whether an event matches a query."""
        column = self._query_columns.get(tree)
        return predicate_sql(tree, self._search, self.many) if column is None else identifier(column)

    def single_value(self, field: str) -> str:
        """The value of a field where an event has exactly one, else null."""
        column = identifier(f"f.{field}")
        return f"(CASE WHEN len({column}) = 1 THEN {column}[1] END)" if self.many[f"f.{field}"] else column

    def at_most_one(self, field: str) -> str:
        """Whether an event has no two values of a field."""
        column = identifier(f"f.{field}")
        return f"coalesce(len({column}) = 1, true)" if self.many[f"f.{field}"] else "true"

    def different(self, field: str) -> str:
        """All the values of a field in some events, each once; an aggregate."""
        column = identifier(f"f.{field}")
        if self.many[f"f.{field}"]:
            return f"list_distinct(flatten(list({column}) FILTER ({column} IS NOT NULL)))"
        return f"list(DISTINCT {column}) FILTER ({column} IS NOT NULL)"


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


NOTHING = State(count=0)


class Expression(NamedTuple):
    """A component of a state in DuckDB: an aggregate over events, and what makes states of the lists it gathers."""

    sql: str
    make_states: Callable[[pa.ListArray], pa.Array] | None = None


class MeasureReducer(Protocol):
    """A measure over events."""

    def lift(self, document: Any) -> State:
        """The state of one event."""

    def columns(self, source: EventColumns) -> dict[str, Expression]:
        """The components of the state of many events."""

    def finish(self, state: State) -> dict[str, Any]:
        """The answer as it goes over the wire."""


def number(value: float | None) -> float | None:
    """A number as JSON has it: whole ones without a fraction, none beyond the range of doubles."""
    if value is None or isinstance(value, int) or not math.isfinite(value):
        return value if isinstance(value, int) else None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


class SummaryReducer:
    """Count, sum, least and greatest of the events that have exactly one number."""

    def __init__(self, field: Field, *, has_histogram: bool) -> None:
        self._field = field
        self._has_histogram = has_histogram
        self._is_integer = field.kind is Kind.INTEGER

    def lift(self, document: Any) -> State:
        """The summary of one number."""
        field_values = values(self._field, document)
        if len(field_values) != 1:
            return NOTHING
        number: Any = field_values[0]
        counted = {histogram.exponent(number): 1} if self._has_histogram else None
        if self._is_integer:
            return State(count=1, sum_int=number, min_int=number, max_int=number, histogram=counted)
        return State(count=1, sum=number, min=number, max=number, histogram=counted)

    def columns(self, source: EventColumns) -> dict[str, Expression]:
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

    def finish(self, state: State) -> dict[str, Any]:
        """The summary; percentiles are null without a histogram."""
        if self._is_integer:
            return _summary(state, state.sum_int, state.min_int, state.max_int, has_histogram=self._has_histogram)
        return _summary(state, state.sum, state.min, state.max, has_histogram=self._has_histogram)


class SummaryPartsReducer:
    """A summary of the events that are summaries themselves."""

    def __init__(self, rollup: str, name: str, measure: SummaryParts) -> None:
        self._rollup = rollup
        self._name = name
        self._measure = measure

    def lift(self, document: Any) -> State:
        """The summary that the event is."""
        summary = parts.read_summary(self._measure, document)
        if summary is None:
            return NOTHING
        return State(
            count=summary.count, sum=summary.sum, min=summary.min, max=summary.max, histogram=summary.histogram
        )

    def columns(self, source: EventColumns) -> dict[str, Expression]:
        """The components, from columns of their own."""
        count, total, least, greatest, counted = (
            identifier(parts.column(self._rollup, self._name, part)) for part in parts.TYPES
        )
        return {
            "count": Expression(f"least(coalesce(sum({count}), 0), {MOST})::BIGINT"),
            "sum": Expression(f"sum({total})"),
            "min": Expression(f"min({least})"),
            "max": Expression(f"max({greatest})"),
            "histogram": Expression(f"list({counted}) FILTER ({counted} IS NOT NULL)", histogram.merge_lists),
        }

    def finish(self, state: State) -> dict[str, Any]:
        """The summary."""
        return _summary(state, state.sum, state.min, state.max, has_histogram=self._measure.histogram is not None)


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


class QuantilesReducer:
    """How the numbers of the events that have exactly one are distributed."""

    def __init__(self, field: Field) -> None:
        self._field = field

    def lift(self, document: Any) -> State:
        """The sketch of one number, as a double."""
        field_values = values(self._field, document)
        number = _double(field_values[0]) if len(field_values) == 1 else None
        if number is None:
            return NOTHING
        return State(count=1, sketch=sketches.quantiles(np.array([number])))

    def columns(self, source: EventColumns) -> dict[str, Expression]:
        """How many numbers, and their sketch."""
        value = source.single_value(self._field.name)
        numbers = f"list({value}::DOUBLE) FILTER ({value} IS NOT NULL)"
        return {"count": Expression(f"count({value})"), "sketch": Expression(numbers, _sketch_each(_quantiles))}

    def finish(self, state: State) -> dict[str, Any]:
        """How many, the least, the greatest, and quantiles."""
        if state.sketch is None:
            return {"count": 0, **dict.fromkeys(("min", "max", *sketches.RANKS))}
        return {name: number(value) for name, value in sketches.distribution(state.sketch).items()}


class DistinctReducer:
    """How many values differ, all values of every event counted."""

    def __init__(self, field: Field) -> None:
        self._field = field

    def lift(self, document: Any) -> State:
        """The sketch of the values of one event; how many there were counts for nothing."""
        field_values = values(self._field, document)
        return State(count=0, sketch=sketches.distinct_of(field_values)) if field_values else NOTHING

    def columns(self, source: EventColumns) -> dict[str, Expression]:
        """The sketch."""
        gathered = source.different(self._field.name)
        return {"count": Expression("0::BIGINT"), "sketch": Expression(gathered, _sketch_each(sketches.distinct))}

    def finish(self, state: State) -> dict[str, Any]:
        """About how many."""
        return {"distinct": 0 if state.sketch is None else sketches.distinct_count(state.sketch)}


def _double(value: Any) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None


def _quantiles(numbers: pa.Array) -> bytes:
    return sketches.quantiles(numbers.to_numpy())


def _sketch_each(sketch: Callable[[pa.Array], bytes]) -> Callable[[pa.ListArray], pa.Array]:
    """A sketch for every list; null for an empty one."""

    def made(lists: pa.ListArray) -> pa.Array:
        offsets, gathered = lists.offsets.to_pylist(), lists.values
        sketched = [
            sketch(gathered.slice(start, end - start)) if end > start else None for start, end in pairwise(offsets)
        ]
        return pa.array(sketched, pa.binary())

    return made


def reducers(rollup: Rollup, search: Search) -> dict[str, MeasureReducer]:
    """The reducer of every measure of a rollup."""
    return {name: _reducer(rollup.name, name, measure, search) for name, measure in sorted(rollup.measures.items())}


def _reducer(rollup: str, name: str, measure: Measure, search: Search) -> MeasureReducer:
    match measure:
        case Count():
            return CountReducer(measure, search)
        case Summary():
            return SummaryReducer(search[measure.field], has_histogram=measure.histogram)
        case SummaryParts():
            return SummaryPartsReducer(rollup, name, measure)
        case Quantiles():
            return QuantilesReducer(search[measure.field])
        case Distinct():
            return DistinctReducer(search[measure.field])
    raise TypeError(f"{measure!r} is no measure")


class CountReducer:
    """How many events, or how many of them match."""

    def __init__(self, measure: Count, search: Search) -> None:
        self._include = measure.include
        self._matches = predicate.compile(measure.include, search) if measure.include else lambda _: True

    def lift(self, document: Any) -> State:
        """One, or zero where the event does not match."""
        return State(count=int(self._matches(document)))

    def columns(self, source: EventColumns) -> dict[str, Expression]:
        """The count."""
        only = f" FILTER ({source.holds(self._include)})" if self._include else ""
        return {"count": Expression(f"count(*){only}")}

    def finish(self, state: State) -> dict[str, Any]:
        """The count."""
        return {"count": state.count or 0}
