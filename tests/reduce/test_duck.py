"""Queries of DuckDB: they end when nobody waits for them."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from headrace.query.deadline import Cancelled, Deadline
from headrace.reduce import duck

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
