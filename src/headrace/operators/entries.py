"""Values with the times and sequence numbers of their events, in that order: a state that takes events as they come.

An entry is ``(time, number, value)``, with as many values as an operator keeps of an event. It is a list where it was
unpacked.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from headrace.operators.runs import Longs, RowRuns
from headrace.operators.state_columns import Lists, Numbers, Records, StateColumn

Entry = Sequence[Any]

#: The time and the number of an entry, or of a state that begins with those of an event.
time_and_seq = itemgetter(0, 1)


def add_entry(entries: list[Entry], entry: Entry) -> None:
    """Put one more entry in its place."""
    insort(entries, entry, key=time_and_seq)


def merge_entries(left: list[Entry], right: list[Entry]) -> list[Entry]:
    """The entries of both in their order, those of the left first where times and numbers are equal."""
    entries = left + right
    if time_and_seq(left[-1]) > time_and_seq(right[0]):
        entries.sort(key=time_and_seq)
    return entries


def first_entries(runs: RowRuns, fields: Sequence[str], limit: int) -> StateColumn:
    """The first entries of each run, up to so many."""
    return _entries(runs, fields, *runs.oldest(limit))


def last_entries(runs: RowRuns, fields: Sequence[str], limit: int) -> StateColumn:
    """The last entries of each run, up to so many."""
    return _entries(runs, fields, *runs.newest(limit))


def _entries(runs: RowRuns, fields: Sequence[str], counts: Longs, chosen: Longs) -> StateColumn:
    values = (runs.chosen(field, chosen) for field in fields)
    return Lists(counts, Records(Numbers(runs.times[chosen]), Numbers(runs.seqs[chosen]), *values))
