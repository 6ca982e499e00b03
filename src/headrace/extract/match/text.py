"""Words and phrases in a text field of one companion: in which rows they stand, and how often."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.extract.match.selection import DENSE, Int32s, Int64s, Numbers, among, between
from headrace.format.companion.rows import Rows

VALUE_BITS, WORD_BITS = 12, 20
_WORD = (1 << WORD_BITS) - 1


class Counted(NamedTuple):
    """Ascending rows, and how often something stands in each."""

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


class Texts:
    """Looks words up in a companion, each once."""

    def __init__(self, companion: Rows) -> None:
        self._companion = companion
        self._occurrences: dict[tuple[str, str, bool], tuple[Int32s, Int32s]] = {}
        self._counted: dict[tuple[str, tuple[str, ...], bool], Counted] = {}

    def holding(self, field: str, words: list[str], *, prefix: bool) -> Int32s:
        """The rows with a value that has all the words, the last one as a beginning where ``prefix`` says so."""
        if len(words) == 1:
            return self.word(field, words[0], prefix=prefix).rows
        if not self._companion.fields[field].many:
            return _common([self.word(field, word, prefix=at).rows for word, at in _marked(words, prefix)])
        values = [_once(self._values(field, word, at)) for word, at in _marked(words, prefix)]
        return _once(_common(values) >> VALUE_BITS).astype(np.int32)

    def word(self, field: str, word: str, *, prefix: bool) -> Counted:
        """Where a word stands, or any that begins so, and how often."""
        known = self._counted.get((field, (word,), prefix))
        if known is None:
            rows = self._companion.occurrence_rows(field, word, prefix=prefix)
            known = self._counted[field, (word,), prefix] = _counted(rows)
        return known

    def phrase(self, field: str, words: list[str], *, prefix: bool) -> Counted:
        """Where words follow each other in a value, and how often."""
        if len(words) == 1:
            return self.word(field, words[0], prefix=prefix)
        known = self._counted.get((field, tuple(words), prefix))
        if known is None:
            starts = [self._starts(field, word, number, at) for number, (word, at) in enumerate(_marked(words, prefix))]
            rows = (_common(starts) >> (VALUE_BITS + WORD_BITS)).astype(np.int32)
            known = self._counted[field, tuple(words), prefix] = _counted(rows)
        return known

    def _at(self, field: str, word: str, prefix: bool) -> tuple[Int32s, Int32s]:
        known = self._occurrences.get((field, word, prefix))
        if known is None:
            known = self._companion.occurrences(field, word, prefix=prefix)
            self._occurrences[field, word, prefix] = known
        return known

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


def _marked(words: list[str], prefix: bool) -> list[tuple[str, bool]]:
    """Every word, and whether it is only a beginning."""
    return [(word, prefix and at == len(words) - 1) for at, word in enumerate(words)]


def _common(sets: list[Numbers]) -> Numbers:
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


def _counted(rows: Int32s) -> Counted:
    """Ascending rows, each once, and how often each was there."""
    if not len(rows):
        return Counted(rows, np.empty(0, np.intp))
    fresh = np.ones(len(rows), np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=fresh[1:])
    starts = np.flatnonzero(fresh)
    return Counted(rows[starts], np.diff(starts, append=len(rows)))
