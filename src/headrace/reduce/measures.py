"""The measures of a rollup as reducers of events, and how their states come from columns."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.operators import sketches
from headrace.operators.catalogue import OPERATORS
from headrace.operators.reducer import Reducer
from headrace.operators.runs import RowRuns
from headrace.query import predicate
from headrace.query.search import FIELD_TYPES, Count, Distinct, Field, OperatorMeasure, Quantiles, Search
from headrace.query.sql import identifier, predicate_sql
from headrace.query.tree import Node
from headrace.query.values import values
from headrace.reduce.state import STATE, State, merge_states, pack_operator_state, unpack_operator_state

Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]
Answer = dict[str, Any]


class EventColumns:
    """The columns of events; ``query_columns`` are those that already say where a query is true."""

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

    def single_valued(self, field: str) -> str:
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


class EventGroups(NamedTuple):
    """Events as columns without lists, the number of the group of each event, and how many groups there are."""

    columns: pa.Table
    number: Longs
    groups: int
    #: The columns that say where a query is true.
    query_columns: Mapping[Node, str]

    def column(self, name: str) -> pa.Array:
        """A column in one piece."""
        return combine_chunks(self.columns.column(name))


def combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def to_mask(column: pa.Array | pa.ChunkedArray) -> Mask:
    """Where a column is true."""
    mask: Mask = np.array(column.fill_null(False).to_numpy(zero_copy_only=False))
    return mask


NOTHING = State(count=0)


class Expression(NamedTuple):
    """A component of a state in DuckDB: an aggregate over events, and what makes states of the lists it gathers."""

    sql: str
    make_states: Callable[[pa.ListArray], pa.Array] | None = None


class MeasureReducer(Reducer[Any, State, tuple[Any, ...]]):
    """A measure over events, which are documents of the newest shape.

    Besides the plain form it has one in DuckDB's SQL, and may have one in numpy for columns without lists. States are
    merged alike for all measures, in columns by `rollup.merge_panes` and on Spark by `spark.merge`.
    """

    order = "any"

    @abstractmethod
    def lift(self, document: Any, at: int = 0) -> State:
        """The state of one event, and its time."""

    def fold(self, state: State | None, at: int, seq: int, row: Any, matched: bool = True) -> State | None:
        """The state with one more event."""
        if not matched:
            return state
        return self.lift(row, at) if state is None else merge_states(state, self.lift(row, at))

    def merge_both(self, left: State, right: State) -> State:
        """The state of the events of both."""
        return merge_states(left, right)

    @abstractmethod
    def finish(self, state: State | None, now: int = 0) -> Answer:
        """The answer as it goes over the wire."""

    def finish_columns(self, panes: pa.Table) -> Iterable[Answer]:
        """The answers of many states, in the columns of panes."""
        return map(self.finish, states_of(panes))

    def pack(self, state: State) -> tuple[Any, ...]:
        """The components of the state, in the order of the columns of panes."""
        return msgspec.structs.astuple(state)

    def unpack(self, packed: tuple[Any, ...]) -> State:
        """The state of components."""
        return State(*packed)

    @abstractmethod
    def expressions(self, source: EventColumns) -> dict[str, Expression]:
        """The components of the state of many events, in DuckDB."""

    def is_plain(self, types: Mapping[str, pa.DataType], query_columns: Mapping[Node, str]) -> bool:
        """Whether `fold_groups` takes columns of these types."""
        return False

    def fold_groups(self, events: EventGroups) -> dict[str, pa.Array]:
        """The components of the state of each group, natively: several times as fast as DuckDB."""
        raise NotImplementedError


def number(value: float | None) -> float | None:
    """A number as JSON has it: whole ones without a fraction, none beyond the range of doubles."""
    if value is None or isinstance(value, int) or not math.isfinite(value):
        return value if isinstance(value, int) else None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def states_of(panes: pa.Table) -> Iterable[State]:
    """The state of every row of panes."""
    columns: dict[str, Iterable[Any]] = {name: to_values(panes.column(name)) for name in STATE.names}
    columns["sum_int"] = map(to_integer, columns["sum_int"])
    columns["histogram"] = (None if value is None else dict(value) for value in columns["histogram"])
    return (State(*components) for components in zip(*columns.values(), strict=True))


def to_values(column: pa.ChunkedArray) -> Iterable[Any]:
    """The values of a column, quickly where it has none."""
    return [None] * len(column) if column.null_count == len(column) else column.to_pylist()


def to_integer(value: Any) -> int | None:
    """A decimal as an integer."""
    return None if value is None else int(value)


class CountReducer(MeasureReducer):
    """How many events, or how many of them match."""

    def __init__(self, measure: Count, search: Search) -> None:
        self._include = measure.include
        self._matches = predicate.compile(measure.include, search) if measure.include else lambda _: True

    def lift(self, document: Any, at: int = 0) -> State:
        """One, or zero where the event does not match."""
        return State(count=int(self._matches(document)))

    def finish(self, state: State | None, now: int = 0) -> Answer:
        """The count."""
        return {"count": state.count or 0 if state else 0}

    def finish_columns(self, panes: pa.Table) -> Iterable[Answer]:
        """The counts."""
        return [{"count": count} for count in panes.column("count").fill_null(0).to_pylist()]

    def expressions(self, source: EventColumns) -> dict[str, Expression]:
        """The count."""
        only = f" FILTER ({source.holds(self._include)})" if self._include else ""
        return {"count": Expression(f"count(*){only}")}

    def is_plain(self, types: Mapping[str, pa.DataType], query_columns: Mapping[Node, str]) -> bool:
        """Where it is known which events match."""
        return self._include is None or self._include in query_columns

    def fold_groups(self, events: EventGroups) -> dict[str, pa.Array]:
        """The count."""
        counted = events.number
        if self._include is not None:
            counted = counted[to_mask(events.columns.column(events.query_columns[self._include]))]
        return {"count": pa.array(np.bincount(counted, minlength=events.groups))}


class QuantilesReducer(MeasureReducer):
    """How the numbers of the events that have exactly one are distributed."""

    def __init__(self, measure: Quantiles, search: Search) -> None:
        self._field = search[measure.field]

    def lift(self, document: Any, at: int = 0) -> State:
        """The sketch of one number, as a double."""
        number = _double(single_value(self._field, document))
        return NOTHING if number is None else State(count=1, sketch=sketches.quantiles(np.array([number])))

    def finish(self, state: State | None, now: int = 0) -> Answer:
        """How many, the least, the greatest, and quantiles."""
        if state is None or state.sketch is None:
            return {"count": 0, **dict.fromkeys(("min", "max", *sketches.RANKS))}
        return {name: number(value) for name, value in sketches.distribution(state.sketch).items()}

    def expressions(self, source: EventColumns) -> dict[str, Expression]:
        """How many numbers, and their sketch."""
        value = source.single_value(self._field.name)
        numbers = f"list({value}::DOUBLE) FILTER ({value} IS NOT NULL)"
        return {"count": Expression(f"count({value})"), "sketch": Expression(numbers, _sketch_each(_quantiles))}


class DistinctReducer(MeasureReducer):
    """How many values differ, all values of every event counted."""

    def __init__(self, measure: Distinct, search: Search) -> None:
        self._field = search[measure.field]

    def lift(self, document: Any, at: int = 0) -> State:
        """The sketch of the values of one event; how many there were counts for nothing."""
        field_values = values(self._field, document)
        return State(count=0, sketch=sketches.distinct_of(field_values)) if field_values else NOTHING

    def finish(self, state: State | None, now: int = 0) -> Answer:
        """About how many."""
        return {"distinct": 0 if state is None or state.sketch is None else sketches.distinct_count(state.sketch)}

    def expressions(self, source: EventColumns) -> dict[str, Expression]:
        """The sketch."""
        gathered = source.different(self._field.name)
        return {"count": Expression("0::BIGINT"), "sketch": Expression(gathered, _sketch_each(sketches.distinct))}


class OperatorReducer(MeasureReducer):
    """An operator over the events that match and have exactly one value of each of its fields."""

    def __init__(self, measure: OperatorMeasure, timestamp: str, search: Search) -> None:
        self._measure, self._timestamp = measure, timestamp
        self._fields = {name: search[name] for name in measure.fields}
        types = {name: FIELD_TYPES[field.kind] for name, field in self._fields.items()}
        self._operator = OPERATORS[measure.operator](measure.params, types)
        self._matches = predicate.compile(measure.include, search) if measure.include else lambda _: True

    def lift(self, document: Any, at: int = 0) -> State:
        """The state of one event."""
        row = {name: _to_stored(single_value(field, document)) for name, field in self._fields.items()}
        state = self._operator.fold(None, at, 0, row, self._matches(document))
        return NOTHING if state is None else State(count=0, sketch=self._pack(state))

    def finish(self, state: State | None, now: int = 0) -> Answer:
        """The operator's answer, under its name."""
        held = None
        if state is not None and state.sketch is not None:
            held = unpack_operator_state(state.sketch)
        return {self._measure.operator: self._operator.finish(held, now)}

    def expressions(self, source: EventColumns) -> dict[str, Expression]:
        """The events that count, from which the operator makes states."""
        include = self._measure.include
        matches = "true" if include is None else f"coalesce({source.holds(include)}, false)"
        values = {name: source.single_value(name) for name in self._fields}
        members = {"at": source.single_value(self._timestamp), "matched": matches}
        members |= {f"v{at}": value for at, value in enumerate(values.values())}
        counts = [f"{value} IS NOT NULL" for value in values.values()]
        counts += [] if self._operator.takes_all else [matches]
        row = f"struct_pack({', '.join(f'{name} := {sql}' for name, sql in members.items())})"
        only = f" FILTER ({' AND '.join(counts)})" if counts else ""
        return {"count": Expression("0::BIGINT"), "sketch": Expression(f"list({row}){only}", self._make_states)}

    def _make_states(self, lists: pa.ListArray) -> pa.Array:
        offsets = lists.offsets.to_numpy().astype(np.int64)
        rows = lists.values.slice(offsets[0], offsets[-1] - offsets[0])
        offsets = offsets - offsets[0]
        filled = np.flatnonzero(np.diff(offsets))
        states: list[bytes | None] = [None] * len(lists)
        if len(filled):
            columns = {name: rows.field(f"v{at}") for at, name in enumerate(self._fields)}
            runs = RowRuns(
                offsets[:-1][filled],
                rows.field("at").to_numpy(),
                np.zeros(len(rows), np.int64),
                rows.field("matched").to_numpy(zero_copy_only=False),
                pa.table(columns or {"at": rows.field("at")}),
            )
            for at, state in zip(filled.tolist(), self._operator.fold_runs(runs), strict=True):
                states[at] = self._pack(state)
        return pa.array(states, pa.binary())

    def _pack(self, state: Any) -> bytes:
        return pack_operator_state(self._measure.operator, self._measure.params, state)


def single_value(field: Field, document: Any) -> Any:
    """The value of a field where an event has exactly one, else None."""
    field_values = values(field, document)
    return field_values[0] if len(field_values) == 1 else None


def _to_stored(value: Any) -> Any:
    """A value as operators keep it: a text as a column can hold it, an integer beyond 64 bits as a double."""
    if isinstance(value, str):
        return sketches.replace_surrogates(value)
    return value if not isinstance(value, int) or -(2**63) <= value < 2**63 else _double(value)


def _double(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
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
