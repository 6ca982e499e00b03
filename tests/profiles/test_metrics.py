"""Canonical intervals: what becomes of a record, what follows from it, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.engine.log.append import PLAIN
from headrace.errors import BadRequest
from headrace.profiles import table
from headrace.profiles.hook import AppendHook
from headrace.profiles.metrics import KEYS, SCHEMA, SEARCH
from headrace.query import search_document
from headrace.schema.document import Validator, problems

LEAST = {"metric": "cpu", "unit": "percent", "windowStart": 1000, "windowEnd": 11_000, "count": 2, "sum": 30}


def hook() -> AppendHook:
    found = table.load("metrics").hook
    assert found is not None
    return found


def interval(**more: Any) -> dict[str, Any]:
    stored = hook().normalise(json.dumps({**LEAST, **more}).encode(), PLAIN)
    assert Validator(SCHEMA).failures(stored) == []
    assert hook().normalise(stored, PLAIN) == stored
    return dict(json.loads(stored))


def refused(**more: Any) -> str:
    with pytest.raises(BadRequest) as refusal:
        hook().normalise(json.dumps({**LEAST, **more}).encode(), PLAIN)
    return str(refusal.value.facts["failures"][0]["pointer"])


def test_what_comes_with_the_profile_can_be_used() -> None:
    assert problems(SCHEMA) == []
    assert not isinstance(search_document.parse_search_document(SEARCH, current_version=1), list)


def test_the_least_that_is_an_interval() -> None:
    made = interval()
    assert tuple(made) == KEYS
    assert made["apiVersion"] == "durable.streams/metrics/v1"
    assert made["kind"] == "interval"
    assert made["metricKind"] == "summary"
    assert made["temporality"] == "delta"
    assert made["intervalMs"] == 10_000
    assert made["avg"] == 15
    assert made["min"] == 0
    assert made["max"] == 0
    assert made["p50"] == 0
    assert made["seriesKey"] == "summary|delta|cpu|percent|||"
    assert made["dimensionPairs"] == []
    assert made["dimensionKey"] is None


def test_a_series_is_told_apart_by_sorted_dimensions() -> None:
    made = interval(attributes={"zone": "b", "core": 1, "hot": True, "gone": None}, stream="s", instance=" i ")
    assert made["attributes"] == made["tags"] == {"core": "1", "hot": "true", "zone": "b"}
    assert made["dimensionPairs"] == ["core=1", "hot=true", "zone=b"]
    assert made["dimensionKey"] == "core=1\0hot=true\0zone=b"
    assert made["seriesKey"] == "summary|delta|cpu|percent|s|i|core=1\0hot=true\0zone=b"
    assert interval(tags={"zone": "b"})["attributes"] == {"zone": "b"}


def test_percentiles_follow_from_the_histogram() -> None:
    made = interval(count=100, buckets={"128": 45, "1": 50, "4096": 5, "2": 0})
    assert made["buckets"] == {"1": 50, "128": 45, "4096": 5}
    assert list(made["buckets"]) == ["1", "128", "4096"]
    assert made["p50"] == 1
    assert made["p95"] == 128
    assert made["p99"] == 4096
    assert interval(buckets={"1": 2}, p95=7)["p95"] == 7


def test_a_summary_stands_for_the_numbers_at_the_top() -> None:
    made = interval(count=None, sum=None, summary={"count": 3, "sum": 6.5, "min": 1, "max": 4, "histogram": {"2": 3}})
    assert made["count"] == 3
    assert made["sum"] == 6.5
    assert made["min"] == 1
    assert made["max"] == 4
    assert made["buckets"] == made["summary"]["histogram"] == {"2": 3}


def test_nothing_has_no_least_and_no_greatest() -> None:
    made = interval(count=0, sum=0, min=0, max=0)
    assert made["min"] is None and made["max"] is None
    assert made["avg"] == 0


def test_moments_are_whole_milliseconds() -> None:
    made = interval(windowStart=1000.9, windowEnd=2000.2)
    assert made["windowStart"] == 1000
    assert made["windowEnd"] == 2000
    assert made["intervalMs"] == 1000


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"metric": " "}, "/metric"),
        ({"unit": None}, "/unit"),
        ({"windowStart": "now"}, "/windowStart"),
        ({"windowEnd": 999}, "/windowEnd"),
        ({"count": -1}, "/count"),
        ({"count": 1.5}, "/count"),
        ({"count": None}, "/count"),
        ({"sum": None}, "/sum"),
        ({"sum": True}, "/sum"),
        ({"kind": "event"}, "/kind"),
        ({"apiVersion": "v2"}, "/apiVersion"),
        ({"stream": 5}, "/stream"),
        ({"host": "a"}, "/host"),
        ({"attributes": {"a/b": [1]}}, "/attributes/a~1b"),
        ({"attributes": {"a": 1}, "tags": {"a": 2}}, "/tags/a"),
        ({"buckets": {"many": 1}}, "/buckets/many"),
        ({"buckets": {"1": -1}}, "/buckets/1"),
        ({"summary": {"count": 3}}, "/summary/count"),
        ({"summary": {"mean": 3}}, "/summary/mean"),
        ({"summary": 5}, "/summary"),
        ({"seriesKey": "mine"}, "/seriesKey"),
    ],
)
def test_what_is_no_interval_is_refused_by_its_place(more: Any, pointer: str) -> None:
    assert refused(**more) == pointer


def test_every_record_that_fails_is_named() -> None:
    with pytest.raises(BadRequest) as refusal:
        hook().normalise(b'{},1,{"metric":"x"}', PLAIN)
    assert [failure["index"] for failure in refusal.value.facts["failures"]] == [0, 1, 2]


def test_records_are_routed_by_their_series() -> None:
    stored = hook().normalise(json.dumps(LEAST).encode(), PLAIN)
    assert hook().routing_keys(stored) == ["summary|delta|cpu|percent|||"]
