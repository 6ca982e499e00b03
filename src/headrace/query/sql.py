"""A query as a DuckDB expression over the columns of events: true exactly where the reference predicate is.

``f.NAME`` holds the canonical values of a field, those of a text field in lower case. ``w.NAME`` holds the words of a
text value with a blank before, between and after, so that words and phrases are parts of it. A column is null where
an event has no value. Where any event has several values, the whole column holds lists. No expression is ever null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.query.search import Field, Kind, Search
from headrace.query.tree import And, Clause, Compare, Contains, Has, Node, Not, Operator, Or, Phrase, Term
from headrace.query.values import Canonical, canonical, lower, words

Test = Callable[[str], str]

_LEAST, _GREATEST = -(2**63), 2**63 - 1


def predicate_sql(tree: Node, search: Search, many: Mapping[str, bool]) -> str:
    """Whether an event matches, for a tree that ``check`` finds no fault in; ``many`` says which columns hold lists."""
    match tree:
        case And(parts=parts):
            return f"({' AND '.join(predicate_sql(part, search, many) for part in parts)})"
        case Or(parts=parts):
            return f"({' OR '.join(predicate_sql(part, search, many) for part in parts)})"
        case Not(part=part):
            return f"(NOT {predicate_sql(part, search, many)})"
        case Clause():
            tests = [_holds(tree, field, many) for field in search.fields_of(tree)]
            return f"({' OR '.join(tests)})" if tests else "false"
    raise TypeError(f"{tree!r} is no query")


def identifier(name: str) -> str:
    """The name of a column or table, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: Canonical) -> str:
    """A constant; an integer must fit into 64 bits, a float must be finite, a string must be Unicode text."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return f"'{value}'::BIGINT"
        case float():
            return f"'{value!r}'::DOUBLE"
    parts = ("'" + part.replace("'", "''") + "'" for part in value.split("\0"))
    return f"({' || chr(0) || '.join(parts)})"


def column(clause: Clause, field: Field) -> str:
    """The column that answers a clause about a field."""
    return f"w.{field.name}" if field.kind is Kind.TEXT and not isinstance(clause, Contains) else f"f.{field.name}"


def _holds(clause: Clause, field: Field, many: Mapping[str, bool]) -> str:
    name = column(clause, field)
    quoted, test = identifier(name), _test(clause, field)
    if isinstance(clause, Has):
        return f"{quoted} IS NOT NULL"
    matches = f"len(list_filter({quoted}, lambda x: {test('x')})) > 0" if many[name] else test(quoted)
    return f"({quoted} IS NOT NULL AND {matches})"


def _test(clause: Clause, field: Field) -> Test:
    """Whether one value answers a clause, as an expression over the value."""
    match clause:
        case Compare(operator=sign, value=value):
            return _compare(sign, canonical(field, value))
        case Contains(value=value):
            return _call("contains", lower(value) if field.kind is Kind.TEXT else canonical(field, value))
        case Term(value=value, prefix=prefix) | Phrase(value=value, prefix=prefix):
            if field.kind is Kind.TEXT:
                return _match_words(words(value), prefix=prefix, phrase=isinstance(clause, Phrase))
            wanted = canonical(field, value)
            return _call("starts_with", wanted) if prefix else _equal(wanted)
    return _always


def _compare(sign: Operator, bound: Canonical | None) -> Test:
    assert isinstance(bound, int | float), "only numbers and dates are compared"
    if isinstance(bound, int) and bound < _LEAST:
        return _always if sign in {">", ">="} else _never
    if isinstance(bound, int) and bound > _GREATEST:
        return _always if sign in {"<", "<="} else _never
    return lambda value: f"{value} {sign} {literal(bound)}"


def _equal(wanted: Canonical | None) -> Test:
    if wanted is None or (isinstance(wanted, int) and not _LEAST <= wanted <= _GREATEST):
        return _never
    return (lambda value: f"{value} = {literal(wanted)}") if _can_be_held(wanted) else _never


def _call(function: str, wanted: Canonical | None) -> Test:
    assert isinstance(wanted, str), "only strings have parts"
    return (lambda value: f"{function}({value}, {literal(wanted)})") if _can_be_held(wanted) else _never


def _match_words(wanted: list[str], *, prefix: bool, phrase: bool) -> Test:
    if not wanted:
        return _never
    end = "" if prefix else " "
    if phrase:
        return _call("contains", f" {' '.join(wanted)}{end}")
    tests = [*(_call("contains", f" {word} ") for word in wanted[:-1]), _call("contains", f" {wanted[-1]}{end}")]
    return lambda value: f"({' AND '.join(test(value) for test in tests)})"


def _can_be_held(wanted: Canonical) -> bool:
    """Whether a column can hold this: half of a surrogate pair is no text."""
    return not isinstance(wanted, str) or not any("\ud800" <= character <= "\udfff" for character in wanted)


def _always(_: str) -> str:
    return "true"


def _never(_: str) -> str:
    return "false"
