"""Rows of keys that are ahead of their tail: folded when they are asked for, from the events that the tail lacks."""

from __future__ import annotations

from time import monotonic
from typing import Any, NamedTuple

from headrace.engine.derive.generation import Generation
from headrace.format.segment.decoded import DecodedCache
from headrace.reduce.states.definition import Keying, Shapes
from headrace.reduce.states.fold import ROW_OVERHEAD, SPREAD
from headrace.reduce.states.pending_events import PendingEvents

#: About what an event adds to a row in memory, for each of its features.
_EVENT = 32
#: Events that are folded between two looks at the time.
_AT_ONCE = 32


class _Row(NamedTuple):
    """What the tail would have of a key if it had folded everything before an event."""

    state: Any
    through: int
    bytes: int


class Ahead:
    """The rows that were asked for last, bounded in bytes."""

    def __init__(self, rows: DecodedCache) -> None:
        self._rows = rows

    def through(self, generation: Generation, key: bytes) -> int:
        """The event before which all of a key are folded."""
        known: _Row | None = self._rows.get((generation.number, key, "ahead"))
        return generation.position if known is None else max(generation.position, known.through)

    def fold(
        self,
        generation: Generation,
        pending: PendingEvents,
        keying: Keying,
        shapes: Shapes,
        key: bytes,
        end: int,
        ends: float,
    ) -> tuple[Any, bool]:
        """The tail's row of a key with everything before an event; and whether that was done by a moment.

        What was done by then is kept, and gone on with the next time.
        """
        mark = generation.number, key, "ahead"
        row: _Row | None = self._rows.get(mark)
        if row is None or row.through < generation.position:
            state, size = generation.fold.copied(key)
            row = _Row(state, generation.position, size * SPREAD + ROW_OVERHEAD)
        elif row.through == end:
            return row.state, True
        elif row.through > end:
            return self._folded_apart(generation, pending, keying, shapes, key, end), True
        seqs = pending.seqs(keying, key, row.through, end)
        for at in range(0, len(seqs), _AT_ONCE):
            some = seqs[at : at + _AT_ONCE]
            state = _folded(generation, pending, shapes, key, row.state, some)
            row = _Row(state, some[-1] + 1, row.bytes + _EVENT * len(some) * len(generation.defined.lives))
            if monotonic() > ends and at + _AT_ONCE < len(seqs):
                self._rows.keep(mark, row, row.bytes)
                return row.state, False
        row = row._replace(through=end)
        self._rows.keep(mark, row, row.bytes)
        return row.state, True

    def _folded_apart(
        self, generation: Generation, pending: PendingEvents, keying: Keying, shapes: Shapes, key: bytes, end: int
    ) -> Any:
        """The same for an earlier event than the row is folded to."""
        state, _ = generation.fold.copied(key)
        seqs = pending.seqs(keying, key, generation.position, end)
        return _folded(generation, pending, shapes, key, state, seqs)


def _folded(
    generation: Generation, pending: PendingEvents, shapes: Shapes, key: bytes, state: Any, seqs: list[int]
) -> Any:
    reducer = generation.fold.reducer
    for seq, at, event in pending.events(seqs, shapes):
        placed = reducer.place(event)
        if placed is not None and placed[0] == key:
            state = reducer.fold(state, placed[1], at, seq)
    return state
