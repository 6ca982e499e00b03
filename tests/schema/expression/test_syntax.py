from __future__ import annotations

import pytest

from headrace.schema.expression import ExpressionError, fields, parse, render

CANONICAL = [
    ("x", "x"),
    ("(x + 1)", "(x + 1)"),
    ("x+1*2", "(x + (1 * 2))"),
    ("x * 2 + 1", "((x * 2) + 1)"),
    ("1 - 2 - 3", "((1 - 2) - 3)"),
    ("12 / 2 % 5", "((12 / 2) % 5)"),
    ("a or b and c", "(a or (b and c))"),
    ("not a and b", "((not a) and b)"),
    ("not a == b", "(not (a == b))"),
    ("a == not b", "(a == (not b))"),
    ("not not a", "(not (not a))"),
    ("a + 1 > b * 2 and c", "(((a + 1) > (b * 2)) and c)"),
    ("-x", "(- x)"),
    ("- -x", "(- (- x))"),
    ("-x * y", "((- x) * y)"),
    ("-5", "-5"),
    ("2 - -5", "(2 - -5)"),
    ("x -5", "(x - 5)"),
    ("-9223372036854775808", "-9223372036854775808"),
    ("1.50", "1.5"),
    (".5", "0.5"),
    ("5.", "5.0"),
    ("1e3", "1000.0"),
    (r"'it\'s'", r"'it\'s'"),
    ('"it\'s"', r"'it\'s'"),
    (r"'back\\slash'", r"'back\\slash'"),
    (r"'\n'", "'n'"),
    ("'two\nlines'", "'two\nlines'"),
    ("'ünï 🎉'", "'ünï 🎉'"),
    ("true and false", "(true and false)"),
    ("x == null", "isnull(x)"),
    ("null == x", "isnull(x)"),
    ("x != null", "(not isnull(x))"),
    ("(x + 1) == null", "isnull((x + 1))"),
    ("null < x", "(null < x)"),
    ("cast(x, i64)", "cast(x, int)"),
    ("cast(x, f64)", "cast(x, float)"),
    ("cast( x+1 , str )", "cast((x + 1), str)"),
    ("isnull(x) or y", "(isnull(x) or y)"),
    ("quadkey(lat, lon, 12)", "quadkey(lat, lon, 12)"),
    ("cast", "cast"),
    ("((((x))))", "x"),
    ("Txn.amount > 3", "(amount > 3)"),
    ("Other.amount", "Other.amount"),
]


@pytest.mark.parametrize(("text", "canonical"), CANONICAL)
def test_a_text_has_one_canonical_form_which_reads_back_alike(text: str, canonical: str) -> None:
    expr = parse(text, "Txn")
    assert render(expr) == canonical
    assert render(parse(canonical)) == canonical
    assert parse(canonical) == expr


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("", 0, "missing at the end"),
        ("   ", 3, "missing at the end"),
        ("x +", 3, "missing at the end"),
        ("+ x", 0, "missing before"),
        ("x y", 2, "operator is missing"),
        ("x 5", 2, "operator is missing"),
        ("'it''s'", 4, "operator is missing"),
        ("(x", 0, "not closed"),
        ("x)", 1, "not opened"),
        ("()", 1, "missing before"),
        ("(a, b)", 2, "between what a call is given"),
        ("a, b", 1, "between what a call is given"),
        ("a < b < c", 6, "not chained"),
        ("a == b != c", 7, "not chained"),
        ("abs(x)", 0, "no function"),
        ("isnull()", 7, "missing before"),
        ("isnull(a, b)", 0, "takes 1 values, not 2"),
        ("quadkey(1, 2)", 0, "takes 3 values, not 2"),
        ("cast(x)", 0, "takes 2 values, not 1"),
        ("cast(x, 'int')", 0, "the name of a type"),
        ("9223372036854775808", 0, "64 bits"),
        ("-9223372036854775809", 1, "64 bits"),
        ("1e400", 0, "finite"),
        ("'open", 0, "no place"),
        ("x & y", 2, "no place"),
        ("x = y", 2, "no place"),
        ("x and", 5, "missing at the end"),
        ("and x", 0, "missing before 'and'"),
        ("'\ud800'", 0, "surrogate"),
    ],
)
def test_what_is_no_expression_is_refused_with_its_place(text: str, position: int, words: str) -> None:
    with pytest.raises(ExpressionError) as refusal:
        parse(text)
    assert refusal.value.position == position
    assert refusal.value.code == "invalid_expression"
    assert words in refusal.value.message


@pytest.mark.parametrize("nested", [lambda n: "(not " * n + "x" + ")" * n, lambda n: "(1 + " * n + "x" + ")" * n])
def test_nesting_ends_at_512(nested: object) -> None:
    text = nested(511)  # type: ignore[operator]
    assert render(parse(text)) == text
    with pytest.raises(ExpressionError, match="nested more than 512"):
        parse(nested(512))  # type: ignore[operator]


def test_brackets_alone_nest_too() -> None:
    assert render(parse("(" * 512 + "x" + ")" * 512)) == "x"
    with pytest.raises(ExpressionError, match="nested more than 512"):
        parse("(" * 513 + "x" + ")" * 513)


def test_a_flat_chain_is_as_deep_as_it_is_long() -> None:
    assert render(parse(" or ".join(["x"] * 512))).count("or") == 511
    with pytest.raises(ExpressionError, match="nested more than 512"):
        parse(" or ".join(["x"] * 513))


def test_an_expression_is_bounded_in_length() -> None:
    with pytest.raises(ExpressionError, match="at most 100000 characters"):
        parse(" " * 100_001)


def test_fields_are_those_it_looks_at() -> None:
    assert fields(parse("a + cast(b, int) > quadkey(c, 1, 2) and isnull(a) or 'd' == e")) == {"a", "b", "c", "e"}
