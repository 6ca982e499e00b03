"""The meaning of a query, in plain Python: the reference for all other implementations.

A field with several values matches if any of them does. ``NOT`` is plain negation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from headrace.query.search import Field, Kind, Search
from headrace.query.tree import And, Clause, Compare, Contains, Has, Node, Not, Operator, Or, Phrase, Term
from headrace.query.values import canonical, has_phrase, has_words, lower, values, words

Predicate = Callable[[Any], bool]
Test = Callable[[Any], bool]

_COMPARISONS: dict[Operator, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compile(tree: Node, search: Search) -> Predicate:
    """Whether a document of the newest shape matches; for a tree in which ``check`` found no fault."""
    match tree:
        case And(parts=parts):
            every = [compile(part, search) for part in parts]
            return lambda document: all(holds(document) for holds in every)
        case Or(parts=parts):
            some = [compile(part, search) for part in parts]
            return lambda document: any(holds(document) for holds in some)
        case Not(part=part):
            inner = compile(part, search)
            return lambda document: not inner(document)
        case Clause():
            tests = [(field, value_test(tree, field)) for field in search.fields_of(tree)]
            return lambda document: any(test(value) for field, test in tests for value in values(field, document))
    raise TypeError(f"{tree!r} is no query")


def value_test(clause: Clause, field: Field) -> Test:
    """Whether one canonical value of a field answers a clause."""
    match clause:
        case Has():
            return lambda _: True
        case Compare(operator=sign, value=value):
            compare, bound = _COMPARISONS[sign], canonical(field, value)
            return lambda candidate: compare(candidate, bound)
        case Contains(value=value):
            return _contains(field, value)
        case Term(value=value, prefix=prefix) | Phrase(value=value, prefix=prefix):
            if field.kind is Kind.TEXT:
                return _has_words(words(value), prefix=prefix, phrase=isinstance(clause, Phrase))
            wanted = canonical(field, value)
            return (
                (lambda candidate: candidate.startswith(wanted)) if prefix else (lambda candidate: candidate == wanted)
            )
    raise TypeError(f"{clause!r} is no clause")


def _contains(field: Field, value: str) -> Test:
    if field.kind is Kind.TEXT:
        part = lower(value)
        return lambda candidate: part in lower(candidate)
    wanted = canonical(field, value)
    return lambda candidate: wanted in candidate


def _has_words(wanted: list[str], *, prefix: bool, phrase: bool) -> Test:
    if not wanted:
        return lambda _: False
    has = has_phrase if phrase else has_words
    return lambda candidate: has(words(candidate), wanted, prefix=prefix)
