"""Changes and their classification."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headrace.schema.change import Change, Classification, worst


def change(classification: Classification) -> Change:
    return Change("/a", "type_widened", classification, "/a: the type widens", "/properties/a/type")


def test_the_worst_of_no_changes_is_identical() -> None:
    assert worst([]) is Classification.IDENTICAL


@pytest.mark.parametrize(("milder", "worse"), list(pairwise(Classification)))
def test_the_worst_change_counts_whatever_the_order(milder: Classification, worse: Classification) -> None:
    assert worst([change(milder), change(worse)]) is worse
    assert worst([change(worse), change(milder)]) is worse


def test_only_destructive_and_forbidden_changes_break_something() -> None:
    assert {one for one in Classification if one.breaking} == {Classification.DESTRUCTIVE, Classification.FORBIDDEN}


def test_a_change_is_dumped_with_all_it_says() -> None:
    assert change(Classification.WIDENING).dump() == {
        "pointer": "/a",
        "what": "type_widened",
        "classification": "widening",
        "reason": "/a: the type widens",
        "schema_pointer": "/properties/a/type",
    }


def test_a_change_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        change(Classification.ADDITIVE).what = "other"  # type: ignore[misc]
