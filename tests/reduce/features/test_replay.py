"""Rows of the past by two clocks, folded in pieces that are cut anywhere, are what pandas computes of the events."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.reduce.features.definition import TableDefinition
from headrace.reduce.features.events import EventShapes
from headrace.reduce.features.moments import KeyMoment, KeyMoments, Limits, Question
from headrace.reduce.features.replay import (
    PastRow,
    Piece,
    Replay,
    StartPart,
    StartPoint,
    answer_moments,
    find_start,
    fold_pieces,
)
from headrace.reduce.states.definition import EventRun
from headrace.schema.descriptor.nodes import Event, EventField, Feature, FeatureVersion, Table
from headrace.schema.registry import Registry
from operators.law import assert_close
from property.event_times import FIELD_TYPES, KEYS, History, histories
from support.feature_oracle import event_time_us, known, late_count, row_of

FEATURES = {
    "n": Feature("count", {}),
    "lately": Feature("count", {"window": 64_000}),
    "total": Feature("sum", {"field": "x"}),
    "first": Feature("first_n", {"field": "s", "n": 2}),
    "last": Feature("last", {"field": "s"}),
    "since": Feature("time_since", {}),
    "faded": Feature("decayed_count", {"half_life": 60_000}),
}
ORACLE = {name: (feature.op, feature.params) for name, feature in FEATURES.items()}
BOUNDED = settings(max_examples=max(30, settings.default.max_examples))


class Asked(NamedTuple):
    """A history of events, and requests about it."""

    history: History
    requests: list[KeyMoment]
    births: dict[str, int]

    @property
    def question(self) -> Question:
        """The question about a table with every feature."""
        source = self.history.source
        kinds = {name: EventField(kind, required=False) for name, kind in FIELD_TYPES.items()}
        late_after_ms = None if source.late_after_us is None else source.late_after_us // 1000
        event = Event(
            "E",
            {**kinds, "at": EventField("datetime" if source.unit is None else "i64")},
            timestamp_field=source.field,
            timestamp_unit=source.unit if source.field is not None else None,
            late_after_ms=late_after_ms,
        )
        nodes = {"E": event, "T": Table("T", "E", ("k",), FEATURES)}
        lives = {name: FeatureVersion(f"{name}-1", self.births[name]) for name in FEATURES}
        defined = TableDefinition("T", "E", "events/E", nodes, lives)
        requests = tuple(each._replace(key=defined.reducer.key(each.key)) for each in self.requests)
        return Question(tuple(FEATURES), requests, defined)

    def runs(self, bounds: Sequence[int]) -> list[EventRun]:
        """The stored events, cut at these places."""
        events, runs = self.history.events, []
        edges = sorted({0, *bounds, len(events)})
        for start, end in pairwise(edges):
            body = b",".join(msgspec.json.encode(event) for _, event in events[start:end])
            runs.append(EventRun(start, 1, [append_us for append_us, _ in events[start:end]], body))
        return runs

    def check(self, rows: Sequence[PastRow]) -> None:
        """Rows are what pandas computes, and so are the numbers of late events."""
        frame = self.history.frame
        for request, row in zip(self.requests, rows, strict=True):
            events = known(frame, request.at_us, request.appended_us)
            features: dict[str, Any] = {}
            for birth in sorted(set(self.births.values())):
                names = {name: ORACLE[name] for name, seq in self.births.items() if seq == birth}
                features |= row_of(events[events.seq >= birth], request.key, names, FIELD_TYPES, request.at_us // 1000)
            since = events[events.seq >= min(self.births.values())]
            assert row.late_events == late_count(since, request.key)
            for name, value in features.items():
                assert_close(row.features[name], value, 1e-9, 1e6)
            # A feature that began after the events of the key is that of no events.
            assert row.features.keys() == (FEATURES.keys() if features else set())


@st.composite
def questions(draw: st.DrawFn) -> Asked:
    """Requests at the edges of the events' times, by one common second clock, one of each row, or none."""
    history = draw(histories(most=12))
    if draw(st.integers(0, 3)) == 0:
        history = history._replace(source=history.source._replace(field=None, late_after_us=None))
    times = [event_time_us(each, history.source) for each in history.events] or [history.last_us]
    appended = [append_us for append_us, _ in history.events] or [history.last_us]
    moments = st.builds(int.__add__, st.sampled_from(times), st.sampled_from([-1, 0, 1, 999, 64_000_000]))
    clocks = st.builds(int.__add__, st.sampled_from(appended), st.sampled_from([-1, 0, 1, 10**9]))
    common = draw(st.none() | clocks)
    own = draw(st.sampled_from([st.just(common), clocks, st.none() | clocks]))
    requests = draw(st.lists(st.builds(KeyMoment, st.sampled_from([*KEYS, "z"]), moments, own), max_size=8))
    if draw(st.booleans()):
        requests = [each._replace(appended_us=each.at_us) for each in requests]
    births = st.sampled_from([0, 0, len(history.events) // 2])
    return Asked(history, requests, {name: draw(births) for name in FEATURES})


def shapes_of(question: Question) -> EventShapes:
    return EventShapes(Registry.empty("events/E"), question.defined.event)


cuts = st.lists(st.integers(0, 12), max_size=4)


@BOUNDED
@given(questions(), cuts)
def test_a_replay_answers_what_pandas_computes(asked: Asked, bounds: list[int]) -> None:
    question = asked.question
    begun = find_start(question.defined, question.features, [], 0, 0)
    replay = Replay(begun, question, lambda state, key: None)
    for run in asked.runs([min(bound, len(asked.history.events)) for bound in bounds]):
        if not replay.fold(shapes_of(question), run):
            break
    asked.check(replay.finish())


@BOUNDED
@given(questions(), cuts, cuts)
def test_pieces_of_segments_that_are_cut_anywhere_answer_what_pandas_computes(
    asked: Asked, bounds: list[int], segments: list[int]
) -> None:
    question = asked.question
    starts = sorted({version.birth for version in question.defined.lives.values()})
    parts = [
        StartPart(tuple(name for name in FEATURES if question.defined.lives[name].birth == start), start, ())
        for start in starts
    ]
    start_point = StartPoint(tuple(parts), True, starts[0])
    pieces: list[Piece] = []
    runs = asked.runs([min(bound, len(asked.history.events)) for bound in (*bounds, *segments)])
    edges = {0, *segments}
    while runs:
        size = next((number for number in range(1, len(runs)) if runs[number].first_seq in edges), len(runs))
        pieces += fold_pieces(question, start_point, shapes_of(question), runs[:size])
        del runs[:size]
    rows = [PastRow({}, 0)] * len(question.requests)
    for key in {piece.key for piece in pieces}:
        own = sorted(piece for piece in pieces if piece.key == key)
        for position, row in answer_moments(question, start_point, key, own):
            rows[position] = row
    asked.check(rows)


limits = st.builds(Limits, st.integers(0, 9), st.integers(0, 9))


@given(st.lists(limits, max_size=12), st.integers(0, 9), st.integers(0, 9))
def test_an_event_is_folded_once_for_each_chain_and_counts_for_all_it_should(
    asked: list[Limits], event_us: int, append_us: int
) -> None:
    moments = KeyMoments((each, position) for position, each in enumerate(asked))
    slots = list(moments.slots(event_us, append_us))
    assert len(slots) <= len(moments.chains) <= len({each.append_us for each in asked})
    counts: list[int] = []
    for chain in moments.chains:
        for slot, positions in enumerate(chain.positions, chain.first_slot):
            own = [first for first in slots if chain.first_slot <= first <= slot]
            counts += positions if own else []
    assert sorted(counts) == [
        n for n, each in enumerate(asked) if each.event_us >= event_us and each.append_us >= append_us
    ]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-3, 3)), min_size=1, max_size=12), st.booleans())
def test_common_clocks_and_equal_ones_are_one_chain(asked: list[tuple[int, int]], is_common: bool) -> None:
    requests = [Limits(at, 5 if is_common else at + 2) for at, _ in asked]
    assert len(KeyMoments((each, n) for n, each in enumerate(requests)).chains) == 1
