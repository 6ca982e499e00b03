"""Values by their place in the order of events: first, last, a few of either end, and a sample.

Events are in the order of their times, and of their sequence numbers where times are equal. Every state holds at most
as many values as asked for, n or samples, one more for ``lag``, two for ``delta_from_prev``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from headrace.operators.declaration import COUNT, NUMBER, SAMPLES, VALUE, Params, declare
from headrace.operators.entries import add_entry, first_entries, last_entries, merge_entries, time_and_seq
from headrace.operators.operator import FieldOperator, OneFieldOperator, Row, finite
from headrace.operators.runs import RowRuns
from headrace.operators.state_columns import Lists, Numbers, Records
from headrace.types import FieldType

_MASK = 2**64 - 1
_MEMORY = "as many values as `n` or `samples` says"


class First(OneFieldOperator):
    """The first value; null where there is none. The state is ``[time, number, value]``."""

    declaration = declare("first", SAMPLES, "the first value", "field", field=VALUE)
    order = "time"

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
        """The first value stays, unless an earlier one comes late."""
        if state is not None and (at > state[0] or (at == state[0] and seq > state[1])):
            return state
        if not matched or (value := row.get(self._field)) is None:
            return state
        return [at, seq, value]

    def merge_both(self, left: Any, right: Any) -> Any:
        """The earlier one."""
        return right if time_and_seq(right) < time_and_seq(left) else left

    def finish(self, state: Any, now: int = 0) -> Any:
        """The value."""
        return None if state is None else self.render(state[2])

    def from_version_1(self, state: Any, at: int, seq: int) -> Any:
        """The value at this time and number."""
        return [at, seq, state]

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The first values."""
        return Records(*runs.first_rows(self._field))


class Last(OneFieldOperator):
    """The last value; null where there is none. The state is ``[time, number, value]``."""

    declaration = declare("last", SAMPLES, "the newest value", "field", field=VALUE)
    order = "time"

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
        """The newest value."""
        if not matched or (value := row.get(self._field)) is None:
            return state
        if state is None or at > state[0] or (at == state[0] and seq > state[1]):
            return [at, seq, value]
        return state

    def merge_both(self, left: Any, right: Any) -> Any:
        """The later one."""
        return left if time_and_seq(left) > time_and_seq(right) else right

    def finish(self, state: Any, now: int = 0) -> Any:
        """The value."""
        return None if state is None else self.render(state[2])

    def from_version_1(self, state: Any, at: int, seq: int) -> Any:
        """The value at this time and number."""
        return [at, seq, state]

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The last values."""
        return Records(*runs.last_rows(self._field))


class SomeValues(OneFieldOperator):
    """Values of one end of the order of events; the state is a list of entries (`operators.entries`) in that order."""

    order = "time"

    def __init__(self, params: Params, types: Mapping[str, FieldType]) -> None:
        super().__init__(params, types)
        self._kept = self.kept()

    def kept(self) -> int:
        """How many values are kept."""
        n: int = self.params["n"]
        return n

    def from_version_1(self, state: Any, at: int, seq: int) -> Any:
        """The values at this time and number."""
        return [(at, seq, value) for value in state]

    def values(self, state: list[Any] | None) -> list[Any]:
        """The values, the oldest first."""
        return [self.render(value) for _, _, value in state or ()]


class FirstN(SomeValues):
    """The first n values, oldest first."""

    declaration = declare(
        "first_n",
        SAMPLES,
        "the first values, the oldest first",
        "list<field>",
        bound="n",
        memory=_MEMORY,
        field=VALUE,
        n=COUNT,
    )

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
        """One more while there is room; one that comes late in place of the newest."""
        if state is not None and len(state) == self._kept:
            newest = state[-1]
            if at > newest[0] or (at == newest[0] and seq > newest[1]):
                return state
        if not matched or (value := row.get(self._field)) is None:
            return state
        if state is None:
            return [(at, seq, value)]
        add_entry(state, (at, seq, value))
        if len(state) > self._kept:
            del state[-1]
        return state

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The first n of both."""
        return merge_entries(left, right)[: self._kept]

    def finish(self, state: list[Any] | None, now: int = 0) -> list[Any]:
        """The values."""
        return self.values(state)

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The first values of each run."""
        return first_entries(runs, self.fields, self._kept)


class Recent(SomeValues):
    """The last values, of which an answer is made."""

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
        """The value among the last ones in place of the oldest."""
        if not matched or (value := row.get(self._field)) is None:
            return state
        if state is None:
            return [(at, seq, value)]
        newest = state[-1]
        if at > newest[0] or (at == newest[0] and seq > newest[1]):
            state.append((at, seq, value))
        else:
            add_entry(state, (at, seq, value))
        if len(state) > self._kept:
            del state[0]
        return state

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The last of both."""
        return merge_entries(left, right)[-self._kept :]

    def finish(self, state: list[Any] | None, now: int = 0) -> Any:
        """The answer made of them."""
        return self.answer(self.values(state))

    @abstractmethod
    def answer(self, values: list[Any]) -> Any:
        """What is answered of the last values, the oldest first."""

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The last values of each run."""
        return last_entries(runs, self.fields, self._kept)


class LastN(Recent):
    """The values as they came."""

    declaration = declare(
        "last_n",
        SAMPLES,
        "the newest values, the oldest first",
        "list<field>",
        bound="n",
        memory=_MEMORY,
        field=VALUE,
        n=COUNT,
    )

    def answer(self, values: list[Any]) -> list[Any]:
        """The values."""
        return values


class MostRecentN(Recent):
    """The values, the newest one first."""

    declaration = declare(
        "most_recent_n",
        SAMPLES,
        "the newest values, the newest first",
        "list<field>",
        bound="n",
        memory=_MEMORY,
        field=VALUE,
        n=COUNT,
    )

    def answer(self, values: list[Any]) -> list[Any]:
        """The values."""
        return values[::-1]


class Lag(Recent):
    """The value n events before the last one; null until there is one."""

    declaration = declare(
        "lag",
        SAMPLES,
        "the value `n` events before the newest",
        "field",
        bound="n",
        memory=_MEMORY,
        field=VALUE,
        n=COUNT._replace(default=1, position="optional", note=""),
    )

    def kept(self) -> int:
        """One more than lie between."""
        n: int = self.params["n"]
        return n + 1

    def answer(self, values: list[Any]) -> Any:
        """The oldest of them."""
        return values[0] if len(values) == self._kept else None


class DeltaFromPrevious(Recent):
    """The last value minus the one before; null until there are two."""

    declaration = declare("delta_from_prev", SAMPLES, "the newest value minus the one before", "f64", field=NUMBER)

    def kept(self) -> int:
        """Two."""
        return 2

    def answer(self, values: list[Any]) -> float | None:
        """The difference."""
        return finite(values[1] - values[0]) if len(values) == 2 else None


class Sample(FieldOperator):
    """A sample of the values: those whose events' sequence numbers have the least hashes, in the order of events.

    The state is ``[hash, time, number, value]`` of each. No two sequence numbers have one hash, so parts may come in
    any order.
    """

    declaration = declare(
        "reservoir_sample",
        SAMPLES,
        "so many values, evenly chosen among all, in the order of events",
        "list<field>",
        bound="samples",
        memory=_MEMORY,
        field=VALUE,
        samples=COUNT,
    )
    order = "time"

    def __init__(self, params: Params, types: Mapping[str, FieldType]) -> None:
        super().__init__(params, types)
        self._samples: int = params["samples"]

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """The value in its place if its hash is among the least."""
        drawn = scatter(seq)
        if state is None:
            return [[drawn, at_ms, seq, value]]
        if len(state) < self._samples or drawn < state[-1][0]:
            state.append([drawn, at_ms, seq, value])
            state.sort(key=_HASH)
            del state[self._samples :]
        return state

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The least of both."""
        return sorted(left + right, key=_HASH)[: self._samples]

    def finish(self, state: list[Any] | None, now: int = 0) -> list[Any]:
        """The values in the order of events."""
        return [self.render(value) for _, _, _, value in sorted(state or (), key=_TIME_AND_SEQ)]

    def from_version_1(self, state: Any, at: int, seq: int) -> Any:
        """The values at this time, each with the number that it had."""
        return [[drawn, at, own_seq, value] for drawn, own_seq, value in state]

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The values with the least hashes of each run."""
        hashes = _scatter_all(runs.seqs)
        order = np.lexsort((hashes, runs.run_of_row()))
        rank = np.arange(len(order)) - np.repeat(runs.starts, runs.counts())
        kept = order[rank < self._samples]
        drawn = (Numbers(hashes[kept]), Numbers(runs.times[kept]), Numbers(runs.seqs[kept]))
        entries = Records(*drawn, runs.chosen(self._field, kept))
        return Lists(np.minimum(runs.counts(), self._samples), entries)


_HASH, _TIME_AND_SEQ = itemgetter(0), itemgetter(1, 2)


def scatter(seq: int) -> int:
    """A 64-bit permutation of sequence numbers that looks random (the finaliser of SplitMix64)."""
    mixed = (seq + 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def _scatter_all(seqs: np.typing.NDArray[np.int64]) -> np.typing.NDArray[np.uint64]:
    """The same of many."""
    mixed = seqs.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
