"""Python's operators write the text that the server reads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.schema.expression import compiled, parse

A, B = hr.col("a"), hr.col("b")
TYPES: dict[type, Any] = {int: "i64", float: "f64", str: "str"}


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (A + 1, "(a + 1)"),
        (1 + A, "(1 + a)"),
        (A - B, "(a - b)"),
        (2.5 - A, "(2.5 - a)"),
        (A * B, "(a * b)"),
        (3 * A, "(3 * a)"),
        (A / B, "(a / b)"),
        (1 / A, "(1 / a)"),
        (A % 7, "(a % 7)"),
        (7 % A, "(7 % a)"),
        (-A, "(-a)"),
        (A > B, "(a > b)"),
        (A >= -1, "(a >= -1)"),
        (A < 1e300, "(a < 1e+300)"),
        (A <= B, "(a <= b)"),
        (A == "it's", "(a == 'it\\'s')"),
        (A != None, "(a != null)"),  # noqa: E711
        ((A > 1) & (B < 2), "((a > 1) and (b < 2))"),
        (True & A, "(true and a)"),
        (A | B, "(a or b)"),
        (False | A, "(false or a)"),
        (~A, "(not a)"),
        (A.isnull(), "isnull(a)"),
        (A.cast(int), "cast(a, int)"),
        (A.cast("float"), "cast(a, float)"),
        (hr.lit(True), "true"),
        (hr.lit(A), "a"),
        (hr.quadkey(A, B, 12), "quadkey(a, b, 12)"),
    ],
)
def test_expression_is_written_with_all_its_brackets(expression: hr.Expression, text: str) -> None:
    assert expression.text == text == repr(expression)
    parse(text)


def value(expression: hr.Expression, **row: Any) -> Any:
    types = {name: TYPES[type(found)] for name, found in row.items()}
    return compiled(parse(expression.text), types)(row)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_from_a_literal(text: str) -> None:
    assert value(hr.lit(text)) == text


@given(st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)))
def test_any_number_comes_back_from_a_literal(number: float) -> None:
    found = value(hr.lit(number))
    assert found == number
    assert type(found) is type(number)


def test_the_server_computes_what_python_would() -> None:
    assert value((A + 2) * B - A / 4, a=8, b=3) == (8 + 2) * 3 - 8 / 4
    assert value((A > 1) & ~(B == "x") | B.isnull(), a=2, b="y") is True


@pytest.mark.parametrize("name", ["", "two words", "1st", "a.b", "null", "and", "naïve"])
def test_what_is_no_name_is_no_column(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a field"):
        hr.col(name)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_no_literal(number: float) -> None:
    with pytest.raises(ValueError, match="no number"):
        hr.lit(number)


def test_a_value_of_another_type_is_no_literal() -> None:
    with pytest.raises(TypeError, match="cannot stand in an expression"):
        _ = A + {}


def test_an_expression_has_no_truth() -> None:
    with pytest.raises(TypeError, match=r"with &, \| and ~"):
        _ = A > 1 and B > 2


def test_an_expression_cannot_be_a_key() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(A)


def test_nothing_is_cast_to_what_is_no_type_of_fields() -> None:
    with pytest.raises(TypeError, match="only to str, int, float and bool"):
        A.cast(bytes)
