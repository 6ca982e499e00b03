"""Plain columns are reduced natively, to the states of the reference; what is not plain is left to DuckDB."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.query import predicate
from headrace.query.search import Rollup
from headrace.query.tree import Node
from headrace.reduce import plain, rollup
from headrace.reduce.answer import lift
from headrace.reduce.measures import states_of
from headrace.reduce.rollup import reducers
from headrace.reduce.state import STATE, State
from reduce.declarations import DOCUMENT, HOUR, MINUTE, declared
from support import reference_columns as columns

MEASURES = {
    "bytes": {"kind": "summary", "field": "bytes", "histogram": "log2_v1"},
    "duration": {"kind": "summary", "field": "duration", "histogram": "log2_v1"},
    "events": {"kind": "count"},
    "plain": {"kind": "summary", "field": "duration"},
    "slow": {"kind": "count", "include": "duration:>=1"},
}
SEARCH = declared(
    {
        **DOCUMENT,
        "rollups": {
            "all": {"dimensions": ["service", "level", "ok"], "intervals": ["1m", "1h"], "measures": MEASURES},
            "some": {"include": "ok:true", "intervals": ["1m"], "measures": MEASURES},
            "by_ratio": {"dimensions": ["ratio"], "intervals": ["1m"], "measures": {"events": {"kind": "count"}}},
        },
    }
)

int64s = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [0, 1, -1, 2**53 - 1, 2**53 + 1, 2**62 - 1, 2**62, 2**63 - 1]
)
# Multiples of an eighth, whose sums are exact.
eighths = st.integers(-(2**40), 2**40).map(lambda number: number / 8)
powers = st.integers(0, 1023).map(lambda at: 2.0**at) | st.integers(1, 60).map(lambda at: 2.0**at - 1)
documents = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "time": st.integers(-3 * HOUR, 3 * HOUR) | st.integers(-(10**16), 10**16) | st.none(),
            "service": st.sampled_from(["a", "b", "", "é", '"', "\0"]),
            "level": st.integers(-3, 3) | int64s,
            "ok": st.booleans(),
            "bytes": int64s,
            "duration": eighths,
        },
    ),
    max_size=30,
)


def table_of(given_documents: list[Any], given_rollup: Rollup) -> tuple[pa.Table, dict[Node, str]]:
    """The columns of events, and one for every query that says where it holds."""
    table, known = columns.table(SEARCH, given_documents), {}
    for at, tree in enumerate(rollup.include_queries(given_rollup)):
        matches = predicate.compile(tree, SEARCH)
        known[tree] = f"t.{at}"
        table = table.append_column(known[tree], pa.array([matches(one) for one in given_documents], pa.bool_()))
    return table, known


def by_place(panes: pa.Table) -> dict[tuple[Any, ...], State]:
    places = zip(*(panes.column(name).to_pylist() for name in ("pane", "key", "measure")), strict=True)
    return dict(zip(places, states_of(panes.select(STATE.names)), strict=True))


@pytest.mark.parametrize("name", ["all", "some"])
def test_plain_columns_have_the_states_of_the_reference(name: str) -> None:
    given_rollup = SEARCH.rollups[name]

    @given(documents, st.sampled_from([None, [(-HOUR, 7), (9, HOUR)], [(-(2**70), 2**70)], []]))
    @example([{"time": 0, "bytes": -(2**63)}, {"time": 1, "bytes": -(2**63)}], None)
    def holds(given_documents: list[Any], spans: list[tuple[int, int]] | None) -> None:
        table, known = table_of(given_documents, given_rollup)
        chosen = [tree for tree in [given_rollup.include] if tree]
        assert plain.is_plain(table.schema, given_rollup, reducers(given_rollup, SEARCH), chosen, known)
        made = rollup.panes(table, given_rollup, SEARCH, intervals=[MINUTE], spans=spans, query_columns=known)
        lifted = lift(given_documents, given_rollup, SEARCH, MINUTE, spans=spans)
        assert by_place(made) == {
            (pane, key, measure): state for (pane, key), group in lifted.items() for measure, state in group.items()
        }

    holds()


@given(st.lists(powers | powers.map(lambda number: -number), min_size=1))
def test_the_bucket_of_a_float_is_exact(given_numbers: list[float]) -> None:
    given_rollup = SEARCH.rollups["all"]
    given_documents = [{"time": 0, "duration": number} for number in given_numbers]
    table, known = table_of(given_documents, given_rollup)
    made = by_place(rollup.panes(table, given_rollup, SEARCH, intervals=[MINUTE], query_columns=known))
    [lifted] = lift(given_documents, given_rollup, SEARCH, MINUTE).values()
    assert made[0, "[null,null,null]", "duration"].histogram == lifted["duration"].histogram


def test_very_many_groups_are_told_apart() -> None:
    given_rollup = SEARCH.rollups["all"]
    given_documents = [
        {"time": at * 10 * HOUR, "service": f"s{at}", "level": at, "duration": at % 3 - 1.5} for at in range(1_000)
    ] * 2
    table, known = table_of(given_documents[::-1], given_rollup)
    made = by_place(rollup.panes(table, given_rollup, SEARCH, intervals=[MINUTE], query_columns=known))
    assert len(made) == 1_000 * len(MEASURES)
    key = msgspec.json.encode(["s999", 999, None]).decode()
    assert made[9_990 * HOUR, key, "duration"] == State(count=2, sum=-3.0, min=-1.5, max=-1.5, histogram={0: 2})


@pytest.mark.parametrize(
    ("name", "event"),
    [("by_ratio", {}), ("all", {"service": ["a", "b"]}), ("all", {"bytes": [1, 2]}), ("all", {"time": [1, 2]})],
)
def test_lists_and_other_dimensions_are_not_plain(name: str, event: dict[str, Any]) -> None:
    given_rollup = SEARCH.rollups[name]
    table, known = table_of([{"time": 0}, event], given_rollup)
    assert not plain.is_plain(table.schema, given_rollup, reducers(given_rollup, SEARCH), [], known)
    made = rollup.panes(table, given_rollup, SEARCH, intervals=[MINUTE], query_columns=known)
    assert set(by_place(made)) == {
        (pane, key, measure)
        for (pane, key), group in lift([{"time": 0}, event], given_rollup, SEARCH, MINUTE).items()
        for measure in group
    }
