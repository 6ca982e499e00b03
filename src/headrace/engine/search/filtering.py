"""A filtered read: the events from a position on that match, up to a budget, in the order of the stream.

Companions say which events match; only those are read. Where there is no companion, events are extracted first, and
count as scanned. A read ends when it has scanned enough, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.engine.read import not_representable
from headrace.engine.registry import View
from headrace.engine.search.archive import Archive, Described, Look, Stretch
from headrace.engine.search.columns import Window
from headrace.engine.search.documents import Documents
from headrace.engine.search.evaluate import Evaluator, asked_fields
from headrace.engine.search.filter import Filter, Filtered, Limits
from headrace.engine.search.selection import Selection, within
from headrace.engine.search.tally import Tally
from headrace.engine.search.trying import tried, trusting
from headrace.engine.stream import Head, Stream
from headrace.engine.work.definitions import Defined
from headrace.errors import NotRepresentable
from headrace.format.companion.layout import KEYS, PartName
from headrace.query import predicate
from headrace.types import Piece

_PARTS: tuple[PartName, ...] = ("columns", "postings")


def filtered(
    archive: Archive,
    stream: Stream,
    head: Head,
    defined: Defined,
    position: int,
    asked: Filter,
    key: str | None,
    view: View,
    limits: Limits,
) -> Filtered:
    """The matching events from a position on; at least one where there is one within what may be scanned."""
    return tried(
        archive, stream, head, defined, lambda look: _Read(archive, look, asked, key, view, limits).run(position)
    )


class Candidates(NamedTuple):
    """The events of a piece that match, in order, and odd ones among them, of which their documents have to tell."""

    seqs: list[int]
    odd: set[int]
    stop: int


class _Read:
    """One filtered read on one look."""

    def __init__(
        self, archive: Archive, look: Look, asked: Filter, key: str | None, view: View, limits: Limits
    ) -> None:
        self._archive, self._look, self._view, self._limits = archive, look, view, limits
        self._tree, self._key = asked.tree, key
        self._search = look.defined.definition.search
        self._matches = predicate.compile(asked.tree, self._search)
        self._tally = Tally()
        self._documents = Documents(look, self._tally)
        self._parts: list[Piece] = []
        self._size = self._scanned = 0

    def run(self, position: int) -> Filtered:
        """Go on until something is full, or the stream ends."""
        for seqs, odd, stop in self._pieces(max(position, self._look.start)):
            for seq in seqs:
                if seq in odd and not self._holds(seq):
                    continue
                if self._size >= self._limits.budget or not self._take(seq):
                    return Filtered(self._parts, seq, self._scanned, False)
            if self._scanned >= self._limits.scan_bytes and stop < self._look.stop:
                return Filtered(self._parts, stop, self._scanned, True)
        return Filtered(self._parts, self._look.stop, self._scanned, False)

    def _pieces(self, position: int) -> Iterator[Candidates]:
        for stretch in self._look.stretches(asked_fields(self._tree, self._search)):
            if stretch.stop <= position:
                continue
            wanted = Stretch(max(stretch.start, position), stretch.stop, stretch.companion)
            with (
                trusting(self._archive, stretch),
                self._look.described(wanted, _PARTS, newest_first=False) as pieces,
            ):
                for piece in pieces:
                    if stretch.companion is None:
                        self._scanned += self._look.events.payload_bytes(piece.start, piece.stop)
                    yield self._candidates(piece)

    def _candidates(self, piece: Described) -> Candidates:
        companion = piece.companion
        first = companion.first_seq
        window = Window(piece.start - first, piece.stop - first)
        odd = set(within(companion.odd_rows(), window.start, window.stop).tolist())
        found = Evaluator(companion, self._search, self._tally).select(self._tree, window)
        rows = sorted({*found.rows().tolist(), *odd}) if odd else found.rows().tolist()
        keyed = self._keyed(piece, window)
        seqs = [piece.start + row for row in rows if keyed is None or keyed[row]]
        return Candidates(seqs, {piece.start + row for row in odd}, piece.stop)

    def _keyed(self, piece: Described, window: Window) -> list[bool] | None:
        if self._key is None:
            return None
        rows = within(piece.companion.rows(KEYS, self._key), window.start, window.stop)
        marks: list[bool] = Selection(window.count, rows=rows).mask().tolist()
        return marks

    def _holds(self, seq: int) -> bool:
        event = self._documents.promoted(seq)
        return event is not None and self._matches(event.document())

    def _take(self, seq: int) -> bool:
        """Add an event; False where it has no form in the version asked for, and others come before it."""
        event = self._look.events.get([seq])[seq]
        try:
            payload = self._view.turn(event.payload, event.version)
        except NotRepresentable as failure:
            if self._parts:
                return False
            raise not_representable(self._look.stream, seq, self._view, failure) from failure
        self._parts.append(payload)
        self._size += len(payload) + 1
        return True
