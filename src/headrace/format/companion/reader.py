"""The interface for reading companions in files and in memory: look-ups in postings and scans of stored columns.

Row r is event ``first_seq + r``. Terms and parts are passed in canonical form (``extract.postings.term``, words and
lower-cased parts as ``query.values`` makes them). Every array of rows is ascending; a position is a pattern of 32 bits,
value ordinal << 20 | word index, to be compared as unsigned (``positions.view(np.uint32)``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.format.companion import postings
from headrace.format.companion.layout import KEYS, CompanionInfo, FieldShape
from headrace.format.companion.postings import NO_ROWS, Int32s, Mask, PostingRun


class ColumnGroup(NamedTuple):
    """Rows [start, stop) of a stored column: bounds of their values, and how many rows have none.

    A bound is None where there is no value, or none that can be said in few bytes: long texts have no bounds.
    """

    start: int
    stop: int
    least: Any
    greatest: Any
    nulls: int


class CompanionReader(ABC):
    """Look-ups in a companion; KeyError for a field that it does not hold, or not in the requested form."""

    def __init__(self, info: CompanionInfo) -> None:
        self.info = info
        self.first_seq, self.end_seq = info.first_seq, info.end_seq
        self.through_version = info.through_version
        self.fields: Mapping[str, FieldShape] = info.fields

    @abstractmethod
    def _runs(
        self, field: str, low: str, beyond: Callable[[str], bool], *, exact: bool = False
    ) -> Iterator[PostingRun]:
        """The runs of a field in order that may hold terms from ``low`` on, up to one that begins beyond.

        Where ``low`` exactly is wanted, those are left out that are known not to hold it.
        """

    @abstractmethod
    def column(self, name: str, group: int) -> Any:
        """A stored column (``f.status``, ``n.message``) of one row group, as an Arrow array."""

    @abstractmethod
    def groups(self, name: str) -> Sequence[ColumnGroup]:
        """The row groups of a stored column, with bounds."""

    @abstractmethod
    def panes(self, rollup: str, interval: int) -> Iterator[Any] | None:
        """The panes of a rollup with this interval in ms, Arrow table by Arrow table, or None where they are not held.

        They are sorted by the start of the pane, across tables too.
        """

    def rows(self, field: str, term: str) -> Int32s:
        """The distinct rows that have a value, or a word of a text."""
        rows = postings.concatenate(self._term_rows(field, term))
        return postings.drop_repeats(rows) if self._is_text(field) else rows

    def rows_with_prefix(self, field: str, prefix: str) -> Int32s:
        """The distinct rows that have a value, or a word of a text, that begins so."""
        self._must_be_indexed(field)
        runs = self._runs(field, prefix, _beyond(prefix))
        return postings.distinct((run.rows(postings.prefix_span(run.terms, prefix)) for run in runs), self.info.count)

    def rows_containing(self, field: str, part: str) -> Int32s:
        """The distinct rows that have a value with this part; the whole text for a text field."""
        if not postings.is_unicode(part):
            return NO_ROWS
        if not self._is_text(field) or part.isalnum():
            return self._with_terms_containing(field, part)
        return self._scan_texts(f"f.{field}", part, self._may_contain(field, part))

    def occurrences(self, field: str, word: str, *, prefix: bool) -> tuple[Int32s, Int32s]:
        """Where a word stands in a text field, or words that begin so: rows and positions, sorted by both."""
        occurrences = [run.occurrences(span) for run, span in self._of_word(field, word, prefix)]
        rows, positions = (postings.concatenate(part) for part in zip((NO_ROWS, NO_ROWS), *occurrences, strict=True))
        return postings.sort_occurrences(rows, positions) if prefix else (rows, positions)

    def occurrence_rows(self, field: str, word: str, *, prefix: bool) -> Int32s:
        """The rows of these occurrences, ascending, a row as often as the word stands in it."""
        rows = postings.concatenate(run.rows(span) for run, span in self._of_word(field, word, prefix))
        return np.sort(rows) if prefix else rows

    def present(self, field: str) -> Mask:
        """For every row whether it has a value."""
        name = f"{'n' if self._is_text(field) else 'f'}.{field}"
        mask = np.zeros(self.info.count, np.bool_)
        for number, group in enumerate(self.groups(name)):
            if group.nulls == 0:
                mask[group.start : group.stop] = True
            elif group.nulls < group.stop - group.start:
                mask[group.start : group.stop] = self.column(name, number).is_valid().to_numpy(zero_copy_only=False)
        return mask

    def irregular_rows(self) -> Int32s:
        """The rows that the columns cannot describe."""
        if not self.info.odd:
            return NO_ROWS
        mask = np.zeros(self.info.count, np.bool_)
        for number, group in enumerate(self.groups("odd")):
            if group.greatest:
                mask[group.start : group.stop] = self.column("odd", number).to_numpy(zero_copy_only=False)
        return postings.as_rows(mask)

    def words(self, field: str) -> tuple[int, int]:
        """How many events have a value of a text field, and how many words these have, retained or not."""
        return self.info.words[field]

    def keys(self, after: str | None, limit: int) -> list[str]:
        """The routing keys after this one, ascending, at most so many."""
        self._must_be_indexed(KEYS)
        keys: dict[str, None] = {}
        for run in self._runs(KEYS, after or "", lambda _: False):
            start = 0 if after is None else postings.exact_span(run.terms, after)[1]
            while start < len(run.terms) and len(keys) < limit:
                keys.update(dict.fromkeys(run.terms.slice(start, limit - len(keys)).to_pylist()))
                start += limit
            if len(keys) >= limit:
                break
        return list(keys)[:limit]

    def _of_word(self, field: str, word: str, prefix: bool) -> Iterator[tuple[PostingRun, postings.Span]]:
        """The runs that may hold a word of a text field, or words that begin so, and where in each they stand."""
        if not self._is_text(field):
            raise KeyError(f"{field} is no text field: its values have no positions")
        beyond, span = (_beyond(word), postings.prefix_span) if prefix else (word.__lt__, postings.exact_span)
        for run in self._runs(field, word, beyond, exact=not prefix):
            yield run, span(run.terms, word)

    def _term_rows(self, field: str, term: str) -> Iterator[Int32s]:
        """The lists of a term; they follow each other."""
        self._must_be_indexed(field)
        for run in self._runs(field, term, term.__lt__, exact=True):
            span = postings.exact_span(run.terms, term)
            if span[0] < span[1]:
                yield run.rows(span)

    def _with_terms_containing(self, field: str, part: str) -> Int32s:
        self._must_be_indexed(field)
        runs = self._runs(field, "", lambda _: False)
        return postings.distinct((run.containing(part) for run in runs), self.info.count)

    def _may_contain(self, field: str, part: str) -> Int32s:
        """The rows of a text field that have words with every run of letters and digits in the part.

        Words are such runs, so no other row can contain it; and one that is such a run itself is in some word.
        """
        mask = np.ones(self.info.count, np.bool_)
        for piece in {"".join(run) for is_word, run in groupby(part, str.isalnum) if is_word}:
            having = np.zeros(self.info.count, np.bool_)
            having[self._with_terms_containing(field, piece)] = True
            mask &= having
        return postings.as_rows(mask)

    def _scan_texts(self, name: str, part: str, rows: Int32s) -> Int32s:
        """Those of some rows of a column of texts, or lists of texts, that have this part."""
        matches = []
        for number, group in enumerate(self.groups(name)):
            inside = rows[np.searchsorted(rows, group.start) : np.searchsorted(rows, group.stop)]
            if len(inside):
                texts = self.column(name, number).take(pa.array(inside - group.start))
                matches.append(inside[postings.containing(texts, part)])
        return postings.concatenate(matches)

    def _is_text(self, field: str) -> bool:
        return field != KEYS and self.fields[field].kind == "text"

    def _must_be_indexed(self, field: str) -> None:
        if not (self.info.keys if field == KEYS else self.fields[field].indexed):
            raise KeyError(f"there are no postings of {field or 'routing keys'}")


def _beyond(prefix: str) -> Callable[[str], bool]:
    """Whether a term comes after all that begin so."""
    return lambda term: term[: len(prefix)] > prefix
