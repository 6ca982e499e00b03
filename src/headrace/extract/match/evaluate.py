"""A query on one companion: the tree of clauses becomes selections of rows.

Postings are looked up once for the whole companion, columns are compared window by window. Side by side, the cheapest
clause goes first and leaves fewer rows in question for the others.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.extract.match.selection import (
    DENSE,
    Columns,
    Int64s,
    Numbers,
    Selection,
    Window,
    among,
    between,
    rows_in_window,
)
from headrace.extract.match.tally import Tally
from headrace.extract.postings import term
from headrace.format.companion.postings import Int32s, Mask
from headrace.format.companion.reader import CompanionReader
from headrace.query.search import STRINGS, Field, Kind, Search
from headrace.query.sort import Order
from headrace.query.tree import And, Clause, Compare, Contains, Has, Node, Not, Or, Phrase, Term, clauses
from headrace.query.values import canonical, lower, words

VALUE_BITS, WORD_BITS = 12, 20
_WORD = (1 << WORD_BITS) - 1


class RowCounts(NamedTuple):
    """Ascending rows, and how often something occurs in each."""

    rows: Int32s
    times: NDArray[np.intp]

    def of(self, rows: Int32s) -> NDArray[np.intp]:
        """How often in each of some ascending rows, all of which were counted."""
        first, last = int(rows[0]), int(rows[-1])
        if last - first >= DENSE * len(rows):
            return self.times[np.searchsorted(self.rows, rows)]
        low, high = between(self.rows, first, last + 1)
        if high - low == len(rows):
            return self.times[low:high]
        spread = np.zeros(last - first + 1, np.intp)
        spread[self.rows[low:high] - rows[0]] = self.times[low:high]
        times: NDArray[np.intp] = spread[rows - rows[0]]
        return times


class WordLookup:
    """A cache of the look-ups of words in a companion."""

    def __init__(self, companion: CompanionReader) -> None:
        self._companion = companion
        self._occurrences: dict[tuple[str, str, bool], tuple[Int32s, Int32s]] = {}
        self._counted: dict[tuple[str, tuple[str, ...], bool], RowCounts] = {}

    def holding(self, field: str, words: list[str], *, prefix: bool) -> Int32s:
        """The rows with a value that has all the words, the last one as a beginning if ``prefix`` is set."""
        if len(words) == 1:
            return self.word(field, words[0], prefix=prefix).rows
        if not self._companion.fields[field].many:
            return _intersect([self.word(field, word, prefix=at).rows for word, at in _mark_prefix(words, prefix)])
        values = [_once(self._values(field, word, at)) for word, at in _mark_prefix(words, prefix)]
        return _once(_intersect(values) >> VALUE_BITS).astype(np.int32)

    def word(self, field: str, word: str, *, prefix: bool) -> RowCounts:
        """Where a word stands, or any that begins so, and how often."""
        counts = self._counted.get((field, (word,), prefix))
        if counts is None:
            rows = self._companion.occurrence_rows(field, word, prefix=prefix)
            counts = self._counted[field, (word,), prefix] = _count_rows(rows)
        return counts

    def phrase(self, field: str, words: list[str], *, prefix: bool) -> RowCounts:
        """Where words follow each other in a value, and how often."""
        if len(words) == 1:
            return self.word(field, words[0], prefix=prefix)
        counts = self._counted.get((field, tuple(words), prefix))
        if counts is None:
            starts = [
                self._starts(field, word, number, at) for number, (word, at) in enumerate(_mark_prefix(words, prefix))
            ]
            rows = (_intersect(starts) >> (VALUE_BITS + WORD_BITS)).astype(np.int32)
            counts = self._counted[field, tuple(words), prefix] = _count_rows(rows)
        return counts

    def _at(self, field: str, word: str, prefix: bool) -> tuple[Int32s, Int32s]:
        occurrences = self._occurrences.get((field, word, prefix))
        if occurrences is None:
            occurrences = self._companion.occurrences(field, word, prefix=prefix)
            self._occurrences[field, word, prefix] = occurrences
        return occurrences

    def _values(self, field: str, word: str, prefix: bool) -> Int64s:
        """The values with a word: row, then the number of the value in it."""
        rows, positions = self._at(field, word, prefix)
        return (rows.astype(np.int64) << VALUE_BITS) | (positions.view(np.uint32) >> np.uint32(WORD_BITS))

    def _starts(self, field: str, word: str, number: int, prefix: bool) -> Int64s:
        """Where a phrase would begin whose word of this number stands here: row, value, word."""
        rows, positions = self._at(field, word, prefix)
        places = positions.view(np.uint32)
        if number:
            # In its first words a value has no room for those that come before.
            room = (places & np.uint32(_WORD)) >= number
            rows, places = rows[room], places[room]
        return ((rows.astype(np.int64) << (VALUE_BITS + WORD_BITS)) | places) - number


def _mark_prefix(words: list[str], prefix: bool) -> list[tuple[str, bool]]:
    """Every word, and whether it is only a beginning."""
    return [(word, prefix and at == len(words) - 1) for at, word in enumerate(words)]


def _intersect(sets: list[Numbers]) -> Numbers:
    """The numbers that are in all of these ascending arrays."""
    ordered = sorted(sets, key=len)
    least = ordered[0]
    for other in ordered[1:]:
        least = least[among(least, other)]
    return least


def _once(numbers: Int64s) -> Int64s:
    """Ascending numbers, each once."""
    if len(numbers) < 2:
        return numbers
    fresh = np.ones(len(numbers), np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=fresh[1:])
    return numbers[fresh]


def _count_rows(rows: Int32s) -> RowCounts:
    """Ascending rows, each once, and how often each was there."""
    if not len(rows):
        return RowCounts(rows, np.empty(0, np.intp))
    fresh = np.ones(len(rows), np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=fresh[1:])
    starts = np.flatnonzero(fresh)
    return RowCounts(rows[starts], np.diff(starts, append=len(rows)))


class Evaluator:
    """Answers queries of one stream on one companion; odd rows are not among its answers, unless by negation."""

    def __init__(self, companion: CompanionReader, search: Search, tally: Tally | None = None) -> None:
        self.companion = companion
        self._tally = tally or Tally()
        self.texts = WordLookup(companion)
        self.columns = Columns(companion)
        self._search = search
        self._rows: dict[tuple[Clause, str], Int32s] = {}
        self._present: dict[str, Mask] = {}

    @cached_property
    def irregular_rows(self) -> Int32s:
        """The rows that columns cannot describe."""
        return self.companion.irregular_rows()

    def select(self, tree: Node, window: Window) -> Selection:
        """The rows of a window for which a query holds, of those in question."""
        match tree:
            case And(parts=parts):
                left = window.candidates
                for part in sorted(parts, key=_cost):
                    if left is None or len(left):
                        left = self.select(part, window.among(left))
                assert left is not None, "a conjunction has parts"
                return left
            case Or(parts=parts):
                return Selection.union(window.count, [self.select(part, window) for part in parts])
            case Not(part=part):
                every = Selection.every(window.count) if window.candidates is None else window.candidates
                return every - self.select(part, window)
            case Clause():
                fields = self._search.fields_of(tree)
                selection = Selection.union(window.count, [self._clause(tree, field, window) for field in fields])
                return selection if window.candidates is None else window.candidates & selection
        raise TypeError(f"{tree!r} is no query")

    def may_hold(self, tree: Node) -> bool:
        """Whether a query can hold for any row, judged by the postings that are looked up first."""
        match tree:
            case And(parts=parts):
                return self.may_hold(min(parts, key=_cost))
            case Or(parts=parts):
                return any(map(self.may_hold, parts))
            case Clause():
                fields = self._search.fields_of(tree)
                return any(not self._is_posted(tree, field) or len(self.rows(tree, field)) for field in fields)
        return True

    def _clause(self, clause: Clause, field: Field, window: Window) -> Selection:
        if self._is_posted(clause, field):
            return Selection(window.count, rows=rows_in_window(self.rows(clause, field), window.start, window.stop))
        name = f"f.{field.name}"
        match clause:
            case Has():
                return Selection(window.count, mask=self._has_value(field.name)[window.start : window.stop])
            case Compare(operator=sign, value=value):
                return self.columns.comparing(name, sign, canonical(field, value), window)
            case Contains(value=value):
                return self.columns.containing(name, lower(value), window)
            case Term(value=value) | Phrase(value=value):
                return self.columns.comparing(name, "=", canonical(field, value), window)
        raise TypeError(f"{clause!r} is no clause")

    def rows(self, clause: Clause, field: Field) -> Int32s:
        """The rows of a clause that postings answer for one of the fields it asks."""
        rows = self._rows.get((clause, field.name))
        if rows is None:
            with self._tally.timing("fts_decode_ms" if field.kind is Kind.TEXT else "exact_candidate_time_ms"):
                rows = self._rows[clause, field.name] = self._look_up(clause, field)
        return rows

    def _look_up(self, clause: Clause, field: Field) -> Int32s:
        match clause:
            case Contains(value=value):
                return self.companion.rows_containing(field.name, str(canonical(field, value)))
            case Term(value=value, prefix=prefix) | Phrase(value=value, prefix=prefix):
                if field.kind is Kind.TEXT:
                    return self._in_text(clause, field.name, words(value), prefix)
                wanted = canonical(field, value)
                assert wanted is not None, "the query was checked"
                if prefix:
                    return self.companion.rows_with_prefix(field.name, str(wanted))
                return self.companion.rows(field.name, term(wanted))
        raise TypeError(f"{clause!r} is no clause")

    def _in_text(self, clause: Clause, field: str, wanted: list[str], prefix: bool) -> Int32s:
        if not wanted:
            return np.empty(0, np.int32)
        if isinstance(clause, Phrase):
            return self.texts.phrase(field, wanted, prefix=prefix).rows
        return self.texts.holding(field, wanted, prefix=prefix)

    def _has_value(self, field: str) -> Mask:
        mask = self._present.get(field)
        if mask is None:
            mask = self._present[field] = self.companion.present(field)
        return mask

    def _is_posted(self, clause: Clause, field: Field) -> bool:
        """Whether postings answer a clause about a field, and not columns."""
        match clause:
            case Contains():
                return field.kind is not Kind.TEXT
            case Term(prefix=prefix) | Phrase(prefix=prefix):
                return prefix or self.companion.fields[field.name].indexed
        return False


def query_fields(tree: Node, search: Search) -> set[str]:
    """The names of all fields that a query asks."""
    return {field.name for clause in clauses(tree) for field in search.fields_of(clause)}


def families(tree: Node, search: Search, order: Order) -> tuple[str, ...]:
    """Which kinds of an index answer a query in this order: typed columns, exact values, full text."""
    used = {"col"} if any(key.field is not None for key in order) else set()
    for clause in clauses(tree):
        for field in search.fields_of(clause):
            used.add(_family(clause, field))
    return tuple(sorted(used))


def _family(clause: Clause, field: Field) -> str:
    if isinstance(clause, Has | Compare) or not (field.exact or field.kind in STRINGS):
        return "col"
    is_exact = isinstance(clause, Term | Phrase) and not clause.prefix and field.kind is not Kind.TEXT
    return "exact" if is_exact else "fts"


def _cost(tree: Node) -> int:
    """The relative cost of a clause: postings, then marks, then columns, then texts."""
    match tree:
        case And(parts=parts):
            return min(map(_cost, parts))
        case Or(parts=parts):
            return max(map(_cost, parts))
        case Not(part=part):
            return max(2, _cost(part))
        case Has():
            return 1
        case Compare():
            return 2
        case Contains():
            return 3
    return 0
