"""Which events are summaries, and what columns they have."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.reduce import parts
from headrace.reduce.parts import SummaryValues
from reduce.declarations import DOCUMENT, SEARCH, declared

NOTHING: Any = None


@pytest.mark.parametrize(
    ("given", "summary"),
    [
        ((3, 10, 1, 5), SummaryValues(3, 10.0, 1.0, 5.0)),
        ((3.0, -0.0, 1, 5.5), SummaryValues(3, 0.0, 1.0, 5.5)),
        ((0, None, None, None), SummaryValues(0)),
        ((0, 5, 1, 2, {"1": 7}), SummaryValues(0)),
        ((1, 5, None, 2), NOTHING),
        ((1, "5", 1, 2), NOTHING),
        ((True, 5, 1, 2), NOTHING),
        ((1.5, 5, 1, 2), NOTHING),
        ((-1, 5, 1, 2), NOTHING),
        ((2**53 + 2, 5, 1, 2), NOTHING),
        ((1, 10**400, 1, 2), NOTHING),
        ((1, float("inf"), 1, 2), NOTHING),
        (("x", 5, 1, 2), NOTHING),
    ],
)
def test_a_summary_has_a_count_and_numbers(given: tuple[Any, ...], summary: SummaryValues | None) -> None:
    assert parts.read_parts(*given) == summary


@pytest.mark.parametrize(
    ("histogram", "counted"),
    [
        ({"128": 2, "1": 1}, {0: 1, 7: 2}),
        ({"0": 1, "1.5": 2, "3": 4}, {0: 3, 1: 4}),
        ({"x": 1, "-1": 1, "": 1, "4": "1", "8": 0, "16": -1, "32": 1.5, "64": None, "9" * 400: 1}, None),
        ([1], None),
        (None, None),
    ],
)
def test_entries_that_are_no_label_and_count_are_passed_over(histogram: Any, counted: dict[int, int] | None) -> None:
    assert parts.read_parts(1, 1, 1, 1, histogram) == SummaryValues(1, 1.0, 1.0, 1.0, counted)


def test_every_part_has_a_column_of_its_own() -> None:
    assert list(parts.columns(SEARCH)) == [
        f"p.all:given.{part}" for part in ("count", "sum", "min", "max", "histogram")
    ]
    given = DOCUMENT["rollups"]["all"]["measures"]["given"]
    twins = {
        name: {"intervals": ["1m"], "measures": {measure: given}} for name, measure in (("a", "b.c"), ("a.b", "c"))
    }
    assert len(parts.columns(declared({**DOCUMENT, "rollups": twins}))) == 10


def test_an_event_fills_its_columns_or_leaves_them_null() -> None:
    found = parts.column_values(SEARCH, {"given": {"count": 2, "sum": 3, "min": 1, "max": 2, "histogram": {"2": 2}}})
    assert list(found.values()) == [2, 3.0, 1.0, 2.0, {1: 2}]
    assert set(parts.column_values(SEARCH, {"given": 5}).values()) == {None}
