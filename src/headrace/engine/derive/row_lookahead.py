"""Rows of tails that lag: the missing events are buffered, indexed by key, and folded onto the row of a read.

Everything here runs on the event loop, and ends at a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic, thread_time
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.engine.derive.generation import Generation, NotReady
from headrace.format.decoded_columns import LruCache
from headrace.reduce.states.definition import Keying, Shapes
from headrace.reduce.states.fold import ROW_OVERHEAD, SPREAD

if TYPE_CHECKING:
    from headrace.engine.derive.tails import Follower
    from headrace.engine.log.stream import Head, Stream
    from headrace.reduce.states.pending_events import PendingEvents


class RowLookahead:
    """Buffers the events that tails lack, up to a limit in bytes; none where rows cannot be folded by key."""

    def __init__(
        self,
        followers: Mapping[tuple[str, str], Follower],
        rows: LruCache,
        keying_of: Callable[[Any], Keying] | None,
        limit_bytes: int,
    ) -> None:
        self._followers = followers
        self._keying_of, self._limit_bytes = keying_of, limit_bytes
        self._ahead = AheadRows(rows)

    def may_gather(self, follower: Follower) -> bool:
        """Whether the events that a tail lacks can be buffered."""
        return self._keying_of is not None and not follower.overflows

    def gather(self, follower: Follower, stream: Stream, head: Head, ends: float) -> bool:
        """Buffer the events that tails lack and index them by key; False where the deadline is over first."""
        assert self._keying_of is not None
        if not follower.gather(stream, head, self._room(follower), ends) or follower.pending is None:
            return False
        keyings = {
            keying.name: keying for keying in map(self._keying_of, (g.defined for g in follower.generations.values()))
        }
        follower.pending.keep_columns(keyings)
        shapes = follower.shapes(head)
        return all(follower.pending.index(keying, shapes, ends) for keying in keyings.values())

    def is_worth_folding(self, follower: Follower, head: Head) -> bool:
        """Whether tails should fold their buffered events."""
        return follower.is_worth_folding(head, self._room(follower))

    def row(self, follower: Follower, generation: Generation, head: Head, key: bytes, ends: float) -> Any:
        """The row of a key as the tail would have it at a head; raises NotReady at the deadline ``ends``."""
        begun = thread_time()
        assert self._keying_of is not None and follower.pending is not None
        keying, shapes = self._keying_of(generation.defined), follower.shapes(head)
        if not follower.pending.index(keying, shapes, ends):
            raise NotReady
        state, is_done = self._ahead.fold(generation, follower.pending, keying, shapes, key, head.next_seq, ends)
        follower.spent_s += thread_time() - begun
        if not is_done:
            raise NotReady
        return state

    def row_lag(self, follower: Follower, generation: Generation, head: Head, key: bytes) -> tuple[int, int]:
        """The greatest lag of the row of a key in events, and the position up to which it is complete."""
        through, pending = self._ahead.through(generation, key), follower.pending
        keying = None if self._keying_of is None else self._keying_of(generation.defined)
        if keying is None or pending is None or not pending.holds(through, head.next_seq):
            return head.next_seq - through, through
        if not pending.index(keying, follower.shapes(head), monotonic()):
            return head.next_seq - through, through
        return len(pending.seqs(keying, key, through, head.next_seq)), through

    def _room(self, follower: Follower) -> int:
        others = (other.pending for other in self._followers.values() if other is not follower)
        return self._limit_bytes - sum(pending.memory for pending in others if pending is not None)


#: About what an event adds to a row in memory, for each of its features.
_EVENT = 32
#: Events that are folded between two looks at the time.
_AT_ONCE = 32


class _Row(NamedTuple):
    """The row of a key as the tail would have it with all events before a position."""

    state: Any
    through: int
    bytes: int


class AheadRows:
    """A cache of rows folded ahead of their tails, bounded in bytes."""

    def __init__(self, rows: LruCache) -> None:
        self._rows = rows

    def through(self, generation: Generation, key: bytes) -> int:
        """The position up to which the events of a key are folded."""
        row: _Row | None = self._rows.get((generation.number, key, "ahead"))
        return generation.position if row is None else max(generation.position, row.through)

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
        """The tail's row of a key with the events before a position, and whether it was complete by the deadline.

        What was done by then is kept, and gone on with the next time.
        """
        cache_key = generation.number, key, "ahead"
        row: _Row | None = self._rows.get(cache_key)
        if row is None or row.through < generation.position:
            state, size = generation.fold.copied(key)
            row = _Row(state, generation.position, size * SPREAD + ROW_OVERHEAD)
        elif row.through == end:
            return row.state, True
        elif row.through > end:
            return self._fold_from_tail(generation, pending, keying, shapes, key, end), True
        seqs = pending.seqs(keying, key, row.through, end)
        for at in range(0, len(seqs), _AT_ONCE):
            slice_seqs = seqs[at : at + _AT_ONCE]
            state = _fold_events(generation, pending, shapes, key, row.state, slice_seqs)
            row = _Row(state, slice_seqs[-1] + 1, row.bytes + _EVENT * len(slice_seqs) * len(generation.defined.lives))
            if monotonic() > ends and at + _AT_ONCE < len(seqs):
                self._rows.put(cache_key, row, row.bytes)
                return row.state, False
        row = row._replace(through=end)
        self._rows.put(cache_key, row, row.bytes)
        return row.state, True

    def _fold_from_tail(
        self, generation: Generation, pending: PendingEvents, keying: Keying, shapes: Shapes, key: bytes, end: int
    ) -> Any:
        """The row at a position before that of the cached row."""
        state, _ = generation.fold.copied(key)
        seqs = pending.seqs(keying, key, generation.position, end)
        return _fold_events(generation, pending, shapes, key, state, seqs)


def _fold_events(
    generation: Generation, pending: PendingEvents, shapes: Shapes, key: bytes, state: Any, seqs: list[int]
) -> Any:
    reducer = generation.fold.reducer
    for seq, at, event in pending.events(seqs, shapes):
        placed = reducer.key_and_row(event)
        if placed is not None and placed[0] == key:
            state = reducer.fold(state, at, seq, placed[1])
    return state
