"""The law of event time: however events come, are cut and merged, rows are what pandas computes of all at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.operators.catalogue import DECLARATIONS, OPERATORS
from headrace.reduce.features.event_columns import SourceColumns
from headrace.reduce.features.event_time import LATE_MS, EventTime
from headrace.reduce.features.events import EventShapes
from headrace.reduce.features.table import KeyState, TableReducer
from headrace.reduce.states.definition import EventRun
from headrace.schema.descriptor.nodes import Event, EventField, Feature, FeatureVersion, Table, Type
from headrace.schema.descriptor.validate import resolve_table
from headrace.schema.registry import Registry
from operators.law import assert_same
from property.event_times import FIELD_TYPES, KEYS, WAITS_US, History, declared_features, histories
from reduce.features.column_states import states_of
from support.feature_oracle import MEANINGS, UNITS_NS, Source, late_count, row_of

States: TypeAlias = dict[bytes, KeyState]
#: The first and the last moment of RFC 3339, in microseconds.
FARTHEST_US = [
    (moment - datetime(1970, 1, 1) - shift) // timedelta(microseconds=1)
    for moment, shift in (
        (datetime.min, timedelta(hours=23, minutes=59)),
        (datetime.max, -timedelta(hours=23, minutes=59)),
    )
]

#: Operators that go by event time.
TIMED = sorted(op for op, operator in OPERATORS.items() if operator.order != "log")
# Each example asks pandas, which is slow.
BOUNDED = settings(max_examples=max(12, settings.default.max_examples // 20))


class Folding:
    """A table with one feature by key over a source with event time, and how its events are folded."""

    def __init__(self, feature: Feature, source: Source) -> None:
        fields = {name: EventField(kind, required=name == "k") for name, kind in FIELD_TYPES.items()}
        fields["at"] = EventField("datetime" if source.unit is None else "i64")
        late_after_ms = None if source.late_after_us is None else source.late_after_us // 1000
        self.event = Event("E", fields, timestamp_field="at", timestamp_unit=source.unit, late_after_ms=late_after_ms)
        nodes = {"E": self.event, "T": Table("T", "E", ("k",), {"f": feature})}
        self.reducer = TableReducer(resolve_table(nodes, "T"), {"f": FeatureVersion("f-1", 0)})
        self.shapes = EventShapes(Registry.empty("events/E"), self.event)

    def by_rows(self, runs: Sequence[EventRun]) -> States:
        """The states of the keys of some events, folded one by one."""
        states: States = {}
        for run in runs:
            for seq, at_ms, event in self.shapes.decode_run(run):
                placed = self.reducer.key_and_row(event)
                assert placed is not None
                states[placed[0]] = self.reducer.fold(states.get(placed[0]), at_ms, seq, placed[1])
        return states

    def by_columns(self, runs: Sequence[EventRun]) -> States:
        """The same of columns."""
        columns = SourceColumns(self.shapes, self.event, sorted(self.reducer.source_types))
        for run in runs:
            columns.add(run)
        return states_of(self.reducer, columns.table()) if runs else {}

    def merged(self, left: States, right: States) -> States:
        """States that were packed and unpacked, merged by key."""
        stored = [
            {key: self.reducer.unpack(self.reducer.pack(state)) for key, state in states.items()}
            for states in (left, right)
        ]
        keys = {**left, **right}
        return {key: self.reducer.merge(*(states.get(key) for states in stored)) for key in keys}  # type: ignore[misc]


def runs_of(history: History) -> list[EventRun]:
    """Every event as it is stored, in the order of the log."""
    return [
        EventRun(seq, 1, [append_us], msgspec.json.encode(event))
        for seq, (append_us, event) in enumerate(history.events)
    ]


@st.composite
def merge_trees(draw: st.DrawFn, folding: Folding, arrived: list[EventRun]) -> States:
    """The states of all events: cut anywhere, in any order, folded by either form, merged as any tree."""
    bounds = sorted(draw(st.lists(st.integers(0, len(arrived)), max_size=4)))
    parts = [arrived[start:end] for start, end in zip([0, *bounds], [*bounds, len(arrived)], strict=True)]
    forms = st.sampled_from([folding.by_rows, folding.by_columns])
    states = [draw(forms)(part) for part in parts]
    while len(states) > 1:
        left, right = (states.pop(draw(st.integers(0, len(states) - 1))) for _ in range(2))
        states.append(folding.merged(left, right))
    return states[0]


def test_every_operator_of_event_time_has_a_meaning() -> None:
    assert sorted(MEANINGS) == TIMED
    assert {op for op, declaration in DECLARATIONS.items() if not declaration.needs_log} == set(TIMED)


@pytest.mark.parametrize("op", TIMED)
@BOUNDED
@given(st.data())
def test_rows_are_those_of_all_events_in_any_order_and_any_merge_tree(op: str, data: st.DataObject) -> None:
    feature, history = data.draw(declared_features(op)), data.draw(histories())
    folding, runs, frame = Folding(feature, history.source), runs_of(history), history.frame
    states = data.draw(merge_trees(folding, data.draw(st.just(runs) | st.permutations(runs))))
    now_ms = (history.last_us + data.draw(WAITS_US)) // 1000
    for key in KEYS:
        wanted = row_of(frame, key, {"f": (op, feature.params)}, FIELD_TYPES, now_ms)
        state = states.get(folding.reducer.key(key))
        row = folding.reducer.finish(state, now_ms)
        assert row.keys() == wanted.keys()
        assert (0 if state is None else state.late) == late_count(frame, key)
        if row:
            assert_same(row["f"], wanted["f"], feature, history.rows)


@st.composite
def event_times(draw: st.DrawFn, unit: str | None) -> tuple[Any, int]:
    """An event time as an event may have it, and its microseconds."""
    if unit is not None:
        near = draw(st.sampled_from([0, 2**63 - 1, -(2**63), *(us * 1000 // UNITS_NS[unit] for us in FARTHEST_US)]))
        value = max(-(2**63), min(2**63 - 1, near + draw(st.integers(-3, 3) | st.integers(-(10**12), 10**12))))
        return value, value * UNITS_NS[unit] // 1000
    minutes = draw(st.integers(-23 * 60 - 59, 23 * 60 + 59))
    local = draw(st.datetimes() | st.sampled_from([datetime.min, datetime.max])).replace(microsecond=0)
    digits = draw(st.text("0123456789", max_size=9))
    sign, (hours, rest) = "-" if minutes < 0 else "+", divmod(abs(minutes), 60)
    zone = draw(st.sampled_from(["Z", None])) or f"{sign}{hours:02}:{rest:02}"
    shift = timedelta() if zone == "Z" else timedelta(minutes=minutes)
    seconds = (local - datetime(1970, 1, 1) - shift) // timedelta(seconds=1)
    text = f"{local.isoformat()}{'.' if digits else ''}{digits}{zone}"
    return text, seconds * 10**6 + int(digits.ljust(6, "0")[:6])


@given(st.sampled_from([None, "s", "ms", "us", "ns"]), st.data())
def test_event_times_are_read_to_the_microsecond_one_by_one_and_as_columns(unit: Any, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(event_times(unit), min_size=1, max_size=5))
    late_after_ms = data.draw(st.sampled_from([None, 1, 3_600_000]))
    kind: Type = "datetime" if unit is None else "i64"
    event = Event("E", {"at": EventField(kind)}, timestamp_field="at", timestamp_unit=unit, late_after_ms=late_after_ms)
    reader = EventTime(event)
    values, appended = pa.array([value for value, _ in drawn]), []
    for value, wanted_us in drawn:
        has_moment = FARTHEST_US[0] <= wanted_us <= FARTHEST_US[1]
        event_us = reader.micros({"at": value})
        assert event_us == (wanted_us if has_moment else None)
        away_us = data.draw(st.sampled_from([0, 1, 999, 1000, 1001, 3_600_000_000, 3_600_000_001, -(10**6)]))
        appended.append(wanted_us + away_us if has_moment else 0)
        if has_moment:
            is_late = late_after_ms is not None and away_us > late_after_ms * 1000
            assert reader.folded_ms({"at": value}, appended[-1]) == (LATE_MS if is_late else wanted_us // 1000)
    one_by_one = [reader.folded_ms({"at": value}, at_us) for (value, _), at_us in zip(drawn, appended, strict=True)]
    assert reader.folded_ms_of_column(values, appended).tolist() == one_by_one
