"""The law of all reducers: however events are cut, ordered and merged, every form answers as one pass does.

A reducer that declares the order ``any`` or ``time`` is given events in any order, whatever their times; one that
declares ``log`` in the order of the log. The forms are the plain one, states that were packed, states made of
columns, and states that the aggregates of Catalyst have merged (here by what they stand for; a test on Spark holds
the aggregates themselves to the same answers). Operators are held to an oracle that shares no code with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from headrace.operators.catalogue import DECLARATIONS, OPERATORS, make_operator
from headrace.operators.operator import PANES, Operator, Windowed
from headrace.operators.reducer import Reducer
from headrace.operators.runs import RowRuns
from headrace.reduce.features.lanes import arrow
from headrace.reduce.fragments.reducer import FragmentReducer
from headrace.reduce.fragments.stats import StatsReducer
from headrace.reduce.measures import MeasureReducer
from headrace.reduce.policies.fields import Policies
from headrace.reduce.policies.reducer import EVERYONE, TypeReducer
from headrace.reduce.rollup import reducers
from headrace.schema.descriptor.nodes import Feature
from headrace.schema.entity.nodes import ReducerConfig
from operators import oracle
from operators.events import TYPES, Event, cuts, events, late_events
from operators.law import EXAMPLES, assert_same, features
from operators.reducing import reduced
from reduce.declarations import SEARCH
from reduce.events import events as documents
from reduce.fragments.histories import histories as fragment_histories
from reduce.policies.histories import configs
from reduce.policies.histories import histories as observation_histories

#: Where all but one value have faded away there is no spread left in doubles, though a little in exact numbers.
FAINT = Fraction(1, 10**90)
BOUNDED = settings(max_examples=settings.default.max_examples // 2)
WAITS = st.sampled_from([0, 1, 10, 63, 64, 99, 100, 6399, 6400, 10**6])
ARROW = {"f64": pa.float64(), "i64": pa.int64(), "bool": pa.bool_()}
#: Operators whose answers depend on the times of events, and those that need the order of the log as well.
TIMED = {
    *("first", "last", "first_n", "last_n", "most_recent_n", "lag", "delta_from_prev", "reservoir_sample"),
    *("bloom_member", "rate_of_change", "z_score", "seasonal_deviation", "distance_from_home"),
}
LOGGED = {
    *("streak", "negative_streak", "max_streak", "ewma", "ewvar", "ew_zscore", "twa"),
    *("value_change_count", "geo_velocity", "geo_distance"),
}


def fold(reducer: Reducer[Any, Any, Any], part: list[Event]) -> Any:
    state = None
    for event in part:
        state = reducer.fold(state, event.at_ms, event.seq, event.row, event.matched)
    return state


def counting(reducer: Operator | Windowed, part: list[Event]) -> list[Event]:
    """The events that count."""
    matching = [event for event in part if event.matched or reducer.takes_all]
    return [event for event in matching if all(event.row.get(name) is not None for name in reducer.fields)]


def in_order(part: list[Event]) -> list[Event]:
    return sorted(part, key=lambda event: (event.at_ms, event.seq))


def kept_panes(reducer: Windowed, made: list[Event]) -> list[int]:
    """The panes of events that count, as far as the window reaches back from the newest."""
    panes = {event.at_ms // reducer.width_ms for event in counting(reducer, made)}
    return sorted(pane for pane in panes if (max(panes) - pane) * reducer.width_ms < reducer.window_ms)


def of_columns(reducer: Operator | Windowed, part: list[Event]) -> Any:
    """The state that is made of columns."""
    counted = in_order(counting(reducer, part))
    width_ms = reducer.width_ms if isinstance(reducer, Windowed) else 2**62
    if not counted:
        return None
    panes = np.array([event.at_ms // width_ms for event in counted])
    columns = {
        name: pa.array([event.row[name] for event in counted], ARROW.get(TYPES[name], pa.string()))
        for name in reducer.fields
    }
    starts = np.flatnonzero(np.diff(panes, prepend=panes[0] - 1))
    runs = RowRuns(
        starts,
        np.array([event.at_ms for event in counted]),
        np.array([event.seq for event in counted]),
        np.array([event.matched for event in counted]),
        pa.table(columns) if columns else pa.table({"": pa.nulls(len(counted))}),
    )
    if not isinstance(reducer, Windowed):
        return reducer.fold_runs(runs)[0]
    states = dict(zip(panes[starts].tolist(), reducer.inner.fold_runs(runs), strict=True))
    return {pane: state for pane, state in states.items() if pane > max(states) - reducer.span}


def by_catalyst(reducer: Operator | Windowed, states: list[Any]) -> Any:
    """The state that the aggregates of Catalyst merge."""
    parts = reducer.catalyst_parts()
    assert parts is not None
    panes = [state if isinstance(reducer, Windowed) else {0: state} for state in states]
    rows = [(pane, state) for by_pane in panes for pane, state in by_pane.items()]
    columns = parts.explode([reducer.unpack(reducer.pack(state)) for _, state in rows])
    named = zip(parts.columns, columns, strict=True)
    table = pa.table(
        {"pane": pa.array([pane for pane, _ in rows], pa.int64())}
        | {name: pa.array(list(values), arrow(name).type) for name, values in named}
    )
    merged = reduced(table, ["pane"], parts.columns).sort_by("pane")
    made = dict(
        zip(
            merged["pane"].to_pylist(),
            parts.implode([merged[name].to_pylist() for name in parts.columns]),
            strict=True,
        )
    )
    if not isinstance(reducer, Windowed):
        return made[0]
    return {pane: state for pane, state in made.items() if pane > max(made) - reducer.span}


def merges(reducer: Reducer[Any, Any, Any], states: list[Any]) -> Iterator[Any]:
    """The states of parts, merged from both ends, at once, and after they were packed."""
    packed = [None if state is None else reducer.pack(state) for state in states]
    yield reduce(reducer.merge, states, None)
    yield reduce(lambda right, left: reducer.merge(left, right), reversed(states), None)
    yield reducer.merge_all([state for state in states if state is not None])
    assert [None if state is None else reducer.pack(state) for state in states] == packed, "merge changed its arguments"
    stored = [None if state is None else reducer.unpack(state) for state in packed]
    yield reduce(reducer.merge, stored, None)


def assert_every_form(feature: Feature, arrived: list[Event], data: st.DataObject) -> None:
    """Events that come in this order answer as one pass over them in the order of time, in every form."""
    reducer, made = make_operator(feature.op, feature.params, TYPES), in_order(arrived)
    now_ms = (made[-1].at_ms if made else 0) + data.draw(WAITS)
    wanted = oracle.answer(feature.op, feature.params, made, now_ms)
    parts = data.draw(cuts(arrived))
    states = [fold(reducer, part) for part in parts]
    ways = [fold(reducer, arrived), *merges(reducer, states)]
    columns = [of_columns(reducer, part) for part in parts]
    ways += [of_columns(reducer, made), *merges(reducer, columns)]
    present = [state for state in states if state is not None]
    if reducer.catalyst_parts() is not None and present:
        ways.append(by_catalyst(reducer, present))
    for state in ways:
        if isinstance(reducer, Windowed):
            assert list(state or ()) == kept_panes(reducer, made)
            assert len(state or ()) <= PANES
        before = None if state is None else reducer.pack(state)
        answer = reducer.finish(state, now_ms)
        assert (None if state is None else reducer.pack(state)) == before, "finish changed the state"
        if answer is None and feature.op == "ew_zscore" and wanted is not None and abs(wanted) < FAINT:
            continue
        assert_same(answer, wanted, feature, made)


@pytest.mark.parametrize("op", sorted(DECLARATIONS))
@given(st.data())
def test_every_form_of_an_operator_answers_as_one_pass_and_as_documented(op: str, data: st.DataObject) -> None:
    feature, arrived = data.draw(features(op)), data.draw(events())
    if OPERATORS[op].order != "log":
        seqs, shuffled = (data.draw(st.permutations(given)) for given in ([event.seq for event in arrived], arrived))
        arrived = [event._replace(seq=seq) for event, seq in zip(shuffled, seqs, strict=True)]
    assert_every_form(feature, arrived, data)


@pytest.mark.parametrize("op", sorted(op for op, operator in OPERATORS.items() if operator.order != "log"))
@given(st.data())
def test_events_that_come_late_count_where_they_belong(op: str, data: st.DataObject) -> None:
    assert_every_form(data.draw(features(op)), data.draw(late_events()), data)


def test_every_operator_has_a_meaning_and_an_order() -> None:
    params = {name: find(values, lambda value: True) for name, values in EXAMPLES.items()} | {"field": "x"}
    assert oracle.MEANINGS.keys() == DECLARATIONS.keys()
    orders = {op: make_operator(op, params, TYPES).order for op in DECLARATIONS}
    assert {op for op, order in orders.items() if order == "time"} == TIMED
    assert {op for op, order in orders.items() if order == "log"} == LOGGED
    assert {op for op, declaration in DECLARATIONS.items() if declaration.needs_log} == LOGGED


def assert_any_order(
    reducer: Reducer[Any, Any, Any], rows: list[tuple[int, int, Any]], answer: Any, data: st.DataObject
) -> None:
    """Rows, each with its time and its number, answer alike however they come and are cut."""
    assert reducer.order == "any"

    def state_of(part: list[tuple[int, int, Any]]) -> Any:
        state = None
        for at, seq, row in part:
            state = reducer.fold(state, at, seq, row)
        return state

    wanted = answer(state_of(rows))
    shuffled = data.draw(st.permutations(rows))
    states = [state_of(part) for part in data.draw(cuts(shuffled))]  # type: ignore[arg-type]
    for state in [state_of(shuffled), *merges(reducer, states)]:
        assert answer(state) == wanted


@BOUNDED
@given(observation_histories(users=("local",)), configs, st.data())
def test_merge_policies_need_no_order(history: Any, config: ReducerConfig, data: st.DataObject) -> None:
    policies, reducer = Policies(config), TypeReducer({EVERYONE: config})
    rows = [(at_us // 1000, seq, observation) for seq, at_us, observation in history]
    plain = [row for row in rows if row[2].kind not in ("deletion", "restoration")]
    assert_any_order(policies, plain, lambda state: repr(policies.finish(state)), data)
    one = [row for row in rows if row[2].entity_id == rows[0][2].entity_id]
    assert_any_order(reducer, one, lambda state: repr(reducer.finish(state)), data)


@BOUNDED
@given(fragment_histories(), st.data())
def test_statistics_of_fragments_need_no_order(history: Any, data: st.DataObject) -> None:
    users, stats = FragmentReducer(), StatsReducer()
    ada = [(at_us, seq, told) for seq, at_us, told in history if told.user_id == "ada" and told.fragments]
    assert_any_order(users, ada, lambda state: state and users.pack(state), data)
    keys = [(at_us, seq, (told, each)) for at_us, seq, told in ada for each in told.fragments if each.key == "extra"]
    assert_any_order(stats, keys, lambda state: state and stats.pack(state), data)


@BOUNDED
@given(documents, st.data())
def test_measures_of_rollups_need_no_order(given_documents: list[Any], data: st.DataObject) -> None:
    rows = [(at, at, document) for at, document in enumerate(given_documents)]
    for rollup in SEARCH.rollups.values():
        for reducer in reducers(rollup, SEARCH).values():
            assert_any_order(reducer, rows, lambda state, reducer=reducer: state and reducer.finish(state), data)


def test_every_reducer_is_held_to_the_law() -> None:
    def leaves(kind: type) -> Iterator[type]:
        children = kind.__subclasses__()
        yield from (leaf for child in children for leaf in leaves(child)) if children else [kind]

    kinds = {kind for kind in leaves(Reducer) if kind.__module__.startswith("headrace.")}
    keyed = {"TableReducer", "TypeReducer", "FragmentReducer", "StatsReducer", "Policies"}
    others = {kind for kind in kinds if not issubclass(kind, Operator | Windowed | MeasureReducer)}
    assert {kind.__name__ for kind in others} == keyed
