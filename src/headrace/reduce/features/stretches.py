"""The states of an operator over stretches of rows, of all stretches at once where it can be."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.reduce import sketches
from headrace.reduce.features import core, distinct, moments, ordinal, quantiles, recency, velocity
from headrace.reduce.features.operator import Operator, canonical

Longs = NDArray[np.int64]


class Stretches(NamedTuple):
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


def states_of(found: Operator, stretches: Stretches) -> list[Any]:
    """The state of every stretch."""
    return _MAKERS.get(type(found), _folded)(found, stretches)


def _folded(found: Operator, stretches: Stretches) -> list[Any]:
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


def _taken(found: Operator, stretches: Stretches, at: Longs) -> list[Any]:
    values: list[Any] = stretches.rows.column(found.fields[0]).take(at).to_pylist()
    return values


def _count(found: Operator, stretches: Stretches) -> list[Any]:
    return _listed(stretches.counts())


def _sum(found: Operator, stretches: Stretches) -> list[Any]:
    return _sums(stretches.numbers(found), stretches.starts)


def _mean(found: Operator, stretches: Stretches) -> list[Any]:
    return [list(pair) for pair in zip(_sum(found, stretches), _count(found, stretches), strict=True)]


def _extreme(found: Operator, stretches: Stretches) -> list[Any]:
    assert isinstance(found, core.Extreme)
    best = np.minimum if found.choose is min else np.maximum
    return _listed(best.reduceat(stretches.numbers(found), stretches.starts))


def _ratio(found: Operator, stretches: Stretches) -> list[Any]:
    matched = np.add.reduceat(stretches.matched.astype(np.int64), stretches.starts).tolist()
    return [list(pair) for pair in zip(matched, stretches.counts().tolist(), strict=True)]


def _moments(found: Operator, stretches: Stretches) -> list[Any]:
    """In two passes: the means first, then the squared deviations from them."""
    numbers = stretches.numbers(found).astype(np.float64)
    counts = stretches.counts()
    means = np.add.reduceat(numbers, stretches.starts) / counts
    away = numbers - np.repeat(means, counts)
    squares = np.add.reduceat(away * away, stretches.starts)
    return [list(three) for three in zip(counts.tolist(), means.tolist(), squares.tolist(), strict=True)]


def _first_time(found: Operator, stretches: Stretches) -> list[Any]:
    return _listed(stretches.times[stretches.starts])


def _last_time(found: Operator, stretches: Stretches) -> list[Any]:
    return _listed(stretches.times[stretches.ends() - 1])


def _inter_arrival(found: Operator, stretches: Stretches) -> list[Any]:
    columns = _first_time(found, stretches), _last_time(found, stretches), _count(found, stretches)
    return [list(three) for three in zip(*columns, strict=True)]


def _first(found: Operator, stretches: Stretches) -> list[Any]:
    return _taken(found, stretches, stretches.starts)


def _last(found: Operator, stretches: Stretches) -> list[Any]:
    return _taken(found, stretches, stretches.ends() - 1)


def _quantile(found: Operator, stretches: Stretches) -> list[Any]:
    numbers = stretches.numbers(found)
    return [
        [numbers[start:end].tolist(), None]
        if end - start <= quantiles.EXACT
        else [[], sketches.quantiles(numbers[start:end])]
        for start, end in stretches.bounds()
    ]


def _distinct(found: Operator, stretches: Stretches) -> list[Any]:
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
        distinct.united([[dict.fromkeys((known[code] for code in codes[start:end]), 0), None]])
        for start, end in pairwise(bounds)
    ]


_MAKERS: dict[type[Operator], Callable[[Operator, Stretches], list[Any]]] = {
    core.Count: _count,
    core.Sum: _sum,
    core.Mean: _mean,
    core.Extreme: _extreme,
    core.Ratio: _ratio,
    moments.Spread: _moments,
    distinct.NUnique: _distinct,
    quantiles.Quantile: _quantile,
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
