"""Runs of rows as columns: the rows of one key, or of one key and pane, one after the other, for many keys at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Longs = NDArray[np.int64]
Numbers = NDArray[Any]


class RowRuns(NamedTuple):
    """Rows that all count, and where each run begins; in the order of times and sequence numbers within each run."""

    starts: Longs
    times: Longs
    seqs: Longs
    matched: NDArray[np.bool_]
    rows: pa.Table

    def bounds(self) -> list[tuple[int, int]]:
        """Where each run begins and ends."""
        return list(pairwise([*self.starts.tolist(), len(self.times)]))

    def ends(self) -> Longs:
        """Where each run ends."""
        return np.append(self.starts[1:], len(self.times))

    def counts(self) -> Longs:
        """How many rows each run has."""
        return self.ends() - self.starts

    def run_of_row(self) -> Longs:
        """The number of the run of each row."""
        return np.repeat(np.arange(len(self.starts)), self.counts())

    def is_first(self) -> NDArray[np.bool_]:
        """Whether a row is the first of its run."""
        first = np.zeros(len(self.times), np.bool_)
        first[self.starts] = True
        return first

    def numbers(self, field: str) -> Numbers:
        """The numbers of a field."""
        numbers: Numbers = self.rows.column(field).to_numpy()
        return numbers

    def doubles(self, field: str) -> NDArray[np.float64]:
        """The numbers of a field as doubles."""
        return self.numbers(field).astype(np.float64)

    def values(self, field: str) -> list[Any]:
        """The values of a field."""
        values: list[Any] = self.rows.column(field).to_pylist()
        return values

    def first_values(self, field: str) -> list[Any]:
        """The value of a field in the first row of each run."""
        values: list[Any] = self.rows.column(field).take(self.starts).to_pylist()
        return values

    def last_values(self, field: str) -> list[Any]:
        """The value of a field in the last row of each run."""
        values: list[Any] = self.rows.column(field).take(self.ends() - 1).to_pylist()
        return values

    def first_rows(self, field: str) -> tuple[list[int], list[int], list[Any]]:
        """The time, the sequence number and the value of a field of the first row of each run."""
        return self.times[self.starts].tolist(), self.seqs[self.starts].tolist(), self.first_values(field)

    def last_rows(self, field: str) -> tuple[list[int], list[int], list[Any]]:
        """The time, the sequence number and the value of a field of the last row of each run."""
        lasts = self.ends() - 1
        return self.times[lasts].tolist(), self.seqs[lasts].tolist(), self.last_values(field)

    def first_times(self) -> list[int]:
        """The least time of each run."""
        return to_list(np.minimum.reduceat(self.times, self.starts))

    def last_times(self) -> list[int]:
        """The greatest time of each run."""
        return to_list(np.maximum.reduceat(self.times, self.starts))

    def coded(self, field: str, canonical: Callable[[Any], Any]) -> tuple[Longs, list[Any]]:
        """A number for each row, the same for values with the same canonical form, and the form of each number."""
        encoded = self.rows.column(field).combine_chunks().dictionary_encode()
        forms = [canonical(value) for value in encoded.dictionary.to_pylist()]
        distinct = {form: number for number, form in enumerate(dict.fromkeys(forms))}
        codes = np.array([distinct[form] for form in forms], np.int64)
        return codes[encoded.indices.to_numpy()], list(distinct)

    def split(self, keys: Longs) -> tuple[RowRuns, Longs, Longs]:
        """The rows of each run in runs of their own by a key, the run that each is of, and its key."""
        run_of_row = self.run_of_row()
        order = np.lexsort((keys, run_of_row))  # keeps the order of equal ones
        runs, sorted_keys = run_of_row[order], keys[order]
        starts = np.flatnonzero(np.append(True, (np.diff(runs) != 0) | (np.diff(sorted_keys) != 0)))
        rows = self.rows.take(pa.array(order))
        split = RowRuns(starts, self.times[order], self.seqs[order], self.matched[order], rows)
        return split, runs[starts], sorted_keys[starts]


def to_list(numbers: NDArray[Any]) -> list[Any]:
    """The elements of an array as Python's numbers."""
    elements: list[Any] = numbers.tolist()
    return elements


def to_lists(*columns: list[Any]) -> list[list[Any]]:
    """The elements of several columns side by side."""
    return list(map(list, zip(*columns, strict=True)))


def exact_sums(numbers: Numbers, starts: Longs) -> list[Any]:
    """The sum of each run, of integers exactly."""
    is_integer = numbers.dtype != np.float64
    if is_integer and len(numbers) and np.abs(numbers.astype(np.float64)).max() * len(numbers) >= 2**62:
        numbers = numbers.astype(object)
    return to_list(np.add.reduceat(numbers, starts))


def by_run(runs: Longs, count: int, values: list[Any]) -> list[list[Any]]:
    """Values whose runs are given in order, as one list for each run."""
    bounds = np.searchsorted(runs, np.arange(count + 1)).tolist()
    return [values[start:end] for start, end in pairwise(bounds)]
