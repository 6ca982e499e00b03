"""Rows of the past by parts: events become states between the moments that are asked for, which are then merged.

So any number of workers can fold a part of the events each, and whoever has the parts of a key tells its rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.reduce.features.definition import Defined
from headrace.reduce.features.event_shapes import Shapes
from headrace.reduce.features.replay import Asked, finished
from headrace.reduce.features.table import Row
from headrace.reduce.states.definition import Told

#: States come before all events.
BEFORE = -(1 << 40)


class Question(msgspec.Struct, frozen=True):
    """Keys and moments, the features that are wanted, and the table as it was defined."""

    features: tuple[str, ...]
    asked: tuple[tuple[bytes, int], ...]
    defined: Defined

    def moments(self) -> dict[bytes, list[int]]:
        """The moments that are asked for, by key, in order."""
        found: dict[bytes, list[int]] = {}
        for key, at_us in sorted(self.asked):
            found.setdefault(key, []).append(at_us)
        return found


class Part(msgspec.Struct, frozen=True):
    """Features that begin with the same states, and the first event to fold after them."""

    features: tuple[str, ...]
    start: int
    states: tuple[str, ...]


class Known(msgspec.Struct, frozen=True):
    """Where to begin, whether nothing is missing since the births of the features, and the first event known of."""

    parts: tuple[Part, ...]
    complete: bool
    since: int


class Piece(NamedTuple):
    """What some events left of a key before one of its moments, packed; pieces of a part go by number and moment."""

    key: bytes
    part: int
    number: int
    moment: int
    packed: dict[str, bytes]


class Pieces:
    """Folds a run of events into pieces."""

    def __init__(self, question: Question, known: Known) -> None:
        self._moments = question.moments()
        self._parts = [(part.start, question.defined.restricted(part.features).reducer) for part in known.parts]
        self._rows: dict[tuple[bytes, int, int], Row] = {}
        self._number: int | None = None

    def fold(self, shapes: Shapes, told: Told) -> None:
        """Go on with some events."""
        self._number = told.first_seq if self._number is None else self._number
        for at, event in enumerate(shapes.events(told.body, told.version)):
            self._add(told.first_seq + at, told.times_us[at], event)

    def _add(self, seq: int, at_us: int, event: dict[str, Any]) -> None:
        for number, (start, reducer) in enumerate(self._parts):
            placed = reducer.place(event) if seq >= start else None
            moments = None if placed is None else self._moments.get(placed[0])
            if placed is None or moments is None or at_us > moments[-1]:
                continue
            mark = placed[0], number, bisect_left(moments, at_us)
            self._rows[mark] = reducer.fold(self._rows.get(mark), placed[1], at_us // 1000, seq)

    def packed(self) -> Iterator[Piece]:
        """Every piece."""
        for (key, part, moment), row in self._rows.items():
            yield Piece(key, part, self._number or 0, moment, self._parts[part][1].pack(row))


def answered(question: Question, known: Known, key: bytes, pieces: Sequence[Piece]) -> list[tuple[int, dict[str, Any]]]:
    """The rows of a key at its moments, given its pieces in order, and their places among everything asked."""
    defined = [question.defined.restricted(part.features) for part in known.parts]
    asked = sorted((at_us, place) for place, (own, at_us) in enumerate(question.asked) if own == key)
    along = [
        _along(one, len(asked), [piece for piece in pieces if piece.part == number])
        for number, one in enumerate(defined)
    ]
    rows = zip(*along, strict=True)
    return [
        (place, finished(defined, found, Asked(key, at_us), question.features))
        for (at_us, place), found in zip(asked, rows, strict=True)
    ]


def _along(defined: Defined, moments: int, pieces: Iterable[Piece]) -> list[Row | None]:
    """What a key has at each of its moments."""
    reducer, found, row = defined.reducer, list[Row | None](), None
    for piece in pieces:
        found += [row] * (piece.moment - len(found))
        part = reducer.unpack(piece.packed)
        row = part if row is None else reducer.merge(row, part)
    return found + [row] * (moments - len(found))
