"""A table's states from columns: many events at once, without a Python call for each.

Rows come as an Arrow table: the fields that rows have after the steps, and under names that no field can have their
sequence numbers (``$seq``), times in ms (``$at_ms``) and, for every feature with a ``where``, whether it is true
(``$where.`` and the feature's name). Rows are sorted by key, time and sequence number; then a key is a run of
rows, a pane of a key too, and operators make the states of many runs at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.operators.operator import Operator, Windowed
from headrace.operators.runs import Longs, RowRuns, to_list
from headrace.reduce.features.table import NEVER, KeyState, TableReducer
from headrace.schema.descriptor.nodes import Type

SEQ, AT_MS, WHERE = "$seq", "$at_ms", "$where."

_ARROW: dict[Type, pa.DataType] = {
    "i64": pa.int64(),
    "f64": pa.float64(),
    "bool": pa.bool_(),
    "str": pa.string(),
    "bytes": pa.string(),
    "datetime": pa.string(),
}


Booleans = NDArray[np.bool_]


class _KeyedRows(NamedTuple):
    """Rows sorted by key, time and number; ``keys`` in order, ``starts`` where the rows of each begin."""

    keys: list[bytes]
    rows: pa.Table
    #: The place of the key of every row.
    key_of: Longs
    starts: Longs
    seqs: Longs
    times: Longs


def make_rows(
    reducer: TableReducer, seqs: Sequence[int], times_ms: Sequence[int], events: Sequence[dict[str, Any]]
) -> pa.Table:
    """The rows of events as the table that this module describes."""
    made = {SEQ: pa.array(seqs, pa.int64()), AT_MS: pa.array(times_ms, pa.int64())}
    rows: list[Any] = list(events)
    if reducer.rows.has_steps or reducer.wheres:
        rows = [reducer.rows.of(event) for event in events]
    if None in rows:
        left = pa.array([row is not None for row in rows])
        made = {name: column.filter(left) for name, column in made.items()}
        rows = [row for row in rows if row is not None]
    fields = {field for operator in reducer.operators.values() for field in operator.fields}
    for name in sorted(fields.union(reducer.keys.fields)):
        made[name] = _column([row.get(name) for row in rows], reducer.types[name])
    for name, where in reducer.wheres.items():
        made[WHERE + name] = pa.array([where(row) for row in rows], pa.bool_())
    return pa.table(made)


def _column(values: list[Any], kind: Type) -> pa.Array:
    try:
        return pa.array(values, _ARROW[kind])
    except pa.ArrowInvalid:
        # Arrow takes no integer for a double that is not exactly that one.
        return pa.array([None if value is None else float(value) for value in values], _ARROW[kind])


def reduce_rows(reducer: TableReducer, rows: pa.Table) -> Iterator[tuple[bytes, KeyState]]:
    """The state of every key, in order of keys: what folding the rows one by one gives."""
    keyed = _group_by_key(reducer, rows)
    if not keyed.keys:
        return
    afresh = _restart_rows(reducer, keyed)
    alive = np.arange(len(keyed.seqs)) >= np.maximum(afresh, keyed.starts)[keyed.key_of]
    states: list[dict[str, Any]] = [{} for _ in keyed.keys]
    for name, operator in reducer.operators.items():
        counts = alive & (keyed.seqs >= reducer.feature_versions[name].birth) & _counts(operator, name, keyed.rows)
        _reduce(operator, name, keyed, np.flatnonzero(counts), states)
    ends = np.append(keyed.starts[1:], len(keyed.seqs)) - 1
    least, greatest = (choose.reduceat(keyed.seqs, keyed.starts) for choose in (np.minimum, np.maximum))
    parts = least, keyed.times[keyed.starts], greatest, keyed.times[ends], afresh >= 0
    frames = zip(*map(to_list, parts), strict=True)
    for key, held, (first_seq, first_ms, last_seq, last_ms, restarted) in zip(keyed.keys, states, frames, strict=True):
        yield key, KeyState(first_seq, first_ms, last_seq, last_ms, restarted, held)


def _group_by_key(reducer: TableReducer, rows: pa.Table) -> _KeyedRows:
    for name in reducer.keys.fields:
        rows = rows.filter(pc.is_valid(rows.column(name)))
    codes, chosen = _codes(reducer.keys.fields, rows)
    # Different spellings of one moment are one key.
    chosen_keys = [reducer.keys.of(row) or b"" for row in chosen]
    keys = sorted(set(chosen_keys))
    number_of_key = {key: at for at, key in enumerate(keys)}
    key_of = np.array([number_of_key[key] for key in chosen_keys], np.int64)[codes]
    order = _order(key_of, len(keys), _longs(rows, SEQ), _longs(rows, AT_MS))
    rows, key_of = rows.select(_needed_columns(reducer, rows)).take(order), key_of[order]
    starts = np.searchsorted(key_of, np.arange(len(keys)))
    return _KeyedRows(keys, rows, key_of, starts, _longs(rows, SEQ), _longs(rows, AT_MS))


def _codes(fields: Sequence[str], rows: pa.Table) -> tuple[Longs, list[dict[str, Any]]]:
    """A number for every row, the same for equal keys, and the fields of the key of every number."""
    codes = np.zeros(len(rows), np.int64)
    chosen: list[dict[str, Any]] = [{}] if len(rows) else []
    for name in fields:
        encoded = rows.column(name).combine_chunks().dictionary_encode()
        values = encoded.dictionary.to_pylist()
        both = codes * max(1, len(values)) + encoded.indices.to_numpy()
        if len(chosen) == 1:
            codes, chosen = both, [{**chosen[0], name: value} for value in values]
            continue
        numbers, codes = np.unique(both, return_inverse=True)
        pairs = (divmod(number, len(values)) for number in numbers.tolist())
        chosen = [{**chosen[before], name: values[value]} for before, value in pairs]
    return codes, chosen


def _order(key_of: Longs, keys: int, seqs: Longs, times: Longs) -> Longs:
    """By key, time and sequence number. Rows mostly come in the order of both; short numbers sort faster."""
    if not bool(np.all((seqs[1:] >= seqs[:-1]) & (times[1:] >= times[:-1]))):
        return np.lexsort((seqs, times, key_of))
    return np.argsort(key_of.astype(np.uint16) if keys <= 2**16 else key_of, kind="stable")


def _needed_columns(reducer: TableReducer, rows: pa.Table) -> list[str]:
    fields = {field for operator in reducer.operators.values() for field in operator.fields}
    wheres = {WHERE + name for name in reducer.operators}
    return [name for name in rows.column_names if name in {SEQ, AT_MS, *fields, *wheres}]


def _longs(rows: pa.Table, name: str) -> Longs:
    longs: Longs = rows.column(name).to_numpy()
    return longs


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


def _counts(operator: Operator | Windowed, name: str, rows: pa.Table) -> Booleans:
    """Which rows count for a feature."""
    counts = np.ones(len(rows), np.bool_) if operator.takes_all else _matching_rows(name, rows)
    for field in operator.fields:
        counts &= rows.column(field).is_valid().to_numpy()
    return counts


def _matching_rows(name: str, rows: pa.Table) -> Booleans:
    if WHERE + name not in rows.column_names:
        return np.ones(len(rows), np.bool_)
    matched: Booleans = pc.fill_null(rows.column(WHERE + name), False).to_numpy()
    return matched.copy()


def _reduce(
    operator: Operator | Windowed, name: str, keyed: _KeyedRows, at: Longs, states: list[dict[str, Any]]
) -> None:
    """Put the states of a feature, made of these rows, into those of the keys."""
    key_of = keyed.key_of[at]
    panes = np.zeros(len(at), np.int64)
    if isinstance(operator, Windowed):
        panes = keyed.times[at] // operator.width_ms
        newest = np.full(len(keyed.keys), np.iinfo(np.int64).min)
        np.maximum.at(newest, key_of, panes)
        kept = panes > newest[key_of] - operator.span
        at, key_of, panes = at[kept], key_of[kept], panes[kept]
    starts = np.flatnonzero(np.diff(key_of, prepend=-1) | np.diff(panes, prepend=panes[:1]))
    if not len(starts):
        return
    matched = _matching_rows(name, keyed.rows)[at]
    inner = operator.inner if isinstance(operator, Windowed) else operator
    rows = keyed.rows.select([*dict.fromkeys(inner.fields)]).take(at)
    made = inner.fold_runs(RowRuns(starts, keyed.times[at], keyed.seqs[at], matched, rows))
    owners = key_of[starts]
    if inner is operator:
        for key, state in zip(owners.tolist(), made, strict=True):
            states[key][name] = state
        return
    numbers = panes[starts].tolist()
    firsts = np.flatnonzero(np.diff(owners, prepend=-1)).tolist()
    for start, end in pairwise([*firsts, len(made)]):
        states[owners[start]][name] = dict(zip(numbers[start:end], made[start:end], strict=True))
