"""Which hits come first: the scores of many rows at once, and the page of an order.

Scores are the same sums and the same formula as for one document, natively. A page has the first hits of an order that
come after a position, out of candidates that come in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.extract.match.evaluate import Evaluator
from headrace.extract.match.selection import among, between
from headrace.format.companion.postings import Int32s, Mask
from headrace.query.score import STEPS, ScoredClause, Statistics, query_words, saturate
from headrace.query.search import Field, Kind
from headrace.query.sort import Order, SortKey, SortPosition, arrange, follows
from headrace.query.tree import Phrase, Term

Floats = NDArray[np.float64]


def count_rows(statistics: Statistics, evaluator: Evaluator, start: int, stop: int) -> None:
    """Add the events of rows ``start`` to ``stop`` of a companion, but for odd ones."""
    companion = evaluator.companion
    is_complete = start == 0 and stop == companion.end_seq - companion.first_seq
    for field in statistics.fields:
        documents, words = (
            companion.words(field.name) if is_complete else _count_words(evaluator, field.name, start, stop)
        )
        statistics.documents[field.name] += documents
        statistics.words[field.name] += words
    for word in statistics.query_words:
        rows = evaluator.texts.word(word.field, word.text, prefix=word.prefix).rows
        low, high = between(rows, start, stop)
        statistics.document_frequency[word] += high - low


def score_rows(statistics: Statistics, evaluator: Evaluator, rows: Int32s) -> Floats:
    """The score of each of some ascending rows, none of them odd."""
    total = np.zeros(len(rows))
    for weighted in statistics.scoring:
        field_scores = [
            boost * _score_field(statistics, evaluator, weighted, field, rows) for field, boost in weighted.fields
        ]
        if field_scores:
            total += np.maximum.reduce(field_scores)
    return np.rint(total * STEPS) / STEPS


def _count_words(evaluator: Evaluator, field: str, start: int, stop: int) -> tuple[int, int]:
    """How many rows of a part have a value of a text field, and how many words these have."""
    lengths = evaluator.columns.first_values(f"n.{field}", np.arange(start, stop, dtype=np.int32))
    return len(lengths) - lengths.null_count, pc.sum(lengths).as_py() or 0


def _score_field(
    statistics: Statistics, evaluator: Evaluator, weighted: ScoredClause, field: Field, rows: Int32s
) -> Floats:
    """What a clause gives for one field it asks, before the boost."""
    field_scores = np.zeros(len(rows))
    at = np.flatnonzero(among(rows, evaluator.rows(weighted.clause, field)))
    if not len(at):
        return field_scores
    if field.kind is not Kind.TEXT:
        field_scores[at] = 1.0
        return field_scores
    answering = rows[at]
    lengths = evaluator.columns.first_values(f"n.{field.name}", answering).to_numpy(zero_copy_only=False)
    field_scores[at] = _score_text(statistics, evaluator, weighted.clause, field, answering, lengths)
    return field_scores


def _score_text(
    statistics: Statistics,
    evaluator: Evaluator,
    clause: Term | Phrase,
    field: Field,
    rows: Int32s,
    lengths: NDArray[np.int32],
) -> Floats:
    texts, words, average = evaluator.texts, query_words(clause, field), statistics.average(field.name)
    if isinstance(clause, Phrase) and len(words) > 1:
        phrase = texts.phrase(field.name, [word.text for word in words], prefix=clause.prefix)
        weight = sum(map(statistics.idf, words))
        phrase_scores: Floats = weight * saturate(phrase.of(rows), lengths, average)
        return phrase_scores
    total = np.zeros(len(rows))
    for word in words:
        counted = texts.word(word.field, word.text, prefix=word.prefix)
        total += statistics.idf(word) * saturate(counted.of(rows), lengths, average)
    return total


Codes = NDArray[np.int64]


class Sides(NamedTuple):
    """For every candidate whether it comes before a bound, or is equal to it."""

    before: Mask
    equal: Mask


class SortValues:
    """One value for each candidate, in an Arrow array; null is missing, which is greater than all others."""

    def __init__(self, array: Any, *, descending: bool) -> None:
        self._array = array
        self._descending = descending

    def __getitem__(self, chosen: Mask | NDArray[np.integer]) -> SortValues:
        mask = pa.array(chosen)
        array = self._array.filter(mask) if pa.types.is_boolean(mask.type) else self._array.take(mask)
        return SortValues(array, descending=self._descending)

    def sides(self, bound: Any) -> Sides:
        """The candidates before a bound, and those equal to it."""
        missing = self._array.is_null().to_numpy(zero_copy_only=False)
        if bound is None:
            return Sides(np.zeros(len(missing), np.bool_) if self._descending else ~missing, missing)
        if pa.types.is_integer(self._array.type) and not -(2**63) <= bound < 2**63:
            # Of an event that no column can hold: all values are smaller, or greater.
            is_before = (bound > 0) != self._descending
            before = ~missing if is_before else np.zeros(len(missing), np.bool_)
            return Sides(before | missing if self._descending else before, np.zeros(len(missing), np.bool_))
        compare = pc.greater if self._descending else pc.less
        value = pa.scalar(bound, self._array.type)
        # Where there is no value, a descending order begins, an ascending one ends.
        before = compare(self._array, value).fill_null(self._descending).to_numpy(zero_copy_only=False)
        equal = pc.equal(self._array, value).fill_null(False).to_numpy(zero_copy_only=False)
        return Sides(before, equal)

    def codes(self) -> Codes:
        """Numbers in the order of the candidates: the first has the least, equal ones have equal ones."""
        array = self._array
        if pa.types.is_string(array.type):
            codes = _rank(array)
        elif pa.types.is_floating(array.type):
            codes = _order_doubles(array.fill_null(0.0).to_numpy(zero_copy_only=False))
        else:
            codes = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        if array.null_count:
            codes = _with_missing(codes, array.is_null().to_numpy(zero_copy_only=False))
        return ~codes if self._descending else codes

    def to_list(self) -> list[Any]:
        """The values, None where there is none."""
        listed: list[Any] = self._array.to_pylist()
        return listed


def first_candidates(keys: Sequence[Codes], count: int) -> NDArray[np.intp]:
    """The places of so many candidates that come first, in order; earlier keys decide before later ones."""
    pool = np.arange(len(keys[0]))
    chosen = []
    for key in keys:
        if len(pool) <= count:
            break
        codes = key[pool]
        last = np.partition(codes, count - 1)[count - 1]
        ahead = pool[codes < last]
        chosen.append(ahead)
        count -= len(ahead)
        pool = pool[codes == last]
    places = np.concatenate([*chosen, pool[:count]])
    return places[np.lexsort([key[places] for key in reversed(keys)])]


def _rank(strings: Any) -> Codes:
    ranks: Codes = pc.rank(strings, sort_keys="ascending", tiebreaker="dense").to_numpy(zero_copy_only=False)
    return ranks.astype(np.int64)


def _order_doubles(floats: NDArray[np.float64]) -> Codes:
    """Doubles as integers of the same order; both zeros are one."""
    bits = (floats + 0.0).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)


def _with_missing(codes: Codes, missing: Mask) -> Codes:
    """The codes, those of missing values the greatest."""
    greatest = np.int64(2**63 - 1)
    if bool((codes == greatest).any()):  # the greatest of all numbers is a value
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    completed: Codes = np.where(missing, greatest, codes)
    return completed


#: Gives the values of a key for some rows, as an Arrow array.
Lookup = Callable[[SortKey, Int32s], Any]


class HeldHit(NamedTuple):
    """A hit so far: where it stands in the order, and which event it is."""

    position: SortPosition
    seq: int


class Bounds(NamedTuple):
    """What the first key can be in some rows: from, to, and whether it may be missing; None is not known."""

    least: Any
    greatest: Any
    missing: bool


class TopHits:
    """Holds at most ``size`` hits; rows that cannot be among them are not even looked up."""

    def __init__(self, order: Order, after: SortPosition | None, size: int) -> None:
        self._order = order
        self._after = after
        self._size = size
        self._held: list[HeldHit] = []
        self.peak = 0

    @property
    def held(self) -> list[HeldHit]:
        """The hits, in order."""
        return self._held

    def may_take(self, bounds: Bounds | None) -> bool:
        """Whether rows within these bounds could be among the first."""
        if not self._size:
            return False
        if bounds is None or bounds.least is None:
            return True
        key = self._order[0]
        foremost = None if bounds.missing and key.descending else bounds.greatest if key.descending else bounds.least
        hindmost = (
            None if bounds.missing and not key.descending else bounds.least if key.descending else bounds.greatest
        )
        if self._is_full and follows((foremost,), self._held[-1].position[:1], (key,)):
            return False
        return self._after is None or not follows(self._after[:1], (hindmost,), (key,))

    def offer(self, rows: Int32s, first_seq: int, lookup: Lookup) -> None:
        """Take those of some ascending rows that are among the first."""
        if not len(rows) or not self._size:
            return
        leading = SortValues(lookup(self._order[0], rows), descending=self._order[0].descending)
        keep = self._reachable(leading)
        if keep is not None:
            rows, leading = rows[keep], leading[keep]
        columns = [leading, *(SortValues(lookup(key, rows), descending=key.descending) for key in self._order[1:])]
        if self._after is not None:
            keep = _following(columns, self._after)
            rows, columns = rows[keep], [column[keep] for column in columns]
        if not len(rows):
            return
        chosen = first_candidates([column.codes() for column in columns], self._size)
        places = zip(*(column[chosen].to_list() for column in columns), strict=True)
        self._merge(
            [HeldHit(position, first_seq + row) for position, row in zip(places, rows[chosen].tolist(), strict=True)]
        )

    def offer_one(self, held: HeldHit) -> None:
        """Take a hit whose position is known, if it is among the first."""
        if self._size and (self._after is None or follows(held.position, self._after, self._order)):
            self._merge([held])

    @property
    def _is_full(self) -> bool:
        return len(self._held) >= self._size

    def _reachable(self, leading: SortValues) -> Mask | None:
        """The candidates that the first key does not already rule out; None is all."""
        keep: Mask | None = None
        if self._is_full:
            before, equal = leading.sides(self._held[-1].position[0])
            keep = before | equal
        if self._after is not None:
            behind = ~leading.sides(self._after[0]).before
            keep = behind if keep is None else keep & behind
        return keep

    def _merge(self, hits: list[HeldHit]) -> None:
        self._held += hits
        arrange(self._held, self._order, attrgetter("position"))
        del self._held[self._size :]
        self.peak = max(self.peak, len(self._held))


def _following(columns: list[SortValues], after: SortPosition) -> Mask:
    """The candidates that come after a position."""
    behind: Mask | None = None
    tied: Mask | None = None
    for column, bound in zip(columns, after, strict=True):
        before, equal = column.sides(bound)
        later = ~before & ~equal
        behind = later if behind is None or tied is None else behind | (tied & later)
        tied = equal if tied is None else tied & equal
    assert behind is not None, "an order has keys"
    return behind


def sequence(first_seq: int, rows: Int32s) -> Any:
    """The sequence numbers of some rows, as an Arrow array."""
    return pa.array(rows.astype(np.int64) + first_seq)
