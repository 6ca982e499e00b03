"""When two JSON values are the same."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.schema.canonical import same


@pytest.mark.parametrize(
    ("left", "right"),
    [({"a": 1, "b": 2}, {"b": 2, "a": 1}), (1, 1.0), ([1, {"a": None}], [1.0, {"a": None}]), (2**70, 2**70)],
)
def test_order_of_members_and_spelling_of_numbers_do_not_count(left: Any, right: Any) -> None:
    assert same(left, right)


@pytest.mark.parametrize(
    ("left", "right"),
    [(1, True), (0, False), ([1, 2], [2, 1]), ({"a": 1}, {"a": 1, "b": None}), ("1", 1), (2**53, 2**53 + 1), ({}, [])],
)
def test_other_values_are_other_values(left: Any, right: Any) -> None:
    assert not same(left, right)
