"""A scan over the events of a stream, companion by companion, until its deadline.

Odd rows, which columns cannot describe, and hits are read as documents in the newest shape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from time import perf_counter
from typing import Any, NamedTuple

from headrace.deadline import Deadline, OutOfTime
from headrace.engine.search.archive import Archive, CoveredRange, IndexedRange, SearchSnapshot, trusting
from headrace.extract.match.tally import Tally
from headrace.format.companion.layout import PartName
from headrace.query.definition import decode_exact
from headrace.query.search import Field, Search
from headrace.schema.lens.values import LensFailure, Raw, encode_value, find_value_slot, open_container

PARTS: tuple[PartName, ...] = ("columns", "postings")


class Missing(NamedTuple):
    """Events that were not looked at: how many, how many of them in the log, in how many segments, since when."""

    events: int = 0
    log_rows: int = 0
    segments: int = 0
    since_us: int | None = None


Visit = Callable[[IndexedRange, Deadline], None]


class Walk:
    """Goes through the events of a look in one direction, and knows what it left out.

    ``is_needed`` says whether events from a sequence number to another can still matter; in this direction those behind
    them cannot where they do not.
    """

    def __init__(
        self,
        archive: Archive,
        snapshot: SearchSnapshot,
        tally: Tally,
        *,
        backward: bool,
        is_needed: Callable[[int, int], bool],
        parts: Collection[PartName] = PARTS,
    ) -> None:
        self._archive, self._snapshot, self._tally = archive, snapshot, tally
        self._backward, self._is_needed, self._parts = backward, is_needed, parts
        self._published = snapshot.events.published_until()
        self._unseen: list[CoveredRange] = []

    @property
    def out_of_time(self) -> bool:
        """Whether something was left out."""
        return bool(self._unseen)

    def visit(self, stretches: list[CoveredRange], deadline: Deadline, visit: Visit) -> list[CoveredRange]:
        """Visit the companions of stretches that come in this direction; answers what of them was seen."""
        visited: list[CoveredRange] = []
        for at, covered in enumerate(stretches):
            left, out_of_time = covered, False
            try:
                with trusting(self._archive, covered):
                    for piece in self._pieces(covered, deadline):
                        visit(piece, deadline)
                        left = self._without(left, piece)
            except OutOfTime:
                out_of_time = True
            if left.stop - left.start < covered.stop - covered.start:
                seen = (left.stop, covered.stop) if self._backward else (covered.start, left.start)
                visited.append(CoveredRange(*seen, covered.companion))
            if out_of_time:
                self._unseen += [left, *stretches[at + 1 :]]
                break
        return visited

    def note(self, visited: list[CoveredRange]) -> None:
        """Add to the tally what was seen."""
        for start, stop, companion in visited:
            if companion is not None:
                self._tally.indexed_segments += companion.segments
            else:
                self._tally.scanned_segments += self._snapshot.events.segments_in(start, min(stop, self._published))
                self._tally.scanned_tail_docs += max(0, stop - max(start, self._published))

    def leave_out_all(self) -> None:
        """Nothing counts as seen: there was no time to answer for it."""
        self._unseen = [CoveredRange(self._snapshot.start, self._snapshot.stop, None)]

    def visible(self) -> int:
        """Where the events end that were seen; those before may have been left out too."""
        start, stop = self._hidden()
        return start if start < stop == self._snapshot.stop else self._snapshot.stop

    def missing(self, unreadable: int) -> Missing:
        """What was left out, and so many events that cannot be read."""
        start, stop = self._hidden()
        if start == stop:
            return Missing(unreadable)
        events = self._snapshot.events
        segments = events.segments_in(start, min(stop, self._published))
        log_rows = max(0, stop - max(start, self._published))
        return Missing(unreadable + stop - start, log_rows, segments, events.appended_us(start))

    def _pieces(self, covered: CoveredRange, deadline: Deadline) -> Iterator[IndexedRange]:
        """The companions of a stretch, until nothing there can matter any more."""
        if not self._is_needed(covered.start, covered.stop):
            return
        deadline.check()
        began = perf_counter()
        with self._snapshot.described(covered, self._parts, newest_first=self._backward, deadline=deadline) as pieces:
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
        """What is left of a stretch after a piece of it."""
        return covered._replace(stop=piece.start) if self._backward else covered._replace(start=piece.stop)

    def _timer(self, covered: CoveredRange, piece: IndexedRange) -> str:
        if covered.companion is not None:
            return "indexed_segment_time_ms"
        return "scanned_tail_time_ms" if piece.stop > self._published else "scanned_segment_time_ms"

    def _hidden(self) -> tuple[int, int]:
        """The events that there was no time for; those that were seen lie on one side of them."""
        if not self._unseen:
            return self._snapshot.start, self._snapshot.start
        return min(left.start for left in self._unseen), max(left.stop for left in self._unseen)


class Documents:
    """The events of one look in the newest shape; those that no lens carries there are noted."""

    def __init__(self, snapshot: SearchSnapshot, tally: Tally) -> None:
        self._events = snapshot.events
        self._definition = snapshot.defined.definition
        self._tally = tally
        self.unreadable: set[int] = set()

    def promoted(self, seq: int) -> Promoted | None:
        """An event, or None where no lens carries it to the newest shape."""
        event = self._events.get([seq])[seq]
        self._tally.decoded_records += 1
        with self._tally.timing("json_parse_time_ms"):
            try:
                return Promoted(self._definition.promote(event.payload, event.version))
            except LensFailure:
                self.unreadable.add(seq)
                return None


class Promoted(NamedTuple):
    """An event in the newest shape, spelled as it is read."""

    payload: bytes

    def document(self, decode: Callable[[bytes], Any] = decode_exact) -> Any:
        """The event as a value, its numbers with all their digits unless ``decode`` says otherwise."""
        try:
            return decode(self.payload)
        except RecursionError:
            return _opened(self.payload, decode)

    def fields(self, search: Search) -> dict[str, Any]:
        """The values of every search field as they are spelled: one alone, several in an array."""
        root = [Raw(self.payload)]
        given = {name: _spelled(root, field) for name, field in search.fields.items()}
        return {name: values[0] if len(values) == 1 else values for name, values in given.items() if values}


def _spelled(root: list[Any], field: Field) -> list[Raw]:
    """What lies where a field is bound, arrays flattened, in order; null is nothing."""
    place = find_value_slot(root, 0, field.pointer)
    pending = [] if place is None else [place]
    values: list[Raw] = []
    while pending:
        holder, key = pending.pop()
        container = open_container(holder, key)
        if isinstance(container, list):
            pending.extend((container, at) for at in reversed(range(len(container))))
        else:
            values.append(encode_value(holder[key]))
    return [value for value in values if bytes(value) != b"null"]


def _opened(payload: bytes, decode: Callable[[bytes], Any]) -> Any:
    """A document that is nested deeper than the decoder goes, opened level by level."""
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
