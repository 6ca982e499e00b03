"""What the rows of features are called, and what they promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.features.pipelines import TWO, Pipeline
from bench.searching.rows import Promise

PEER = "beava"
CONNECTIONS, ARRAY, BATCH = 64, 100, 100

PUSH = "push, {}, 64 connections"
ARRAYS = "pushed in arrays of 100, {}, 64 connections"
FRESH = "from the last of them to a get that has seen all, {}"
GET = "get, {}, 64 connections"
TURNS = "push and get in turn, {}, 64 connections"
GET_TIME = "get, {}, {}"
BATCH_TIME = "batch_get of 100, {}, {}"
MEMORY = "memory per entity, {}"
TAIL_TIME = "get beside a tail of 10,000 events, {}, {}"
BACKFILL = "events backfilled by Spark, {}"

LEAST_PUSHES = LEAST_GETS = 0.4
LEAST_IN_ARRAYS = 3.0
MOST_GET_MS = 3.0
MOST_MEMORY_KB = 2.0

Value = Callable[[str, str], float | None]


def promises(value: Value) -> Iterator[Promise]:
    """The promises that a run can judge, all of them for the pipeline of two features."""
    push, get, arrays = (row_of(row, TWO) for row in (PUSH, GET, ARRAYS))
    wanted = (
        (push, push, LEAST_PUSHES, "durable single pushes, against beava's"),
        (get, get, LEAST_GETS, "gets, against beava's"),
        (arrays, push, LEAST_IN_ARRAYS, "pushes in arrays of 100, against beava's single ones"),
    )
    for row, theirs, least, text in wanted:
        yield from _share(value(row, "headrace"), value(theirs, PEER), least, text)
    p99 = value(row_of(TAIL_TIME, TWO, "p99"), "headrace")
    yield from _most(p99, MOST_GET_MS, "p99 of a get in ms, with 100,000 entities and a tail of 10,000 events")
    yield from _most(value(row_of(MEMORY, TWO), "headrace"), MOST_MEMORY_KB, "memory per entity in KB, 2 features")


def row_of(row: str, pipeline: Pipeline, *more: str) -> str:
    """The row of a pipeline."""
    return row.format(pipeline.title, *more)


def _share(ours: float | None, theirs: float | None, least: float, text: str) -> Iterator[Promise]:
    if ours and theirs:
        yield Promise(f"{text} (at least {least:g} times as many)", ours / theirs, ours >= least * theirs)


def _most(ours: float | None, most: float, text: str) -> Iterator[Promise]:
    if ours:
        yield Promise(f"{text} (at most {most:g})", ours, ours <= most)
