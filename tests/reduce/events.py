"""Events for rollups, close to every edge: times around panes, absent and several values, numbers of any size.

Floats are whole multiples of 1/1024 and not too great, so that their sums are exact in any order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from reduce.declarations import HOUR, MINUTE

FARTHEST = 8_640_000_000_000_000

exact = st.integers(-(2**34), 2**34).map(lambda number: number / 1024) | st.sampled_from([0.0, -0.0, 0.5, 1.0, 2.0])
whole = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**53, 2**62, -(2**63)]))
huge = st.integers(-(2**70), 2**70) | st.just(10**30)
around = st.sampled_from([0, 1, -1, MINUTE, -MINUTE, HOUR - 1, -HOUR, FARTHEST, -FARTHEST])
times = st.integers(-3 * MINUTE, 3 * MINUTE) | around
texts = st.sampled_from(["a", "A", "b", "", "é", '"\\', "\n\x1f", "🜁", "\uffff"]) | st.text(max_size=3)
labels = st.sampled_from(["1", "2", "1024", "3.5", "0"])
given_parts = st.fixed_dictionaries(
    {"count": st.integers(0, 9), "sum": exact, "min": exact, "max": exact},
    optional={"histogram": st.dictionaries(labels, st.integers(1, 5), max_size=3)},
)
nothing = st.sampled_from([None, "x", {}, []])


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return values | nothing | st.lists(values, max_size=3)


plain: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"time": times},
    optional={
        "service": texts,
        "level": st.integers(-1, 1),
        "ratio": st.sampled_from([0.1, -0.0, 0, 1e21, 1e-7]),
        "ok": st.booleans(),
        "bytes": whole,
        "duration": exact,
        "tags": texts | st.lists(texts, max_size=3),
        "seen": times,
        "message": st.sampled_from(["slow", "Slow start", "slower", "fast"]),
        "given": given_parts,
    },
)
strange: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "time": maybe(times | huge | st.just(FARTHEST + 1)),
        "service": maybe(texts),
        "level": maybe(st.integers(-1, 1) | huge),
        "ok": maybe(st.booleans()),
        "bytes": maybe(whole | huge),
        "duration": maybe(exact),
        "tags": maybe(texts),
        "seen": maybe(whole | huge),
        "message": maybe(texts),
        "given": st.dictionaries(st.sampled_from(["count", "sum", "min", "max"]), exact) | nothing,
    },
)
events = st.lists(plain | strange | nothing, max_size=25)
cuts = st.lists(st.integers(0, 25), max_size=4)


def parts(documents: list[Any], at: list[int]) -> list[list[Any]]:
    """The documents cut at these places."""
    bounds = [0, *sorted(at), len(documents)]
    return [documents[start:end] for start, end in pairwise(bounds)]
