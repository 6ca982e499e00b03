"""When streams need new states: before tails are too long, and before retention removes events."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from headrace.config import FeaturesConfig
from headrace.engine.derive.state_reader import StateReader
from headrace.engine.derive.tail_memory import list_tails
from headrace.engine.log.stream import Stream
from headrace.reduce.states.coverage import history
from headrace.reduce.states.definition import Definition
from headrace.storage.published import Published
from headrace.types import Clock


class StateDemand:
    """Decides whether streams need states; on the event loop."""

    def __init__(self, serving: StateReader[Any], published: Published, clock: Clock, config: FeaturesConfig) -> None:
        self._serving = serving
        self._published = published
        self._clock = clock
        self._fold_rows, self._tail_bytes = config.fold_rows, config.tail_bytes

    @property
    def streams(self) -> Collection[str]:
        """Every stream that something is folded over."""
        return self._serving.current().streams

    def held_from(self, stream: Stream) -> int | None:
        """The first event that is not in states of every life yet: from there on events must be kept."""
        positions = [self._folded_to(defined, stream) for defined in self._serving.over(stream)]
        return min(positions, default=None)

    def wants_states(self, stream: Stream) -> bool:
        """Whether states are waited for: tails are too long, or lives are backfilled, or retention waits."""
        head, count = stream.head, len(list_tails(self._serving))
        for defined in self._serving.over(stream):
            base = self._serving.current_base(defined, stream)
            tail = self._serving.tail_of(defined.name)
            if base.backfilling or head.published_seq - base.start > self._fold_rows:
                return True
            is_long = tail is not None and tail.fold.packed_bytes * count > self._tail_bytes
            if is_long and head.published_seq > base.start:
                return True
        return self.retention_waits(stream)

    def retention_waits(self, stream: Stream) -> bool:
        """Whether events that are not folded yet are kept for longer than they should be."""
        held_from = self.held_from(stream)
        if stream.retention_age_us is None or held_from is None or held_from >= stream.head.published_seq:
            return False
        placed = self._published.holding(stream.id, held_from)
        return placed is not None and placed.segment.min_us < self._clock.now_us() - stream.retention_age_us

    def _folded_to(self, defined: Definition, stream: Stream) -> int:
        listed = self._serving.listed(defined, stream)
        versions = defined.lives.values()
        return min(history(version, listed, stream.head.first_seq)[1] for version in versions)
