"""A table's states from columns: many events at once, without a Python call for each.

Rows come as an Arrow table: the fields that rows have after the steps, and under names that no field can have their
sequence numbers (``$seq``), times in ms (``$at_ms``) and, for every feature with a ``where``, whether it is true
(``$where.`` and the feature's name). Rows are sorted by key and sequence number; then a key is a stretch of rows, a
pane of a key too, and an operator whose states are made from stretches at once needs nothing else. The others fold row
by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.reduce import sketches
from headrace.reduce.features import core, distinct, distributions, moments, ordinal, recency, velocity
from headrace.reduce.features.operator import Operator, canonical
from headrace.reduce.features.table import NEVER, KeyState, TableReducer
from headrace.reduce.features.window import Windowed
from headrace.schema.descriptor.nodes import Type

Longs = NDArray[np.int64]


class RowRuns(NamedTuple):
    """Rows that all count, in order, and where each stretch of them begins."""

    starts: Longs
    times: Longs
    seqs: Longs
    matched: NDArray[np.bool_]
    rows: pa.Table

    def bounds(self) -> list[tuple[int, int]]:
        """Where each stretch begins and ends."""
        return list(pairwise([*self.starts.tolist(), len(self.times)]))

    def ends(self) -> Longs:
        """Where each stretch ends."""
        return np.append(self.starts[1:], len(self.times))

    def counts(self) -> Longs:
        """How many rows each stretch has."""
        return self.ends() - self.starts

    def numbers(self, found: Operator) -> NDArray[Any]:
        """The numbers of the operator's field."""
        numbers: NDArray[Any] = self.rows.column(found.fields[0]).to_numpy()
        return numbers


def states_of(found: Operator, stretches: RowRuns) -> list[Any]:
    """The state of every stretch."""
    return _MAKERS.get(type(found), _folded)(found, stretches)


def _folded(found: Operator, stretches: RowRuns) -> list[Any]:
    rows = stretches.rows.select(list(found.fields)).to_pylist() if found.fields else [{}] * len(stretches.times)
    events = list(zip(stretches.times.tolist(), stretches.seqs.tolist(), rows, stretches.matched.tolist(), strict=True))
    states = []
    for start, end in stretches.bounds():
        state = None
        for at_ms, seq, row, matched in events[start:end]:
            state = found.fold(state, at_ms, seq, row, matched)
        states.append(state)
    return states


def _sums(numbers: NDArray[Any], starts: Longs) -> list[Any]:
    if (
        numbers.dtype != np.float64
        and len(numbers)
        and np.abs(numbers.astype(np.float64)).max() * len(numbers) >= 2**62
    ):
        numbers = numbers.astype(object)
    return _listed(np.add.reduceat(numbers, starts))


def _listed(numbers: NDArray[Any]) -> list[Any]:
    found: list[Any] = numbers.tolist()
    return found


def _taken(found: Operator, stretches: RowRuns, at: Longs) -> list[Any]:
    values: list[Any] = stretches.rows.column(found.fields[0]).take(at).to_pylist()
    return values


def _count(found: Operator, stretches: RowRuns) -> list[Any]:
    return _listed(stretches.counts())


def _sum(found: Operator, stretches: RowRuns) -> list[Any]:
    return _sums(stretches.numbers(found), stretches.starts)


def _mean(found: Operator, stretches: RowRuns) -> list[Any]:
    return [list(pair) for pair in zip(_sum(found, stretches), _count(found, stretches), strict=True)]


def _extreme(found: Operator, stretches: RowRuns) -> list[Any]:
    assert isinstance(found, core.Extreme)
    best = np.minimum if found.choose is min else np.maximum
    return _listed(best.reduceat(stretches.numbers(found), stretches.starts))


def _ratio(found: Operator, stretches: RowRuns) -> list[Any]:
    matched = np.add.reduceat(stretches.matched.astype(np.int64), stretches.starts).tolist()
    return [list(pair) for pair in zip(matched, stretches.counts().tolist(), strict=True)]


def _moments(found: Operator, stretches: RowRuns) -> list[Any]:
    """In two passes: the means first, then the squared deviations from them."""
    numbers = stretches.numbers(found).astype(np.float64)
    counts = stretches.counts()
    means = np.add.reduceat(numbers, stretches.starts) / counts
    away = numbers - np.repeat(means, counts)
    squares = np.add.reduceat(away * away, stretches.starts)
    return [list(three) for three in zip(counts.tolist(), means.tolist(), squares.tolist(), strict=True)]


def _first_time(found: Operator, stretches: RowRuns) -> list[Any]:
    return _listed(stretches.times[stretches.starts])


def _last_time(found: Operator, stretches: RowRuns) -> list[Any]:
    return _listed(stretches.times[stretches.ends() - 1])


def _inter_arrival(found: Operator, stretches: RowRuns) -> list[Any]:
    columns = _first_time(found, stretches), _last_time(found, stretches), _count(found, stretches)
    return [list(three) for three in zip(*columns, strict=True)]


def _first(found: Operator, stretches: RowRuns) -> list[Any]:
    return _taken(found, stretches, stretches.starts)


def _last(found: Operator, stretches: RowRuns) -> list[Any]:
    return _taken(found, stretches, stretches.ends() - 1)


def _quantile(found: Operator, stretches: RowRuns) -> list[Any]:
    numbers = stretches.numbers(found)
    return [
        [numbers[start:end].tolist(), None]
        if end - start <= distributions.EXACT
        else [[], sketches.quantiles(numbers[start:end])]
        for start, end in stretches.bounds()
    ]


def _distinct(found: Operator, stretches: RowRuns) -> list[Any]:
    """Each value once per stretch, then as always."""
    assert isinstance(found, distinct.NUnique)
    encoded = stretches.rows.column(found.fields[0]).combine_chunks().dictionary_encode()
    known = [canonical(value, found.kind) for value in encoded.dictionary.to_pylist()]
    stretch = np.repeat(np.arange(len(stretches.starts)), stretches.counts())
    both = np.sort(stretch * len(known) + encoded.indices.to_numpy())
    both = both[np.diff(both, prepend=-1) != 0]
    bounds = np.searchsorted(both, np.arange(len(stretches.starts) + 1) * len(known)).tolist()
    codes = (both % len(known)).tolist()
    return [
        distinct.merge_states([[dict.fromkeys((known[code] for code in codes[start:end]), 0), None]])
        for start, end in pairwise(bounds)
    ]


_MAKERS: dict[type[Operator], Callable[[Operator, RowRuns], list[Any]]] = {
    core.Count: _count,
    core.Sum: _sum,
    core.Mean: _mean,
    core.Extreme: _extreme,
    core.Ratio: _ratio,
    moments.Spread: _moments,
    distinct.NUnique: _distinct,
    distributions.Quantile: _quantile,
    ordinal.First: _first,
    ordinal.Last: _last,
    recency.FirstSeen: _first_time,
    recency.Age: _first_time,
    recency.LastSeen: _last_time,
    recency.TimeSince: _last_time,
    recency.HasSeen: _last_time,
    recency.SeenWithin: _last_time,
    velocity.InterArrival: _inter_arrival,
}


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


class _Keyed(NamedTuple):
    """Rows sorted by key and sequence number; ``keys`` in order, ``starts`` where the rows of each begin."""

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
    """The rows of events as such a table."""
    made = {SEQ: pa.array(seqs, pa.int64()), AT_MS: pa.array(times_ms, pa.int64())}
    rows: list[Any] = list(events)
    if reducer.rows.has_steps or reducer.wheres:
        rows = [reducer.rows.of(event) for event in events]
    if None in rows:
        left = pa.array([row is not None for row in rows])
        made = {name: column.filter(left) for name, column in made.items()}
        rows = [row for row in rows if row is not None]
    fields = {field for found in reducer.operators.values() for field in found.fields}
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
    keyed = _keyed(reducer, rows)
    if not keyed.keys:
        return
    afresh = _afresh(reducer, keyed)
    alive = np.arange(len(keyed.seqs)) >= np.maximum(afresh, keyed.starts)[keyed.key_of]
    states: list[dict[str, Any]] = [{} for _ in keyed.keys]
    for name, found in reducer.operators.items():
        counts = alive & (keyed.seqs >= reducer.lives[name].birth) & _counts(found, name, keyed.rows)
        _reduce(found, name, keyed, np.flatnonzero(counts), states)
    ends = np.append(keyed.starts[1:], len(keyed.seqs)) - 1
    first, last = (zip(keyed.seqs[at].tolist(), keyed.times[at].tolist(), strict=True) for at in (keyed.starts, ends))
    frames = zip(first, last, (afresh >= 0).tolist(), strict=True)
    for key, held, ((first_seq, first_ms), (last_seq, last_ms), restarted) in zip(
        keyed.keys, states, frames, strict=True
    ):
        yield key, KeyState(first_seq, first_ms, last_seq, last_ms, restarted, held)


def _keyed(reducer: TableReducer, rows: pa.Table) -> _Keyed:
    for name in reducer.keys.fields:
        rows = rows.filter(pc.is_valid(rows.column(name)))
    codes, chosen = _codes(reducer.keys.fields, rows)
    # Different spellings of one moment are one key.
    found = [reducer.keys.of(row) or b"" for row in chosen]
    keys = sorted(set(found))
    place = {key: at for at, key in enumerate(keys)}
    key_of = np.array([place[key] for key in found], np.int64)[codes]
    order = _order(key_of, len(keys), _longs(rows, SEQ))
    rows, key_of = rows.select(_needed(reducer, rows)).take(order), key_of[order]
    starts = np.searchsorted(key_of, np.arange(len(keys)))
    return _Keyed(keys, rows, key_of, starts, _longs(rows, SEQ), _longs(rows, AT_MS))


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


def _order(key_of: Longs, keys: int, seqs: Longs) -> Longs:
    """By key and sequence number. Rows mostly come in the order of the log; short numbers sort faster."""
    if not bool(np.all(seqs[1:] >= seqs[:-1])):
        return np.lexsort((seqs, key_of))
    return np.argsort(key_of.astype(np.uint16) if keys <= 2**16 else key_of, kind="stable")


def _needed(reducer: TableReducer, rows: pa.Table) -> list[str]:
    fields = {field for found in reducer.operators.values() for field in found.fields}
    wheres = {WHERE + name for name in reducer.operators}
    return [name for name in rows.column_names if name in {SEQ, AT_MS, *fields, *wheres}]


def _longs(rows: pa.Table, name: str) -> Longs:
    found: Longs = rows.column(name).to_numpy()
    return found


def _afresh(reducer: TableReducer, keyed: _Keyed) -> Longs:
    """The last row of each key that starts it afresh, -1 where none does."""
    if not reducer.cold:
        return np.full(len(keyed.keys), -1)
    limits = np.array([NEVER, *(NEVER if limit is None else limit for _, limit in reducer.cold)])
    allowed = limits[np.searchsorted([since for since, _ in reducer.cold], keyed.seqs, side="right")]
    idle = np.diff(keyed.times, prepend=keyed.times[0])
    idle[keyed.starts] = 0
    found: Longs = np.maximum.reduceat(np.where(idle > allowed, np.arange(len(idle)), -1), keyed.starts)
    return found


def _counts(found: Operator, name: str, rows: pa.Table) -> Booleans:
    """Which rows count for a feature."""
    counts = np.ones(len(rows), np.bool_) if found.takes_all else _matched(name, rows)
    for field in found.fields:
        counts &= rows.column(field).is_valid().to_numpy()
    return counts


def _matched(name: str, rows: pa.Table) -> Booleans:
    if WHERE + name not in rows.column_names:
        return np.ones(len(rows), np.bool_)
    found: Booleans = pc.fill_null(rows.column(WHERE + name), False).to_numpy()
    return found.copy()


def _reduce(found: Operator, name: str, keyed: _Keyed, at: Longs, states: list[dict[str, Any]]) -> None:
    """Put the states of a feature, made of these rows, into those of the keys."""
    key_of = keyed.key_of[at]
    inner, panes = found, np.zeros(len(at), np.int64)
    if isinstance(found, Windowed):
        inner, panes = found.inner, keyed.times[at] // found.width_ms
        newest = np.full(len(keyed.keys), np.iinfo(np.int64).min)
        np.maximum.at(newest, key_of, panes)
        kept = panes > newest[key_of] - found.span
        at, key_of, panes = at[kept], key_of[kept], panes[kept]
    starts = np.flatnonzero(np.diff(key_of, prepend=-1) | np.diff(panes, prepend=panes[:1]))
    if not len(starts):
        return
    matched = _matched(name, keyed.rows)[at]
    made = states_of(
        inner,
        RowRuns(
            starts, keyed.times[at], keyed.seqs[at], matched, keyed.rows.select([*dict.fromkeys(inner.fields)]).take(at)
        ),
    )
    owners = key_of[starts]
    if inner is found:
        for key, state in zip(owners.tolist(), made, strict=True):
            states[key][name] = state
        return
    numbers = panes[starts].tolist()
    firsts = np.flatnonzero(np.diff(owners, prepend=-1)).tolist()
    for start, end in pairwise([*firsts, len(made)]):
        states[owners[start]][name] = dict(zip(numbers[start:end], made[start:end], strict=True))
