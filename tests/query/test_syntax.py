from __future__ import annotations

import pytest

from headrace.query.syntax import MAX_CHARACTERS, MAX_CLAUSES, MAX_DEPTH, QuerySyntaxError, parse, text
from headrace.query.tree import And, Compare, Contains, Has, Node, Not, Or, Phrase, Term, clauses

A, B, C = Term(None, "a"), Term(None, "b"), Term(None, "c")


@pytest.mark.parametrize(
    ("query", "tree"),
    [
        ("a", A),
        ("  a  ", A),
        ("(((a)))", A),
        ("a b c", And((A, B, C))),
        ("a AND b and c", And((A, B, C))),
        ("a or b OR c", Or((A, B, C))),
        ("a b OR c", Or((And((A, B)), C))),
        ("a OR b c", Or((A, And((B, C))))),
        ("a (b OR c)", And((A, Or((B, C))))),
        ("(a b) c", And((And((A, B)), C))),
        ("NOT a b", And((Not(A), B))),
        ("-a -b", And((Not(A), Not(B)))),
        ("- -a", Not(Not(A))),
        ("NOT -not a", Not(Not(Not(A)))),
        ("-(a OR b)", Not(Or((A, B)))),
        ("(-5)", Not(Term(None, "5"))),
        ("--5", Not(Not(Term(None, "5")))),
        ("a-b", Term(None, "a-b")),
        ("has:f", Has("f")),
        ('has:"f"', Has("f")),
        ("f:*", Has("f")),
        ("f:=*", Has("f")),
        ('"f g":*', Has("f g")),
        ("-f:*", Not(Has("f"))),
        ("f:v", Term("f", "v")),
        ("f:=v", Term("f", "v")),
        ("f : v", Term("f", "v")),
        ("f:>5", Compare("f", ">", "5")),
        ("f:>=5", Compare("f", ">=", "5")),
        ("f:<5", Compare("f", "<", "5")),
        ("f: <= 5", Compare("f", "<=", "5")),
        ('f:>"5 6"', Compare("f", ">", "5 6")),
        ("f:v*", Term("f", "v", prefix=True)),
        ("f:**", Term("f", "*", prefix=True)),
        ('f:"a b"', Phrase("f", "a b")),
        ('f:"a b*"', Phrase("f", "a b", prefix=True)),
        (r'f:"a b\*"', Phrase("f", "a b*")),
        ('f:"*"', Phrase("f", "*")),
        (r'f:"\"\\\n"', Phrase("f", '"\\n')),
        ('f:""', Phrase("f", "")),
        ('"a b"', Phrase(None, "a b")),
        ("a*", Term(None, "a", prefix=True)),
        ('a"b"', Term(None, 'a"b"')),
        ("f:>v*", Compare("f", ">", "v*")),
        ("é:日本", Term("é", "日本")),
    ],
)
def test_a_query_of_the_shared_grammar_is_read(query: str, tree: Node) -> None:
    assert parse(query) == tree


@pytest.mark.parametrize(
    ("query", "tree"),
    [
        ("f:-5", Term("f", "-5")),
        ("-f:-5", Not(Term("f", "-5"))),
        ("f:>=-3.5e2", Compare("f", ">=", "-3.5e2")),
        ("f:-.5", Term("f", "-.5")),
        ("f:-5 -5", And((Term("f", "-5"), Not(Term(None, "5"))))),
        ("f:2026-03-25T10:00:00Z", Term("f", "2026-03-25T10:00:00Z")),
        ("f:>=2026-03-25T10:00:00.123456+02:00 a", And((Compare("f", ">=", "2026-03-25T10:00:00.123456+02:00"), A))),
        ("(f:<2026-03-25t10:00)", Compare("f", "<", "2026-03-25t10:00")),
        ("f:>2026-03-25", Compare("f", ">", "2026-03-25")),
    ],
)
def test_negative_numbers_and_moments_need_no_quotes_where_a_value_is_expected(query: str, tree: Node) -> None:
    assert parse(query) == tree


@pytest.mark.parametrize(
    ("query", "tree"),
    [
        ("contains:x", Contains(None, "x")),
        ('contains:"a: b"', Contains(None, "a: b")),
        ("contains:f:x", Contains("f", "x")),
        ('contains:f:"x*"', Contains("f", "x*")),
        ('contains:"contains":-1', Contains("contains", "-1")),
        ("contains:2026-03-25T10:00", Contains(None, "2026-03-25T10:00")),
        ("Contains:x", Term("Contains", "x")),
    ],
)
def test_contains_asks_one_field_or_the_default_ones(query: str, tree: Node) -> None:
    assert parse(query) == tree


@pytest.mark.parametrize(
    ("query", "tree"),
    [
        ('"has":1', Term("has", "1")),
        ("HAS:x", Term("HAS", "x")),
        ("and:1 OR or:2", Or((Term("and", "1"), Term("or", "2")))),
        ("a AND and:1", And((A, Term("and", "1")))),
        ("f:and", Term("f", "and")),
        ('"and"', Phrase(None, "and")),
        ("5xx:1", Term("5xx", "1")),
    ],
)
def test_a_field_may_be_named_like_a_keyword(query: str, tree: Node) -> None:
    assert parse(query) == tree
    assert parse(text(tree)) == tree


@pytest.mark.parametrize(
    ("query", "position", "reason"),
    [
        ("", 0, "empty"),
        (" \n ", 0, "empty"),
        ("(a", 2, r"expected '\)', found the end"),
        ("a)", 1, r"found '\)'"),
        ("()", 1, "expected a clause"),
        ("a (b c))", 7, r"found '\)'"),
        ("a AND", 5, "expected a clause, found the end"),
        ("OR a", 0, "expected a clause, found 'OR'"),
        ("a OR OR b", 5, "found 'OR'"),
        ("a AND OR b", 6, "found 'OR'"),
        ("NOT", 3, "expected a clause"),
        ("a -", 3, "expected a clause"),
        ("f:", 2, "'f' needs a value, found the end"),
        ("f:>", 3, "'f' needs a value"),
        ("f:>>5", 3, "found '>'; quote"),
        ("f:(5)", 2, r"found '\('"),
        ("f:-x", 2, "found '-'; quote"),
        ("f:a:b", 3, "found ':'; quote"),
        ("f:10:30", 4, "found ':'; quote"),
        ("f:2026-03-25T10:00:00Zulu", 15, "found ':'; quote"),
        ("has:", 4, "has: needs the name of a field"),
        ("has:(f)", 4, "has: needs the name of a field"),
        ("contains:", 9, "contains: needs a value"),
        ("contains:f:", 11, "after the field"),
        (":x", 0, "expected a clause"),
        ("a = b", 2, "expected a clause, found '='"),
        ('a "bc', 2, "does not end"),
        ('"a\\', 0, "does not end"),
    ],
)
def test_what_is_no_query_is_refused_with_the_place(query: str, position: int, reason: str) -> None:
    with pytest.raises(QuerySyntaxError, match=reason) as refusal:
        parse(query)
    assert refusal.value.position == position
    assert str(refusal.value) == f"{refusal.value.reason} (at character {position})"


def test_every_node_knows_where_it_began() -> None:
    tree = parse('a  NOT f:1 (has:g OR "x y")')
    assert [clause.position for clause in clauses(tree)] == [0, 7, 12, 21]
    assert isinstance(tree, And)
    assert [part.position for part in tree.parts] == [0, 3, 12]


def test_a_query_at_its_limits_is_read() -> None:
    assert len(list(clauses(parse("a " * MAX_CLAUSES)))) == MAX_CLAUSES
    assert parse("(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH) == A
    assert parse(" " * (MAX_CHARACTERS - 1) + "a") == A
    assert parse("(-a) " * 500)


@pytest.mark.parametrize(
    ("query", "position", "reason"),
    [
        ("a " * (MAX_CLAUSES + 1), 2 * MAX_CLAUSES, "clauses"),
        ("(" * 10_000, MAX_DEPTH, "deep"),
        ("NOT " * 5_000 + "a", 4 * MAX_DEPTH, "deep"),
        ("-(" * 5_000 + "a", MAX_DEPTH, "deep"),
        ("a" * (MAX_CHARACTERS + 1), MAX_CHARACTERS, "characters"),
    ],
)
def test_a_query_over_a_limit_is_refused(query: str, position: int, reason: str) -> None:
    with pytest.raises(QuerySyntaxError, match=reason) as refusal:
        parse(query)
    assert refusal.value.position == position


def test_a_refusal_stays_short_whatever_was_asked() -> None:
    with pytest.raises(QuerySyntaxError) as refusal:
        parse("x" * 20_000 + ":")
    assert len(str(refusal.value)) < 120


@pytest.mark.parametrize(
    ("tree", "spelled"),
    [
        (Or((And((A, B)), Not(Or((B, C))))), "a AND b OR NOT (b OR c)"),
        (And((A, And((B, C)))), "a AND (b AND c)"),
        (Compare("f", ">=", "-1"), "f:>=-1"),
        (Compare("f", "<", "a b"), 'f:<"a b"'),
        (Phrase("f", 'say "hi"', prefix=True), r'f:"say \"hi\"*"'),
        (Contains("f", "*"), "contains:f:*"),
        (Term("5xx", "1"), '"5xx":1'),
    ],
)
def test_a_tree_is_spelled_plainly(tree: Node, spelled: str) -> None:
    assert text(tree) == spelled
    assert parse(spelled) == tree
