"""Validation of a query against the search declaration of a stream: all errors, each with its position in the text.

``filter=`` asks for exact values and ranges only; ``_search`` and ``include`` ask for prefixes, words, phrases and
parts of values too. Default fields are asked by bare words and phrases whatever else they can do.
"""

from __future__ import annotations

from collections.abc import Iterator
from reprlib import repr as shown
from typing import Literal

from headrace.query.search import ORDERED, Field, Kind, Search
from headrace.query.tree import Clause, Compare, Contains, Fault, Has, Node, Phrase, Term, clauses
from headrace.query.values import canonical, words

Mode = Literal["filter", "search"]


def check(tree: Node, search: Search, *, mode: Mode) -> list[Fault]:
    """Everything that forbids asking this, from left to right; nothing where the query can be compiled."""
    reasons = ((clause.position, reason) for clause in clauses(tree) for reason in _reasons(clause, search, mode))
    return [Fault(position, reason) for position, reason in reasons]


def _reasons(clause: Clause, search: Search, mode: Mode) -> Iterator[str]:
    if clause.field is not None and clause.field not in search:
        yield f"{shown(clause.field)} is no declared search field or alias{search.hint(clause.field)}"
        return
    match clause:
        case Contains():
            yield from _contains(clause, search, mode)
        case Term(field=None) | Phrase(field=None):
            yield from _bare(clause, search, mode)
        case Clause(field=str(name)):
            yield from _fielded(clause, search[name], mode)


def _fielded(clause: Clause, field: Field, mode: Mode) -> Iterator[str]:
    match clause:
        case Has():
            if not (field.exists or field.exact or field.column or field.kind is Kind.TEXT):
                yield f"{field.name} needs exists, exact or column to be asked by has:"
        case Compare(value=value):
            yield from _range(field, value)
        case Term(prefix=True) | Phrase(prefix=True) if field.kind is not Kind.TEXT:
            yield from _prefix(field, mode)
        case Term(value=value) if field.kind is Kind.TEXT:
            yield from _text(field, value, mode, phrase=False)
        case Phrase(value=value) if field.kind is Kind.TEXT:
            yield from _text(field, value, mode, phrase=True)
        case Term(value=value) | Phrase(value=value):
            yield from _equality(field, value, mode)


def _range(field: Field, value: str) -> Iterator[str]:
    if field.kind not in ORDERED:
        yield f"{field.name} is {_article(field.kind)} field and cannot be compared"
    else:
        if not field.column:
            yield f"{field.name} needs column to be compared"
        yield from _value(field, value)


def _equality(field: Field, value: str, mode: Mode) -> Iterator[str]:
    by_column = field.column and (field.kind is not Kind.KEYWORD or mode == "filter")
    if not (field.exact or by_column):
        yield f"{field.name} needs exact{'' if field.kind is Kind.KEYWORD else ' or column'} to be asked for a value"
    yield from _value(field, value)


def _value(field: Field, value: str) -> Iterator[str]:
    if canonical(field, value) is None:
        yield f"{shown(value)} is no value of {field.name}, {_article(field.kind)} field"


def _prefix(field: Field, mode: Mode) -> Iterator[str]:
    if field.kind is not Kind.KEYWORD:
        yield f"{field.name} is {_article(field.kind)} field and has no prefixes"
    elif mode == "filter":
        yield "a filter knows no prefixes; a star that is part of the value is written \\* between quotes"
    elif not field.prefix:
        yield f"{field.name} needs prefix to be asked for a prefix"


def _text(field: Field, value: str, mode: Mode, *, phrase: bool) -> Iterator[str]:
    if mode == "filter":
        yield f"{field.name} is a text field, which only a search can ask"
        return
    wanted = words(value)
    if not wanted:
        yield f"{shown(value)} holds no word to look for"
    if phrase and len(wanted) > 1 and not field.positions:
        yield f"{field.name} needs positions to be asked for a phrase"


def _bare(clause: Term | Phrase, search: Search, mode: Mode) -> Iterator[str]:
    fields = search.fields_of(clause)
    if mode == "filter":
        yield "every clause of a filter names a field, as in field:value"
    elif not fields:
        yield "a word without a field needs default fields or a text field"
    elif not (words(clause.value) or (clause.value.strip() and any(field.kind is Kind.KEYWORD for field in fields))):
        yield f"{shown(clause.value)} holds no word to look for"


def _contains(clause: Contains, search: Search, mode: Mode) -> Iterator[str]:
    if mode == "filter":
        yield "a filter knows no contains:, only a search does"
        return
    if clause.field is None and not search.contains_fields():
        yield "contains: without a field needs a field that has contains"
    if clause.field is not None and not search[clause.field].contains:
        yield f"{search[clause.field].name} needs contains to be asked by contains:"
    if not clause.value:
        yield "contains: needs a value that is not empty"


def _article(kind: Kind) -> str:
    return f"an {kind}" if kind is Kind.INTEGER else f"a {kind}"
