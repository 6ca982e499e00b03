"""Event times of events and of columns of events, and what late events leave in states."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.operators.state_bytes import pack, unpack
from headrace.reduce.features.event_time import (
    AHEAD_MS,
    GREATEST_US,
    LATE_MS,
    LEAST_US,
    UNFIT_MS,
    EventTime,
    event_time_of,
)
from headrace.reduce.features.lanes import assign_lanes, columns, explode_states, implode_rows
from headrace.reduce.features.table import EMPTY, TableReducer
from headrace.schema.descriptor.nodes import Event, EventField, Feature, FeatureVersion, Table
from headrace.schema.descriptor.validate import resolve_table
from operators.reducing import reduced
from reduce.features.column_states import fold_columns

Unit = Literal["s", "ms", "us", "ns"]
NOW_US = 1_775_000_000_000_000
PER_MICRO = {"s": Fraction(1_000_000), "ms": Fraction(1000), "us": Fraction(1), "ns": Fraction(1, 1000)}
offsets = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=offsets | st.just(UTC))


def time_of(unit: Unit | None = None, late_after_ms: int | None = None) -> EventTime:
    schema = {"at": EventField("datetime" if unit is None else "i64")}
    made = event_time_of(Event("E", schema, timestamp_field="at", timestamp_unit=unit, late_after_ms=late_after_ms))
    assert made is not None
    return made


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, int]:
    """An RFC 3339 time with up to nine digits of a fraction, and its microseconds, rounded down."""
    moment = draw(moments).replace(microsecond=0)
    digits = draw(st.text("0123456789", max_size=9))
    zone = draw(st.sampled_from(["Z", "+00:00"])) if moment.utcoffset() == timedelta() else moment.isoformat()[-6:]
    text = moment.isoformat()[:19] + (f".{digits}" if digits else "") + zone
    whole = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
    return text, whole * 1_000_000 + int(digits.ljust(9, "0")) // 1000


@given(st.lists(texts(), min_size=1))
def test_texts_are_times_rounded_down_one_by_one_and_in_columns(given_texts: list[tuple[str, int]]) -> None:
    times = time_of()
    assert [times.micros({"at": text}) for text, _ in given_texts] == [micros for _, micros in given_texts]
    column = pa.array([text for text, _ in given_texts])
    assert times.micros_of_column(column).to_pylist() == [micros for _, micros in given_texts]


@given(st.sampled_from(["s", "ms", "us", "ns"]), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_unix_times_are_rounded_down_one_by_one_and_in_columns(unit: Unit, numbers: list[int]) -> None:
    exact = [number * PER_MICRO[unit] for number in numbers]
    wanted = [micros.__floor__() if LEAST_US <= micros.__floor__() <= GREATEST_US else None for micros in exact]
    assert [time_of(unit).micros({"at": number}) for number in numbers] == wanted
    assert time_of(unit).micros_of_column(pa.array(numbers, pa.int64())).to_pylist() == wanted


@pytest.mark.parametrize("value", [None, "", "yesterday", "2026-01-01", "2026-01-01T00:00:00", 5, True, {}])
def test_what_is_no_time_is_none(value: Any) -> None:
    assert time_of().micros({"at": value}) is None
    if isinstance(value, str):
        assert time_of().micros_of_column(pa.array([value])).to_pylist() == [None]


@pytest.mark.parametrize(
    ("event_us", "folded"),
    [
        (NOW_US, NOW_US // 1000),
        (NOW_US - 5_000_000, NOW_US // 1000 - 5000),
        (NOW_US - 5_000_001, LATE_MS),
        (NOW_US + 60_000_000, NOW_US // 1000 + AHEAD_MS),
        (NOW_US + 60_000_001, UNFIT_MS),
    ],
)
def test_an_event_is_late_or_too_far_ahead_to_the_microsecond(event_us: int, folded: int) -> None:
    times = time_of("us", late_after_ms=5000)
    assert times.folded_ms({"at": event_us}, NOW_US) == folded
    assert times.folded_ms_of_column(pa.array([event_us, None], pa.int64()), [NOW_US] * 2).tolist() == [
        folded,
        UNFIT_MS,
    ]


def reducer_of(**features: Feature) -> TableReducer:
    schema = {"k": EventField("str"), "x": EventField("f64", required=False), "at": EventField("i64")}
    source = Event("E", schema, timestamp_field="at", timestamp_unit="ms", late_after_ms=1000)
    nodes = {"E": source, "T": Table("T", "E", ("k",), features)}
    return TableReducer(resolve_table(nodes, "T"), {name: FeatureVersion(f"{name}-1", 0) for name in features})


COUNTED = reducer_of(
    n=Feature("count"), recent=Feature("count", {"window": 1000}), last=Feature("last", {"field": "x"})
)
ROWS = [("a", 1000), ("b", LATE_MS), ("a", 500), ("a", LATE_MS), ("b", LATE_MS), ("c", 800)]


def folded(reducer: TableReducer, rows: list[tuple[str, int]], first_seq: int = 0) -> dict[bytes, dict[str, bytes]]:
    states: dict[bytes, Any] = {}
    for seq, (key, at_ms) in enumerate(rows, first_seq):
        placed = reducer.key_and_row({"k": key, "x": float(seq), "at": 0})
        assert placed is not None
        states[placed[0]] = reducer.fold(states.get(placed[0]), at_ms, seq, placed[1])
    return {key: reducer.pack(state) for key, state in sorted(states.items())}


def test_late_events_are_counted_in_the_frame_and_nowhere_else() -> None:
    frames = {key: unpack(packed[""]) for key, packed in folded(COUNTED, ROWS).items()}
    assert frames == {
        COUNTED.key("a"): [0, 500, 2, 1000, False, 2, 1],
        COUNTED.key("b"): [*EMPTY, 2, 2],
        COUNTED.key("c"): [5, 800, 5, 800, False, 2],
    }
    b = COUNTED.unpack(folded(COUNTED, ROWS)[COUNTED.key("b")])
    assert (b.is_seen, b.late, COUNTED.finish(b, 2000)) == (False, 2, {})


def test_a_frame_without_late_events_has_the_bytes_that_it_had() -> None:
    (packed,) = folded(COUNTED, [("a", 1000)]).values()
    assert packed[""] == pack([0, 1000, 0, 1000, False, 2]) == bytes.fromhex("9600cd03e800cd03e8c202")


def test_columns_count_late_events_as_rows_do() -> None:
    seqs, times = range(len(ROWS)), [at_ms for _, at_ms in ROWS]
    events = [{"k": key, "x": float(seq), "at": 0} for seq, (key, _) in enumerate(ROWS)]
    states = fold_columns(COUNTED, seqs, times, events)
    assert {key: COUNTED.pack(state) for key, state in states.items()} == folded(COUNTED, ROWS)
    only_late = fold_columns(COUNTED, seqs[:2], [LATE_MS] * 2, events[:2])
    assert [state.late for state in only_late.values()] == [1, 1]
    assert [COUNTED.finish(state, 0) for state in only_late.values()] == [{}, {}]


@given(st.permutations(ROWS), st.integers(0, len(ROWS)))
def test_late_events_add_up_however_states_are_merged(rows: list[tuple[str, int]], cut: int) -> None:
    reducer = reducer_of(n=Feature("count"), recent=Feature("count", {"window": 1000}))
    whole, parts = folded(reducer, rows), [folded(reducer, rows[:cut]), folded(reducer, rows[cut:], cut)]
    merged: dict[bytes, Any] = {}
    for part in parts:
        for key, packed in part.items():
            merged[key] = reducer.merge(merged.get(key), reducer.unpack(packed))
    assert {key: reducer.pack(state) for key, state in sorted(merged.items())} == whole
    assert by_catalyst(reducer, parts) == whole


def by_catalyst(reducer: TableReducer, parts: list[dict[bytes, dict[str, bytes]]]) -> dict[bytes, dict[str, bytes]]:
    """What states merge to as rows of lanes."""
    lanes, sorted_by = assign_lanes(reducer), ("key", "lane", "pane")
    versions = ["", *(version.id for version in reducer.feature_versions.values())]
    batches = [
        batch
        for part in parts
        if part
        for batch in explode_states(
            lanes, list(part), {id: [packed.get(id) for packed in part.values()] for id in versions}
        )
    ]
    rows = pa.concat_tables([pa.Table.from_batches([batch]) for batch in batches], promote_options="default")
    made = reduced(rows, sorted_by, columns(lanes))
    return dict(implode_rows(lanes, made.sort_by([(name, "ascending") for name in sorted_by])))


@pytest.mark.parametrize("window_ms", [100, 6400, 60_000, 3_600_000])
def test_an_event_ahead_of_now_takes_nothing_from_the_window_of_now(window_ms: int) -> None:
    reducer = reducer_of(recent=Feature("count", {"window": window_ms}))
    now = 1_775_000_000_000
    packed = folded(reducer, [("a", now), ("a", now - window_ms), ("a", now + AHEAD_MS), ("a", now - window_ms // 2)])
    state = reducer.unpack(packed[reducer.key("a")])
    assert reducer.finish(state, now) == {"recent": 3}


def test_times_and_decay_of_an_event_ahead_of_now_begin_when_its_time_has_come() -> None:
    decayed = Feature("decayed_sum", {"field": "x", "half_life": 1})
    reducer = reducer_of(since=Feature("time_since"), age=Feature("age"), faded=decayed)
    placed = reducer.key_and_row({"k": "a", "x": 8.0, "at": 0})
    assert placed is not None
    state = reducer.fold(None, AHEAD_MS, 0, placed[1])
    assert reducer.finish(state, 0) == {"since": 0, "age": 0, "faded": 8.0}
    assert reducer.finish(state, AHEAD_MS + 1) == {"since": 1, "age": 1, "faded": 4.0}
