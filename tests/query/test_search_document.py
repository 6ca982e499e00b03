from __future__ import annotations

import copy
from typing import Any

import pytest

from headrace.query import search_document, syntax
from headrace.query.search import Count, Distinct, Interval, Quantiles, Search, Summary, SummaryParts
from headrace.schema.problem import Problem
from query.declarations import DOCUMENT, SEARCH, declared

GOOD: dict[str, Any] = {"intervals": ["1m"], "measures": {"n": {"kind": "count"}}}


def problems(rollup: Any) -> list[Problem]:
    given = copy.deepcopy(DOCUMENT)
    given["rollups"] = {"r": rollup}
    found = search_document.parse_search_document(given, current_version=3)
    return [] if isinstance(found, Search) else found


def test_a_rollup_is_read() -> None:
    rollup = SEARCH.rollups["requests"]
    assert rollup.timestamp == "time"
    assert rollup.dimensions == ("service", "status")
    assert rollup.intervals == (Interval("1m", 60_000), Interval("60s", 60_000), Interval("1h30m", 5_400_000))
    assert rollup.include == syntax.parse("has:status -service:health*")
    assert rollup.measures == {
        "all": Count(),
        "failed": Count(syntax.parse("status:>=500")),
        "latency": Summary("duration", histogram=True),
        "spread": Quantiles("duration"),
        "services": Distinct("service"),
        "given": SummaryParts(("count",), ("sum",), ("min",), ("max",)),
    }
    assert [measure.kind for measure in rollup.measures.values()] == [
        measure["kind"] for measure in DOCUMENT["rollups"]["requests"]["measures"].values()
    ]


def test_a_rollup_may_have_a_time_of_its_own_and_nothing_optional() -> None:
    given = copy.deepcopy(DOCUMENT)
    given["fields"]["seen"] = given["fields"]["time"]
    given["rollups"] = {"r": {**GOOD, "timestampField": "seen"}, "s": GOOD}
    rollups = declared(given).rollups
    assert rollups["r"].timestamp == "seen"
    assert rollups["s"].timestamp == "time"
    assert rollups["s"].dimensions == ()
    assert rollups["s"].include is None


@pytest.mark.parametrize(
    ("rollup", "pointer", "reason"),
    [
        (None, "", "must be an object"),
        ({**GOOD, "filter": "x"}, "/filter", "not supported"),
        ({"measures": GOOD["measures"]}, "/intervals", "is required"),
        ({**GOOD, "intervals": []}, "/intervals", "at least one interval"),
        ({**GOOD, "intervals": ["1m", "0s"]}, "/intervals/1", "no duration above zero"),
        ({**GOOD, "intervals": ["1w"]}, "/intervals/0", "no duration"),
        ({**GOOD, "intervals": [60]}, "/intervals/0", "must be a string"),
        ({**GOOD, "intervals": ["1m", "1m"]}, "/intervals/1", "listed twice"),
        ({"intervals": ["1m"]}, "/measures", "is required"),
        ({**GOOD, "measures": {}}, "/measures", "at least one measure"),
        ({**GOOD, "measures": {"a b": {"kind": "count"}}}, "/measures/a b", "a name has"),
        ({**GOOD, "timestampField": "status"}, "/timestampField", "no date field"),
        ({**GOOD, "timestampField": "ts"}, "/timestampField", "no declared field"),
        ({**GOOD, "dimensions": "service"}, "/dimensions", "must be an array"),
        ({**GOOD, "dimensions": ["service", "service"]}, "/dimensions/1", "listed twice"),
        ({**GOOD, "dimensions": ["nope"]}, "/dimensions/0", "no declared field"),
        ({**GOOD, "dimensions": ["request"]}, "/dimensions/0", "needs exact"),
        ({**GOOD, "dimensions": ["message"]}, "/dimensions/0", "text field"),
        ({**GOOD, "include": ""}, "/include", "empty"),
        ({**GOOD, "include": None}, "/include", "must be a string"),
        ({**GOOD, "include": "status:("}, "/include", "(at character 7)"),
        (
            {**GOOD, "include": "status:1 nope:1"},
            "/include",
            "'nope' is no declared search field or alias (at character 9)",
        ),
        ({**GOOD, "include": "mute:1"}, "/include", "needs exact"),
    ],
)
def test_a_rollup_with_one_mistake_is_refused_at_its_place(rollup: Any, pointer: str, reason: str) -> None:
    (problem,) = problems(rollup)
    assert problem.pointer == "/rollups/r" + pointer
    assert reason in problem.reason


POINTERS = {f"{name}JsonPointer": f"/{name}" for name in ("count", "sum", "min", "max", "histogram")}


@pytest.mark.parametrize(
    ("measure", "pointer", "reason"),
    [
        ("count", "", "must be an object"),
        ({}, "/kind", "is required"),
        ({"kind": "average"}, "/kind", "count, summary, summary_parts, quantiles, distinct"),
        ({"kind": "count", "field": "status"}, "/field", "not supported"),
        ({"kind": "count", "include": "status:"}, "/include", "needs a value"),
        ({"kind": "count", "include": "status:x"}, "/include", "no value of status"),
        ({"kind": "summary"}, "/field", "is required"),
        ({"kind": "summary", "field": "nope"}, "/field", "no declared field"),
        ({"kind": "summary", "field": "service"}, "/field", "of kind keyword; float, integer"),
        ({"kind": "summary", "field": "status"}, "/field", "needs aggregatable"),
        ({"kind": "summary", "field": "duration", "histogram": "log10"}, "/histogram", "log2_v1"),
        ({"kind": "quantiles", "field": "service"}, "/field", "of kind keyword"),
        ({"kind": "quantiles", "field": "duration", "histogram": "log2_v1"}, "/histogram", "not supported"),
        ({"kind": "distinct", "field": "message"}, "/field", "of kind text"),
        ({"kind": "distinct", "field": "tags"}, "/field", "needs aggregatable"),
        ({"kind": "summary_parts", **POINTERS, "sumJsonPointer": "sum"}, "/sumJsonPointer", "JSON Pointer"),
        ({"kind": "summary_parts", **POINTERS, "histogramJsonPointer": None}, "/histogramJsonPointer", "a string"),
        ({"kind": "summary_parts", **POINTERS, "avgJsonPointer": "/avg"}, "/avgJsonPointer", "not supported"),
    ],
)
def test_a_measure_with_one_mistake_is_refused_at_its_place(measure: Any, pointer: str, reason: str) -> None:
    (problem,) = problems({**GOOD, "measures": {"m": measure}})
    assert problem.pointer == "/rollups/r/measures/m" + pointer
    assert reason in problem.reason


def test_a_summary_of_parts_names_every_part() -> None:
    found = problems({**GOOD, "measures": {"m": {"kind": "summary_parts"}}})
    names = ("count", "sum", "min", "max")
    assert [problem.pointer for problem in found] == [f"/rollups/r/measures/m/{name}JsonPointer" for name in names]
    assert problems({**GOOD, "measures": {"m": {"kind": "summary_parts", **POINTERS}}}) == []
