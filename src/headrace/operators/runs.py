"""Runs of rows as columns: the rows of one key, or of one key and pane, one after the other, for many keys at once.

What operators make of runs alike (a field as numbers, how many rows there are, moments) is made once, and shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.operators.state_columns import Numbers, Plain, StateColumn, arrow_column

Longs = NDArray[np.int64]
Values = NDArray[Any]
Booleans = NDArray[np.bool_]
Made = TypeVar("Made")


class RowRuns:
    """Rows that all count, and where each run begins; in the order of times and sequence numbers within each run."""

    def __init__(self, starts: Longs, times: Longs, seqs: Longs, matched: Booleans, rows: pa.Table) -> None:
        """Columns of ``rows`` have no nulls; texts may be dictionary-encoded."""
        self.starts, self.times, self.seqs, self.matched, self.rows = starts, times, seqs, matched, rows
        self._made: dict[object, Any] = {}

    def with_matched(self, matched: Booleans) -> RowRuns:
        """The same runs of the same rows, of which others match; they share what is made of them."""
        runs = RowRuns(self.starts, self.times, self.seqs, matched, self.rows)
        runs._made = self._made
        return runs

    def shared(self, name: object, make: Callable[[], Made]) -> Made:
        """Something that is made of these rows, but not of which ones match, made when it is first asked for."""
        if name not in self._made:
            self._made[name] = make()
        made: Made = self._made[name]
        return made

    def bounds(self) -> list[tuple[int, int]]:
        """Where each run begins and ends."""
        return list(pairwise([*self.starts.tolist(), len(self.times)]))

    def ends(self) -> Longs:
        """Where each run ends."""
        return self.shared("ends", lambda: np.append(self.starts[1:], len(self.times)))

    def counts(self) -> Longs:
        """How many rows each run has."""
        return self.shared("counts", lambda: self.ends() - self.starts)

    def run_of_row(self) -> Longs:
        """The number of the run of each row."""
        return self.shared("run_of_row", lambda: np.repeat(np.arange(len(self.starts)), self.counts()))

    def is_first(self) -> Booleans:
        """Whether a row is the first of its run."""

        def make() -> Booleans:
            first = np.zeros(len(self.times), np.bool_)
            first[self.starts] = True
            return first

        return self.shared("is_first", make)

    def column(self, field: str) -> pa.Array:
        """The values of a field."""

        def make() -> pa.Array:
            column = self.rows.column(field)
            return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

        return self.shared(("column", field), make)

    def numbers(self, field: str) -> Values:
        """The numbers of a field."""
        return self.shared(("numbers", field), lambda: self.column(field).to_numpy(zero_copy_only=False))

    def doubles(self, field: str) -> NDArray[np.float64]:
        """The numbers of a field as doubles."""
        return self.shared(("doubles", field), lambda: self.numbers(field).astype(np.float64))

    def chosen(self, field: str, at: Longs) -> StateColumn:
        """The values that a field has in some rows."""
        return arrow_column(self.column(field).take(pa.array(at)))

    def first_values(self, field: str) -> StateColumn:
        """The value of a field in the first row of each run."""
        return self.shared(("first", field), lambda: self.chosen(field, self.starts))

    def last_values(self, field: str) -> StateColumn:
        """The value of a field in the last row of each run."""
        return self.shared(("last", field), lambda: self.chosen(field, self.ends() - 1))

    def first_rows(self, field: str) -> tuple[StateColumn, StateColumn, StateColumn]:
        """The time, the sequence number and the value of a field of the first row of each run."""
        return Numbers(self.times[self.starts]), Numbers(self.seqs[self.starts]), self.first_values(field)

    def last_rows(self, field: str) -> tuple[StateColumn, StateColumn, StateColumn]:
        """The time, the sequence number and the value of a field of the last row of each run."""
        lasts = self.ends() - 1
        return Numbers(self.times[lasts]), Numbers(self.seqs[lasts]), self.last_values(field)

    def first_times(self) -> StateColumn:
        """The least time of each run."""
        return self.shared("first times", lambda: Numbers(np.minimum.reduceat(self.times, self.starts)))

    def last_times(self) -> StateColumn:
        """The greatest time of each run."""
        return self.shared("last times", lambda: Numbers(np.maximum.reduceat(self.times, self.starts)))

    def coded(self, field: str, kind: str, canonical: Callable[[Any], Any]) -> tuple[Longs, StateColumn]:
        """A number for each row, the same for values with the same canonical form, and the form of each number."""
        return self.shared(("coded", field, kind), lambda: self._coded(field, kind, canonical))

    def _coded(self, field: str, kind: str, canonical: Callable[[Any], Any]) -> tuple[Longs, StateColumn]:
        column = self.column(field)
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        if kind in ("str", "bytes"):  # these are their own form
            return encoded.indices.to_numpy().astype(np.int64), arrow_column(encoded.dictionary)
        forms = [canonical(value) for value in encoded.dictionary.to_pylist()]
        distinct = {form: number for number, form in enumerate(dict.fromkeys(forms))}
        codes = np.array([distinct[form] for form in forms], np.int64)
        return codes[encoded.indices.to_numpy()], Plain(list(distinct))

    def newest(self, count: int) -> tuple[Longs, Longs]:
        """The last rows of each run, up to so many: how many there are of each, and all of them."""
        counts = np.minimum(self.counts(), count)
        return counts, _following(self.ends() - counts, counts)

    def oldest(self, count: int) -> tuple[Longs, Longs]:
        """The first rows of each run, up to so many: how many there are of each, and all of them."""
        counts = np.minimum(self.counts(), count)
        return counts, _following(self.starts, counts)

    def split(self, keys: Longs) -> tuple[RowRuns, Longs, Longs]:
        """The rows of each run in runs of their own by a key, the run that each is of, and its key."""
        run_of_row = self.run_of_row()
        order = np.lexsort((keys, run_of_row))  # keeps the order of equal ones
        runs, sorted_keys = run_of_row[order], keys[order]
        starts = np.flatnonzero(np.append(True, (np.diff(runs) != 0) | (np.diff(sorted_keys) != 0)))
        rows = self.rows.take(pa.array(order))
        split = RowRuns(starts, self.times[order], self.seqs[order], self.matched[order], rows)
        return split, runs[starts], sorted_keys[starts]


def _following(starts: Longs, counts: Longs) -> Longs:
    """So many numbers from each start on, one after the other."""
    ends = np.cumsum(counts)
    numbers: Longs = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
    return numbers


def exact_sums(numbers: Values, starts: Longs) -> Sequence[Any]:
    """The sum of each run, of integers exactly."""
    is_integer = numbers.dtype != np.float64
    if is_integer and len(numbers) and np.abs(numbers.astype(np.float64)).max() * len(numbers) >= 2**62:
        sums: list[Any] = np.add.reduceat(numbers.astype(object), starts).tolist()
        return sums
    return Numbers(np.add.reduceat(numbers, starts))


def counts_by_run(runs: Longs, count: int) -> Longs:
    """How often each run is there, given in order."""
    counts: Longs = np.bincount(runs, minlength=count)
    return counts
