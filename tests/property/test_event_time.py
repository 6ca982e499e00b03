"""The law of event time: however events come, are cut and merged, rows are what pandas computes of all at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.operators.catalogue import DECLARATIONS, OPERATORS
from headrace.reduce.features.table import KeyState, TableReducer
from headrace.schema.descriptor.nodes import Event, EventField, Feature, FeatureVersion, Table
from headrace.schema.descriptor.validate import resolve_table
from operators.events import Event as RowEvent
from operators.law import assert_same
from property.event_times import FIELD_TYPES, KEYS, WAITS_US, History, declared_features, histories
from reduce.features.column_states import fold_columns
from support.feature_oracle import MEANINGS, known, moment_us, row_of

#: Operators that go by event time.
TIMED = sorted(op for op, operator in OPERATORS.items() if operator.order != "log")
# Each example asks pandas, which is slow.
BOUNDED = settings(max_examples=max(12, settings.default.max_examples // 5))


def reducer_of(feature: Feature) -> TableReducer:
    """A table with one feature by key."""
    source = Event("E", {name: EventField(kind, required=False) for name, kind in FIELD_TYPES.items()})
    nodes = {"E": source, "T": Table("T", "E", ("k",), {"f": feature})}
    return TableReducer(resolve_table(nodes, "T"), {"f": FeatureVersion("f-1", 0)})


def folded_events(history: History) -> list[RowEvent]:
    """The events that count, in the order of the log."""
    events = []
    for seq, (append_us, event) in enumerate(history.events):
        event_us = moment_us(event["at"], history.source.unit)
        late_after_us = history.source.late_after_us
        if late_after_us is None or append_us - event_us <= late_after_us:
            row = {name: value for name, value in event.items() if name != "at"}
            events.append(RowEvent(event_us // 1000, seq, row, True))
    return events


def fold_part(reducer: TableReducer, part: list[RowEvent], by_columns: bool) -> dict[bytes, KeyState]:
    """The states of the keys of some events, by either form."""
    if by_columns:
        return fold_columns(reducer, [e.seq for e in part], [e.at_ms for e in part], [e.row for e in part])
    states: dict[bytes, KeyState] = {}
    for event in part:
        placed = reducer.key_and_row(event.row)
        assert placed is not None
        states[placed[0]] = reducer.fold(states.get(placed[0]), event.at_ms, event.seq, placed[1])
    return states


def merged(reducer: TableReducer, left: Any, right: Any) -> dict[bytes, KeyState]:
    """States that were packed and unpacked, merged by key."""
    left, right = ({k: reducer.unpack(reducer.pack(state)) for k, state in states.items()} for states in (left, right))
    return {key: reducer.merge(left.get(key), right.get(key)) for key in {**left, **right}}  # type: ignore[misc]


@st.composite
def merge_trees(draw: st.DrawFn, reducer: TableReducer, arrived: list[RowEvent]) -> dict[bytes, KeyState]:
    """The states of all events: cut anywhere, in any order, folded by either form, merged as any tree."""
    bounds = sorted(draw(st.lists(st.integers(0, len(arrived)), max_size=4)))
    parts = [arrived[start:end] for start, end in zip([0, *bounds], [*bounds, len(arrived)], strict=True)]
    states = [fold_part(reducer, part, draw(st.booleans())) for part in parts]
    while len(states) > 1:
        left, right = (states.pop(draw(st.integers(0, len(states) - 1))) for _ in range(2))
        states.append(merged(reducer, left, right))
    return states[0]


def test_every_operator_of_event_time_has_a_meaning() -> None:
    assert sorted(MEANINGS) == TIMED
    assert {op for op, declaration in DECLARATIONS.items() if not declaration.needs_log} == set(TIMED)


@pytest.mark.parametrize("op", TIMED)
@BOUNDED
@given(st.data())
def test_rows_are_those_of_all_events_in_any_order_and_any_merge_tree(op: str, data: st.DataObject) -> None:
    feature, history = data.draw(declared_features(op)), data.draw(histories(ahead=False))
    reducer, counted = reducer_of(feature), folded_events(history)
    states = data.draw(merge_trees(reducer, data.draw(st.just(counted) | st.permutations(counted))))
    now_ms = (history.last_us + data.draw(WAITS_US)) // 1000
    for key in KEYS:
        wanted = row_of(known(history.frame), key, {"f": (op, feature.params)}, FIELD_TYPES, now_ms)
        row = reducer.finish(states.get(reducer.key(key)), now_ms)
        assert row.keys() == wanted.keys()
        if row:
            assert_same(row["f"], wanted["f"], feature, counted)
