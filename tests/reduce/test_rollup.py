"""Panes: which events they count, and where."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.query import search_document
from headrace.query.syntax import parse
from headrace.reduce import rollup
from headrace.reduce.state import KEYS, MAX_COUNT, PANES
from reduce.declarations import DOCUMENT, HOUR, MINUTE, ROLLUP, SEARCH
from support import reference_columns as columns

FAST = SEARCH.rollups["fast"]


def counts(panes: pa.Table, measure: str = "events", interval: int = MINUTE) -> dict[tuple[int, str], int]:
    rows = panes.filter((pc.field("measure") == measure) & (pc.field("interval") == interval)).to_pylist()
    return {(row["pane"], row["key"]): row["count"] for row in rows}


def panes(*documents: Any, **more: Any) -> pa.Table:
    return rollup.panes(columns.table(SEARCH, documents), ROLLUP, SEARCH, **more)


def test_panes_begin_at_multiples_of_their_length_before_1970_too() -> None:
    found = panes(*({"time": time} for time in (-MINUTE - 1, -MINUTE, -1, 0, MINUTE - 1, MINUTE)))
    assert counts(found) == {
        (-2 * MINUTE, "[null,null,null,null]"): 1,
        (-MINUTE, "[null,null,null,null]"): 2,
        (0, "[null,null,null,null]"): 2,
        (MINUTE, "[null,null,null,null]"): 1,
    }
    assert sum(counts(found, interval=HOUR).values()) == 6


def test_two_spellings_of_an_interval_are_one() -> None:
    assert sorted(set(panes({"time": 0}).column("interval").to_pylist())) == [MINUTE, HOUR]


def test_an_event_counts_with_one_time_and_at_most_one_value_of_a_dimension() -> None:
    found = panes(
        {"time": [5]},
        {"time": [1, 2]},
        {"time": None},
        {"time": 5, "service": ["A"]},
        {"time": 5, "service": ["a", "a"]},
        {"time": 5, "service": [5, "a"]},
        {"time": 5, "ratio": -0.0, "ok": "true", "level": "3"},
    )
    assert counts(found) == {
        (0, "[null,null,null,null]"): 1,
        (0, '["a",null,null,null]'): 2,
        (0, "[null,3,0.0,true]"): 1,
    }


def test_a_time_that_no_date_can_say_is_in_no_pane() -> None:
    farthest = rollup.FARTHEST
    found = panes(*({"time": time} for time in (farthest, farthest + 1, -farthest, -farthest - 1, 2**63 - 1, -(2**63))))
    assert sorted(pane for pane, _ in counts(found)) == [-farthest, farthest]


def test_odd_rows_are_in_no_pane() -> None:
    found = panes({"time": 0, "bytes": 2**63}, {"time": 0})
    assert counts(found) == {(0, "[null,null,null,null]"): 1}


def test_include_where_and_spans_choose_events() -> None:
    events = [{"seen": at, "duration": at / 10, "message": text} for at in range(12) for text in ("fast", "slow")]
    table = columns.table(SEARCH, events)
    everything = rollup.panes(table, FAST, SEARCH)
    assert everything.column("count").to_pylist() == [10]
    chosen = rollup.panes(table, FAST, SEARCH, where=parse("duration:>=0.2"), spans=[(0, 4), (9, 100)])
    assert chosen.column("count").to_pylist() == [3]
    assert rollup.panes(table, FAST, SEARCH, spans=[]).num_rows == 0
    assert rollup.panes(table, FAST, SEARCH, spans=[(-(2**70), 2**70)]) == everything


def test_a_query_that_is_known_needs_no_columns_of_its_own() -> None:
    events = [{"seen": 0, "time": 0, "message": text} for text in ("fast", "slow", "slow")]
    table = columns.table(SEARCH, events)
    [tree] = rollup.include_queries(FAST)
    known = table.drop(["w.message"]).append_column("q0", pa.array([True, False, True]))
    assert rollup.panes(known, FAST, SEARCH, query_columns={tree: "q0"}).column("count").to_pylist() == [2]
    [slow] = rollup.include_queries(ROLLUP)
    found = rollup.panes(known, ROLLUP, SEARCH, query_columns={slow: "q0"})
    assert counts(found, "slow") == {(0, "[null,null,null,null]"): 2}


def test_every_group_has_a_row_for_every_measure_in_order() -> None:
    found = panes({"time": 0, "service": "b"}, {"time": 0, "service": "a"}, {"time": -1})
    assert found.schema == PANES
    places = [tuple(row[name] for name in KEYS.names) for row in found.to_pylist()]
    assert places == sorted(places)
    assert len(places) == 2 * 3 * len(ROLLUP.measures)


def test_counts_stop_at_the_greatest_that_fits() -> None:
    given = {"count": 2**53, "sum": 1, "min": 1, "max": 1, "histogram": {"1": 2**53}}
    once = panes(*[{"time": 0, "given": given}] * 3, intervals=[MINUTE])
    row = once.filter(pc.field("measure") == "given").to_pylist()[0]
    assert row["count"] == 3 * 2**53
    assert row["histogram"] == [(0, 3 * 2**53)]
    more = once
    for _ in range(11):
        more = rollup.merge_panes([more, more])
    row = more.filter(pc.field("measure") == "given").to_pylist()[0]
    assert row["count"] == MAX_COUNT
    assert row["histogram"] == [(0, MAX_COUNT)]


def test_no_panes_merge_to_none() -> None:
    assert rollup.merge_panes([]) == PANES.empty_table()
    assert rollup.merge_panes([panes(), panes()]).num_rows == 0


def test_threads_do_not_disturb_each_other() -> None:
    tables = [columns.table(SEARCH, [{"time": at} for at in range(size)]) for size in range(1, 9)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda table: rollup.panes(table, ROLLUP, SEARCH, intervals=[MINUTE]), tables))
    assert [sum(counts(panes).values()) for panes in found] == list(range(1, 9))


def test_the_algebra_loads_without_spark() -> None:
    code = "import sys, headrace.reduce.answer, headrace.reduce.spark; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("measure", "pointer", "reason"),
    [
        ({"kind": "last", "field": "duration"}, "kind", "must be one of"),
        ({"kind": "decayed_count", "half_life": "1h"}, "kind", "must be one of"),
        ({"kind": "reservoir_sample", "field": "duration", "samples": 3}, "kind", "must be one of"),
        ({"kind": "sum", "field": "service"}, "field", "float, integer can be measured so"),
        ({"kind": "top_k", "field": "level", "k": 0}, "k", "must be a whole number from 1 to 1024"),
        ({"kind": "quantile", "field": "duration"}, "q", "must be a number above 0 and below 1"),
        ({"kind": "sum", "field": "duration", "window": "1h"}, "window", ""),
    ],
)
def test_an_operator_that_is_no_measure_is_refused(measure: dict[str, Any], pointer: str, reason: str) -> None:
    rollups = {"r": {"intervals": ["1m"], "measures": {"m": measure}}}
    [problem] = search_document.parse_search_document({**DOCUMENT, "rollups": rollups}, current_version=1)
    assert problem.pointer.startswith("/rollups/r/measures/m")
    assert problem.pointer.endswith(pointer)
    assert reason in problem.reason
