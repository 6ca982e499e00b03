"""A search: hits out of everything a stream has, in files, in memory and in the log.

Companions are visited in the direction of the order. Rows that its first key rules out are not even evaluated; so a
search for the newest events ends as soon as the page is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine.search import windows
from headrace.engine.search.archive import Archive, Described, Look, Stretch
from headrace.engine.search.best import Best, Bounds, Held, sequence
from headrace.engine.search.columns import Window
from headrace.engine.search.documents import Documents
from headrace.engine.search.evaluate import Evaluator, asked_fields, families
from headrace.engine.search.events import Vanished
from headrace.engine.search.found import Found, Hit, Missing
from headrace.engine.search.scoring import count, scores
from headrace.engine.search.selection import Int32s, Selection, within
from headrace.engine.search.tally import Deadline, Tally
from headrace.engine.stream import Head, Stream
from headrace.engine.work.definitions import Defined
from headrace.errors import BadRequest, CorruptData, NotFound, OffsetGone, Unavailable
from headrace.format import offset as offsets
from headrace.format.companion.layout import PartName
from headrace.query import predicate
from headrace.query.request import SearchRequest
from headrace.query.score import Statistics, scoring
from headrace.query.sort import Order, Place, SortKey
from headrace.query.values import values
from headrace.storage.objects import ObjectMissing
from headrace.storage.streams import LIVE

PARTS: tuple[PartName, ...] = ("columns", "postings")
_TRIES = 5
#: Companions with so many rows together are kept between counting words and computing scores.
_KEPT_ROWS = 4_000_000
#: The part of the time in which words are counted at most.
_COUNTING = 0.6

Visit = Callable[[Described, Deadline], None]


def search(
    archive: Archive, stream: Stream, head: Head, defined: Defined, request: SearchRequest, deadline: Deadline
) -> Found:
    """Find what a request asks for, as of a head; begins again where events vanish meanwhile."""
    after = None if request.after is None else _place(stream, request.order, request.after)
    for _ in range(_TRIES):
        try:
            with archive.look(stream, head, defined) as look:
                return _Search(archive, look, request, after, deadline).run()
        except (Vanished, ObjectMissing) as reason:
            if stream.head.state != LIVE:
                raise NotFound("the stream was deleted", stream=stream.name) from reason
    raise Unavailable("the events of the stream keep moving; try again", retry_after=1, reason="moving")


class _OutOfTime(Exception):
    """The deadline came before everything was looked at."""


class _Search:
    """One search on one look."""

    def __init__(
        self, archive: Archive, look: Look, request: SearchRequest, after: Place | None, deadline: Deadline
    ) -> None:
        self._archive, self._look, self._request, self._deadline = archive, look, request, deadline
        self._search = look.defined.definition.search
        self._order = request.order
        self._backward = request.order[0].descending
        asked = scoring(request.tree, self._search)
        self._has_score = bool(asked)
        self._statistics = Statistics(asked if any(key.is_score for key in self._order) else [])
        self._matches = predicate.compile(request.tree, self._search)
        self._best = Best(self._order, after, request.size)
        self._tally = Tally()
        self._documents = Documents(look, self._tally)
        self._published = look.events.published_until()
        self._total = 0
        self._kept: dict[tuple[int, int], Evaluator] = {}
        self._unseen: list[Stretch] = []

    def run(self) -> Found:
        """Look at everything that matters, as far as the time goes."""
        stretches = self._look.stretches(self._fields())
        stretches = stretches[::-1] if self._backward else stretches
        for stretch in stretches:
            if stretch.companion is not None:
                self._tally.seen_until(self._look.times(stretch.companion))
        timed_out = self._deadline.passed
        if self._statistics.scoring:
            # What is left of the time is for the events whose words were counted.
            stretches = self._walk(stretches, self._deadline.part(_COUNTING), self._count)
        visited = self._walk(stretches, self._deadline, self._visit)
        return self._found(visited, timed_out or bool(self._unseen))

    def _fields(self) -> set[str]:
        return asked_fields(self._request.tree, self._search) | {key.name for key in self._order if key.field}

    # -- the way through the events

    def _walk(self, stretches: list[Stretch], deadline: Deadline, visit: Visit) -> list[Stretch]:
        """Visit companions in the direction of the order; answers what was seen, the rest is noted as unseen."""
        visited: list[Stretch] = []
        for at, stretch in enumerate(stretches):
            left, out_of_time = stretch, False
            try:
                for piece in self._pieces(stretch, deadline):
                    visit(piece, deadline)
                    left = self._without(left, piece)
            except _OutOfTime:
                out_of_time = True
            except CorruptData as reason:
                if stretch.companion is None:
                    raise
                self._archive.distrust(stretch.companion, reason)
                raise Vanished("a companion cannot be read") from reason
            if left.stop - left.start < stretch.stop - stretch.start:
                seen = (left.stop, stretch.stop) if self._backward else (stretch.start, left.start)
                visited.append(Stretch(*seen, stretch.companion))
            if out_of_time:
                self._unseen += [left, *stretches[at + 1 :]]
                break
        return visited

    def _pieces(self, stretch: Stretch, deadline: Deadline) -> Iterator[Described]:
        """The companions of a stretch, until nothing there can come in any more."""
        if not self._is_needed(stretch):
            return
        _check(deadline)
        began = perf_counter()
        with self._look.described(stretch, PARTS, newest_first=self._backward) as pieces:
            self._tally.fts_section_get_ms += (perf_counter() - began) * 1000 if stretch.companion is not None else 0
            left = stretch
            while left.start < left.stop and self._is_needed(left):
                _check(deadline)
                began = perf_counter()
                piece = next(pieces)
                yield piece
                left = self._without(left, piece)
                name = self._timer(stretch, piece)
                setattr(self._tally, name, getattr(self._tally, name) + (perf_counter() - began) * 1000)
                self._tally.seen_until(piece.times)

    def _without(self, stretch: Stretch, piece: Described) -> Stretch:
        """What is left of a stretch after a piece of it."""
        return stretch._replace(stop=piece.start) if self._backward else stretch._replace(start=piece.stop)

    def _is_needed(self, stretch: Stretch) -> bool:
        if self._request.track_total_hits or not self._order[0].is_offset:
            return True
        return self._best.may_take(Bounds(stretch.start, stretch.stop - 1, False))

    def _timer(self, stretch: Stretch, piece: Described) -> str:
        if stretch.companion is not None:
            return "indexed_segment_time_ms"
        return "scanned_tail_time_ms" if piece.stop > self._published else "scanned_segment_time_ms"

    # -- what happens there

    def _count(self, piece: Described, deadline: Deadline) -> None:
        """Count what scores are computed from."""
        first = piece.companion.first_seq
        count(self._statistics, self._evaluator(piece), piece.start - first, piece.stop - first)
        for document in self._odd(piece, deadline).values():
            self._statistics.count(document)

    def _visit(self, piece: Described, deadline: Deadline) -> None:
        """Take what comes in."""
        evaluator = self._evaluator(piece)
        first = piece.companion.first_seq
        start, stop = piece.start - first, piece.stop - first
        odd = piece.companion.odd_rows()
        for window in self._windows(evaluator, start, stop):
            if self._request.track_total_hits or self._best.may_take(self._bounds(evaluator, window)):
                _check(deadline)
                self._select(evaluator, window, within(odd, window.start, window.stop))
        if len(odd) and self._is_needed(Stretch(piece.start, piece.stop, None)):
            for seq, document in self._odd(piece, deadline).items():
                if self._matches(document):
                    self._total += 1
                    self._best.offer_one(Held(tuple(self._value(key, seq, document) for key in self._order), seq))

    def _select(self, evaluator: Evaluator, window: Window, odd: Int32s) -> None:
        selection = evaluator.select(self._request.tree, window)
        if len(odd):
            selection -= Selection(window.count, rows=odd)
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
            return pa.array(scores(self._statistics, evaluator, rows))
        return evaluator.columns.first_values(f"f.{key.name}", rows)

    def _windows(self, evaluator: Evaluator, start: int, stop: int) -> Iterator[Window]:
        key = self._order[0]
        if key.field is None:
            return windows.growing(evaluator.columns.groups("odd"), start, stop, backward=self._backward)
        return windows.by_group(evaluator.columns.groups(f"f.{key.name}"), start, stop, backward=self._backward)

    def _bounds(self, evaluator: Evaluator, window: Window) -> Bounds | None:
        """What the first key can be in a window."""
        key, first = self._order[0], evaluator.companion.first_seq
        if key.is_offset:
            return Bounds(first + window.start, first + window.stop - 1, False)
        if key.is_score:
            return None
        _, group = next(evaluator.columns.touching(f"f.{key.name}", window.start, window.stop))
        return Bounds(group.least, group.greatest, group.nulls > 0)

    def _odd(self, piece: Described, deadline: Deadline) -> dict[int, Any]:
        """The documents of rows that columns cannot describe."""
        first = piece.companion.first_seq
        rows = within(piece.companion.odd_rows(), piece.start - first, piece.stop - first)
        found: dict[int, Any] = {}
        for row in rows.tolist():
            _check(deadline)
            event = self._documents.promoted(piece.start + row)
            if event is not None:
                found[piece.start + row] = event.document()
        return found

    def _value(self, key: SortKey, seq: int, document: Any) -> Any:
        if key.is_offset:
            return seq
        return self._statistics.score(document) if key.field is None else next(iter(values(key.field, document)), None)

    def _evaluator(self, piece: Described) -> Evaluator:
        """An evaluator keeps what it looked up; as many as are small enough are kept for the second look."""
        mark = piece.companion.first_seq, piece.companion.end_seq
        known = self._kept.get(mark)
        if known is not None and known.companion is piece.companion:
            return known
        made = Evaluator(piece.companion, self._search, self._tally)
        if self._statistics.scoring and sum(end - first for first, end in [*self._kept, mark]) <= _KEPT_ROWS:
            self._kept[mark] = made
        return made

    # -- the answer

    def _found(self, visited: list[Stretch], timed_out: bool) -> Found:
        hits = [hit for held in self._best.held if (hit := self._hit(held)) is not None]
        is_full = self._request.size > 0 and len(self._best.held) == self._request.size
        self._note(visited)
        indexed = any(stretch.companion is not None for stretch in visited)
        return Found(
            start=self._look.start,
            stop=self._look.stop,
            hits=hits,
            last=self._wire(self._best.held[-1].place) if is_full else None,
            total=self._total if self._request.track_total_hits and not timed_out else None,
            timed_out=timed_out,
            visible=self._visible(),
            missing=self._missing(),
            tally=self._tally,
            peak_hits_held=self._best.peak,
            fetched_bytes=self._look.events.fetched_bytes,
            families=families(self._request.tree, self._search, self._order) if indexed else (),
        )

    def _hit(self, held: Held) -> Hit | None:
        event = self._documents.promoted(held.seq)
        if event is None:
            return None
        scored = [value for key, value in zip(self._order, held.place, strict=True) if key.is_score]
        score = scored[0] if scored else None if self._has_score else 0.0
        return Hit(held.seq, score, self._wire(held.place), event)

    def _wire(self, place: Place) -> list[Any]:
        stream = self._look.stream
        return [
            stream.offset_at(value + 1) if key.is_offset else value
            for key, value in zip(self._order, place, strict=True)
        ]

    def _note(self, visited: list[Stretch]) -> None:
        for start, stop, companion in visited:
            if companion is not None:
                self._tally.indexed_segments += companion.segments
            else:
                self._tally.scanned_segments += self._look.events.segments_in(start, min(stop, self._published))
                self._tally.scanned_tail_docs += max(0, stop - max(start, self._published))

    def _visible(self) -> int:
        """Where the events end that were seen; those before may have been left out too."""
        start, stop = self._hidden()
        return start if start < stop == self._look.stop else self._look.stop

    def _hidden(self) -> tuple[int, int]:
        """The events that there was no time for; those that were seen lie on one side of them."""
        if not self._unseen:
            return self._look.start, self._look.start
        return min(left.start for left in self._unseen), max(left.stop for left in self._unseen)

    def _missing(self) -> Missing:
        unreadable, (start, stop) = len(self._documents.unreadable), self._hidden()
        if start == stop:
            return Missing(unreadable)
        events = self._look.events
        segments = events.segments_in(start, min(stop, self._published))
        log_rows = max(0, stop - max(start, self._published))
        return Missing(unreadable + stop - start, log_rows, segments, events.appended_us(start))


def _check(deadline: Deadline) -> None:
    if deadline.passed:
        raise _OutOfTime


def _place(stream: Stream, order: Order, given: Place) -> Place:
    """A place as it is compared: offsets as sequence numbers."""
    return tuple(_seq(stream, value) if key.is_offset else value for key, value in zip(order, given, strict=True))


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
