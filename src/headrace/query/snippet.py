"""Where a text answers a query: a short piece of it, as HTML, with ``<em>`` around what matches.

``&``, ``<`` and ``>`` of the text itself are escaped, so that the only markup is ours whatever an event holds. An
ellipsis stands where the text goes on.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

from headrace.query.predicate import value_test
from headrace.query.search import STRINGS, Field, Kind, Search
from headrace.query.tree import And, Clause, Contains, Node, Or, Phrase, Term
from headrace.query.values import canonical, has_phrase, lower, raw_values, words

LENGTH, BEFORE = 160, 40

Span = tuple[int, int]


def snippets(tree: Node, search: Search, document: Any) -> dict[str, str]:
    """For every field of strings that answers a part of the query: the piece of the value with the most matches."""
    clauses_by_field: dict[str, list[Clause]] = {}
    for clause in _positive_clauses(tree):
        for field in search.fields_of(clause):
            if field.kind in STRINGS:
                clauses_by_field.setdefault(field.name, []).append(clause)
    pieces = {name: _best(search[name], clauses, document) for name, clauses in clauses_by_field.items()}
    return {name: piece for name, piece in pieces.items() if piece is not None}


def _positive_clauses(tree: Node) -> Iterator[Clause]:
    """The clauses that are not below a negation."""
    match tree:
        case And(parts=parts) | Or(parts=parts):
            for part in parts:
                yield from _positive_clauses(part)
        case Term() | Phrase() | Contains():
            yield tree


def _best(field: Field, clauses: list[Clause], document: Any) -> str | None:
    marked = [(text, _marks(field, clauses, text)) for text in raw_values(field, document) if isinstance(text, str)]
    text, marks = max(marked, key=lambda pair: len(pair[1]), default=("", []))
    return _cut_around(text, marks) if marks else None


def _marks(field: Field, clauses: list[Clause], text: str) -> list[Span]:
    """What answers the clauses in one value, in order and without overlaps."""
    spans: list[Span] = []
    value = canonical(field, text)
    for clause in clauses:
        if value_test(clause, field)(value):
            spans += _spans(clause, field, text)
    merged: list[Span] = []
    for start, stop in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged


def _spans(clause: Clause, field: Field, text: str) -> Iterator[Span]:
    match clause:
        case Contains(value=part):
            searched = lower(text) if field.kind is Kind.TEXT or field.lowercase else text
            part = lower(part) if field.kind is Kind.TEXT or field.lowercase else part
            start = searched.find(part)
            while start >= 0:
                yield start, start + len(part)
                start = searched.find(part, start + len(part))
        case Term(value=wanted, prefix=prefix) | Phrase(value=wanted, prefix=prefix) if field.kind is Kind.TEXT:
            yield from _words(text, words(wanted), prefix, isinstance(clause, Phrase))
        case Term(value=wanted) | Phrase(value=wanted):
            yield 0, len(wanted)


def _words(text: str, wanted: list[str], prefix: bool, phrase: bool) -> Iterator[Span]:
    """The words of a text that the query matches; of a phrase only those within it."""
    held = list(_locate_words(text))
    width = len(wanted) if phrase else 1
    complete, beginning = (wanted[:-1], wanted[-1]) if prefix else (wanted, None)
    for at in range(len(held) - width + 1):
        run = held[at : at + width]
        first = run[0][0]
        if phrase:
            answers = has_phrase([word for word, _ in run], wanted, prefix=prefix)
        else:
            answers = first in complete or (beginning is not None and first.startswith(beginning))
        if answers:
            yield from (span for _, span in run)


def _locate_words(text: str) -> Iterator[tuple[str, Span]]:
    """The words of a text and where they stand; lower case moves no letter."""
    lowered, at = lower(text), 0
    for word in words(text):
        start = lowered.index(word, at)
        at = start + len(word)
        yield word, (start, at)


def _cut_around(text: str, marks: list[Span]) -> str:
    """The text around the first mark, with all marks that fit."""
    first = marks[0][0]
    start = 0 if first <= BEFORE else text.find(" ", first - BEFORE, first) + 1 or first - BEFORE
    stop = len(text)
    if stop - start > LENGTH:
        longest = max(start + LENGTH, marks[0][1])
        blank = text.rfind(" ", marks[0][1], longest)
        stop = longest if blank < 0 else blank
    pieces = ["…" if start else ""]
    at = start
    for begin, end in marks:
        if end > stop:
            break
        pieces += [_escape(text[at:begin]), "<em>", _escape(text[begin:end]), "</em>"]
        at = end
    return "".join([*pieces, _escape(text[at:stop]), "…" if stop < len(text) else ""])


def _escape(text: str) -> str:
    return html.escape(text, quote=False)
