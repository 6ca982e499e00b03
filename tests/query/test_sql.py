"""A query in DuckDB over the columns of events: the answers of the reference, and nothing of a value read as SQL."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.query import predicate, sql, syntax
from headrace.query.check import check
from headrace.query.search import Search
from headrace.query.syntax import MAX_CLAUSES, MAX_DEPTH
from headrace.query.tree import Contains, Node, Not, Phrase, Term
from headrace.reduce import duck
from query.declarations import SEARCH
from support import reference_columns as columns


def rows(tree: Node, table: pa.Table, search: Search = SEARCH) -> list[bool]:
    """Where a query is true, and nowhere null."""
    many = {field.name: pa.types.is_list(field.type) for field in table.schema}
    expression = sql.predicate_sql(tree, search, many)
    return list(duck.query(f"SELECT {expression} AS answer FROM events", {"events": table})["answer"].to_pylist())


def matching(query: str | Node, *documents: Any) -> list[bool]:
    tree = syntax.parse(query) if isinstance(query, str) else query
    assert check(tree, SEARCH, mode="search") == []
    found = rows(tree, columns.table(SEARCH, documents))
    matches = predicate.compile(tree, SEARCH)
    assert found == [matches(document) for document in documents]
    return found


def test_a_keyword_is_compared_in_its_canonical_form() -> None:
    assert matching("service:API", {"service": "api"}, {"service": "Api"}, {"service": "apis"}, {}) == [
        True,
        True,
        False,
        False,
    ]
    assert matching("service:AP*", {"service": "api"}, {"service": "xap"}, {"service": 5}) == [True, False, False]
    assert matching("tags:A", {"tags": "a"}, {"tags": "A"}) == [False, True]


def test_any_of_several_values_may_match() -> None:
    documents = ({"tags": ["a", "b"]}, {"tags": ["c"]}, {"tags": []}, {"tags": "b"})
    assert matching("tags:b", *documents) == [True, False, False, True]
    assert matching("-tags:b", *documents) == [False, True, True, False]
    assert matching("has:tags", *documents) == [True, True, False, True]
    assert matching("duration:>1 duration:<0", {"duration": [2, -1]}, {"duration": 2}) == [True, False]


def test_not_is_plain_negation_where_the_field_is_absent() -> None:
    assert matching("-status:5", {}, {"http": {"status": 5}}, {"http": {"status": 6}}) == [True, False, True]
    assert matching("-(status:>5 OR has:status)", {}, {"http": {"status": None}}) == [True, True]
    assert matching("NOT message:x", {}, {"message": "X"}) == [True, False]


@pytest.mark.parametrize("bound", [-(2**63) - 1, -(2**63), -1, 0, 2**63 - 1, 2**63, 10**30, -(10**30)])
def test_a_bound_beyond_64_bits_is_compared_by_its_sign(bound: int) -> None:
    documents = [{"http": {"status": value}, "time": value} for value in (-(2**63), -1, 0, 1, 2**63 - 1)]
    for field in ("status", "time"):
        for operator in ("<", "<=", ">", ">=", "="):
            matching(f'{field}:{operator}"{bound}"', *documents, {})


@pytest.mark.parametrize(
    "bound", ["0.1", "-0.0", "5e-324", "1.7976931348623157e308", "1e16", "2.2250738585072011e-308"]
)
def test_a_float_is_compared_bit_by_bit(bound: str) -> None:
    values = [0.0, -0.0, 0.1, 0.30000000000000004, 5e-324, 1.7976931348623157e308, 1e16, 2.2250738585072014e-308]
    for operator in ("<", "<=", ">", ">=", "="):
        matching(f'duration:{operator}"{bound}"', *({"duration": value} for value in values), {"duration": 1})


def test_words_and_phrases_are_found_in_one_value() -> None:
    documents = ({"message": "The quick-brown FOX"}, {"message": ["quick", "fox brown"]}, {"message": "quickest"})
    assert matching("message:quick", *documents) == [True, True, False]
    assert matching("message:quick*", *documents) == [True, True, True]
    assert matching('message:"quick brown"', *documents) == [True, False, False]
    assert matching('message:"quick bro*"', *documents) == [True, False, False]
    assert matching(Term("message", "fox.quick"), *documents) == [True, False, False]
    assert matching('message:"fox brown"', *documents) == [False, True, False]


def test_a_text_without_words_is_a_value_but_has_no_word() -> None:
    assert matching("has:message", {"message": "…"}, {"message": ""}, {}) == [True, True, False]
    assert matching("message:a*", {"message": "…"}, {"message": ""}, {}) == [False, False, False]


def test_a_bare_word_asks_words_and_keywords() -> None:
    documents = ({"message": "a b"}, {"why": "B"}, {"request": "b"}, {"request": "B"}, {"path": "b"})
    assert matching("b", *documents) == [True, True, True, False, False]


def test_contains_finds_any_part_and_nothing_else_is_special() -> None:
    documents = ({"path": "a%b_c"}, {"path": "aXbYc"}, {"message": "Straße A%B"})
    assert matching("contains:path:%b_", *documents) == [True, False, False]
    assert matching("contains:A%B", *documents) == [False, False, True]
    assert matching("contains:STRASSE", *documents) == [False, False, False]
    assert matching("contains:TRAßE", *documents) == [False, False, True]


@pytest.mark.parametrize(
    "value", ["'", "''; DROP TABLE events; --", '"', "\\", "\0", "a\0'b", "%", "x) OR true", "é", "🜁"]
)
def test_a_value_is_never_read_as_sql(value: str) -> None:
    documents = ({"tags": value}, {"tags": "other"}, {"tags": ["", value + "x"]}, {"path": f"a{value}b"})
    assert matching(Phrase("tags", value), *documents) == [True, False, False, False]
    assert matching(Contains("path", value), *documents) == [False, False, False, True]


def test_half_a_surrogate_pair_is_in_no_column() -> None:
    table = columns.table(SEARCH, [{"tags": "a"}, {"tags": "\ud800"}])
    assert table.column("odd").to_pylist() == [False, True]
    assert rows(Phrase("tags", "\ud800"), table) == [False, False]
    assert rows(Not(Contains("path", "\udfff")), table) == [True, True]


def test_a_name_is_never_read_as_sql() -> None:
    assert sql.identifier('f.a"b') == '"f.a""b"'


def test_a_query_at_its_limits_can_be_run() -> None:
    widest = " ".join(f"{'-' if at % 2 else ''}message:w{at}" for at in range(MAX_CLAUSES))
    assert matching(widest, {"message": " ".join(f"w{at}" for at in range(0, MAX_CLAUSES, 2))}, {}) == [True, False]
    bare = " OR ".join(f"w{at}" for at in range(MAX_CLAUSES))
    assert matching(bare, {"request": "w1023"}, {"request": ["a", "b"]}) == [True, False]
    deepest = "NOT " * MAX_DEPTH + "service:a"
    assert matching(deepest, {"service": "a"}, {}) == [True, False]


def test_a_table_without_rows_has_no_answers() -> None:
    assert rows(syntax.parse("has:status"), columns.table(SEARCH, [])) == []
