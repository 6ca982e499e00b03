"""Aggregates that columns answer: companions of different shapes are reduced together, and answer like one pass."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from engine.search.searches import Searched
from headrace.deadline import Deadline
from headrace.engine.search import aggregate as aggregating
from headrace.engine.search.aggregate import Aggregated, aggregate
from headrace.query.syntax import parse
from headrace.reduce.request import read
from reduce import oracle
from reduce.answers import decoded
from support.engine_rig import Rig

MINUTE = 60_000
#: Of the first events every field has one value at most; some of the others have several.
EVENTS: list[dict[str, Any]] = [
    {
        "time": at * 7_000,
        "service": f"s{at % 3}" if at < 40 or at % 5 else ["a", "b"],
        "code": 200 + at % 4 * 100,
        "duration": at / 4 if at < 40 or at % 3 else [1.5, 2.5],
        "body": "slow" if at % 2 else "fast",
    }
    for at in range(90)
]

QUERIES = ["duration:>=3", "message:slow", "status:>=300 -service:s1", "duration:>1000"]
GROUPS = [[], ["service"], ["service", "status"]]
MEASURES = [["all", "failed", "latency"], ["all", "latency", "spread"]]


def described(rig: Rig) -> Searched:
    """A stream of which a part has companions in files, and the rest has none."""
    stream = Searched(rig)
    stream.append(*EVENTS)
    stream.index(0, 20)
    stream.index(20, 40)
    stream.index(40, 70)
    return stream


def asked(stream: Searched, answer_by: Deadline | None = None, **more: Any) -> Aggregated:
    found, head = stream.stream, stream.stream.head
    defined = stream.archive.defined(found, head)
    request = {"rollup": "requests", "interval": "1m", "from": 0, "to": 10**10, **more}
    asking = read(request, defined.definition.search)
    return aggregate(stream.archive, found, head, defined, asking, Deadline(600), answer_by)


@pytest.mark.parametrize("together", [1, 25, 10_000])
def test_companions_of_all_shapes_answer_like_one_pass(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(aggregating, "_REDUCED_ROWS", together)
    stream = described(rig)
    rollup, start, end = stream.search.rollups["requests"], 30_000, 500_001
    for q, group_by, measures in product(QUERIES, GROUPS, MEASURES):
        answer = asked(stream, q=q, measures=measures, group_by=group_by, **{"from": start, "to": end})
        expected = oracle.buckets(
            rollup,
            stream.search,
            EVENTS,
            interval=MINUTE,
            start=start,
            end=end,
            group_by=tuple(group_by),
            measures=tuple(measures),
            where=parse(q),
        )
        assert not answer.missing.events
        assert decoded(answer.buckets) == expected


def test_an_answer_that_cannot_be_finished_in_time_lacks_all_events_and_says_so(rig: Rig) -> None:
    stream = described(rig)
    late = asked(stream, answer_by=Deadline(0))
    assert late.buckets == []
    assert late.missing.events == len(EVENTS)
    assert not asked(stream, answer_by=Deadline(600)).missing.events


def test_columns_that_cannot_be_counted_in_time_are_missing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregating, "_REDUCED_ROWS", 1)
    stream = described(rig)
    late = asked(stream, answer_by=Deadline(0), q="duration:>=3")
    assert late.buckets == []
    assert late.missing.events == len(EVENTS)
