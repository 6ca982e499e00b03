"""``headrace operator``: help that is made of what operators declare."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.operators.catalogue import ALIASES, DECLARATIONS, MEASURES, OPERATORS
from headrace.operators.declaration import REQUIRED

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace


def test_every_operator_is_listed_as_it_is_declared(headrace: Headrace) -> None:
    rows = {row["operator"]: row for row in headrace("operator", "ls").lines}
    assert list(rows) == list(DECLARATIONS)
    for name, declaration in DECLARATIONS.items():
        row = rows[name]
        assert (row["answers"], row["result"], row["memory"]) == (
            declaration.doc,
            declaration.result,
            declaration.memory,
        )
        assert row["order"] == OPERATORS[name].order
        assert row["needs_log"] == declaration.needs_log
        assert [each["parameter"] for each in row["parameters"]] == list(declaration.params)
        for listed, parameter in zip(row["parameters"], declaration.params.values(), strict=True):
            assert (listed["default"] == "required") == (parameter.default is REQUIRED)
            has_bounds = parameter.kind in ("integer", "number")
            assert not has_bounds or parameter.bounds() in listed["takes"]
            assert all(kind in listed["takes"] for kind in parameter.types)


def test_operators_that_a_rollup_can_have_are_listed_alone(headrace: Headrace) -> None:
    assert {row["operator"] for row in headrace("operator", "ls", "--rollup").lines} == MEASURES


@pytest.mark.parametrize("alias", [next(iter(ALIASES)), "mean"])
def test_an_operator_is_shown_under_any_of_its_names(headrace: Headrace, alias: str) -> None:
    [row] = headrace("operator", "show", alias).lines
    assert row["operator"] == ALIASES.get(alias, alias)


def test_an_unknown_operator_is_a_usage_error(headrace: Headrace) -> None:
    done = headrace("operator", "show", "averages")
    assert done.code == 2
    assert "headrace operator ls" in done.err
