"""States from columns are those that folding the same rows gives."""

from __future__ import annotations

from itertools import accumulate
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.operators.catalogue import DECLARATIONS, OPERATORS
from headrace.reduce.features.table import KeyState, TableReducer
from headrace.schema.descriptor.nodes import Event, EventField, Feature, FeatureVersion, RowOp, Table
from headrace.schema.descriptor.validate import resolve_table
from operators.events import TYPES, events
from operators.law import assert_same, features
from reduce.features.column_states import fold_columns

WHERES = st.sampled_from([{}, {"where": "(b == true)"}, {"where": "((x > 0) or (i > 0))"}])
# Every example plans several Arrow calls.
BOUNDED = settings(max_examples=max(25, settings.default.max_examples // 4))
COLD = st.sampled_from([[], [(0, 5000)], [(0, None), (10, 100), (20, 10**6)]])
OPS = (RowOp("filter", expr="(x > 0)"), RowOp("with_columns", exprs={"y": "(x * 2)"}))
KEYS = st.sampled_from([(), ("s",), ("i",), ("b",), ("t",), ("s", "b", "i")])


def table(key: tuple[str, ...], feature: Feature, birth: int, cold: Any) -> TableReducer:
    source = Event("E", {name: EventField(kind, required=False) for name, kind in TYPES.items()})
    nodes = {"E": source, "T": Table("T", "E", key, {"f": feature})}
    return TableReducer(resolve_table(nodes, "T"), {"f": FeatureVersion("f-1", birth)}, cold)


def answers(reducer: TableReducer, states: dict[bytes, KeyState], now_ms: int) -> dict[bytes, Any]:
    return {
        key: [row.first_seq, row.first_ms, row.last_seq, row.last_ms, row.restarted, reducer.finish(row, now_ms)]
        for key, row in states.items()
    }


@pytest.mark.parametrize("op", sorted(DECLARATIONS))
@BOUNDED
@given(st.data())
def test_columns_reduce_to_what_rows_fold_to(op: str, data: st.DataObject) -> None:
    feature = data.draw(features(op))
    params = {**feature.params, **data.draw(WHERES)}
    reducer = table(data.draw(KEYS), Feature(op, params), data.draw(st.integers(0, 20)), data.draw(COLD))
    made = data.draw(events())
    folded: dict[bytes, KeyState] = {}
    for event in made:
        placed = reducer.key_and_row(event.row)
        if placed is not None:
            key, row = placed
            folded[key] = reducer.fold(folded.get(key), event.at_ms, event.seq, row)
    given_in = data.draw(st.permutations(made) | st.just(made))
    found = fold_columns(reducer, [e.seq for e in given_in], [e.at_ms for e in given_in], [e.row for e in given_in])
    assert list(found) == sorted(folded)
    now_ms = made[-1].at_ms if made else 0
    told = answers(reducer, found, now_ms)
    for key, wanted in answers(reducer, folded, now_ms).items():
        assert_same(told[key], wanted, feature, made)


@pytest.mark.parametrize("op", sorted(op for op, operator in OPERATORS.items() if operator.order != "log"))
@BOUNDED
@given(st.data())
def test_times_need_not_have_the_order_of_the_log(op: str, data: st.DataObject) -> None:
    feature = data.draw(features(op))
    reducer = table(("s",), Feature(op, {**feature.params, **data.draw(WHERES)}), 0, [])
    made = data.draw(events())
    moments = data.draw(st.permutations([event.at_ms for event in made]))
    logged = [event._replace(at_ms=at_ms) for event, at_ms in zip(made, moments, strict=True)]
    folded: dict[bytes, KeyState] = {}
    for event in sorted(logged, key=lambda event: (event.at_ms, event.seq)):
        placed = reducer.key_and_row(event.row)
        if placed is not None:
            folded[placed[0]] = reducer.fold(folded.get(placed[0]), event.at_ms, event.seq, placed[1])
    found = fold_columns(reducer, [e.seq for e in logged], [e.at_ms for e in logged], [e.row for e in logged])
    assert list(found) == sorted(folded)
    now_ms = max(moments, default=0)
    for key, row in found.items():
        assert_same(reducer.finish(row, now_ms), reducer.finish(folded[key], now_ms), feature, logged)


def reduce_to(feature: Feature, rows: list[dict[str, Any]]) -> tuple[Any, Any]:
    """The state of the one key of some rows, and its answer."""
    reducer = table(("s",), feature, 0, [])
    at = range(len(rows))
    (row,) = fold_columns(reducer, at, at, [{"s": "a", **row} for row in rows]).values()
    return row.states["f"], reducer.finish(row, len(rows))["f"]


def test_large_sums_of_integers_stay_exact() -> None:
    assert reduce_to(Feature("sum", {"field": "i"}), [{"i": 2**62 - 1}] * 2)[0] == 2**63 - 2
    assert reduce_to(Feature("sum", {"field": "i"}), [{"i": 2**63 - 1}] * 3)[0] == 3 * 2.0**63


def test_stretches_beyond_the_exact_bound_become_sketches() -> None:
    rows = [{"x": at / 2, "i": at} for at in range(5000)]
    assert abs(reduce_to(Feature("n_unique", {"field": "i"}), rows)[1] - 5000) < 250
    assert abs(reduce_to(Feature("quantile", {"field": "x", "q": 0.5}), rows)[1] - 1250) < 50


def test_no_rows_reduce_to_nothing() -> None:
    reducer = table(("s",), Feature("count"), 0, [])
    assert fold_columns(reducer, [], [], []) == {}


def test_integers_that_no_double_is_become_the_nearest() -> None:
    assert reduce_to(Feature("sum", {"field": "x"}), [{"x": 2**60 + 1}, {"x": 1}])[1] == 2.0**60 + 1


def test_rows_that_the_steps_leave_out_do_not_count() -> None:
    source = Event("E", {name: EventField(kind, required=False) for name, kind in TYPES.items()})
    nodes = {"E": source, "T": Table("T", "E", (), {"f": Feature("sum", {"field": "y"})}, OPS)}
    reducer = TableReducer(resolve_table(nodes, "T"), {"f": FeatureVersion("f-1", 0)}, [])
    (row,) = fold_columns(reducer, [1, 2, 3], [1, 2, 3], [{"x": 1}, {"x": -1}, {"x": 2.5}]).values()
    assert reducer.finish(row, 3) == {"f": 7.0}
    assert row.first_seq == 1
    assert row.last_seq == 3


def test_keys_of_any_length_are_in_order() -> None:
    reducer, keys = table(("s",), Feature("count"), 0, []), ["b", "", "é", "a" * 31, "a" * 32, "b" * 300, "aa"]
    for chosen in (keys[:4], keys):
        found = fold_columns(
            reducer, range(len(chosen) + 2), range(len(chosen) + 2), [{"s": key} for key in [*chosen, "b", None]]
        )
        wanted = {reducer.key(key): {"f": 1 + (key == "b")} for key in chosen}
        assert list(found) == sorted(wanted)
        assert {key: reducer.finish(row, 9) for key, row in found.items()} == wanted


@pytest.mark.parametrize("op", ["ewma", "ewvar", "ew_zscore"])
@pytest.mark.parametrize("field", ["x", "i"])
def test_weights_of_many_keys_are_folded_at_once(op: str, field: str) -> None:
    reducer, random = table(("s",), Feature(op, {"field": field, "half_life": 50}), 0, []), Random(7)
    # Keys of very different lengths, so that few are left at the end; a third of the gaps are nothing.
    users = [f"u{min(random.randrange(60), random.randrange(60))}" for _ in range(1500)] + ["u0"] * 200
    times = list(accumulate(random.choice([0, 1, 90]) for _ in users))
    events = [{"s": user, "x": random.uniform(-9, 9), "i": random.randrange(100)} for user in users]
    folded: dict[bytes, KeyState] = {}
    for seq, (at_ms, event) in enumerate(zip(times, events, strict=True)):
        key, row = reducer.key_and_row(event) or (b"", {})
        folded[key] = reducer.fold(folded.get(key), at_ms, seq, row)
    found = fold_columns(reducer, range(len(events)), times, events)
    assert list(found) == sorted(folded)
    for key, state in folded.items():
        assert found[key].states["f"] == pytest.approx(state.states["f"], rel=1e-12, abs=1e-12)
