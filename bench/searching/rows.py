"""What the rows of the report are called, and what they promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from bench.searching.questions import AGGREGATES, SEARCHES

SEARCH, AGGREGATE = "search: {}", "aggregate {}"
STARTED = "first events indexed, after the start"
APPENDED = "events appended while they are indexed"
COVERED = "from the last append to full coverage"
MERGED = "from the last append to all merged"
INGEST = "events appended and indexed"
DUCKDB = "aggregate {}, DuckDB on Parquet"
GROWING = "events appended, indexed and merged in growing"
GROWN = "search: {}, in ten times the events"
OURS, SPARKS, WHOLE = "columns extracted by our kernel", "columns extracted by from_json", "events indexed by the job"

#: Kinds of searches that find little, whatever there is.
SELECTIVE = ("a needle", "prefix")
#: Kinds that may take a third of the peer's time; the others, a tenth.
_PLAIN = ("exact", "prefix", "a needle", "by hour", "by hour and two dimensions")

#: No answer needs to be quicker than this.
QUICK_MS = 10.0
LEAST_INGEST = 5.0
LEAST_EXTRACTED = 2.0
MOST_OF_DUCKDB = 2.0
MOST_GROWTH = 2.0

PEER = "prisma-tuned"
Value = Callable[[str, str], float | None]


class Promise(NamedTuple):
    """What is promised, what was measured, and whether it holds."""

    text: str
    measured: float
    holds: bool


def promises(value: Value) -> Iterator[Promise]:
    """The promises that a run can judge; ``value`` is the median of a row and a server."""
    for name in (*SEARCHES, *AGGREGATES):
        yield from _quicker(value, name)
    for name in AGGREGATES:
        row = row_of(name)
        yield from _at_most(value, row, DUCKDB.format(name), MOST_OF_DUCKDB, f"{row}, against DuckDB on Parquet")
    ours, theirs = value(INGEST, "headrace"), value(INGEST, PEER)
    if ours and theirs:
        text = f"{INGEST}, against Prisma tuned (at least {LEAST_INGEST:g} times as many)"
        yield Promise(text, ours / theirs, ours >= LEAST_INGEST * theirs)
    row = row_of(SELECTIVE[0])
    yield from _at_most(value, GROWN.format(SELECTIVE[0]), row, MOST_GROWTH, f"{row}, in ten times the events")
    ours, theirs = value(OURS, "headrace"), value(SPARKS, "headrace")
    if ours and theirs:
        text = f"{OURS}, against Spark's own from_json (at least {LEAST_EXTRACTED:g} times as many)"
        yield Promise(text, ours / theirs, ours >= LEAST_EXTRACTED * theirs)


def row_of(name: str) -> str:
    """The row of a kind of question."""
    return (SEARCH if name in SEARCHES else AGGREGATE).format(name)


def _quicker(value: Value, name: str) -> Iterator[Promise]:
    row, parts = row_of(name), 3 if name in _PLAIN else 10
    ours, theirs = value(row, "headrace"), value(row, PEER)
    if ours and theirs:
        most = max(QUICK_MS, theirs / parts)
        yield Promise(f"{row} in ms (at most {most:,.1f}: 1/{parts} of Prisma's, or 10)", ours, ours <= most)


def _at_most(value: Value, row: str, beside: str, times: float, text: str) -> Iterator[Promise]:
    ours, other = value(row, "headrace"), value(beside, "headrace")
    if ours and other:
        yield Promise(f"{text} (at most {times:g} times as long)", ours / other, ours <= times * other)
