"""The law of reducers: however events are cut, however the parts are merged, the answer is that of one pass."""

from __future__ import annotations

import functools
import math
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.query import predicate
from headrace.query.search import Search
from headrace.query.syntax import parse
from headrace.query.tree import Node
from headrace.reduce import duck, histogram, rollup
from headrace.reduce.answer import Aggregate, Groups, lift, merge_into
from headrace.reduce.rollup import reducers
from headrace.reduce.state import PANES, STATE, State, merge_states
from reduce import oracle
from reduce.answers import buckets
from reduce.declarations import HOUR, MINUTE, ROLLUP, SEARCH
from reduce.events import cuts, events, exact, parts, times, whole
from support import reference_columns as columns

EVER = (-(2**80), 2**80)
# Planning a query of every kind of measure takes DuckDB some time.
BOUNDED = settings(max_examples=min(200, settings.default.max_examples))
rollups = st.sampled_from(sorted(SEARCH.rollups))
queries = st.sampled_from([None, "ok:true", "-bytes:>0", "message:slow duration:<1", "has:tags OR service:a"])
group_bys = st.lists(st.sampled_from(ROLLUP.dimensions), unique=True).map(tuple)
measure_sets = st.lists(st.sampled_from(sorted(ROLLUP.measures)), unique=True).map(tuple)
spans = st.tuples(times, times).filter(lambda span: span[0] < span[1]) | st.just((-(10**17), 10**17))


def panes(documents: list[Any], search: Search = SEARCH, name: str = "all", **more: Any) -> pa.Table:
    return rollup.panes(columns.table(search, documents), search.rollups[name], search, **more)


def odd(documents: list[Any]) -> list[Any]:
    return [document for document in documents if columns.is_odd(SEARCH, document)]


def states(table: pa.Table) -> dict[tuple[Any, ...], Any]:
    """Every row as a finished answer, and its state but for the sketch, which has many spellings."""
    finish = {(name, measure): reducer for name in SEARCH.rollups for measure, reducer in all_reducers(name).items()}
    found = {}
    for row in table.to_pylist():
        sum_int = None if row["sum_int"] is None else int(row["sum_int"])
        counted = None if row["histogram"] is None else dict(row["histogram"])
        state = State(*({**row, "sum_int": sum_int, "histogram": counted}[name] for name in STATE.names))
        answer = finish[row["rollup"], row["measure"]].finish(state)
        place = tuple(row[name] for name in ("rollup", "interval", "pane", "key", "measure"))
        assert place not in found
        found[place] = (answer, *(getattr(state, name) for name in STATE.names if name != "sketch"))
    return found


@functools.cache
def all_reducers(name: str) -> Any:
    return reducers(SEARCH.rollups[name], SEARCH)


@BOUNDED
@given(events, cuts, rollups, st.sampled_from([MINUTE, HOUR]), st.randoms())
def test_parts_merged_in_any_order_answer_as_one_pass(
    documents: list[Any], at: list[int], name: str, interval: int, order: Any
) -> None:
    given_rollup = SEARCH.rollups[name]
    interval = min(interval, max(known.millis for known in given_rollup.intervals))
    made = [panes(part, name=name, intervals=[interval]) for part in parts(documents, at)]
    order.shuffle(made)
    while len(made) > 1:
        made.append(rollup.merge_panes([made.pop(), made.pop()]))
        order.shuffle(made)
    asked = Aggregate(rollup=given_rollup, interval=interval, start=EVER[0], end=EVER[1])
    answer = buckets(asked, SEARCH, history=made, documents=odd(documents))
    assert answer == oracle.buckets(given_rollup, SEARCH, documents, interval=interval, start=EVER[0], end=EVER[1])


@BOUNDED
@given(events, st.integers(0, 25), spans, group_bys, measure_sets, queries)
@example([{"time": 0, "ok": True}, {"time": MINUTE - 1}], 0, (0, MINUTE), (), (), None)
def test_history_edges_tail_and_odd_events_answer_as_one_pass(
    documents: list[Any],
    tail: int,
    span: tuple[int, int],
    group_by: tuple[str, ...],
    measures: tuple[str, ...],
    query: str | None,
) -> None:
    start, end = span
    where = None if query is None else parse(query)
    asked = Aggregate(rollup=ROLLUP, interval=MINUTE, start=start, end=end, group_by=group_by, measures=measures)
    old, new = documents[:tail], documents[tail:]
    query_panes = functools.partial(panes, where=where, intervals=[MINUTE])
    history = [query_panes(old)]
    more = [query_panes(old, spans=asked.edges), query_panes(new, spans=[span])]
    rest = [event for event in odd(documents) if where is None or predicate.compile(where, SEARCH)(event)]
    answer = buckets(asked, SEARCH, history=history, more=more, documents=rest)
    assert answer == oracle.buckets(
        ROLLUP,
        SEARCH,
        documents,
        interval=MINUTE,
        start=start,
        end=end,
        group_by=group_by,
        measures=measures,
        where=where,
    )


@BOUNDED
@given(events, rollups)
def test_duckdb_makes_the_states_of_the_reference(documents: list[Any], name: str) -> None:
    plain = [document for document in documents if not columns.is_odd(SEARCH, document)]
    given_rollup = SEARCH.rollups[name]
    lifted = {
        (name, interval, pane, key, measure): state
        for interval in {known.millis for known in given_rollup.intervals}
        for (pane, key), group in lift(plain, given_rollup, SEARCH, interval).items()
        for measure, state in group.items()
    }
    expected = {
        place: (all_reducers(name)[place[-1]].finish(state), *(getattr(state, part) for part in STATE.names[:-1]))
        for place, state in lifted.items()
    }
    assert states(panes(documents, name=name)) == expected


@BOUNDED
@given(events, events, events)
def test_merging_panes_is_associative_and_commutative(left: list[Any], middle: list[Any], right: list[Any]) -> None:
    one, two, three = (panes(documents, intervals=[MINUTE]) for documents in (left, middle, right))
    together = states(rollup.merge_panes([one, two, three]))
    assert states(rollup.merge_panes([one, rollup.merge_panes([two, three])])) == together
    assert states(rollup.merge_panes([rollup.merge_panes([three, one]), two])) == together
    assert states(rollup.merge_panes([PANES.empty_table(), one])) == states(one)


@given(events, cuts)
def test_merging_values_is_merging_panes(documents: list[Any], at: list[int]) -> None:
    merged: Groups = {}
    for part in parts(documents, at):
        for place, group in lift(part, ROLLUP, SEARCH, MINUTE).items():
            merge_into(merged, place, group)
    once = lift(documents, ROLLUP, SEARCH, MINUTE)
    assert merged.keys() == once.keys()
    for place, group in once.items():
        assert {name: all_reducers("all")[name].finish(state) for name, state in merged[place].items()} == {
            name: all_reducers("all")[name].finish(state) for name, state in group.items()
        }


counts = st.integers(0, 2**63 - 1)
values = st.builds(
    State,
    count=st.none() | counts,
    sum=st.none() | exact,
    sum_int=st.none() | st.integers(),
    min=st.none() | exact,
    max=st.none() | exact,
    min_int=st.none() | st.integers(),
    max_int=st.none() | st.integers(),
    histogram=st.none() | st.dictionaries(st.integers(0, 1100), counts, max_size=4),
)


@given(values, values, values)
def test_states_are_a_commutative_monoid(left: State, middle: State, right: State) -> None:
    assert merge_states(merge_states(left, middle), right) == merge_states(left, merge_states(middle, right))
    assert merge_states(left, right) == merge_states(right, left)
    assert merge_states(State(), left) == merge_states(left, State()) == left


@BOUNDED
@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=30), cuts)
def test_sums_of_any_floats_are_close_however_they_are_cut(numbers: list[float], at: list[int]) -> None:
    documents = [{"time": 0, "duration": number} for number in numbers]
    asked = Aggregate(rollup=SEARCH.rollups["durations"], interval=MINUTE, start=0, end=MINUTE)
    [bucket] = buckets(asked, SEARCH, history=[panes(part, name="durations") for part in parts(documents, at)])
    answer = bucket["groups"][0]["measures"]["duration"]
    allowed = 1e-9 * math.fsum(abs(number) for number in numbers)
    assert answer["sum"] == pytest.approx(math.fsum(numbers), abs=allowed, rel=0)
    assert answer["avg"] == pytest.approx(math.fsum(numbers) / len(numbers), abs=allowed / len(numbers), rel=0)
    assert answer["min"] == min(numbers)
    assert answer["max"] == max(numbers)


@given(whole)
@example(2**63 - 1)
@example(-(2**63))
@example(2**53 - 1)
def test_the_bucket_of_an_integer_is_exact_in_duckdb(number: int) -> None:
    table = pa.table({"x": pa.array([number], pa.int64())})
    [found] = duck.query(f"SELECT {histogram.exponent_of_integer('x')} AS e FROM t", {"t": table})["e"].to_pylist()
    assert found == histogram.exponent(number)
    assert 2**found <= max(1, abs(number)) < 2 ** (found + 1)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(1, 1023).map(lambda e: math.nextafter(2.0**e, 0)))
@example(1.7976931348623157e308)
@example(5e-324)
def test_the_bucket_of_a_float_is_exact_in_duckdb(number: float) -> None:
    table = pa.table({"x": pa.array([number], pa.float64())})
    [found] = duck.query(f"SELECT {histogram.exponent_of_float('x')} AS e FROM t", {"t": table})["e"].to_pylist()
    assert found == histogram.exponent(number)
    assert 2**found <= max(1, abs(number)) < 2 ** (found + 1)


@given(st.lists(st.lists(st.dictionaries(st.integers(0, 1023), counts, max_size=3), max_size=4), max_size=6))
def test_lists_of_histograms_are_merged_by_exponent(lists: list[list[dict[int, int]]]) -> None:
    kind = pa.list_(pa.map_(pa.int32(), pa.int64()))
    array = pa.array([[list(counted.items()) for counted in counteds] for counteds in lists], kind)
    merged = histogram.merge_lists(array).to_pylist()
    for counteds, found in zip(lists, merged, strict=True):
        once = functools.reduce(merge_states, (State(histogram=counted) for counted in counteds), State()).histogram
        assert (dict(found) if found else {}) == (once or {})
        assert found is None or list(dict(found)) == sorted(dict(found))


@given(spans, st.sampled_from([1, MINUTE, HOUR]))
def test_whole_panes_and_edges_cover_what_is_asked_once(span: tuple[int, int], interval: int) -> None:
    asked = Aggregate(rollup=ROLLUP, interval=interval, start=span[0], end=span[1])
    first, last = asked.covered_span
    inner = [(first, last)] if first < last else []
    covered = sorted([*asked.edges, *inner])
    assert (covered[0][0], covered[-1][1]) == span
    assert all(one[1] == other[0] for one, other in pairwise(covered))
    assert first % interval == last % interval == 0
    assert all(end - start < interval or not inner for start, end in asked.edges)


def test_queries_of_a_rollup_are_those_that_decide_what_counts() -> None:
    def trees(name: str) -> list[Node]:
        return rollup.include_queries(SEARCH.rollups[name])

    assert trees("all") == [parse("duration:>=1 OR message:slow")]
    assert trees("fast") == [parse("-duration:>=1 -message:slow*")]
