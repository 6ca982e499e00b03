"""A filtered read: the events from a position on that match, up to a budget, in the order of the stream.

Companions say which events match; only those are read. Where there is no companion, events are extracted first, and
count as scanned. A read ends when it has scanned enough or its time is over, and says so. It reads a window at least,
however little time there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.deadline import Deadline, OutOfTime
from headrace.engine.log.read import not_representable
from headrace.engine.log.stream import Head, Stream
from headrace.engine.search.archive import Archive, CoveredRange, IndexedRange, SearchSnapshot
from headrace.engine.search.companion_coverage import SearchDefinition
from headrace.engine.search.scan import Documents
from headrace.errors import NotRepresentable
from headrace.extract.match.evaluate import Evaluator, query_fields
from headrace.extract.match.selection import Selection, Window, growing_windows, rows_in_window
from headrace.extract.match.tally import Tally
from headrace.format.companion.layout import KEYS, PartName
from headrace.format.companion.reader import CompanionReader
from headrace.query import predicate
from headrace.query.filter import Filter, Filtered, Limits
from headrace.schema.view import StreamSchema
from headrace.types import Piece

_PARTS: tuple[PartName, ...] = ("columns", "postings")


def filtered(
    archive: Archive,
    stream: Stream,
    head: Head,
    defined: SearchDefinition,
    position: int,
    condition: Filter,
    key: str | None,
    view: StreamSchema,
    limits: Limits,
    deadline: Deadline,
) -> Filtered:
    """The matching events from a position on; at least one where the limit of scanned bytes allows it."""
    return archive.answer(
        stream,
        head,
        defined,
        lambda snapshot: _Read(snapshot, condition, key, view, limits, deadline).run(position),
    )


class CandidateRows(NamedTuple):
    """The events of a window that match, in order; ``irregular_seqs`` have to be matched by their documents."""

    seqs: list[int]
    irregular_seqs: set[int]
    stop: int


class _Read:
    """One filtered read of one snapshot."""

    def __init__(
        self,
        snapshot: SearchSnapshot,
        condition: Filter,
        key: str | None,
        view: StreamSchema,
        limits: Limits,
        deadline: Deadline,
    ) -> None:
        self._snapshot, self._view, self._limits = snapshot, view, limits
        self._deadline = deadline
        self._tree, self._key = condition.tree, key
        self._search = snapshot.defined.definition.search
        self._matches = predicate.compile(condition.tree, self._search)
        self._tally = Tally()
        self._documents = Documents(snapshot, self._tally)
        self._parts: list[Piece] = []
        self._size = self._scanned = 0

    def run(self, position: int) -> Filtered:
        """Read until a limit is reached, the time is over, or the stream ends."""
        self._deadline.require()
        position = max(position, self._snapshot.start)
        try:
            for seqs, irregular_seqs, stop in self._windows(position):
                for seq in seqs:
                    is_match = seq not in irregular_seqs or self._is_match(seq)
                    if is_match and (self._size >= self._limits.budget or not self._take(seq)):
                        return Filtered(self._parts, seq, self._scanned)
                    position = seq + 1
                    self._deadline.check()
                position = stop
                self._deadline.check()
        except OutOfTime:
            return Filtered(self._parts, position, self._scanned, timed_out=position < self._snapshot.stop)
        return Filtered(self._parts, position, self._scanned, limit_reached=position < self._snapshot.stop)

    def _windows(self, position: int) -> Iterator[CandidateRows]:
        """The candidates from a position on, window by window, up to the end or the limit of scanned bytes."""
        events = self._snapshot.events
        for start, stop, companion in self._snapshot.covered_ranges(query_fields(self._tree, self._search)):
            if stop <= position:
                continue
            wanted = CoveredRange(max(start, position), stop, companion)
            if companion is None:
                left = self._limits.scan_bytes - self._scanned
                if left <= 0 and self._scanned:
                    return
                wanted = wanted._replace(stop=events.end_for_bytes(wanted.start, stop, left))
            with (
                self._snapshot.archive.guard(companion),
                self._snapshot.open_range(wanted, _PARTS, newest_first=False) as pieces,
            ):
                for piece in pieces:
                    if companion is None:
                        self._scanned += events.payload_bytes(piece.start, piece.stop)
                    yield from self._candidates(piece)
            if wanted.stop < stop:
                return

    def _candidates(self, piece: IndexedRange) -> Iterator[CandidateRows]:
        companion = piece.companion
        first = companion.first_seq
        evaluator = Evaluator(companion, self._search, self._tally)
        groups = evaluator.columns.groups("odd")
        for window in growing_windows(groups, piece.start - first, piece.stop - first, backward=False):
            start = first + window.start
            irregular_rows = set(rows_in_window(evaluator.irregular_rows, window.start, window.stop).tolist())
            rows = evaluator.select(self._tree, window).rows().tolist()
            keyed = self._keyed(companion, window)
            seqs = [
                start + row
                for row in (sorted({*rows, *irregular_rows}) if irregular_rows else rows)
                if keyed is None or keyed[row]
            ]
            yield CandidateRows(seqs, {start + row for row in irregular_rows}, first + window.stop)

    def _keyed(self, companion: CompanionReader, window: Window) -> list[bool] | None:
        if self._key is None:
            return None
        rows = rows_in_window(companion.rows(KEYS, self._key), window.start, window.stop)
        marks: list[bool] = Selection(window.count, rows=rows).mask().tolist()
        return marks

    def _is_match(self, seq: int) -> bool:
        event = self._documents.get(seq)
        return event is not None and self._matches(event.document())

    def _take(self, seq: int) -> bool:
        """Add an event; False where it cannot be read in the requested version, and others come before it."""
        event = self._snapshot.events.get([seq])[seq]
        try:
            payload = self._view.turn(event.payload, event.version)
        except NotRepresentable as failure:
            if self._parts:
                return False
            raise not_representable(self._snapshot.stream, seq, self._view, failure) from failure
        self._parts.append(payload)
        self._size += len(payload) + 1
        return True
