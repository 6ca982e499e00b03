"""Histories of event sources whose events have a time of their own, close to every edge, for properties."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pandas as pd
from hypothesis import strategies as st

from headrace.operators.catalogue import DECLARATIONS
from headrace.schema.descriptor.nodes import Feature
from operators.events import TYPES, maybe, rows
from operators.events import Event as RowEvent
from operators.law import features
from support.feature_oracle import WHERES, Source, frame_of

START_US = 1_700_000_000_000_000
#: An event may be so far ahead of the clock when it is appended.
AHEAD_US = 60_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATE_AFTER_US = [None, 0, 1_000, 64_000, 1_000_000, 3_600_000_000]
WAITS_US = st.sampled_from([0, 1, 999, 1_000, 63_000, 64_000, 100_000, 6_400_000, 60_000_000]) | st.integers(0, 10**9)

KEYS = ["a", "b"]


class History(NamedTuple):
    """An event source, and events in the order of the log with their append times."""

    source: Source
    events: list[tuple[int, dict[str, Any]]]

    @property
    def last_us(self) -> int:
        """The newest append time."""
        return self.events[-1][0] if self.events else START_US

    @property
    def frame(self) -> pd.DataFrame:
        """The same for the oracle."""
        return frame_of(self.events, self.source, "k")

    @property
    def rows(self) -> list[RowEvent]:
        """The events, of whose values the tolerance is made."""
        return [RowEvent(0, seq, event, True) for seq, (_, event) in enumerate(self.events)]


def spelled(event_us: int, unit: str | None, nanos: int) -> Any:
    """An event time as an event has it; ``nanos`` are lost where it is read."""
    if unit is None:
        whole = EPOCH + timedelta(microseconds=event_us)
        return f"{whole:%Y-%m-%dT%H:%M:%S}.{event_us % 10**6:06}{nanos:03}Z"
    return {"s": event_us // 10**6, "ms": event_us // 1000, "us": event_us, "ns": event_us * 1000 + nanos}[unit]


@st.composite
def histories(draw: st.DrawFn, *, most: int = 16) -> History:
    """Events that come late by nothing, by just so much that they still count, by more, and ahead of the clock."""
    source = Source("at", draw(st.sampled_from([None, "s", "ms", "us", "ns"])), draw(st.sampled_from(LATE_AFTER_US)))
    edge = source.late_after_us or 0
    usual = [0, 1, 999, 1000, 64_000, edge, edge, edge + 1, edge - 1, 10 * edge, 3_600_000_000, 86_400_000_000]
    delays = st.sampled_from(usual) | st.integers(0, 10**9)
    delays |= st.sampled_from([-1, -1000, -1_000_000, 1 - AHEAD_US, -AHEAD_US])
    append_us, events = START_US + draw(st.sampled_from([0, 1, 500_037])), []
    for _ in range(draw(st.integers(0, most))):
        append_us += draw(WAITS_US)
        at = spelled(append_us - draw(delays), source.unit, draw(st.sampled_from([0, 1, 999])))
        events.append((append_us, {**draw(rows), "k": draw(st.sampled_from(KEYS)), "at": at}))
    return History(source, events)


@st.composite
def declared_features(draw: st.DrawFn, op: str) -> Feature:
    """A feature that a registration takes: windows where they must be given, and a condition now and then."""
    feature = draw(features(op).filter(lambda drawn: "window" in drawn.params or DECLARATIONS[op].window != "required"))
    where = draw(maybe(st.sampled_from(sorted(WHERES))) if op != "ratio" else st.sampled_from(sorted(WHERES)))
    return Feature(op, feature.params if where is None else {**feature.params, "where": where})


FIELD_TYPES = {"k": "str", **TYPES}
