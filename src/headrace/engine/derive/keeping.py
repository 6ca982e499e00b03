"""Rows of tails that lag: the events that they lack are kept, found by key, and folded onto a row that is asked for.

Everything here runs on the event loop, and ends at a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic, thread_time
from typing import TYPE_CHECKING, Any

from headrace.engine.derive.generation import Behind, Generation
from headrace.format.segment.decoded import DecodedCache
from headrace.reduce.states.definition import Keying

if TYPE_CHECKING:
    from headrace.engine.derive.ahead import Ahead
    from headrace.engine.derive.tails import Follower
    from headrace.engine.log.stream import Head, Stream


class Keeping:
    """The events that the tails of one branch lack, up to so many bytes; none where rows cannot be folded by key."""

    def __init__(
        self,
        followers: Mapping[str, Follower],
        rows: DecodedCache,
        keying_of: Callable[[Any], Keying] | None,
        limit_bytes: int,
    ) -> None:
        self._followers, self._rows = followers, rows
        self._keying_of, self._limit_bytes = keying_of, limit_bytes
        self._ahead: Ahead | None = None

    def may_gather(self, follower: Follower) -> bool:
        """Whether events that a tail lacks can be kept until it folds them."""
        return self._keying_of is not None and not follower.overflows

    def gather(self, follower: Follower, stream: Stream, head: Head, ends: float) -> bool:
        """Keep the events that tails lack, found by the keys of all of them; False where it needs longer."""
        assert self._keying_of is not None
        if not follower.gather(stream, head, self._room(follower), ends) or follower.pending is None:
            return False
        keyings = {one.name: one for one in map(self._keying_of, (g.defined for g in follower.generations.values()))}
        follower.pending.keep_columns(keyings)
        shapes = follower.shapes(head)
        return all(follower.pending.index(one, shapes, ends) for one in keyings.values())

    def is_worth_folding(self, follower: Follower, head: Head) -> bool:
        """Whether tails should fold what is kept for them."""
        return follower.is_worth_folding(head, self._room(follower))

    def row(self, follower: Follower, generation: Generation, head: Head, key: bytes, ends: float) -> Any:
        """What a tail would have of a key at a head; raises Behind where a moment is over before that is folded."""
        begun = thread_time()
        assert self._keying_of is not None and follower.pending is not None
        keying, shapes = self._keying_of(generation.defined), follower.shapes(head)
        if not follower.pending.index(keying, shapes, ends):
            raise Behind
        state, is_done = self._folds_ahead().fold(
            generation, follower.pending, keying, shapes, key, head.next_seq, ends
        )
        follower.spent_s += thread_time() - begun
        if not is_done:
            raise Behind
        return state

    def lacking(self, follower: Follower, generation: Generation, head: Head, key: bytes) -> tuple[int, int]:
        """How many events the row of a key lacks, at most, and the event before which it has all."""
        through, pending = self._folds_ahead().through(generation, key), follower.pending
        keying = None if self._keying_of is None else self._keying_of(generation.defined)
        if keying is None or pending is None or not pending.holds(through, head.next_seq):
            return head.next_seq - through, through
        if not pending.index(keying, follower.shapes(head), monotonic()):
            return head.next_seq - through, through
        return len(pending.seqs(keying, key, through, head.next_seq)), through

    def _room(self, follower: Follower) -> int:
        others = (one.pending for one in self._followers.values() if one is not follower)
        return self._limit_bytes - sum(one.memory for one in others if one is not None)

    def _folds_ahead(self) -> Ahead:
        if self._ahead is None:
            from headrace.engine.derive.ahead import Ahead

            self._ahead = Ahead(self._rows)
        return self._ahead
