"""A search over all events of a stream, in files, in memory and in the log.

Companions are visited in the direction of the order. Rows that its first key rules out are not even evaluated; so a
search for the newest events ends as soon as the page is full.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.deadline import Deadline
from headrace.engine.log.stream import Head, Stream
from headrace.engine.search.archive import Archive, CoveredRange, IndexedRange, SearchSnapshot
from headrace.engine.search.companion_coverage import SearchDefinition
from headrace.engine.search.scan import Documents, Missing, PromotedEvent, Scan
from headrace.errors import BadRequest, OffsetGone
from headrace.extract.match.evaluate import Evaluator, families, query_fields
from headrace.extract.match.selection import Selection, Window, by_group, growing_windows, rows_in_window
from headrace.extract.match.tally import Tally
from headrace.extract.match.top_hits import Bounds, HeldHit, TopHits, count_rows, score_rows, sequence
from headrace.format import offset as offsets
from headrace.format.companion.postings import Int32s
from headrace.query import predicate
from headrace.query.request import SearchRequest
from headrace.query.score import Statistics, scoring_clauses
from headrace.query.sort import Order, SortKey, SortPosition
from headrace.query.values import values

#: Evaluators of companions with so many rows together are kept between counting words and computing scores.
_MAX_KEPT_ROWS = 4_000_000
#: The largest share of the time in which words are counted.
_COUNTING_SHARE = 0.6


class Hit(NamedTuple):
    """An event that matches, with its sort values as on the wire; without a score where the order asks for none."""

    seq: int
    score: float | None
    sort: list[Any]
    event: PromotedEvent


class SearchHits(NamedTuple):
    """The answer to a search in the events from ``start`` to ``stop``; those from ``visible`` on were left out.

    ``total`` is the number of all matches, None where they were not counted. ``last`` are the sort values of the last
    hit of a full page, as on the wire.
    """

    start: int
    stop: int
    hits: list[Hit]
    last: list[Any] | None
    total: int | None
    timed_out: bool
    visible: int
    missing: Missing
    tally: Tally
    peak_hits_held: int = 0
    fetched_bytes: int = 0
    families: tuple[str, ...] = ()


def search(
    archive: Archive, stream: Stream, head: Head, defined: SearchDefinition, request: SearchRequest, deadline: Deadline
) -> SearchHits:
    """Execute a search request as of a head."""
    after = None if request.after is None else _sort_position(stream, request.order, request.after)
    return archive.answer(stream, head, defined, lambda snapshot: _Search(snapshot, request, after, deadline).run())


class _Search:
    """One search in one snapshot."""

    def __init__(
        self, snapshot: SearchSnapshot, request: SearchRequest, after: SortPosition | None, deadline: Deadline
    ) -> None:
        self._snapshot, self._request, self._deadline = snapshot, request, deadline
        self._search = snapshot.defined.definition.search
        self._order = request.order
        self._backward = request.order[0].descending
        scored = scoring_clauses(request.tree, self._search)
        self._has_score = bool(scored)
        self._statistics = Statistics(scored if any(key.is_score for key in self._order) else [])
        self._matches = predicate.compile(request.tree, self._search)
        self._best = TopHits(self._order, after, request.size)
        self._tally = Tally()
        self._documents = Documents(snapshot, self._tally)
        self._scan = Scan(snapshot, self._tally, backward=self._backward, is_needed=self._is_needed)
        self._total = 0
        self._kept: dict[tuple[int, int], Evaluator] = {}

    def run(self) -> SearchHits:
        """Scan all events that can change the answer, until the deadline."""
        try:
            return self._run()
        finally:
            # The scan refers to this search: what both hold would wait for the garbage collector.
            del self._scan

    def _run(self) -> SearchHits:
        ranges = self._snapshot.covered_ranges(self._fields())
        ranges = ranges[::-1] if self._backward else ranges
        for covered in ranges:
            if covered.companion is not None:
                self._tally.seen_until(self._snapshot.times(covered.companion))
        timed_out = self._deadline.passed
        if self._statistics.scoring:
            # What is left of the time is for the events whose words were counted.
            ranges = self._scan.visit(ranges, self._deadline.with_share(_COUNTING_SHARE), self._count)
        visited = self._scan.visit(ranges, self._deadline, self._visit)
        return self._hits(visited, timed_out or self._scan.out_of_time)

    def _fields(self) -> set[str]:
        return query_fields(self._request.tree, self._search) | {key.name for key in self._order if key.field}

    def _is_needed(self, start: int, stop: int) -> bool:
        if self._request.track_total_hits or not self._order[0].is_offset:
            return True
        return self._best.may_take(Bounds(start, stop - 1, False))

    # -- visiting companions

    def _count(self, piece: IndexedRange, deadline: Deadline) -> None:
        """Count the words that scores are computed from."""
        first = piece.companion.first_seq
        evaluator = self._evaluator(piece)
        count_rows(self._statistics, evaluator, piece.start - first, piece.stop - first)
        for document in self._irregular_documents(piece, evaluator, deadline).values():
            self._statistics.count(document)

    def _visit(self, piece: IndexedRange, deadline: Deadline) -> None:
        """Offer the matches of a companion to the top hits."""
        evaluator = self._evaluator(piece)
        first = piece.companion.first_seq
        start, stop = piece.start - first, piece.stop - first
        irregular_rows = evaluator.irregular_rows
        for window in self._windows(evaluator, start, stop):
            if self._request.track_total_hits or self._best.may_take(self._bounds(evaluator, window)):
                deadline.check()
                if not evaluator.may_hold(self._request.tree):
                    break
                self._select(evaluator, window, rows_in_window(irregular_rows, window.start, window.stop))
        if len(irregular_rows) and self._is_needed(piece.start, piece.stop):
            for seq, document in self._irregular_documents(piece, evaluator, deadline).items():
                if self._matches(document):
                    self._total += 1
                    self._best.offer_one(HeldHit(tuple(self._value(key, seq, document) for key in self._order), seq))

    def _select(self, evaluator: Evaluator, window: Window, irregular_rows: Int32s) -> None:
        selection = evaluator.select(self._request.tree, window)
        if len(irregular_rows):
            selection -= Selection(window.count, rows=irregular_rows)
        rows = selection.rows() + np.int32(window.start)
        self._total += len(rows)
        self._tally.candidate_doc_ids += len(rows)
        with self._tally.timing("sort_time_ms"):
            self._best.offer(rows, evaluator.companion.first_seq, lambda key, some: self._column(evaluator, key, some))

    def _column(self, evaluator: Evaluator, key: SortKey, rows: Int32s) -> Any:
        """The values of a key in some rows."""
        if key.is_offset:
            return sequence(evaluator.companion.first_seq, rows)
        if key.is_score:
            return pa.array(score_rows(self._statistics, evaluator, rows))
        return evaluator.columns.first_values(f"f.{key.name}", rows)

    def _windows(self, evaluator: Evaluator, start: int, stop: int) -> Iterator[Window]:
        key = self._order[0]
        if key.field is None:
            return growing_windows(evaluator.columns.groups("odd"), start, stop, backward=self._backward)
        return by_group(evaluator.columns.groups(f"f.{key.name}"), start, stop, backward=self._backward)

    def _bounds(self, evaluator: Evaluator, window: Window) -> Bounds | None:
        """The bounds of the first sort key in a window."""
        key, first = self._order[0], evaluator.companion.first_seq
        if key.is_offset:
            return Bounds(first + window.start, first + window.stop - 1, False)
        if key.is_score:
            return None
        _, group = next(evaluator.columns.touching(f"f.{key.name}", window.start, window.stop))
        return Bounds(group.least, group.greatest, group.nulls > 0)

    def _irregular_documents(self, piece: IndexedRange, evaluator: Evaluator, deadline: Deadline) -> dict[int, Any]:
        """The documents of rows that columns cannot describe."""
        first = piece.companion.first_seq
        rows = rows_in_window(evaluator.irregular_rows, piece.start - first, piece.stop - first)
        events: dict[int, Any] = {}
        for row in rows.tolist():
            deadline.check()
            event = self._documents.get(piece.start + row)
            if event is not None:
                events[piece.start + row] = event.document()
        return events

    def _value(self, key: SortKey, seq: int, document: Any) -> Any:
        if key.is_offset:
            return seq
        return self._statistics.score(document) if key.field is None else next(iter(values(key.field, document)), None)

    def _evaluator(self, piece: IndexedRange) -> Evaluator:
        """The evaluator of a companion: those of small companions are kept for the second visit."""
        key = piece.companion.first_seq, piece.companion.end_seq
        evaluator = self._kept.get(key)
        if evaluator is not None and evaluator.companion is piece.companion:
            return evaluator
        evaluator = Evaluator(piece.companion, self._search, self._tally)
        if self._statistics.scoring and sum(end - first for first, end in [*self._kept, key]) <= _MAX_KEPT_ROWS:
            self._kept[key] = evaluator
        return evaluator

    # -- the answer

    def _hits(self, visited: list[CoveredRange], timed_out: bool) -> SearchHits:
        hits = [hit for held in self._best.held if (hit := self._hit(held)) is not None]
        is_full = self._request.size > 0 and len(self._best.held) == self._request.size
        self._scan.count(visited)
        indexed = any(covered.companion is not None for covered in visited)
        return SearchHits(
            start=self._snapshot.start,
            stop=self._snapshot.stop,
            hits=hits,
            last=self._wire(self._best.held[-1].position) if is_full else None,
            total=self._total if self._request.track_total_hits and not timed_out else None,
            timed_out=timed_out,
            visible=self._scan.visible(),
            missing=self._scan.missing(len(self._documents.unreadable)),
            tally=self._tally,
            peak_hits_held=self._best.peak,
            fetched_bytes=self._snapshot.events.fetched_bytes,
            families=families(self._request.tree, self._search, self._order) if indexed else (),
        )

    def _hit(self, held: HeldHit) -> Hit | None:
        event = self._documents.get(held.seq)
        if event is None:
            return None
        scored = [value for key, value in zip(self._order, held.position, strict=True) if key.is_score]
        score = scored[0] if scored else None if self._has_score else 0.0
        return Hit(held.seq, score, self._wire(held.position), event)

    def _wire(self, position: SortPosition) -> list[Any]:
        stream = self._snapshot.stream
        return [
            stream.offset_at(value + 1) if key.is_offset else value
            for key, value in zip(self._order, position, strict=True)
        ]


def _sort_position(stream: Stream, order: Order, position: SortPosition) -> SortPosition:
    """Sort values as they are compared: offsets as sequence numbers."""
    return tuple(_seq(stream, value) if key.is_offset else value for key, value in zip(order, position, strict=True))


def _seq(stream: Stream, text: str) -> int:
    try:
        offset = offsets.decode(text)
    except ValueError as reason:
        raise BadRequest(f"search_after: {reason}", field="search_after") from reason
    try:
        stream.locate(offset)
    except OffsetGone:
        pass  # what comes after an event does not need the event
    return offset.position - 1
