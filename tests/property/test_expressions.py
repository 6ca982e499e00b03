"""An expression means one thing: to its text, to Python and to DuckDB; and null is the third truth."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import duckdb
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schema.expression import Expr, check, compiled, parse, render, sql
from headrace.schema.expression.duck import column_type, identifier
from headrace.schema.expression.tree import Binary, IsNull, Unary
from schema.expression.strategies import KINDS, TYPES, any_expression, expressions, rows


@settings(max_examples=300)
@given(any_expression)
def test_the_canonical_text_reads_back_as_the_same_tree(expr: Expr) -> None:
    text = render(expr)
    again = parse(text)
    assert render(again) == text
    assert repr(again) == repr(expr)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return type(one) is type(other) and one == other


#: As many of each type: left to themselves they would be integers.
MANY = st.tuples(*(st.lists(expressions(kind), min_size=4, max_size=4) for kind in KINDS[:4])).map(
    lambda groups: [expr for group in groups for expr in group]
)


def test_duckdb_answers_as_python_does() -> None:
    seen = Counter[str]()
    columns = ", ".join(f"{identifier(name)} {column_type(kind)}" for name, kind in TYPES.items())
    with duckdb.connect() as connection:
        connection.execute("SET threads TO 1")
        connection.execute(f"CREATE TABLE given ({columns})")

        @settings(max_examples=60)
        @given(MANY, st.lists(rows, min_size=12, max_size=12))
        def agree(exprs: list[Expr], given_rows: list[dict[str, Any]]) -> None:
            connection.execute("DELETE FROM given")
            marks = ", ".join("?" * len(TYPES))
            connection.executemany(
                f"INSERT INTO given VALUES ({marks})", [[row[name] for name in TYPES] for row in given_rows]
            )
            asked = ", ".join(str(sql(expr, TYPES)) for expr in exprs)
            found = connection.execute(f"SELECT {asked} FROM given ORDER BY rowid").fetchall()
            for at, expr in enumerate(exprs):
                value = compiled(expr, TYPES)
                for row, answers in zip(given_rows, found, strict=True):
                    wanted = value(row)
                    assert same(answers[at], wanted), (render(expr), row, answers[at], wanted)
                    seen["null" if wanted is None else type(wanted).__name__] += 1

        agree()
    assert min(seen[kind] for kind in ("null", "int", "float", "str", "bool")) > 200, seen


@settings(max_examples=200)
@given(any_expression, rows)
def test_a_value_is_of_the_type_it_was_checked_to_be(expr: Expr, row: dict[str, Any]) -> None:
    kind = check(expr, TYPES)
    value = compiled(expr, TYPES)(row)
    wanted = {"i64": int, "f64": float, "bool": bool, None: type(None)}.get(kind, str)
    assert value is None or type(value) is wanted
    assert not isinstance(value, float) or math.isfinite(value)
    assert type(value) is not int or -(2**63) <= value < 2**63


@settings(max_examples=200)
@given(expressions("bool"), expressions("bool"), rows)
def test_truths_follow_kleene(left: Expr, right: Expr, row: dict[str, Any]) -> None:
    order = {False: 0, None: 1, True: 2}
    one, other = (order[compiled(expr, TYPES)(row)] for expr in (left, right))
    told = {
        sign: order[compiled(expr, TYPES)(row)]
        for sign, expr in {
            "and": Binary("and", left, right),
            "or": Binary("or", left, right),
            "not": Unary("not", left),
        }.items()
    }
    assert told == {"and": min(one, other), "or": max(one, other), "not": 2 - one}
    assert compiled(IsNull(left), TYPES)(row) is (one == 1)
