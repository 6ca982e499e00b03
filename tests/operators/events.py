"""Events for features, close to every edge: equal times, panes' edges, long gaps, nulls, whole numbers among doubles.

Numbers are multiples of 1/8 and not too great; what is computed of them can be held against exact arithmetic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from headrace.schema.descriptor.nodes import Type

TYPES: dict[str, Type] = {"x": "f64", "i": "i64", "s": "str", "b": "bool", "t": "datetime", "lat": "f64", "lon": "f64"}
#: Windows whose panes are one, a few, or many milliseconds, or do not divide them.
WINDOWS = [1, 10, 64, 65, 100, 1000, 6400, 640_000]
BASE_MS = 1_700_000_000_000

numbers = st.integers(-8000, 8000).map(lambda eighths: eighths / 8) | st.sampled_from([0.0, -0.0, 1, 2, 2.0, 10**9])
texts = st.sampled_from(["a", "b", "c", "", "é", "🜁"])
moments = st.sampled_from(
    ["2024-01-01T00:00:00Z", "2024-01-01T01:00:00+01:00", "2024-01-01T00:00:00.5Z", "2016-12-31T23:59:60Z"]
)


class Event(NamedTuple):
    """An event of one key as an operator sees it."""

    at_ms: int
    seq: int
    row: dict[str, Any]
    matched: bool


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return values | st.none()


rows = st.fixed_dictionaries(
    {},
    optional={
        "x": maybe(numbers),
        "i": maybe(st.integers(-5, 5) | st.sampled_from([2**62, -(2**63)])),
        "s": maybe(texts),
        "b": maybe(st.booleans()),
        "t": maybe(moments),
        "lat": maybe(st.sampled_from([0.0, 45.5, -33.9, 60, 89.9])),
        "lon": maybe(st.sampled_from([0.0, 2.35, -0.1, 151.2, 179.9])),
    },
)
gaps = st.sampled_from([0, 0, 1, 2, 9, 10, 15, 16, 63, 64, 99, 100, 101, 999, 1000, 6400]) | st.integers(0, 700_000)


@st.composite
def events(draw: st.DrawFn) -> list[Event]:
    at_ms, seq = draw(st.sampled_from([0, BASE_MS, BASE_MS + 37])), 0
    made = []
    for gap, row, matched in draw(st.lists(st.tuples(gaps, rows, st.booleans() | st.just(True)), max_size=40)):
        at_ms += gap
        seq += 1 + gap % 3
        made.append(Event(at_ms, seq, row, matched))
    return made


#: Rows in which every field has a value.
full_rows = st.fixed_dictionaries(
    {
        "x": numbers,
        "i": st.integers(-5, 5),
        "s": texts,
        "b": st.booleans(),
        "t": moments,
        "lat": st.sampled_from([0.0, 45.5, -33.9, 60]),
        "lon": st.sampled_from([0.0, 2.35, -0.1, 151.2]),
    }
)


@st.composite
def late_events(draw: st.DrawFn) -> list[Event]:
    """Events that all count, at a few times, in the order in which they come: neither that of time nor that of seq."""
    step_ms = draw(st.sampled_from([0, 1, 10, 3_600_000]))
    made = draw(st.lists(st.tuples(st.integers(0, 3), full_rows), min_size=2, max_size=12))
    seqs = draw(st.permutations(range(len(made))))
    return [Event(BASE_MS + step_ms * step, seq, row, True) for seq, (step, row) in zip(seqs, made, strict=True)]


@st.composite
def cuts(draw: st.DrawFn, made: list[Event]) -> list[list[Event]]:
    """The events in adjacent parts, some of them empty."""
    at = sorted(draw(st.lists(st.integers(0, len(made)), max_size=5)))
    return [made[start:end] for start, end in zip([0, *at], [*at, len(made)], strict=True)]
