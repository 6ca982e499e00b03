"""The reading side of companions: what one in files and one in memory both answer.

Row r is event ``first_seq + r``. Terms and parts are asked for in canonical form (``extract.postings.term``, words and
lower-cased parts as ``query.values`` makes them). Every array of rows is ascending; a position is a pattern of 32 bits,
value ordinal << 20 | word index, to be compared as unsigned (``positions.view(np.uint32)``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.format.companion.layout import FieldShape

Int32s = NDArray[np.int32]
Mask = NDArray[np.bool_]


class ColumnGroup(NamedTuple):
    """Rows [start, stop) of a stored column: bounds of their values, and how many rows have none.

    A bound is None where there is no value, or none that can be said in few bytes: long texts have no bounds.
    """

    start: int
    stop: int
    least: Any
    greatest: Any
    nulls: int


class Rows(Protocol):
    """What a companion answers; KeyError for a field that it does not hold, or not in the form asked for."""

    @property
    def first_seq(self) -> int:
        """The first event."""

    @property
    def end_seq(self) -> int:
        """The event after the last."""

    @property
    def fields(self) -> Mapping[str, FieldShape]:
        """What it can answer for."""

    @property
    def through_version(self) -> int:
        """The greatest schema version among its events."""

    def rows(self, field: str, term: str) -> Int32s:
        """The distinct rows that have a value, or a word of a text."""

    def rows_with_prefix(self, field: str, prefix: str) -> Int32s:
        """The distinct rows that have a value, or a word of a text, that begins so."""

    def rows_containing(self, field: str, part: str) -> Int32s:
        """The distinct rows that have a value with this part; the whole text for a text field."""

    def occurrences(self, field: str, word: str, *, prefix: bool) -> tuple[Int32s, Int32s]:
        """Where a word stands in a text field, or words that begin so: rows and positions, sorted by both."""

    def occurrence_rows(self, field: str, word: str, *, prefix: bool) -> Int32s:
        """The rows of these occurrences, ascending, a row as often as the word stands in it."""

    def present(self, field: str) -> Mask:
        """For every row whether it has a value."""

    def column(self, name: str, group: int) -> Any:
        """A stored column (``f.status``, ``n.message``) of one row group, as an Arrow array."""

    def groups(self, name: str) -> Sequence[ColumnGroup]:
        """The row groups of a stored column, with bounds."""

    def odd_rows(self) -> Int32s:
        """The rows that the columns cannot describe."""

    def words(self, field: str) -> tuple[int, int]:
        """How many events have a value of a text field, and how many words these have, retained or not."""

    def keys(self, after: str | None, limit: int) -> list[str]:
        """The routing keys after this one, ascending, at most so many."""

    def panes(self, rollup: str, interval: int) -> Iterator[Any] | None:
        """The panes of a rollup with this interval in ms, Arrow table by Arrow table, or None where they are not held.

        They are sorted by the start of the pane, across tables too.
        """
