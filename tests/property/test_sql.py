"""DuckDB and the reference give the same answer to every query, over every event that columns can hold."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.query import predicate, syntax
from headrace.query.tree import Node
from property.test_queries import PLACES, documents, queries
from query.declarations import SEARCH
from query.test_sql import rows
from support import reference_columns as columns


@given(queries, st.lists(documents, max_size=12))
def test_duckdb_answers_as_the_reference_does(tree: Node, events: list[Any]) -> None:
    plain = [event for event in events if not columns.is_odd(SEARCH, event)]
    matches = predicate.compile(tree, SEARCH)
    assert rows(tree, columns.table(SEARCH, plain)) == [matches(event) for event in plain]


@given(queries, documents)
def test_a_column_of_lists_answers_as_one_of_scalars_does(tree: Node, event: Any) -> None:
    several = {name: ["x", "y", 1, 2, True, False] for name in PLACES} | {"http": {"status": [1, 2]}}
    if not columns.is_odd(SEARCH, event):
        alone, beside = columns.table(SEARCH, [event]), columns.table(SEARCH, [event, several])
        assert rows(tree, beside)[0] == rows(tree, alone)[0], syntax.text(tree)
