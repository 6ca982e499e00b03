"""Answers of many states at once are those of each state by itself."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.query.search import Rollup, Search
from headrace.reduce.answer import finish_panes
from headrace.reduce.measures import states_of
from headrace.reduce.rollup import reducers
from headrace.reduce.state import PANES, STATE, State
from reduce.declarations import declared, field

MEASURES = {
    "all": {"kind": "count"},
    "exact": {"kind": "summary", "field": "latency", "histogram": "log2_v1"},
    "plain": {"kind": "summary", "field": "load"},
    "rough": {"kind": "summary", "field": "load", "histogram": "log2_v1"},
    "spread": {"kind": "quantiles", "field": "load"},
    "summed": {
        "kind": "summary_parts",
        "countJsonPointer": "/n",
        "sumJsonPointer": "/s",
        "minJsonPointer": "/l",
        "maxJsonPointer": "/g",
        "histogramJsonPointer": "/h",
    },
}
SEARCH: Search = declared(
    {
        "primaryTimestampField": "time",
        "fields": {
            "time": field("date", "time"),
            "latency": field("integer", "latency", aggregatable=True),
            "load": field("float", "load", aggregatable=True),
        },
        "rollups": {"requests": {"intervals": ["1m"], "measures": MEASURES}},
    }
)
ROLLUP: Rollup = SEARCH.rollups["requests"]

counts = st.integers(0, 2**63 - 1)
floats = st.floats(allow_nan=False)
int64s = st.integers(-(2**63), 2**63 - 1)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def histograms(most: int) -> st.SearchStrategy[dict[int, int]]:
    found = st.dictionaries(st.integers(0, 1023), st.integers(1, most), min_size=1, max_size=6)
    return found.map(lambda given: dict(sorted(given.items())))


def any_state(most: int) -> st.SearchStrategy[State]:
    return st.builds(
        State,
        count=maybe(counts),
        sum=maybe(floats),
        sum_int=maybe(st.integers(-(10**38) + 1, 10**38 - 1)),
        min=maybe(floats),
        max=maybe(floats),
        min_int=maybe(int64s),
        max_int=maybe(int64s),
        histogram=maybe(histograms(most)),
    )


def panes_of(given: list[tuple[str, State]]) -> pa.Table:
    """A row for each state of a measure."""
    rows = [
        {"measure": name, **msgspec.structs.asdict(state), "sum_int": state.sum_int and Decimal(state.sum_int)}
        for name, state in given
    ]
    for row in rows:
        row["histogram"] = None if row["histogram"] is None else list(row["histogram"].items())
    return pa.Table.from_pylist(rows, PANES)


def check(given: list[tuple[str, State]]) -> None:
    finish: dict[str, Callable[[State], dict[str, Any]]] = {
        name: reducer.finish for name, reducer in reducers(ROLLUP, SEARCH).items()
    }
    found = finish_panes(panes_of(given), ROLLUP, SEARCH)
    assert [msgspec.json.encode(answer) for answer in found] == [
        msgspec.json.encode(finish[name](state)) for name, state in given
    ]


@pytest.mark.parametrize("most", [20, 2**63 - 1])
def test_many_states_are_finished_like_each(most: int) -> None:
    @given(st.lists(st.tuples(st.sampled_from(sorted(MEASURES)), any_state(most)), max_size=12))
    def holds(given_states: list[tuple[str, State]]) -> None:
        check(given_states)

    holds()


def test_whole_numbers_have_no_fraction_and_others_beyond_doubles_are_null() -> None:
    check([("plain", State(count=count, sum=total)) for count in (0, 1, 3) for total in (-0.0, 2.0**53, 0.5, 1e308)])
    [answer] = finish_panes(panes_of([("plain", State(count=2, sum=3.0, min=1.0, max=float("inf")))]), ROLLUP, SEARCH)
    assert msgspec.json.encode(answer) == (
        b'{"count":2,"sum":3,"min":1,"max":null,"avg":1.5,"p50":null,"p95":null,"p99":null}'
    )


def test_states_are_read_back_as_they_were_put_down() -> None:
    given_states = [State(count=1, sum_int=10**30, histogram={0: 1, 63: 2}), State(), State(count=0, sum=0.5, max=-1.0)]
    assert list(states_of(panes_of([("all", state) for state in given_states]).select(STATE.names))) == given_states
