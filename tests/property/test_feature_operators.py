"""The law of every operator: however events are cut and merged, the answer is that of one pass, as documented."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from typing import Any

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from headrace.operators.catalogue import DECLARATIONS, make_operator
from headrace.operators.operator import PANES, Operator
from headrace.operators.state_bytes import pack, unpack
from operators import oracle
from operators.events import TYPES, Event, cuts, events
from operators.law import EXAMPLES, assert_same, features

#: Where all but one value have faded away there is no spread left in doubles, though a little in exact numbers.
FAINT = Fraction(1, 10**90)
BOUNDED = settings(max_examples=settings.default.max_examples // 2)
waits = st.sampled_from([0, 1, 10, 63, 64, 99, 100, 6399, 6400, 10**6])

COMMUTATIVE = {
    *("count", "sum", "mean", "min", "max", "var", "std", "ratio", "n_unique", "quantile", "top_k", "entropy"),
    *("histogram", "hour_of_day_histogram", "dow_hour_histogram", "event_type_mix", "reservoir_sample"),
    *("first_seen", "last_seen", "age", "has_seen", "time_since", "first_seen_in_window", "time_since_last_n"),
    *("decayed_sum", "decayed_count", "inter_arrival_stats", "burst_count", "trend", "trend_residual"),
    *("outlier_count", "geo_spread"),
}


def folded(reducer: Operator, part: list[Event]) -> Any:
    state = None
    for event in part:
        state = reducer.fold(state, event.at_ms, event.seq, event.row, event.matched)
    return state


@pytest.mark.parametrize("op", sorted(DECLARATIONS))
@given(st.data())
def test_parts_merged_in_any_way_answer_as_one_pass_and_as_documented(op: str, data: st.DataObject) -> None:
    feature = data.draw(features(op))
    reducer = make_operator(feature.op, feature.params, TYPES)
    made = data.draw(events())
    parts = data.draw(cuts(made))
    now_ms = (made[-1].at_ms if made else 0) + data.draw(
        st.sampled_from([0, 1, 10, 63, 64, 99, 100, 6399, 6400, 10**6])
    )
    states = [folded(reducer, part) for part in parts]
    packed = [pack(state) for state in states]
    forth = reduce(reducer.merge, states, None)
    back = reduce(lambda right, left: reducer.merge(left, right), reversed(states), None)
    assert [pack(state) for state in states] == packed, "merge changed its arguments"
    stored = reduce(reducer.merge, map(unpack, packed), None)
    ways = [folded(reducer, made), forth, back, reducer.merge_all([s for s in states if s is not None]), stored]
    wanted = oracle.answer(op, feature.params, made, now_ms)
    for state in ways:
        assert not isinstance(state, dict) or len(state) <= PANES
        before = pack(state)
        found = reducer.finish(state, now_ms)
        assert pack(state) == before, "finish changed the state"
        if found is None and op == "ew_zscore" and wanted is not None and abs(wanted) < FAINT:
            continue
        assert_same(found, wanted, feature, made)


def test_every_operator_has_a_meaning() -> None:
    assert oracle.MEANINGS.keys() == DECLARATIONS.keys()
    assert len(DECLARATIONS) == 54


def test_operators_say_whether_order_matters() -> None:
    params = {name: find(values, lambda value: True) for name, values in EXAMPLES.items()} | {"field": "x"}
    assert {op for op in DECLARATIONS if make_operator(op, params, TYPES).order == "any"} == COMMUTATIVE


@pytest.mark.parametrize("op", sorted(COMMUTATIVE))
@BOUNDED
@given(st.data())
def test_parts_of_a_commutative_operator_may_come_in_any_order(op: str, data: st.DataObject) -> None:
    feature = data.draw(features(op))
    reducer = make_operator(feature.op, feature.params, TYPES)
    made = data.draw(events())
    states = [folded(reducer, part) for part in data.draw(cuts(made))]
    now_ms = made[-1].at_ms if made else 0
    shuffled = data.draw(st.permutations(states))
    wanted = oracle.answer(op, feature.params, made, now_ms)
    found = reducer.finish(reduce(reducer.merge, shuffled, None), now_ms)
    assert_same(found, wanted, feature, made)
