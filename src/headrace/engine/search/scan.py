"""A scan over the events of a stream, companion by companion, until its deadline.

Odd rows, which columns cannot describe, and hits are read as documents in the newest shape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from time import perf_counter
from typing import Any, NamedTuple

from headrace.deadline import Deadline, OutOfTime
from headrace.engine.search.archive import CoveredRange, IndexedRange, SearchSnapshot
from headrace.extract.match.tally import Tally
from headrace.format.companion.layout import PartName
from headrace.query.definition import decode_exact
from headrace.query.search import Field, Search
from headrace.schema.lens.values import LensFailure, Raw, encode_value, find_value_slot, open_container

PARTS: tuple[PartName, ...] = ("columns", "postings")


class Missing(NamedTuple):
    """Events that an answer leaves out: how many, how many of them in the log, in how many segments, since when."""

    events: int = 0
    log_rows: int = 0
    segments: int = 0
    since_us: int | None = None


Visit = Callable[[IndexedRange, Deadline], None]


class Scan:
    """Visits the companions of a snapshot in one direction, and records what it left out.

    ``is_needed`` says whether a range of events can still change the answer. Where it cannot, none beyond it in this
    direction can.
    """

    def __init__(
        self,
        snapshot: SearchSnapshot,
        tally: Tally,
        *,
        backward: bool,
        is_needed: Callable[[int, int], bool],
        parts: Collection[PartName] = PARTS,
    ) -> None:
        self._snapshot, self._tally = snapshot, tally
        self._backward, self._is_needed, self._parts = backward, is_needed, parts
        self._published = snapshot.events.published_until()
        self._skipped: list[CoveredRange] = []

    @property
    def out_of_time(self) -> bool:
        """Whether something was left out."""
        return bool(self._skipped)

    def visit(self, ranges: list[CoveredRange], deadline: Deadline, visit: Visit) -> list[CoveredRange]:
        """Visit the companions of ranges, which come in this direction; returns which events were visited."""
        visited: list[CoveredRange] = []
        for at, covered in enumerate(ranges):
            left, out_of_time = covered, False
            try:
                with self._snapshot.archive.guard(covered.companion):
                    for piece in self._pieces(covered, deadline):
                        visit(piece, deadline)
                        left = self._without(left, piece)
            except OutOfTime:
                out_of_time = True
            if left.stop - left.start < covered.stop - covered.start:
                seen = (left.stop, covered.stop) if self._backward else (covered.start, left.start)
                visited.append(CoveredRange(*seen, covered.companion))
            if out_of_time:
                self._skipped += [left, *ranges[at + 1 :]]
                break
        return visited

    def count(self, visited: list[CoveredRange]) -> None:
        """Add the visited events to the tally."""
        for start, stop, companion in visited:
            if companion is not None:
                self._tally.indexed_segments += companion.segments
            else:
                self._tally.scanned_segments += self._snapshot.events.segments_in(start, min(stop, self._published))
                self._tally.scanned_tail_docs += max(0, stop - max(start, self._published))

    def skip_all(self) -> None:
        """Count everything as left out: there was no time to finish the answer."""
        self._skipped = [CoveredRange(self._snapshot.start, self._snapshot.stop, None)]

    def visible(self) -> int:
        """Where the events end that were visited; those before may have been left out too."""
        start, stop = self._skipped_range()
        return start if start < stop == self._snapshot.stop else self._snapshot.stop

    def missing(self, unreadable: int) -> Missing:
        """The events that were left out, and so many that cannot be read."""
        start, stop = self._skipped_range()
        if start == stop:
            return Missing(unreadable)
        events = self._snapshot.events
        segments = events.segments_in(start, min(stop, self._published))
        log_rows = max(0, stop - max(start, self._published))
        return Missing(unreadable + stop - start, log_rows, segments, events.appended_us(start))

    def _pieces(self, covered: CoveredRange, deadline: Deadline) -> Iterator[IndexedRange]:
        """The companions of a range, until none there can change the answer any more."""
        if not self._is_needed(covered.start, covered.stop):
            return
        deadline.check()
        began = perf_counter()
        with self._snapshot.open_range(covered, self._parts, newest_first=self._backward, deadline=deadline) as pieces:
            if covered.companion is not None:
                self._tally.add("fts_section_get_ms", began)
            left = covered
            while left.start < left.stop and self._is_needed(left.start, left.stop):
                deadline.check()
                began = perf_counter()
                piece = next(pieces)
                yield piece
                left = self._without(left, piece)
                self._tally.add(self._timer(covered, piece), began)
                self._tally.seen_until(piece.times)

    def _without(self, covered: CoveredRange, piece: IndexedRange) -> CoveredRange:
        """The rest of a range after a piece of it."""
        return covered._replace(stop=piece.start) if self._backward else covered._replace(start=piece.stop)

    def _timer(self, covered: CoveredRange, piece: IndexedRange) -> str:
        if covered.companion is not None:
            return "indexed_segment_time_ms"
        return "scanned_tail_time_ms" if piece.stop > self._published else "scanned_segment_time_ms"

    def _skipped_range(self) -> tuple[int, int]:
        """The range of events that were left out; those that were visited lie on one side of it."""
        if not self._skipped:
            return self._snapshot.start, self._snapshot.start
        return min(left.start for left in self._skipped), max(left.stop for left in self._skipped)


class Documents:
    """The events of one snapshot in the newest shape."""

    def __init__(self, snapshot: SearchSnapshot, tally: Tally) -> None:
        self._events = snapshot.events
        self._definition = snapshot.defined.definition
        self._tally = tally
        #: Events that no lens carries to the newest shape.
        self.unreadable: set[int] = set()

    def get(self, seq: int) -> PromotedEvent | None:
        """An event, or None where no lens carries it to the newest shape."""
        event = self._events.get([seq])[seq]
        self._tally.decoded_records += 1
        with self._tally.timing("json_parse_time_ms"):
            try:
                return PromotedEvent(self._definition.promote(event.payload, event.version))
            except LensFailure:
                self.unreadable.add(seq)
                return None


class PromotedEvent(NamedTuple):
    """An event in the newest shape, as JSON text."""

    payload: bytes

    def document(self, decode: Callable[[bytes], Any] = decode_exact) -> Any:
        """The event as a value; its numbers keep all their digits unless ``decode`` says otherwise."""
        try:
            return decode(self.payload)
        except RecursionError:
            return _decode_deep(self.payload, decode)

    def fields(self, search: Search) -> dict[str, Any]:
        """The values of every search field as raw JSON: one alone, several in an array."""
        root = [Raw(self.payload)]
        values_by_field = {name: _raw_values(root, field) for name, field in search.fields.items()}
        return {name: values[0] if len(values) == 1 else values for name, values in values_by_field.items() if values}


def _raw_values(root: list[Any], field: Field) -> list[Raw]:
    """The values where a field is bound, arrays flattened, in order; null is left out."""
    slot = find_value_slot(root, 0, field.pointer)
    pending = [] if slot is None else [slot]
    values: list[Raw] = []
    while pending:
        holder, key = pending.pop()
        container = open_container(holder, key)
        if isinstance(container, list):
            pending.extend((container, at) for at in reversed(range(len(container))))
        else:
            values.append(encode_value(holder[key]))
    return [value for value in values if bytes(value) != b"null"]


def _decode_deep(payload: bytes, decode: Callable[[bytes], Any]) -> Any:
    """Decode a document that is nested deeper than the decoder goes, level by level."""
    root: list[Any] = [Raw(payload)]
    pending: list[tuple[Any, Any]] = [(root, 0)]
    while pending:
        holder, key = pending.pop()
        container = open_container(holder, key)
        if isinstance(container, dict):
            pending.extend((container, name) for name in container)
        elif isinstance(container, list):
            pending.extend((container, at) for at in range(len(container)))
        else:
            holder[key] = decode(bytes(holder[key]))
    return root[0]
