"""Rows that came of columns are, once merged, those of folding events one by one, wherever events are cut."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.operators.catalogue import DECLARATIONS, OPERATORS
from headrace.reduce.features.columns import fold_rows
from headrace.reduce.features.definition import TableDefinition
from headrace.reduce.features.event_columns import AT_MS, SEQ, columns_of, number_texts
from headrace.reduce.features.event_time import LATE_MS
from headrace.reduce.states.fold import Fold
from headrace.schema.descriptor.nodes import Event as Source
from headrace.schema.descriptor.nodes import EventField, Feature, FeatureVersion, Table
from operators.events import TYPES, Event, events
from operators.law import assert_same, features

# Every example plans several Arrow calls.
BOUNDED = settings(max_examples=max(25, settings.default.max_examples // 4))
COLD = st.sampled_from([((0, None),), ((0, 5000),), ((0, None), (10, 100), (20, 10**6))])
KEYS = st.sampled_from([(), ("s",), ("i",), ("s", "b")])
COUNT = Feature("count")


def defined(
    key: tuple[str, ...], feature: Feature, birth: int, cold: Any, timestamp_field: str | None = None
) -> TableDefinition:
    fields = {name: EventField(kind, required=False) for name, kind in TYPES.items()}
    source = Source("E", fields, timestamp_field=timestamp_field)
    nodes = {"E": source, "T": Table("T", "E", key, {"f": feature, "n": COUNT})}
    lives = {"f": FeatureVersion("f-1", birth), "n": FeatureVersion("n-1", 0)}
    return TableDefinition("T", "E", "events/E", nodes, lives, cold)


def add_columns(fold: Fold, some: list[Event]) -> None:
    """Fold events as columns."""
    columns = columns_of(fold.reducer.source_types, [event.row for event in some])
    columns |= {SEQ: pa.array([event.seq for event in some], pa.int64())}
    columns |= {AT_MS: pa.array([event.at_ms for event in some], pa.int64())}
    fold.add_rows(fold_rows(fold.reducer, number_texts(pa.table(columns))))


def add_plain(fold: Fold, some: list[Event]) -> None:
    for event in some:
        fold.add(event.seq, event.at_ms, event.row)


def answers(fold: Fold, keys: list[bytes], now_ms: int) -> dict[bytes, Any]:
    rows = {key: fold.row(key) for key in keys}
    return {
        key: [row.first_seq, row.first_ms, row.last_seq, row.last_ms, row.restarted, fold.reducer.finish(row, now_ms)]
        for key, row in rows.items()
    }


@pytest.mark.parametrize("op", sorted(DECLARATIONS))
@BOUNDED
@given(st.data())
def test_events_may_be_folded_one_by_one_or_as_columns(op: str, data: st.DataObject) -> None:
    feature = data.draw(features(op))
    table = defined(data.draw(KEYS), feature, data.draw(st.integers(0, 20)), data.draw(COLD))
    made, reducer = data.draw(events()), table.reducer
    plain, mixed = Fold(table, 1000), Fold(table, data.draw(st.sampled_from([1, 3, 1000])))
    keys = sorted({placed[0] for event in made if (placed := reducer.key_and_row(event.row)) is not None})
    add_plain(plain, made)
    mixed = add_in_parts(mixed, made, keys, data)
    now_ms = made[-1].at_ms if made else 0
    told = answers(mixed, keys, now_ms)
    for key, wanted in answers(plain, keys, now_ms).items():
        assert_same(told[key], wanted, feature, made)


@pytest.mark.parametrize("op", sorted(op for op, operator in OPERATORS.items() if operator.order != "log"))
@BOUNDED
@given(st.data())
def test_events_may_have_any_times_and_be_late(op: str, data: st.DataObject) -> None:
    feature = data.draw(features(op))
    table = defined(("s",), feature, 0, ((0, None),), "t")
    made, reducer = data.draw(events()), table.reducer
    times = data.draw(st.permutations([event.at_ms for event in made]))
    is_late = data.draw(st.lists(st.sampled_from([False, False, True]), min_size=len(made), max_size=len(made)))
    made = [
        event._replace(at_ms=LATE_MS if late else at_ms)
        for event, at_ms, late in zip(made, times, is_late, strict=True)
    ]
    plain, mixed = Fold(table, 1000), Fold(table, 3)
    keys = sorted({placed[0] for event in made if (placed := reducer.key_and_row(event.row)) is not None})
    add_plain(plain, made)
    mixed = add_in_parts(mixed, made, keys, data)
    now_ms = max(times, default=0)
    for key in keys:
        row, wanted = mixed.row(key), plain.row(key)
        assert row.late == wanted.late
        assert_same(reducer.finish(row, now_ms), reducer.finish(wanted, now_ms), feature, made)


def add_in_parts(fold: Fold, made: list[Event], keys: list[bytes], data: st.DataObject) -> Fold:
    """Fold events cut into parts, one by one or as columns."""
    left = made
    while left:
        count = data.draw(st.integers(1, len(left)))
        data.draw(st.sampled_from([add_columns, add_columns, add_plain]))(fold, left[:count])
        left = left[count:]
        fold = between(fold, keys, data)
    return fold


def between(fold: Fold, keys: list[bytes], data: st.DataObject) -> Fold:
    """What may happen to rows between two events: they are read, copied, packed, merged, or given to another fold."""
    match data.draw(st.sampled_from(["nothing", "read", "copy", "pack", "merge", "adopt"])):
        case "read" if keys:
            fold.row(data.draw(st.sampled_from(keys)))
        case "copy" if keys:
            key = data.draw(st.sampled_from(keys))
            state, _ = fold.copied(key)
            assert (state is None) == (fold.row(key) is None)
        case "pack":
            fold.cool()
        case "merge":
            fold.hot_bytes, before = 0, fold.hot_bytes
            steps = iter(range(data.draw(st.integers(1, 4))))
            fold.merge_rows(lambda: next(steps, None) is None)
            fold.hot_bytes = before
        case "adopt":
            return fold.adopted(fold.defined)
    return fold


def test_rows_are_merged_until_there_is_room() -> None:
    table = defined(("i",), Feature("sum", {"field": "i"}), 0, ((0, None),))
    fold, seq = Fold(table, 4), 0
    for _ in range(40):
        add_columns(fold, [Event(seq + at, seq + at, {"i": at}, True) for at in range(9)])
        seq += 9
        fold.merge_rows(lambda: False)
        assert not fold.is_full
    for at in range(9):
        row = fold.row(table.reducer.key(at))
        assert fold.reducer.finish(row, seq) == {"f": 40 * at, "n": 40}
    assert fold.row(table.reducer.key(9)) is None


def test_what_waits_to_be_merged_is_counted_as_memory() -> None:
    table = defined(("i",), Feature("sum", {"field": "i"}), 0, ((0, None),))
    fold = Fold(table, 4, hot_bytes=1 << 15)
    add_columns(fold, [Event(at, at, {"i": at}, True) for at in range(5_000)])
    assert fold.is_full and fold.packed_bytes > 2 << 15
    fold.merge_rows(lambda: False)
    assert not fold.is_full and fold.packed_bytes > 2 << 15
    assert fold.memory > fold.packed_bytes
