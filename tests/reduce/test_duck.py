"""Queries of DuckDB: they end when nobody waits for them, and take no more memory than they may."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from headrace.deadline import Cancelled, Deadline
from headrace.errors import TooManyGroups, Unavailable
from headrace.reduce import duck
from headrace.reduce.rollup import panes
from reduce.test_answer import requests

#: Would take hours.
ENDLESS = "SELECT sum(hash(a.range + b.range + n)) AS found FROM one, range(1000000000) a, range(1000) b"
ONE = {"one": pa.table({"n": [1]})}


def test_a_query_is_interrupted_when_its_deadline_is_cancelled() -> None:
    deadline, raised = Deadline(600), []

    def ask() -> None:
        try:
            duck.query(ENDLESS, ONE, deadline)
        except Cancelled as reason:
            raised.append(reason)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    while asking.is_alive():
        deadline.cancel()
        asking.join(0.05)
    assert raised
    assert duck.query("SELECT n FROM one", ONE, Deadline(600)).column("n").to_pylist() == [1]


def test_a_query_does_not_begin_after_its_deadline_was_cancelled() -> None:
    deadline = Deadline(600)
    deadline.cancel()
    with pytest.raises(Cancelled):
        duck.query(ENDLESS, ONE, deadline)


MiB = 1 << 20
GROUPS = "SELECT text, count(*) AS n FROM events GROUP BY text"


@pytest.fixture
def little_memory() -> Iterator[None]:
    duck.query("SELECT 1", {})  # the limit of a database that is open changes, too
    duck.limit_memory(16 * MiB)
    yield
    duck.limit_memory(512 * MiB)


def events(count: int) -> pa.Table:
    return pa.table({"text": [f"{number:0200}" for number in range(count)]})


def test_a_query_that_needs_more_memory_than_the_limit_is_refused(little_memory: None) -> None:
    assert duck.query(GROUPS, {"events": events(1000)}).num_rows == 1000
    with pytest.raises(Unavailable, match=r"limits\.duckdb_bytes") as refused:
        duck.query(GROUPS, {"events": events(200_000)})
    assert refused.value.status == 503
    assert refused.value.facts["reason"] == "memory"
    assert duck.query(GROUPS, {"events": events(1000)}).num_rows == 1000
    assert duck.held_bytes() < 16 * MiB
    duck.limit_memory(512 * MiB)
    assert duck.query(GROUPS, {"events": events(200_000)}).num_rows == 200_000


def test_groups_are_counted_before_lists_of_their_values_take_memory(little_memory: None) -> None:
    count = 60_000
    search = requests(spread={"kind": "quantiles", "field": "load"}, services={"kind": "distinct", "field": "service"})
    columns = pa.table(
        {
            "f.time": pa.array(range(count)),
            "f.service": [f"service-{number:09}" for number in range(count)],
            "f.status": pa.nulls(count, pa.int64()),
            "f.load": pa.array(map(float, range(count))),
        }
    )
    with pytest.raises(Unavailable, match=r"limits\.duckdb_bytes"):
        panes(columns, search.rollups["requests"], search)
    with pytest.raises(TooManyGroups):
        panes(columns, search.rollups["requests"], search, max_groups=count - 1)
