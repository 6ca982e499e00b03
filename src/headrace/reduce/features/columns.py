"""A table's states from columns: many events at once, without a Python call for each.

Rows come as an Arrow table: the fields of events, and their sequence numbers and times in ms. After the steps they are
sorted by key, time and sequence number; then a key is a run of rows, a pane of a key too, and operators make the states
of many runs at once, as columns. Features that count the same rows in the same panes share their runs, and what
operators make of those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.format.state import VERSION
from headrace.format.state_file import PackedColumns
from headrace.operators.operator import Operator, Windowed
from headrace.operators.runs import Longs, RowRuns
from headrace.operators.state_bytes import unpack
from headrace.operators.state_columns import Maps, Numbers, Records, Same, StateColumn, Texts, column_of
from headrace.reduce.features.column_expressions import apply_steps, evaluate
from headrace.reduce.features.event_columns import AT_MS, SEQ
from headrace.reduce.features.event_time import LATE_MS
from headrace.reduce.features.table import EMPTY, NEVER, TableReducer, end_of, pack_frame
from headrace.schema.descriptor.nodes import GREATEST
from headrace.schema.expression import fields as expression_fields
from headrace.schema.expression import parse

Booleans = NDArray[np.bool_]


class _KeyedRows(NamedTuple):
    """Rows sorted by key, time and number; ``keys`` in order, ``starts`` where the rows of each begin."""

    keys: pa.Array
    rows: pa.Table
    #: The number of the key of every row.
    key_of: Longs
    starts: Longs
    seqs: Longs
    times: Longs


class _ChosenRows:
    """Some rows of a table, of which a column is taken when it is asked for."""

    def __init__(self, rows: pa.Table, at: Longs | None) -> None:
        self._rows, self._at = rows, at

    def column(self, name: str) -> pa.Array:
        """A column of these rows."""
        column = self._rows.column(name).combine_chunks()
        return column if self._at is None else column.take(pa.array(self._at))

    def take(self, indices: pa.Array) -> _ChosenRows:
        """Some of these rows."""
        at = indices.to_numpy()
        return _ChosenRows(self._rows, at if self._at is None else self._at[at])


class _Counted(NamedTuple):
    """Which rows count: where, the fields without which they do not, the first event and the end."""

    where: str | None
    fields: tuple[str, ...]
    start_seq: int
    end_seq: int


class _Runs(NamedTuple):
    """Rows in runs, the places of the rows among those of all keys (None: all), and the keys and panes of the runs."""

    runs: RowRuns
    at: Longs | None
    owners: Longs
    panes: Longs | None


def fold_rows(reducer: TableReducer, rows: pa.Table) -> PackedColumns:
    """The packed states of every key, in order of keys: what folding the rows one by one gives."""
    rows = apply_steps(reducer.ops, reducer.source_types, rows)
    if not reducer.has_event_time or not len(rows):
        return _fold_timely(reducer, rows)
    is_late = pc.equal(rows.column(AT_MS), LATE_MS)
    packed = _fold_timely(reducer, rows.filter(pc.invert(is_late)))
    return _add_late(reducer, packed, *_count_keys(reducer, rows.filter(is_late)))


def _count_keys(reducer: TableReducer, rows: pa.Table) -> tuple[pa.Array, Longs]:
    """The keys of rows in order, and how many rows each has."""
    rows = _drop_keyless(reducer, rows)
    keys, key_of = _number_keys(reducer, rows)
    return keys, np.bincount(key_of, minlength=len(keys))


def _add_late(reducer: TableReducer, packed: PackedColumns, keys: pa.Array, counts: Longs) -> PackedColumns:
    """Packed states with the numbers of late events of some keys, of which some may have no other events."""
    if not len(keys):
        return packed
    late = dict(zip(keys.to_pylist(), counts.tolist(), strict=True))
    indices = {key: index for index, key in enumerate(packed.keys.to_pylist())}
    every = sorted(indices.keys() | late.keys())
    taken = pa.array([indices.get(key) for key in every], pa.int64())
    columns = {
        version.id: packed.columns[version.id].take(taken) if indices else pa.nulls(len(every), pa.binary())
        for version in reducer.feature_versions.values()
    }
    frames = packed.columns[""].take(taken).to_pylist() if indices else [None] * len(every)
    for index, key in enumerate(every):
        if key in late:
            frame = frames[index]
            frames[index] = pack_frame(EMPTY if frame is None else unpack(frame)[: len(EMPTY)], late[key])
    return PackedColumns(pa.array(every, pa.binary()), {**columns, "": pa.array(frames, pa.binary())})


def _fold_timely(reducer: TableReducer, rows: pa.Table) -> PackedColumns:
    """The same of rows that all have a time."""
    keyed = _group_by_key(reducer, rows)
    if not len(keyed.keys):
        return PackedColumns(keyed.keys, {})
    restarts = _restart_rows(reducer, keyed)
    features = _FeatureStates(reducer, keyed, restarts)
    columns = {
        reducer.feature_versions[name].id: features.packed(name, operator)
        for name, operator in reducer.operators.items()
    }
    return PackedColumns(keyed.keys, {"": _frames(keyed, restarts), **columns})


def _group_by_key(reducer: TableReducer, rows: pa.Table) -> _KeyedRows:
    rows = _drop_keyless(reducer, rows)
    keys, key_of = _number_keys(reducer, rows)
    order = _order(key_of, len(keys), _longs(rows, SEQ), _longs(rows, AT_MS))
    rows, key_of = rows.select(_needed_columns(reducer, rows)).take(order), key_of[order]
    starts = np.searchsorted(key_of, np.arange(len(keys)))
    return _KeyedRows(keys, rows, key_of, starts, _longs(rows, SEQ), _longs(rows, AT_MS))


def _drop_keyless(reducer: TableReducer, rows: pa.Table) -> pa.Table:
    """The rows of which no part of the key is null."""
    for name in reducer.keys.fields:
        if rows.column(name).null_count:
            rows = rows.filter(pc.is_valid(rows.column(name)))
    return rows


def _number_keys(reducer: TableReducer, rows: pa.Table) -> tuple[pa.Array, Longs]:
    """The keys in order, and the number of the key of every row."""
    if reducer.keys.is_text:
        numbered = _number_short_texts(rows.column(reducer.keys.fields[0]).combine_chunks())
        if numbered is not None:
            return numbered
    codes, chosen = _codes(reducer.keys.fields, rows)
    # Different spellings of one moment are one key.
    chosen_keys = [reducer.keys.of(row) or b"" for row in chosen]
    keys = sorted(set(chosen_keys))
    number_of_key = {key: at for at, key in enumerate(keys)}
    numbers = np.array([number_of_key[key] for key in chosen_keys], np.int64)
    return pa.array(keys, pa.binary()), numbers[codes]


def _number_short_texts(column: pa.Array) -> tuple[pa.Array, Longs] | None:
    """The same where keys are texts of fewer than 32 bytes: the length of those has one byte in every key."""
    if not pa.types.is_dictionary(column.type) or not len(column):
        return None
    present, codes = _renumber(column.indices.to_numpy(), len(column.dictionary))
    texts = column.dictionary.take(pa.array(present))
    if pc.max(pc.binary_length(texts)).as_py() >= 32:
        return None
    packed = Records(Texts(texts)).packed()
    order = pc.array_sort_indices(packed)
    numbers = np.empty(len(order), np.int64)
    numbers[order.to_numpy()] = np.arange(len(order))
    return packed.take(order), numbers[codes]


def _codes(fields: Sequence[str], rows: pa.Table) -> tuple[Longs, list[dict[str, Any]]]:
    """A number for every row, the same for equal keys, and the fields of the key of every number."""
    codes = np.zeros(len(rows), np.int64)
    chosen: list[dict[str, Any]] = [{}] if len(rows) else []
    for name in fields:
        encoded = rows.column(name).combine_chunks()
        encoded = encoded if pa.types.is_dictionary(encoded.type) else encoded.dictionary_encode()
        values = encoded.dictionary.to_pylist()
        limit = max(1, len(values))
        numbers, codes = _renumber(codes * limit + encoded.indices.to_numpy(), len(chosen) * limit)
        pairs = (divmod(number, limit) for number in numbers.tolist())
        chosen = [{**chosen[before], name: values[value]} for before, value in pairs]
    return codes, chosen


def _renumber(codes: Longs, limit: int) -> tuple[Longs, Longs]:
    """The different codes, which are below a limit, and the number of each row's code among them."""
    if limit > 4 * len(codes):
        return np.unique(codes, return_inverse=True)
    numbers = np.flatnonzero(np.bincount(codes, minlength=limit))
    renumbered = np.zeros(limit, np.int64)
    renumbered[numbers] = np.arange(len(numbers))
    return numbers, renumbered[codes]


def _order(key_of: Longs, keys: int, seqs: Longs, times: Longs) -> Longs:
    """By key, time and sequence number. Rows mostly come in the order of both; short numbers sort faster."""
    if not bool(np.all((seqs[1:] >= seqs[:-1]) & (times[1:] >= times[:-1]))):
        return np.lexsort((seqs, times, key_of))
    return np.argsort(key_of.astype(np.uint16) if keys <= 2**16 else key_of, kind="stable")


def _needed_columns(reducer: TableReducer, rows: pa.Table) -> list[str]:
    fields = {field for operator in reducer.operators.values() for field in operator.fields}
    fields |= {name for text in reducer.where_texts.values() for name in expression_fields(parse(text))}
    return [name for name in rows.column_names if name in {SEQ, AT_MS, *fields}]


def _longs(rows: pa.Table, name: str) -> Longs:
    longs: Longs = rows.column(name).to_numpy()
    return longs


def _frames(keyed: _KeyedRows, restarts: Longs) -> pa.Array:
    """Where each key was first and last seen, and whether it started afresh, as `pack_frame` has it."""
    ends = np.append(keyed.starts[1:], len(keyed.seqs)) - 1
    least, greatest = (choose.reduceat(keyed.seqs, keyed.starts) for choose in (np.minimum, np.maximum))
    parts = (least, keyed.times[keyed.starts], greatest, keyed.times[ends], restarts >= 0)
    return Records(*map(Numbers, parts), Same(VERSION, len(ends))).packed()


def _restart_rows(reducer: TableReducer, keyed: _KeyedRows) -> Longs:
    """The last row of each key that starts it afresh, -1 where none does."""
    if not reducer.cold:
        return np.full(len(keyed.keys), -1)
    limits = np.array([NEVER, *(NEVER if limit is None else limit for _, limit in reducer.cold)])
    allowed = limits[np.searchsorted([since for since, _ in reducer.cold], keyed.seqs, side="right")]
    idle = np.diff(keyed.times, prepend=keyed.times[0])
    idle[keyed.starts] = 0
    last_restarts: Longs = np.maximum.reduceat(np.where(idle > allowed, np.arange(len(idle)), -1), keyed.starts)
    return last_restarts


class _FeatureStates:
    """Makes the packed states of features; what several of them need is made once."""

    def __init__(self, reducer: TableReducer, keyed: _KeyedRows, restarts: Longs) -> None:
        self._reducer, self._keyed = reducer, keyed
        restarted = bool(np.any(restarts >= 0))
        #: Rows that come before their key started afresh do not count.
        self._alive = np.arange(len(keyed.seqs)) >= restarts[keyed.key_of] if restarted else None
        self._first_seq, self._last_seq = int(keyed.seqs.min()), int(keyed.seqs.max())
        self._wheres: dict[str, Booleans] = {}
        self._runs: dict[tuple[_Counted, int, int], _Runs | None] = {}
        #: With the columns they are made of, which must not go while their ids are known.
        self._packed: dict[tuple[int, int], tuple[StateColumn, pa.Array]] = {}

    def packed(self, name: str, operator: Operator | Windowed) -> pa.Array:
        """The packed states of a feature, null where a key has none."""
        inner, span, width_ms = operator, 0, 0
        if isinstance(operator, Windowed):
            inner, span, width_ms = operator.inner, operator.span, operator.width_ms
        where = self._reducer.where_texts.get(name)
        version = self._reducer.feature_versions[name]
        start_seq, end_seq = version.birth, end_of(version)
        counted = _Counted(
            None if operator.takes_all else where,
            tuple(field for field in operator.fields if self._keyed.rows.column(field).null_count),
            start_seq if start_seq > self._first_seq else 0,
            end_seq if end_seq <= self._last_seq else GREATEST,
        )
        runs = self._made_once(self._runs, (counted, span, width_ms), lambda: self._make_runs(counted, span, width_ms))
        if runs is None:
            return pa.nulls(len(self._keyed.keys), pa.binary())
        own = runs.runs
        if operator.takes_all and where is not None:
            matched = self._matching(where)
            own = own.with_matched(matched if runs.at is None else matched[runs.at])
        states = column_of(inner.fold_runs(own))  # type: ignore[union-attr]
        _, packed = self._made_once(self._packed, (id(runs), id(states)), lambda: (states, self._pack(runs, states)))
        return packed

    @staticmethod
    def _made_once(made: dict[Any, Any], name: object, make: Callable[[], Any]) -> Any:
        if name not in made:
            made[name] = make()
        return made[name]

    def _make_runs(self, counted: _Counted, span: int, width_ms: int) -> _Runs | None:
        keyed, at = self._keyed, self._rows_that_count(counted)
        key_of, times, seqs = (
            column if at is None else column[at] for column in (keyed.key_of, keyed.times, keyed.seqs)
        )
        panes = None
        if span and len(key_of):
            panes = times // width_ms
            key_starts = np.flatnonzero(np.diff(key_of, prepend=-1))
            newest = np.maximum.reduceat(panes, key_starts)
            kept = panes > np.repeat(newest, np.diff(key_starts, append=len(panes))) - span
            if not kept.all():
                at = np.flatnonzero(kept) if at is None else at[kept]
                key_of, times, seqs, panes = key_of[kept], times[kept], seqs[kept], panes[kept]
        begins = np.diff(key_of, prepend=-1) != 0
        if panes is not None:
            begins |= np.diff(panes, prepend=panes[0]) != 0
        starts = np.flatnonzero(begins)
        if not len(starts):
            return None
        rows: Any = _ChosenRows(keyed.rows, at)
        runs = RowRuns(starts, times, seqs, np.ones(len(times), np.bool_), rows)
        return _Runs(runs, at, key_of[starts], None if panes is None else panes[starts])

    def _rows_that_count(self, counted: _Counted) -> Longs | None:
        """The places of the rows that count for a feature; None for all."""
        keyed = self._keyed
        masks = [keyed.rows.column(field).is_valid().to_numpy() for field in counted.fields]
        masks += [] if self._alive is None else [self._alive]
        masks += [keyed.seqs >= counted.start_seq] if counted.start_seq else []
        masks += [keyed.seqs < counted.end_seq] if counted.end_seq < GREATEST else []
        masks += [] if counted.where is None else [self._matching(counted.where)]
        if not masks:
            return None
        counts = np.logical_and.reduce(masks)
        return None if counts.all() else np.flatnonzero(counts)

    def _matching(self, where: str) -> Booleans:
        """Which rows match an expression."""
        if where not in self._wheres:
            self._wheres[where] = self._evaluate(where)
        return self._wheres[where]

    def _evaluate(self, where: str) -> Booleans:
        rows, types = self._keyed.rows, self._reducer.types
        columns = {name: rows.column(name).combine_chunks() for name in rows.column_names if name in types}
        values = evaluate(parse(where), types, columns, len(rows), "bool")
        matched: Booleans = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
        return matched

    def _pack(self, runs: _Runs, states: StateColumn) -> pa.Array:
        """States of runs as those of keys: of each pane, where there is a window."""
        owners = runs.owners
        if runs.panes is not None:
            firsts = np.flatnonzero(np.diff(owners, prepend=-1))
            states = Maps(np.diff(firsts, append=len(owners)), Numbers(runs.panes), states)
            owners = owners[firsts]
        packed = states.packed()
        if len(owners) == len(self._keyed.keys):
            return packed
        at = np.full(len(self._keyed.keys), -1)
        at[owners] = np.arange(len(owners))
        return packed.take(pa.array(at, mask=at < 0))
